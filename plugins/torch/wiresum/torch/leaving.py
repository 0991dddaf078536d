"""How far a worker had come that has left in an orderly way, so that the others know what still needs it.

Nothing in the network can complete without it. Of Gloo's collectives those can that it has done its part of: a gather,
for one, that it had sent to. So who leaves says in the group's store how many of these it has finished, which are
numbered alike at all workers, and only then leaves.
"""

from __future__ import annotations

import contextlib
import threading

from torch._C._distributed_c10d import Store

ANSWER_S_MAX = 2.0


class Departures:
    """A thread asks the store, which may take long to answer: a caller that waits for a key has it for itself."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store, self._rank = store, rank
        self._lock = threading.Lock()
        self._asked = False
        self._answered = threading.Event()
        self._finished = 0

    def say(self, finished: int) -> None:
        """For a worker that is about to leave, and has finished so many of Gloo's collectives."""
        with contextlib.suppress(RuntimeError):  # the store's host has left
            self._store.set(str(self._rank), str(finished))

    def finished_by(self, rank: int, wait_s: float = ANSWER_S_MAX) -> int | None:
        """How many the worker had finished, of which only the first one that left can be asked for. 0 if it does not
        say; None if the store has not answered yet."""
        with self._lock:
            if not self._asked:
                self._asked = True
                threading.Thread(target=self._ask, args=(rank,), name="wiresum-leaving", daemon=True).start()
        return self._finished if self._answered.wait(wait_s) else None

    def _ask(self, rank: int) -> None:
        # Not by a clone, which would try to connect for long, where the store's host was the one that left.
        with contextlib.suppress(RuntimeError, ValueError):
            if self._store.check([str(rank)]):
                self._finished = int(self._store.get(str(rank)))
        self._answered.set()
