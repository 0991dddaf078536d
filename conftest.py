"""For all tests: a shell that runs them in its background has them ignore Ctrl-C, and so would the programs that they
start. How patient they are is measured before anything that waits is imported."""

import os
import signal

from wiresum_lab import slowness

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # several files run at once, and mostly wait
slowness.share()
pytest_plugins = ["wiresum_lab.suite.plugin", "wiresum_lab.suite.seeds"]
