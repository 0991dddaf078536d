"""Exceptions of the host agent. Every text says what happened and what to do about it.

The first argument is always the text, and the attributes are keyword arguments with defaults, so that each exception
survives pickling on its way from a worker process to its launcher.
"""

from __future__ import annotations


class WiresumError(RuntimeError):
    """The base of all errors of Wiresum."""


class JoinError(WiresumError):
    """This worker was not admitted to its job."""

    def __init__(self, text: str, *, code: str = "UNKNOWN") -> None:
        super().__init__(text)
        self.code = code
        """The name of a `grpc.StatusCode`: the conditions are listed in `wiresum/join/join.proto`."""


class WorkerLostError(WiresumError):
    """Another worker of the job died, or fell silent."""

    def __init__(self, text: str, *, rank: int = -1, host_name: str = "", address: str = "") -> None:
        super().__init__(text)
        self.rank = rank
        self.host_name = host_name
        """The host name that the lost worker reported: any text."""
        self.address = address
        """The address of the lost worker's data sockets, as the service verified it."""


class SwitchUnreachableError(WiresumError):
    """The switch, or the join service beside it, does not answer any more."""

    def __init__(self, text: str, *, translated: str = "") -> None:
        super().__init__(text)
        self.translated = translated
        """The part of the text that says which worker's address something on the way may translate; empty: none's."""


class DivergedError(WiresumError):
    """The workers called different collectives, or the same ones in a different order."""

    WORDS = "call different collectives"
    """Each text contains these words, and so does the reason that the other workers get."""

    def __init__(self, text: str, *, number: int = 0) -> None:
        super().__init__(text)
        self.number = number
        """The number of the collective at which this worker found out: 16 bits, as Operation.number."""


class ImpossibleSumError(WiresumError):
    """A sum came back that the job's workers cannot have made."""

    WHY = "a worker of the job or its switch sends wrong words, or something between them alters packets"


class WrongSumError(WiresumError):
    """A check word showed a wrong sum, and the repeated sum was wrong, too (AgentConfig.check_word)."""


class CollectiveTimeoutError(WiresumError):
    """A collective did not complete in time."""

    def __init__(self, text: str, *, number: int = 0, why: str = "") -> None:
        super().__init__(text)
        self.number = number
        """The number of the collective: 16 bits, as Operation.number."""
        self.why = why
        """The part of the text that says who lags."""


class SessionClosedError(WiresumError):
    """The operation was submitted to, or pending in, a session that has been closed."""


class JobAbortedError(WiresumError):
    """Somebody else ended the job."""

    def __init__(self, text: str, *, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class WorkerLeftError(JobAbortedError):
    """Another worker left the job in an orderly way, so that no collective can complete any more."""

    def __init__(self, text: str, *, reason: str = "", rank: int = -1, host_name: str = "", address: str = "") -> None:
        super().__init__(text, reason=reason)
        self.rank = rank
        self.host_name = host_name
        """The host name that the worker reported: any text."""
        self.address = address
        """The address of the worker's data sockets, as the service verified it."""
