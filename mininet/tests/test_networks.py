"""Networks of Mininet's own classes: each topology gives the same training result on each kind of switch. Needs
root."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from scapy.utils import RawPcapReader

from wiresum import compiled
from wiresum.conformance.frames import PROTOCOL_UDP, UdpFrame
from wiresum.join.constants import SWITCH_PORT, THREADS_MAX, Header, Kind
from wiresum_lab.demos.digits.runs import Run, RunReader
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import Program, SwitchProcess, unused_port, wait_until
from wiresum_mininet import topology
from wiresum_mininet.topology import Shape

from .leftovers import namespaces_of, now, wait_until_empty

pytestmark = [pytest.mark.usefixtures("mininet_here"), pytest.mark.timeout(180)]

WORKERS = (4, 8)
REPRODUCIBLE = Path(__file__).resolve().parents[2] / "plugins" / "torch" / "examples" / "reproducible.py"
REPRODUCIBLE_S_MAX = 4 * PATIENCE_S
ARGUMENTS = ("--epochs", "1", "--seed", "7", "--width", "4", "--batch", "64")


class Trainer:
    """Runs trainings in any namespaces, with forked_workers.py."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("forked_workers.py"))]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, env=environment, stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )
        assert self._line() == "ready\n"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def train(self, workers: Sequence[tuple[int, Mapping[str, str]]], output: Path) -> Run:
        run = Run("mininet")
        request = {
            "argv": ["--output", str(output), "--run", run.name, run.backend, *ARGUMENTS],
            "workers": [{"pid": pid, "environment": dict(environment)} for pid, environment in workers],
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        assert json.loads(self._line()) == [0] * len(workers)
        RunReader(run, output / run.name, len(workers)).read()
        return run

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # workers of a training that failed, too
        self._process.communicate()


@pytest.fixture(scope="module")
def trainer(mininet_here: None) -> Iterator[Trainer]:
    made = Trainer()
    yield made
    made.close()


@pytest.fixture(scope="module")
def on_loopback(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Run]:
    """The same training over one software switch on loopback, for each number of workers."""
    folder = tmp_path_factory.mktemp("loopback")
    runs = {}
    with SwitchProcess(folder, "--lanes", str(compiled.load("v1model").lanes)) as switch:
        for count in WORKERS:
            common = {
                "WORLD_SIZE": str(count),
                "LOCAL_RANK": "0",
                "WIRESUM_SWITCH": switch.endpoint,
                "WIRESUM_ADDRESS": "127.0.0.1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(unused_port()),
                "GLOO_SOCKET_IFNAME": "lo",
            }
            workers = [(0, common | {"RANK": str(rank)}) for rank in range(count)]
            runs[count] = trainer.train(workers, folder / f"run-{count}")
            assert runs[count].parameters_identical(count)
    return runs


def await_results(capture: Path, steps: int) -> None:
    """Each step of a training has a RESULT at least at each port."""

    def results() -> int:
        frames = (frame for frame, _ in RawPcapReader(str(capture)))
        datagrams = (UdpFrame.unpack(frame).payload for frame in frames if is_ours(frame))
        return sum(Header.unpack(datagram).kind == Kind.RESULT for datagram in datagrams)

    wait_until(lambda: results() >= steps, f"{capture.name} has the sums of {steps} steps")


def is_ours(frame: bytes) -> bool:
    ports = range(SWITCH_PORT, SWITCH_PORT + THREADS_MAX)
    return frame[12:14] == b"\x08\x00" and frame[23] == PROTOCOL_UDP and int.from_bytes(frame[34:36], "big") in ports


def inside_of(net: Any) -> set[str]:
    return namespaces_of(node.pid for node in (*net.hosts, *net.switches))


@pytest.mark.parametrize(
    ("name", "per_host"),
    [
        pytest.param("one-switch", 2, marks=pytest.mark.slow),
        *(
            pytest.param(name, 1, marks=pytest.mark.slow if name in ("racks", "two-switches") else pytest.mark.nightly)
            for name in topology.names()
        ),
    ],
)
def test_a_training_in_each_topology_equals_the_one_on_loopback(
    name: str, per_host: int, kind: str, trainer: Trainer, on_loopback: dict[int, Run], tmp_path: Path
) -> None:
    from wiresum_mininet.nodes import Workplace
    from wiresum_mininet.wiresum_net import WiresumNet

    plan = topology.find(name)
    with WiresumNet(plan, kind=kind, workplace=Workplace(tmp_path / "net"), shape=Shape(loss=0.005)) as net:
        inside = inside_of(net)
        assert len(inside) == len(plan.hosts) + len(plan.switches)
        at = now()
        hosts = [host for host in net.workers for _ in range(per_host)]
        count = len(hosts)
        own = [{"RANK": str(rank), "WORLD_SIZE": str(count)} for rank in range(count)]
        workers = [(host.pid, host.variables | ranks) for host, ranks in zip(hosts, own, strict=True)]
        run = trainer.train(workers, tmp_path / "run")
        # What carries no sum: the controller's link, and that to a switch which waits for another to be lost.
        apart = {switch.name for switch in plan.aggregators if not switch.parent} - {plan.root.name}
        apart |= {plan.controller.name}
        for switch in plan.switches:
            for port, neighbour in plan.neighbours(switch.name):
                if apart.isdisjoint({switch.name, neighbour}):
                    capture = net.workplace.captures / f"{switch.name}-eth{port}.pcap"
                    await_results(capture, run.steps)
    assert run.parameters_identical(count)
    assert set(run.digests.values()) == set(on_loopback[count].digests.values())
    wait_until_empty(inside, started_before=at)


@pytest.mark.nightly
@pytest.mark.parametrize("kinds", [("software", "bmv2", "software"), ("bmv2", "software", "bmv2")], ids=lambda k: k[0])
def test_a_training_in_a_tree_of_both_kinds_of_switch_equals_the_one_on_loopback(
    kinds: tuple[str, str, str], bmv2_here: None, trainer: Trainer, on_loopback: dict[int, Run], tmp_path: Path
) -> None:
    """The first kind is the spine's. It has a leaf of each kind, and each leaf has two workers."""
    from wiresum_mininet.nodes import Workplace
    from wiresum_mininet.wiresum_net import WiresumNet

    document = json.loads((topology.FOLDER / "racks" / "topology.json").read_text())
    for name, kind in zip(("s1", "l1", "l2"), kinds, strict=True):
        document["switches"][name]["kind"] = kind
    for name in ("h3", "h4", "h7", "h8"):
        del document["hosts"][name]
    document["links"] = [ends for ends in document["links"] if ends[0] in document["hosts"] or ends[0][0] == "l"]
    (tmp_path / "mixed.json").write_text(json.dumps(document))
    plan, workplace = topology.find(str(tmp_path / "mixed.json")), Workplace(tmp_path / "net", keeps_packets=False)
    with WiresumNet(plan, kind=kinds[1], workplace=workplace, shape=Shape(loss=0.005)) as net:
        run = trainer.train([(host.pid, host.variables) for host in net.workers], tmp_path / "run")
    assert run.parameters_identical(4)
    assert set(run.digests.values()) == set(on_loopback[4].digests.values())


def run_reproducible(
    start: Callable[[Sequence[str]], list[Program]],
    backend: str,
    *more: str,
    until: int = 4,
    meanwhile: Callable[[], object] = lambda: None,
) -> str:
    """The hash of weights and optimizer after some steps of the example of docs/reproducible.md."""
    options = ["--backend", backend, "--until", str(until), "--width", "16", "--layers", "1", *more]
    programs = start([sys.executable, str(REPRODUCIBLE), *options])
    meanwhile()
    for program in programs:
        assert program.process.wait(REPRODUCIBLE_S_MAX) == 0, program.tail()
    (found,) = re.findall(rf"^{len(programs)} workers, .* s: (\w{{64}})$", programs[0].said(), re.MULTILINE)
    return str(found)


@pytest.mark.nightly
def test_a_training_goes_on_at_the_other_switch_when_its_own_is_stopped(kind: str, tmp_path: Path) -> None:
    from wiresum_mininet.nodes import Workplace
    from wiresum_mininet.wiresum_net import WiresumNet

    until, record = 40 if kind == "software" else 16, tmp_path / "record"
    alone = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port())}
    expected = run_reproducible(lambda argv: [Program(argv, tmp_path / "alone.log", alone)], "gloo", until=until)
    workplace = Workplace(tmp_path / "net", keeps_packets=False)
    with WiresumNet(topology.find("two-switches"), kind=kind, workplace=workplace) as net:

        def stop_the_first() -> None:
            wait_until(lambda: record.exists() and len(record.read_text().splitlines()) > 3, "some steps")
            assert re.search(r"running +4/4 +s1 ", net.command(net["c0"], ["wiresum", "jobs"]))
            net["s1"].stop(deleteIntfs=False)

        found = run_reproducible(
            net.start_workers, "wiresum", "--record", str(record), until=until, meanwhile=stop_the_first
        )
        assert "goes on at s2" in workplace.log("h1").read_text()
    assert found == expected


@pytest.fixture
def net(kind: str, tmp_path: Path) -> Iterator[object]:
    from wiresum_mininet.nodes import Workplace
    from wiresum_mininet.wiresum_net import WiresumNet

    with WiresumNet(topology.find("one-switch"), kind=kind, workplace=Workplace(tmp_path)) as built:
        yield built


def test_hosts_and_switch_answer_pings_and_a_link_can_be_switched_off_and_on(net) -> None:  # type: ignore[no-untyped-def]
    assert net.pingAll(timeout=f"{PATIENCE_S:.0f}") == 0
    address = net.topology.root.address
    assert " 0% packet loss" in net["h1"].cmd(f"ping -c 1 -W {PATIENCE_S:.0f} {address}")
    net.configLinkStatus("s1", "h1", "down")
    assert " 0% packet loss" not in net["h1"].cmd("ping -c 1 -W 0.2 10.0.0.2")
    net.configLinkStatus("s1", "h1", "up")
    assert " 0% packet loss" in net["h1"].cmd(f"ping -c 1 -W {PATIENCE_S:.0f} 10.0.0.2")
    assert re.fullmatch(r"[0-9.]+ [KMG]?bits/sec", net.iperf(seconds=1)[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "link", "cut_off", "apart"),
    [
        ("one-switch", ("s1", "h1"), ("h1", "h2"), ("h2", "h3")),
        ("one-switch", ("h2", "s1"), ("h1", "h2"), ("h1", "h3")),
        ("leaf-spine", ("l1", "s1"), ("h1", "h3"), ("h3", "h4")),
        ("leaf-spine", ("l1", "s1"), ("h1", "h3"), ("h1", "h2")),
    ],
)
def test_a_link_that_is_down_disturbs_no_other(
    name: str, link: tuple[str, str], cut_off: tuple[str, str], apart: tuple[str, str], kind: str, tmp_path: Path
) -> None:
    from wiresum_mininet.nodes import Workplace
    from wiresum_mininet.wiresum_net import WiresumNet

    def answers(near: str, far: str, wait_s: float = PATIENCE_S) -> bool:
        return " 0% packet loss" in net[near].cmd(f"ping -c 1 -W {wait_s} {net[far].IP()}")

    with WiresumNet(topology.find(name), kind=kind, workplace=Workplace(tmp_path)) as net:
        for _ in range(2):
            net.configLinkStatus(*link, "down")
            assert all(port.isUp() for switch in net.switches for port in switch.intfList()), (
                "or bmv2 would stand still"
            )
            assert answers(*apart)
            assert not answers(*cut_off, wait_s=0.2)
            net.configLinkStatus(*link, "up")
            assert answers(*apart)
            # A host that has asked in vain for the other's MAC waits before it asks again.
            wait_until(lambda: answers(*cut_off, wait_s=1.0), "the link carried packets")
        assert net.pingAll(timeout=f"{PATIENCE_S:.0f}") == 0
        assert not [capture.log for capture in net._captures if capture.exit_code is not None], "captures go on"


@pytest.mark.nightly
def test_a_switch_that_was_stopped_and_started_sums_again(net, trainer: Trainer, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    net["s1"].stop(deleteIntfs=False)
    assert " 0% packet loss" not in net["h1"].cmd("ping -c 1 -W 1 10.0.0.2")
    net["s1"].start([])
    run = trainer.train([(host.pid, host.variables) for host in net.workers], tmp_path / "run")
    assert run.parameters_identical(len(net.workers))


def test_a_switch_that_does_not_start_is_an_error_and_leaves_nothing(
    mininet_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wiresum_lab.namespaces import bmv2
    from wiresum_lab.processes import ProgramError
    from wiresum_mininet import nodes
    from wiresum_mininet.wiresum_net import WiresumNet

    monkeypatch.setattr(bmv2, "SWITCH_PROGRAM", "false")
    net = WiresumNet(topology.find("one-switch"), kind="bmv2", workplace=nodes.Workplace(tmp_path))
    inside = inside_of(net)
    at = now()
    with pytest.raises(ProgramError, match="false of s1 ended with exit code 1"), net:
        pass
    wait_until_empty(inside, started_before=at)


@pytest.mark.slow
def test_a_link_has_the_loss_and_rate_of_the_file(kind: str, tmp_path: Path) -> None:
    """A ping crosses four lossy links, so one in sixteen of 300 packets comes back. Chance exceeds the bounds less
    than once in a million runs."""
    from wiresum_mininet.nodes import Workplace
    from wiresum_mininet.wiresum_net import WiresumNet

    document = json.loads((topology.FOLDER / "one-switch" / "topology.json").read_text())
    for link in document["links"][:2]:
        link.append({"rate_mbit": 50, "loss": 0.5})
    (tmp_path / "lossy.json").write_text(json.dumps(document))
    plan = topology.find(str(tmp_path / "lossy.json"))
    with WiresumNet(plan, kind=kind, workplace=Workplace(tmp_path)) as net:
        net.staticArp()
        text = net["h1"].cmd(f"ping -q -c 300 -l 300 -i 0.002 -W {PATIENCE_S:.0f} 10.0.0.2")
        received = int(re.search(r"(\d+) received", text)[1])  # type: ignore[index]
        assert "rate 50Mbit" in net["s1"].cmd("tc class show dev s1-eth1")
        assert "rate" not in net["s1"].cmd("tc class show dev s1-eth3")
        one_by_one = f"for _ in $(seq 20); do ping -q -c 1 -W {PATIENCE_S:.0f} 10.0.0.4; done"
        assert net["h3"].cmd(one_by_one).count(" 0% packet loss") == 20
    assert 1 <= received <= 70
