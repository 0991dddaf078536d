"""For all tests: a shell that runs them in its background has them ignore Ctrl-C, and so would the programs that they
start."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
