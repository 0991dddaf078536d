"""How the members of a group find each other when it is reconfigured (PyTorch 2.14).

PyTorch hands the handles of those that go on to each of them. A handle names a store that its member has, and they meet
at that of the new rank 0. So nobody who does not go on is needed, nor the store with which the group was made, and
programs that began apart from each other, as torchft's do, can make a group.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from wiresum.torch.gloo import address_of
from wiresum.torch.options import Options

_HANDLE = re.compile(r"wiresum:(\d{1,9}):([0-9a-f]{16}):([\w.%:-]{1,253}):(\d{1,5})", re.ASCII)
_SHOWN = 80
"""How many characters an error shows of what is no handle."""


class Handle(NamedTuple):
    rank: int
    """The member's rank in the default group when its program began."""
    name: str
    """It is random: a program that was started again is another member."""
    host: str
    port: int

    def __str__(self) -> str:
        return f"wiresum:{self.rank}:{self.name}:{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Handle:
        if (found := _HANDLE.fullmatch(text)) is None or int(found[4]) > 0xFFFF:
            raise ValueError(f"this is no handle of the wiresum backend: {text[:_SHOWN]!r}")
        return cls(int(found[1]), found[2], found[3], int(found[4]))


class Contact:
    """A contact belongs to one group at one member, whatever the other members are. Any thread may call any method."""

    def __init__(self, rank: int, options: Options) -> None:
        """The handle gets this `rank`."""
        self._rank, self._options = rank, options
        self._name = secrets.token_hex(8)
        self._process = os.getpid()
        self._making = threading.Lock()
        self._reconfiguring = threading.Lock()
        self._store: TCPStore | None = None
        self._handle: Handle | None = None
        self._used: set[int] = set()
        """The numbers of this group's reconfigurations."""

    @property
    def handle(self) -> Handle:
        """The member's handle. The member has its store from the first call on."""
        if self._process != os.getpid():
            raise RuntimeError("this process was forked from a member of the group and is none itself")
        with self._making:
            if self._handle is None:
                host = address_of(self._options.config())
                with socket.create_server((host, 0)) as listening:
                    port = listening.getsockname()[1]
                    self._store = TCPStore(
                        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
                    )
                self._handle = Handle(self._rank, self._name, host, port)
            return self._handle

    @contextlib.contextmanager
    def reconfiguring(self, opts: Any) -> Iterator[list[Handle]]:
        """Gives the members in their new order, and keeps other threads from reconfiguring this group meanwhile. Raises
        a `ValueError` for handles that cannot be right, and a `RuntimeError` for a number that was used."""
        if not self._reconfiguring.acquire(blocking=False):
            raise RuntimeError("another thread is reconfiguring this group")
        try:
            if opts.uuid in self._used:
                raise RuntimeError(f"the uuid {opts.uuid} was already used: each reconfigure() needs another one")
            yield self._in_order(opts.handles)
            self._used.add(opts.uuid)
        finally:
            self._reconfiguring.release()

    def _in_order(self, handles: list[str] | set[str]) -> list[Handle]:
        members = [Handle.parse(handle) for handle in handles]
        if isinstance(handles, set):  # the same at all members
            members.sort()
        if len(set(members)) < len(members):
            raise ValueError("a member's handle is given twice")
        if self.handle not in members:
            raise ValueError(f"the handle of this member is not among those given: {self.handle}")
        return members

    def store_of(self, member: Handle, timeout: timedelta) -> Store:
        if member == self._handle and self._store is not None:
            self._store.set_timeout(timeout)
            return self._store
        return TCPStore(member.host, member.port, is_master=False, wait_for_workers=False, timeout=timeout)


@contextlib.contextmanager
def naming_store(member: str, store: str) -> Iterator[None]:
    """The error of a store that does not answer says which one it is, where members that go on meet, and names this
    `member`."""
    try:
        yield
    except dist.DistNetworkError as error:
        if error.__cause__ is not None:  # the service's
            raise
        raise dist.DistNetworkError(
            f"{member} cannot meet those that go on: {store} does not answer ({error})"
        ) from error
