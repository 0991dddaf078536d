"""The data paths of a job whose workers live in virtual time: what they sum together, and where each stands."""

from __future__ import annotations

import random
import struct

from wiresum import join as messages
from wiresum.agent.membership import Membership
from wiresum.agent.statistics import TrafficStats
from wiresum_lab.doubles.moving import roles
from wiresum_lab.doubles.resuming import SLOTS, DataPath


class Rounds:
    """What the data paths of a job have summed."""

    def __init__(self, chance: random.Random, workers: int) -> None:
        self._chance, self.workers = chance, workers
        self.lost_keys: set[int] = set()
        """Of leases whose switch has lost what it held."""
        self.passed, self.passed_at = 0, 0.0
        self._round = 7
        self._draw()

    def _draw(self) -> None:
        ahead = [[self._chance.random() < 0.3 for _ in range(SLOTS)] for _ in range(self.workers)]
        self.positions = [[self._round + each for each in mine] for mine in ahead]

    def roles(self) -> list[bytes]:
        return roles(self.positions)

    def pass_on(self, now: float) -> None:
        self.passed += 1
        self.passed_at = now
        self._round += 2
        self._draw()


class Sums(DataPath):
    """Of one worker; it moves on with the others."""

    def __init__(self, rounds: Rounds, rank: int) -> None:
        super().__init__()
        self.rounds, self.rank = rounds, rank
        self.is_dead = self.is_barred = False
        self.key, self.served_at, self.secret = 0, "", b""
        self.member: Membership | None = None
        self.over: list[str] = []
        """What this worker has said of its end."""

    @property
    def is_gone(self) -> bool:
        """It may not have said so."""
        return self.is_dead or self.is_barred or self.over == ["leave"]

    def traffic(self) -> TrafficStats:
        self._packets += not self.stands_still
        return TrafficStats(packets_sent=self._packets, bytes_received=self.rounds.passed)

    @property
    def positions(self) -> bytes:
        return struct.pack(f">{SLOTS}I", *self.rounds.positions[self.rank])

    @property
    def summed_at(self) -> float:
        return self.rounds.passed_at

    def halt(self) -> bytes:
        super().halt()
        return self.positions

    def move(self, grant: messages.JoinReply, roles: bytes) -> None:
        assert self.stands_still and grant.key != self.key
        super().move(grant, roles)
        assert roles == self.rounds.roles()[self.rank], "the roles are those of where all workers stand"
        assert grant.members_secret == self.secret, "it is still the job's"
        self.know(grant)

    def know(self, grant: messages.JoinReply) -> None:
        assert self.member is not None
        self.key, self.served_at = grant.key, self.member.service
