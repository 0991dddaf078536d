"""The compiled program as finsy reads it, and a real P4Runtime server behind a proxy: the software switch's, or
bmv2's if that is installed. Neither has interfaces: bmv2_tests and soft_switch/tests cover what happens to packets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import finsy as fy
import pytest
from finsy.proto import p4i

from wiresum import compiled
from wiresum.controller import Endpoint, JobEntry
from wiresum.controller.p4runtime import Client, Host, P4RuntimeSwitch, Pipeline, Target, device_config
from wiresum_lab.absent import leave_one_for_each_reason
from wiresum_lab.doubles.p4runtime_proxy import PATIENT, Proxy, programmed_switch
from wiresum_lab.namespaces.bmv2 import bmv2_command, bmv2_missing
from wiresum_lab.processes import Program, unused_port

HOSTS = tuple(Host(f"host{i}", f"10.0.0.{10 + i}", f"02:00:0a:00:00:{10 + i:02x}", i % 4) for i in range(32))
DEVICE = 64 * os.getpid() + 62
FOLDER = Path(__file__).parent


def why_not(item: pytest.Item) -> str:
    params = item.callspec.params if item.path.is_relative_to(FOLDER) and hasattr(item, "callspec") else {}
    needs_bmv2 = params.get("kind") == "bmv2"
    return f"not run on bmv2: {missing}" if needs_bmv2 and (missing := bmv2_missing()) else ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_one_for_each_reason(items, why_not)


@pytest.fixture(scope="session")
def program() -> compiled.Program:
    return compiled.load("v1model")


@pytest.fixture(scope="session")
def pipelines() -> dict[str, Pipeline]:
    """The pipeline of each kind of switch."""
    return {"software": device_config.software(), "bmv2": device_config.bmv2()}


@pytest.fixture(scope="session")
def p4info(pipelines: dict[str, Pipeline]) -> p4i.P4Info:
    return pipelines["bmv2"].p4info


@pytest.fixture(scope="session")
def schema(p4info: p4i.P4Info) -> fy.P4Schema:
    return fy.P4Schema(p4info)


@pytest.fixture
def hosts() -> tuple[Host, ...]:
    return HOSTS


@pytest.fixture
def job(program: compiled.Program) -> JobEntry:
    """A job of three workers and two threads, with slots 32 to 39."""
    return JobEntry(
        job=7,
        key=0xFEED0007,
        workers=3,
        threads=2,
        lanes=program.lanes,
        slot_base=32,
        slots=8,
        endpoints=tuple(Endpoint(host.address, 5000 + 16 * i) for i, host in enumerate(HOSTS[:3])),
    )


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of switch whose P4Runtime server is used; a test may parametrise it."""
    return str(getattr(request, "param", "software"))


@pytest.fixture
def pipeline(kind: str, pipelines: dict[str, Pipeline]) -> Pipeline:
    return pipelines[kind]


@pytest.fixture
def server(kind: str, pipeline: Pipeline, tmp_path: Path) -> Iterator[str]:
    """The address of the P4Runtime server of a switch without a program."""
    with _bmv2(tmp_path) if kind == "bmv2" else _software(pipeline) as address:
        yield address


@contextlib.contextmanager
def _software(pipeline: Pipeline) -> Iterator[str]:
    with programmed_switch(DEVICE, slots=pipeline.slots, lanes_max=pipeline.lanes) as switch:
        yield switch.p4runtime


@contextlib.contextmanager
def _bmv2(folder: Path) -> Iterator[str]:
    socket = folder / "p4runtime.socket"
    command = bmv2_command(f"unix:{socket}", DEVICE, thrift_port=unused_port())
    with Program(command, folder / "bmv2.log") as bmv2:
        bmv2.await_ready(socket.exists)
        yield f"unix:{socket}"


@pytest.fixture
def proxy(server: str) -> Iterator[Proxy]:
    proxy = Proxy(server)
    yield proxy
    proxy.stop()


@pytest.fixture
def client(proxy: Proxy, pipeline: Pipeline) -> Iterator[Client]:
    """The primary client of a switch that runs our program."""
    with contextlib.closing(Client(proxy.address, DEVICE, election_id=10, times=PATIENT)) as client:
        client.wait_ready()
        client.load(pipeline)
        yield client


@pytest.fixture
def target(proxy: Proxy, pipeline: Pipeline) -> Target:
    """With ports and hosts, so that entries of every table are written."""
    at = {"name": "leaf", "kind": "bmv2", "device": DEVICE, "address": "10.0.0.1", "mac": "02:00:0a:00:00:01"}
    return Target(p4runtime=proxy.address, pipeline=pipeline, hosts=HOSTS, **at)


@pytest.fixture
def controllers() -> Iterator[Callable[[Target, int], P4RuntimeSwitch]]:
    """Makes another controller of a switch, with the given election id."""
    with contextlib.ExitStack() as cleanup:

        def make(target: Target, election_id: int) -> P4RuntimeSwitch:
            made = P4RuntimeSwitch(target, election_id=election_id, times=PATIENT)
            return cleanup.enter_context(contextlib.closing(made))

        yield make


@pytest.fixture
def switch(target: Target, controllers: Callable[[Target, int], P4RuntimeSwitch]) -> P4RuntimeSwitch:
    """A switch that has been reconciled without jobs."""
    switch = controllers(target, 10)
    switch.wait_ready()
    switch.reconcile([])
    return switch
