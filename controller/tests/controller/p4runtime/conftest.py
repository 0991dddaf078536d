"""The compiled program, as text and as finsy reads it, and a switch that keeps entries."""

from __future__ import annotations

from collections.abc import Iterator

import finsy as fy
import pytest
from finsy import pbutil
from finsy.proto import p4i

from wiresum import compiled
from wiresum.controller import Endpoint, JobEntry
from wiresum.controller.p4runtime import Client, Host, P4RuntimeSwitch
from wiresum.controller.p4runtime.testing import FakeSwitch

HOSTS = tuple(Host(f"host{i}", f"10.0.0.{10 + i}", f"02:00:0a:00:00:{10 + i:02x}", i % 4) for i in range(32))


@pytest.fixture(scope="session")
def program() -> compiled.Program:
    return compiled.load("v1model")


@pytest.fixture(scope="session")
def p4info(program: compiled.Program) -> p4i.P4Info:
    return pbutil.from_text(program.p4info, p4i.P4Info)


@pytest.fixture(scope="session")
def schema(p4info: p4i.P4Info) -> fy.P4Schema:
    return fy.P4Schema(p4info)


@pytest.fixture
def hosts() -> tuple[Host, ...]:
    return HOSTS


@pytest.fixture
def job(program: compiled.Program) -> JobEntry:
    """Three workers, two threads, slots 32 .. 39."""
    return JobEntry(
        job=7,
        key=0xFEED0007,
        workers=3,
        threads=2,
        lanes=program.lanes,
        slot_base=32,
        slots=8,
        round_first=1,
        endpoints=tuple(Endpoint(host.address, 5000 + 16 * i) for i, host in enumerate(HOSTS[:3])),
    )


@pytest.fixture
def fake() -> Iterator[FakeSwitch]:
    fake = FakeSwitch()
    yield fake
    fake.stop()


@pytest.fixture
def client(fake: FakeSwitch, program: compiled.Program) -> Iterator[Client]:
    client = Client(fake.address, 0, program)
    yield client
    client.close()


@pytest.fixture
def switch(client: Client, program: compiled.Program) -> P4RuntimeSwitch:
    return P4RuntimeSwitch(client, program, address="10.0.0.1", mac="02:00:0a:00:00:01", hosts=HOSTS)
