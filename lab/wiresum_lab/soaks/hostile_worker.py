"""A worker with hostile heartbeats, and messages with extreme values in their fields, for attacks.py."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from wiresum import join
from wiresum.join import join_pb2_grpc
from wiresum.join.constants import LEASE_SLOTS_MAX
from wiresum_lab.doubles.controller import member_of

HEARTBEAT_S = (0.01, 0.3)
JOIN_S_MAX, ATTEND_S_MAX = 5.0, 20.0
UNSIGNED = (0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 2, (1 << 32) - 1)
SIGNED = (-(1 << 31), -1, 0, 1, (1 << 31) - 1)
TEXTS = ("", "\0", "slow.example", "255.255.255.255", "\U0010ffff", "x" * 5000)
BYTES = (b"", b"\0" * 63, b"\xff" * 64, bytes(4 * LEASE_SLOTS_MAX), b"\xff" * 5000)


class HostileWorker:
    """The only worker of a job of its own. It joins again when the job has ended."""

    def __init__(self, request: join.JoinRequest, says: Says, chance: random.Random) -> None:
        self._request, self._says, self.chance = request, says, chance
        self.grant: join.JoinReply | None = None
        self.move_number = 0
        """Number of the newest Halt or Move."""
        self.is_told_to_halt = False
        self.claim: int | None = None
        """An invented number of a move, for a controller that knows the job only from disk; None: the true number."""

    def live(self, channels: Sequence[grpc.Channel], until: float) -> None:
        """Joins and attends until a moment, at each controller in turn, over `channels`."""
        for channel in itertools.cycle(channels):
            if time.monotonic() > until:
                return
            stub = join_pb2_grpc.JoinServiceStub(channel)
            try:
                if self.grant is None:
                    self._join(stub)
                if self.grant is not None:
                    self._attend(stub, self.grant, until)
            except grpc.RpcError as error:
                self.claim = self.chance.choice(UNSIGNED)
                if error.code() is grpc.StatusCode.NOT_FOUND:
                    self.grant = None
            time.sleep(self.chance.uniform(*HEARTBEAT_S))

    def _join(self, stub: Any) -> None:
        for event in stub.Join(self._request, timeout=JOIN_S_MAX):
            if event.HasField("granted"):
                self.grant, self.move_number, self.is_told_to_halt, self.claim = event.granted, 0, False, None

    def _attend(self, stub: Any, grant: join.JoinReply, until: float) -> None:
        events = stub.Attend(self._heartbeats(grant, until), timeout=ATTEND_S_MAX)
        for event in events:
            if event.HasField("ended"):
                self.grant = None
            elif event.HasField("halt"):
                self.move_number, self.is_told_to_halt, self.claim = event.halt.move_number, True, None
            elif event.HasField("move"):
                self.move_number, self.is_told_to_halt, self.claim = event.move.move_number, False, None

    def _heartbeats(self, grant: join.JoinReply, until: float) -> Iterator[join.Heartbeat]:
        """The heartbeats, with the token of the first grant, which never changes."""
        while self.grant is not None and time.monotonic() < until:
            yield self._says(self, join.Heartbeat(member=member_of(grant), round_newest=1))
            time.sleep(self.chance.uniform(*HEARTBEAT_S))


Says = Callable[[HostileWorker, join.Heartbeat], join.Heartbeat]


def _halted(worker: HostileWorker) -> join.Halted:
    """The `Halted` of an honest worker."""
    assert worker.grant is not None, "it attends"
    positions = b"\0\0\0\1" * worker.grant.slots
    return join.Halted(move_number=worker.move_number, positions=positions, unasked=not worker.is_told_to_halt)


def halts_by_itself(worker: HostileWorker, heartbeat: join.Heartbeat) -> join.Heartbeat:
    heartbeat.halted.CopyFrom(_halted(worker))
    return heartbeat


def says_extremes(worker: HostileWorker, heartbeat: join.Heartbeat) -> join.Heartbeat:
    """Mostly makes the heartbeat of an honest worker, so that the job goes on for a while; sometimes sets wrong or
    extreme fields."""
    heartbeat.halted.CopyFrom(_halted(worker))
    if worker.claim is not None:
        heartbeat.halted.move_number, heartbeat.halted.unasked = worker.claim, False
    choice = worker.chance.random()
    if choice < 0.02:
        heartbeat.halted.move_number = worker.move_number + worker.chance.choice((0, 1))
        heartbeat.halted.unasked = worker.chance.random() < 0.5
    elif choice < 0.06:
        spoil(heartbeat.halted, worker.chance)
    return heartbeat


def spoil(message: Any, chance: random.Random) -> None:
    """Sets a random field of a message, at any depth, to an extreme value."""
    field = chance.choice(message.DESCRIPTOR.fields)
    if field.message_type is not None:
        if not field.message_type.GetOptions().map_entry:
            spoil(getattr(message, field.name), chance)
        return
    values: Sequence[object] = {
        field.CPPTYPE_STRING: TEXTS if field.type == field.TYPE_STRING else BYTES,
        field.CPPTYPE_BOOL: (False, True),
        field.CPPTYPE_INT32: SIGNED,
        field.CPPTYPE_ENUM: (0, 1, 99),
    }.get(field.cpp_type, UNSIGNED)
    with contextlib.suppress(ValueError):
        setattr(message, field.name, chance.choice(values))
