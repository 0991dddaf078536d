"""Pipes of a Tofino, each with its own driver, at one P4Runtime server that takes the place of the Tofino's.
bmv2_tests/test_tofino_pipes.py covers what happens to packets."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import finsy as fy
import pytest

from wiresum import join
from wiresum.controller import DriverError, Endpoint, JobEntry, config
from wiresum.controller.driver import Uplink
from wiresum.controller.nodes import PIPE_PORTS
from wiresum.controller.p4runtime import P4Device, P4RuntimeSwitch, Pipeline, Target, count, targets_of
from wiresum.controller.plan import plan
from wiresum.controller.resources import Amounts
from wiresum.controller.service.join_server import JoinServer
from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import Client
from wiresum_lab.doubles.p4runtime_proxy import PATIENT, Proxy, write_tofino_program
from wiresum_lab.processes import unused_port, wait_until

any_server = pytest.mark.parametrize("kind", ["software", "bmv2"], indirect=True)
with_jobs = pytest.mark.parametrize("kind", ["bmv2"], indirect=True)
"""The software switch can only hold the jobs of a switch that is a single node."""

CONFIGURATION = f"""\
[[switch]]
name = "rack"
kind = "tofino"
program = "."
p4info = "info.txtpb"
p4runtime = "127.0.0.1:9559"
device = 0
address = "10.0.0.1"
mac = "02:00:0a:00:00:01"
cables = [[60, {PIPE_PORTS + 60}]]
"""
ADDRESSES = ("10.0.0.10", "10.0.0.11", "10.0.0.12", "10.0.0.13")
"""Two hosts in each pipe."""
SWITCH = Endpoint("10.0.0.1", 43488)

Pipes = tuple[P4RuntimeSwitch, P4RuntimeSwitch]
Make = Callable[[int], Pipes]


@pytest.fixture
def targets(tmp_path: Path, target: Target, pipeline: Pipeline) -> list[Target]:
    write_tofino_program(tmp_path)
    text = CONFIGURATION
    for index, address in enumerate(ADDRESSES):
        port = 8 + index + PIPE_PORTS * (index // 2)
        text += f'[[switch.host]]\nname = "host{index}"\naddress = "{address}"\n'
        text += f'mac = "02:00:0a:00:00:1{index}"\nport = {port}\n'
    (tmp_path / "x.toml").write_text(text)
    found = targets_of(config.load(tmp_path / "x.toml").switches)
    there = {"p4runtime": target.p4runtime, "device": target.device, "pipeline": pipeline}
    return [dataclasses.replace(pipe, **there) for pipe in found]


@pytest.fixture
def make(targets: list[Target]) -> Iterator[Make]:
    """Makes another controller with the given election id."""
    with contextlib.ExitStack() as cleanup:

        def connect(election_id: int) -> Pipes:
            device = cleanup.enter_context(
                contextlib.closing(P4Device(targets[0], election_id=election_id, times=PATIENT))
            )
            upper, lower = (P4RuntimeSwitch(t, election_id=election_id, device=device) for t in targets)
            upper.wait_ready()
            return upper, lower

        yield connect


@pytest.fixture
def pipes(make: Make) -> Pipes:
    """Both pipes, reconciled without jobs."""
    pipes = make(10)
    for pipe in pipes:
        pipe.reconcile([])
    return pipes


def entries(number: int, slot_base: int = 0) -> tuple[JobEntry, JobEntry]:
    """The entries of a job of all four hosts, for the upper and the lower pipe."""
    endpoints = tuple(Endpoint(address, 5000) for address in ADDRESSES)
    common = {"job": number, "key": 77 + number, "threads": 1, "lanes": 64, "slots": 8, "slot_base": slot_base}
    above = JobEntry(workers=3, endpoints=(*endpoints[:2], SWITCH), below=("rack/1",), **common)
    below = JobEntry(workers=2, endpoints=endpoints[2:], uplink=Uplink(SWITCH, 2), **common)
    return above, below


def places(pipe: P4RuntimeSwitch) -> dict[str, int]:
    """How many entries the switch has in each table."""
    found = pipe.tables.held()
    return {stage: sum(entry.stage == stage for entry in found) for stage in dict.fromkeys(e.stage for e in found)}


@any_server
def test_both_pipes_belong_to_one_switch_and_the_upper_is_the_parent(pipes: Pipes) -> None:
    upper, lower = pipes
    assert [(pipe.name, pipe.part_of, pipe.parent) for pipe in pipes] == [
        ("rack/0", "rack", ""),
        ("rack/1", "rack", "rack/0"),
    ]
    assert upper.endpoint == lower.endpoint == SWITCH
    assert [upper.reaches(address) for address in ADDRESSES] == [True, True, False, False]
    assert [lower.reaches(address) for address in ADDRESSES] == [False, False, True, True]
    assert upper.sizes == lower.sizes
    assert upper.sizes.jobs_max == 63


@with_jobs
def test_a_job_has_separate_entries_in_each_pipe(pipes: Pipes) -> None:
    upper, lower = pipes
    above, below = entries(5)
    before = places(upper)
    assert before == {"forward": 4, "group": 1, "own": 2, "keys": 1}
    upper.admit(above)
    lower.admit(below)
    assert places(upper) == {**before, "group": 1 + 3, "deliver": 6, "admit_parent_entry": 1, "admit": 5}
    delivered = upper.tables.read("x", [fy.P4TableEntry("deliver")])
    assert sorted(entry.match["receiver"] for entry in delivered if entry.match) == [0, 1, 2, 64, 65, 127]
    texts = {entry.text for entry in upper.tables.held()}
    assert "group 21: port 8 (receiver 0), port 9 (receiver 1), port 60 (receiver 2)" in texts
    assert "group 22: port 138 (receiver 64), port 139 (receiver 65)" in texts
    assert "group 534: port 188 (receiver 127)" in texts
    upper.evict(5)
    assert places(lower) == {**before, "group": 1 + 2, "deliver": 3, "admit_parent_entry": 1, "admit": 2}
    lower.evict(5)
    assert places(lower) == before


@with_jobs
def test_reconciling_one_pipe_leaves_the_others_entries_alone(pipes: Pipes, proxy: Proxy) -> None:
    upper, lower = pipes
    above, below = entries(5)
    upper.admit(above)
    lower.admit(below)
    proxy.log.clear()
    assert not upper.reconcile([above]).changes
    assert not lower.reconcile([below]).changes
    assert not proxy.log
    assert {line[:7] for line in lower.reconcile([]).changes} == {"- admit", "- group", "- deliv"}
    assert not upper.reconcile([above]).changes


@with_jobs
def test_a_restarted_controller_finds_the_jobs_of_both_pipes(pipes: Pipes, make: Make, proxy: Proxy) -> None:
    above, below = entries(5)
    pipes[0].admit(above)
    pipes[1].admit(below)
    again = make(11)
    proxy.log.clear()
    for pipe, entry in zip(again, (above, below), strict=True):
        found = pipe.reconcile([entry])
        assert (found.reloaded, found.changes) == (False, ())
    assert not proxy.log


@any_server
def test_a_reloaded_switch_gets_its_address_only_after_all_pipes_are_reconciled(make: Make, proxy: Proxy) -> None:
    upper, lower = make(10)
    above, below = entries(5)
    assert upper.reconcile([above]).reloaded
    assert upper.reconcile([]).reloaded
    assert "own" not in places(upper)
    upper.admit(dataclasses.replace(above, job=6))
    assert lower.reconcile([below]).reloaded, "its partial sums are lost too"
    assert lower.reconcile([]).reloaded
    assert places(lower)["own"] == 2
    assert places(lower)["admit"] == 3
    assert proxy.loads == 1
    assert not lower.reconcile([]).reloaded


@any_server
def test_a_reload_is_still_reported_if_the_controller_ends_between_the_pipes(make: Make) -> None:
    first, _ = make(10)
    first.reconcile([])
    upper, lower = make(11)
    above, below = entries(5)
    assert lower.reconcile([below]).reloaded
    assert upper.reconcile([above]).reloaded


@with_jobs
def test_counters_belong_to_a_pipe_and_packets_without_a_job_to_the_first(pipes: Pipes) -> None:
    upper, lower = pipes
    above, below = entries(5)
    upper.admit(above)
    lower.admit(below)
    for row, packets in ((0, 4), (21, 5), (22, 6)):
        entry = count.reads(row)[0]
        entry.data = fy.P4CounterData(packet_count=packets)
        upper.tables.modify("a counter", [entry])
    assert [pipe.counters(5).packets["admitted"] for pipe in pipes] == [5, 6]
    assert [pipe.stray().packets.get("admitted", 0) for pipe in pipes] == [4, 0]


@any_server
def test_both_pipes_share_the_room_in_the_tables(pipes: Pipes, monkeypatch: pytest.MonkeyPatch) -> None:
    upper, lower = pipes
    monkeypatch.setattr(
        lower, "sizes", dataclasses.replace(lower.sizes, tables=Amounts({**lower.sizes.tables, "admit": 4}))
    )
    upper.admit(entries(5)[0])
    with pytest.raises(
        DriverError, match="table admit of rack/1 has room for 4 entries; 3 are taken and this job needs 2"
    ):
        lower.admit(entries(5)[1])


@any_server
def test_trouble_is_reported_for_both_pipes(pipes: Pipes, proxy: Proxy) -> None:
    told: list[str] = []
    for pipe in pipes:
        pipe.on_change = lambda name=pipe.name: told.append(name)  # type: ignore[misc]
    proxy.stop()
    wait_until(lambda: {"rack/0", "rack/1"} <= set(told), "both heard of it")
    assert all("out of reach" in pipe.trouble for pipe in pipes)


@with_jobs
def test_a_plan_lists_shared_entries_once(targets: list[Target], make: Make) -> None:
    above, below = entries(5)
    first, second = (plan(target, []) for target in targets)
    assert first[0].startswith("~ program")
    assert [line[:5] for line in first[1:]] == ["+ for"] * 4 + ["+ gro", "+ own", "+ own"]
    assert second == []
    upper, lower = make(10)
    for pipe in (upper, lower):
        pipe.reconcile([])
    lower.admit(below)
    assert plan(targets[0], []) == []
    assert plan(targets[1], [below]) == []
    assert len(plan(targets[0], [above])) == 3 + 1 + 3
    assert {line[0] for line in plan(targets[1], [])} == {"-"}


@with_jobs
def test_workers_of_both_join_one_job_and_operators_see_both_pipes(make: Make, tmp_path: Path) -> None:
    with contextlib.closing(Store(tmp_path / "state")) as store, contextlib.ExitStack() as cleanup:
        election_id = store.begin()
        pipes = make(election_id + 10)
        server = JoinServer(pipes, store=store)
        cleanup.callback(server.stop)
        client = Client(server.start(port=unused_port()))
        cleanup.callback(client.close)
        asked = [
            client.join_soon(rank=rank, world_size=4, endpoint=join.Endpoint(address=address, port=5000), threads_max=1)
            for rank, address in enumerate(ADDRESSES)
        ]
        replies = [call.result() for call in asked]
        assert [(reply.switch_name, reply.worker) for reply in replies] == [
            ("rack/0", 0),
            ("rack/0", 1),
            ("rack/1", 0),
            ("rack/1", 1),
        ]
        report = client.report()
        assert [(switch.name, switch.part_of, switch.parent) for switch in report.switches] == [
            ("rack/0", "rack", ""),
            ("rack/1", "rack", "rack/0"),
        ]
        (job,) = report.jobs
        assert [(node.switch_name, node.parent, node.workers) for node in job.switches] == [
            ("rack/0", "", 2),
            ("rack/1", "rack/0", 2),
        ]
        assert client.operator.Drain(join.DrainRequest(switch_name="rack")).jobs == 1
        assert {switch.state for switch in client.report().switches} == {"draining"}
        for reply in replies:
            client.leave(reply)
        wait_until(lambda: not client.jobs(), "the job is over")
        assert places(pipes[0]) == {"forward": 4, "group": 1, "own": 2, "keys": 1}
        assert store.load().draining == {"rack/0", "rack/1"}
