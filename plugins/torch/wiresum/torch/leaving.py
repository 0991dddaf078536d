"""How many of Gloo's collectives a worker had finished when it left in an orderly way.

Collectives in the network cannot complete without that worker. Gloo's can if it has done its part, for example if it
has sent its input of a gather. So before a worker leaves, it publishes in the group's store how many of Gloo's
collectives it has finished; they have the same numbers at all workers.
"""

from __future__ import annotations

import contextlib
import threading

from torch._C._distributed_c10d import Store


class Departures:
    """Who has left. A thread asks the store, since a request that waits for a key blocks all others, perhaps
    for long."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store, self._rank = store, rank
        self._lock = threading.Lock()
        self._asked = False
        self._answered = threading.Event()
        self._finished = 0

    def say(self, finished: int) -> None:
        """Publishes, for a worker that is about to leave, how many of Gloo's collectives it has finished."""
        with contextlib.suppress(RuntimeError):  # the store's host has left
            self._store.set(str(self._rank), str(finished))

    def finished_by(self, rank: int, wait_s: float) -> int | None:
        """How many of Gloo's collectives the first worker that left had finished. 0 if it did not say; None if the
        store has not answered yet. Waits for `wait_s` at most."""
        with self._lock:
            if not self._asked:
                self._asked = True
                threading.Thread(target=self._ask, args=(rank,), name="wiresum-leaving", daemon=True).start()
        return self._finished if self._answered.wait(wait_s) else None

    def _ask(self, rank: int) -> None:
        # A clone of the store will not do: if the store's host has left, a clone tries to connect for long.
        with contextlib.suppress(RuntimeError, ValueError):
            if self._store.check([str(rank)]):
                self._finished = int(self._store.get(str(rank)))
        self._answered.set()
