"""The process that joins and attends for programs in other languages: `libwiresum` starts it.

One sidecar serves all sessions of one process, over socket pairs: one brings a socket for each new session, and each
session has its own. When the first closes, the worker's process has ended, whichever way, and the sidecar ends the jobs
that were not left. When the sidecar ends, the worker's sessions find their sockets closed and fail.

`lines.py` says how they talk, `service.py` about what.
"""

from wiresum.agent.sidecar.process import main

__all__ = ["main"]
