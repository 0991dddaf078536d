"""A membership's access to time, threads and connections to services. One object provides all of it, and a test gives a
membership another one, in virtual time (wiresum_lab/doubles/virtual_network.py)."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Any

from wiresum.agent.awake import AwakeClock
from wiresum.agent.clock import CLOCK, Clock
from wiresum.agent.config import AgentConfig
from wiresum.join import credentials

LISTENS_S_MAX = 0.25


class World:
    """The real world. Any thread may call any method."""

    def __init__(self, clock: Clock = CLOCK) -> None:
        self.clock = clock

    def awake(self) -> AwakeClock:
        """Returns a new clock of this process."""
        return AwakeClock()

    def connect(self, endpoint: str, config: AgentConfig, options: Sequence[tuple[str, Any]]) -> Any:
        """Opens a channel of gRPC to host:port. Raises `CredentialsError`."""
        return credentials.open_channel(endpoint, tls=config.tls, insecure=config.insecure, options=options)

    def listens(self, endpoint: str) -> bool:
        """Returns whether a process listens at host:port."""
        host, _, port = endpoint.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), LISTENS_S_MAX):
            return True
        return False


WORLD = World()
