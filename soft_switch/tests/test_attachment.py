"""Switches that stand below another one without a controller: they attach themselves to its join service."""

from __future__ import annotations

import array
import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from click.testing import CliRunner

from wiresum import join
from wiresum.agent import AgentConfig, Dtype, Region, Session, WiresumError
from wiresum.controller import JoinServer
from wiresum.controller.security import Security
from wiresum.controller.service import attaching
from wiresum.switch import SoftwareSwitch
from wiresum.switch.attachment import Attachment, AttachmentRefusedError
from wiresum.switch.command import switch
from wiresum_lab.doubles.controller import PATIENCE_S, unused_port, wait_until

pytest.importorskip("finsy", reason="P4Runtime's library is not installed")

from wiresum.switch.p4runtime import P4RuntimeServer

ROOT, LEAF, HOST, ELSEWHERE = "127.0.8.1", "127.0.8.2", "127.0.8.12", "127.0.8.99"
OTHER_HOST = "127.0.8.13"
LANES, SLOTS = 16, 256


def software_switch(bind: str, multicast: str | None = None) -> SoftwareSwitch:
    return SoftwareSwitch(bind=bind, port=0, threads=1, slots=SLOTS, lanes_max=LANES, multicast=multicast)


class Root:
    """A switch with a join service; both can be started anew."""

    def __init__(self, bind: str = ROOT, multicast: str | None = None) -> None:
        self.device = software_switch(bind, multicast=multicast)
        self.service = JoinServer(self.device, takes_switches=True)
        self.port = self.service.start("127.0.0.1", 0)

    @property
    def at(self) -> str:
        return f"127.0.0.1:{self.port}"

    def restart(self) -> None:
        self.service.stop(grace_s=0.1)
        self.device.close()
        self.device = software_switch(ROOT)
        self.service = JoinServer(self.device, takes_switches=True)
        self.service.start("127.0.0.1", self.port)

    def states(self) -> dict[str, str]:
        return {found.name: found.state for found in self.service.report().switches if found.parent}

    def close(self) -> None:
        self.service.stop(grace_s=0.1)
        self.device.close()


class Leaf:
    """As `wiresum switch --parent` runs one."""

    def __init__(self, root: Root, **fields: object) -> None:
        """`fields`: of the request, where they are others than the usual."""
        self._root, self._port = root, unused_port()
        self._cleanup = ExitStack()
        self.device = software_switch(LEAF)
        self._start()
        self._cleanup.callback(Attachment(root.at, self.request(**fields), tls=None, insecure=False).close)

    def _start(self) -> None:
        self._server = P4RuntimeServer(self.device, 0)
        self._server.start(f"127.0.0.1:{self._port}")

    def restart(self) -> None:
        """It has lost its cells, and all that was written into it."""
        self._server.stop()
        self.device.reset()
        wait_until(lambda: self._root.states()["leaf"] == "unreachable", "the root has seen that it is gone")
        self._start()

    def request(self, **fields: object) -> join.AttachRequest:
        return attach_request(self.device, **{"p4runtime": f"127.0.0.1:{self._port}", **fields})  # type: ignore[arg-type]

    def close(self) -> None:
        self._cleanup.close()
        self._server.stop()
        self.device.close()


def attach_request(device: SoftwareSwitch, p4runtime: str, **fields: object) -> join.AttachRequest:
    usual = {
        "protocol_version": join.PROTOCOL_VERSION,
        "name": "leaf",
        "endpoint": join.Endpoint(address=device.endpoint.address, port=device.endpoint.port),
        "p4runtime": p4runtime,
        "lanes": LANES,
        "slots": SLOTS,
        "hosts": [HOST],
    }
    return join.AttachRequest(**{**usual, **fields})  # type: ignore[arg-type]


@pytest.fixture
def root() -> Iterator[Root]:
    with closing(Root()) as root:
        yield root


@pytest.fixture
def leaf(root: Root) -> Iterator[Leaf]:
    with closing(Leaf(root)) as leaf:
        wait_until(lambda: root.states() == {"leaf": "ready"}, "the leaf is there")
        yield leaf


def check_sums(root: Root, addresses: Sequence[str], name: str) -> dict[str, int]:
    """Of a job with a worker at each address; returns how many of them were at which switch."""
    size = len(addresses)

    def join_as(rank: int) -> Session:
        config = AgentConfig(switch=root.at, address=addresses[rank], threads=1, slots=16, join_timeout_s=PATIENCE_S)
        return Session.join(config, job_name=name, rank=rank, world_size=size)

    with ThreadPoolExecutor(size) as pool, ExitStack() as cleanup:
        sessions = list(pool.map(join_as, range(size)))
        for session in sessions:
            cleanup.callback(session.close)
        data = [array.array("i", range(rank, 3000 + rank)) for rank in range(size)]
        regions = [Region(address, address, elements) for address, elements in map(array.array.buffer_info, data)]
        operations = [s.submit([region], dtype=Dtype.I32) for s, region in zip(sessions, regions, strict=True)]
        for operation in operations:
            operation.wait(PATIENCE_S)
        ranks = size * (size - 1) // 2
        assert all(list(values) == [size * i + ranks for i in range(3000)] for values in data)
        (job,) = (job for job in root.service.report().jobs if job.name == name)
        return {node.switch_name: node.workers for node in job.switches}


def test_a_job_has_workers_at_both_and_one_of_the_leafs_hosts_alone_stays_there(root: Root, leaf: Leaf) -> None:
    spine = root.device.name
    assert check_sums(root, [HOST, ELSEWHERE, HOST], "both") == {spine: 1, "leaf": 2}
    assert check_sums(root, [HOST, HOST], "rack") == {"leaf": 2}
    assert check_sums(root, [ELSEWHERE], "aside") == {spine: 1}


def test_sums_go_to_multicast_groups_at_both_where_no_switch_is_to_hear_them() -> None:
    with ExitStack() as cleanup:
        root = cleanup.enter_context(closing(Root(multicast="239.192.8.0")))
        leaf = cleanup.enter_context(closing(Leaf(root, multicast="239.192.16.0")))
        wait_until(lambda: root.states() == {"leaf": "ready"}, "the leaf is there")
        check_sums(root, [ELSEWHERE, HOST, HOST], "both")  # the root has a copy for each, the leaf one for two
        spine, below = root.device.stats(), leaf.device.stats()
        assert spine.datagrams_sent == 2 * spine.results + spine.packets["resent"]
        assert below.datagrams_sent == 2 * below.results + below.packets["resent"]  # one down, and one up before it
        check_sums(root, [ELSEWHERE, ELSEWHERE], "alone")
        alone = root.device.stats()
        results, resent = alone.results - spine.results, alone.packets["resent"] - spine.packets["resent"]
        assert alone.datagrams_sent - spine.datagrams_sent == results + resent


def test_a_leaf_that_was_started_anew_is_taken_up_again(root: Root, leaf: Leaf) -> None:
    check_sums(root, [HOST, ELSEWHERE], "before")
    leaf.restart()
    wait_until(lambda: root.states() == {"leaf": "ready"}, "the leaf is back")
    check_sums(root, [HOST, ELSEWHERE], "after")


def test_a_root_that_was_started_anew_hears_of_its_leaf_again(root: Root, leaf: Leaf) -> None:
    check_sums(root, [HOST, ELSEWHERE], "before")
    root.restart()
    wait_until(lambda: root.states() == {"leaf": "ready"}, "the leaf has said again that it is there")
    check_sums(root, [HOST, ELSEWHERE], "after")


@pytest.fixture
def levels(root: Root) -> Iterator[Root]:
    """A pod below the root, without hosts, and two racks below that, of which one comes before it."""
    with ExitStack() as cleanup:
        for name, hosts, below in (("rack1", [HOST], "pod"), ("pod", [], ""), ("rack2", [OTHER_HOST], "pod")):
            cleanup.enter_context(closing(Leaf(root, name=name, hosts=hosts, below=below)))
        wait_until(lambda: all_ready(root), "all are there")
        yield root


def all_ready(root: Root) -> bool:
    return root.states() == dict.fromkeys(("pod", "rack1", "rack2"), "ready")


def test_a_tree_may_have_any_number_of_levels(levels: Root) -> None:
    spine = levels.device.name
    assert {found.name: found.parent for found in levels.service.report().switches} == {
        spine: "",
        "pod": spine,
        "rack1": "pod",
        "rack2": "pod",
    }
    assert check_sums(levels, [HOST, OTHER_HOST, HOST], "pod-job") == {"pod": 0, "rack1": 2, "rack2": 1}
    whole = {spine: 1, "pod": 0, "rack1": 2, "rack2": 1}
    assert check_sums(levels, [HOST, OTHER_HOST, HOST, ELSEWHERE], "all") == whole
    levels.restart()
    wait_until(lambda: all_ready(levels), "all have said again where they stand")
    assert check_sums(levels, [HOST, OTHER_HOST, HOST, ELSEWHERE], "again") == whole


def test_only_so_many_switches_stand_below_one(levels: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attaching, "BELOW_ROOT_WORKERS_MAX", 2)
    with closing(software_switch(LEAF)) as device:
        third = attach_request(device, "127.0.0.1:1", name="rack3", hosts=["127.0.8.14"], below="pod")
        with pytest.raises(AttachmentRefusedError, match="2 switches stand below the parent, and no more can"):
            Attachment(levels.at, third, tls=None, insecure=False)


def test_a_leaf_that_is_gone_takes_no_jobs_and_its_hosts_do_not_become_the_roots(root: Root, leaf: Leaf) -> None:
    leaf.close()
    wait_until(lambda: root.states() == {"leaf": "unreachable"}, "the root has seen that it is gone")
    config = AgentConfig(switch=root.at, address=HOST, threads=1, join_timeout_s=1.0)
    with pytest.raises(WiresumError, match="leaf cannot be used now"):
        Session.join(config, job_name="waits", rank=0, world_size=1, queue=False)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"name": "other", "protocol_version": 3}, "speaks version 3 of the join protocol"),
        ({"name": "two words"}, "name must be letters"),
        (
            {"name": "other", "lanes": 8},
            "packets of 8 words do not go through the parent, which sums 16: start both with the same --lanes",
        ),
        ({"name": "other"}, r"hosts 127\.0\.8\.12/32 hang on leaf already"),
        ({"hosts": ["127.0.8.0/24"]}, "a switch 'leaf' is here already, with other ports, sizes or hosts"),
        ({"name": "other", "hosts": ["127.0.9.1"] * 257}, "hosts must be at most 256"),
        ({"name": "other", "hosts": ["rack1"]}, "p4runtime, endpoint, hosts or multicast make no sense"),
        ({"name": "other", "hosts": ["127.0.9.1"], "p4runtime": "10.0.0.1:9559"}, "is not on this host"),
        ({"name": "other", "multicast": "10.0.0.1"}, "cannot be the first of 1024 multicast groups"),
        ({"name": "other", "p4runtime": "0.0.0.0:1"}, "is none that anybody could send to"),
    ],
)
def test_what_cannot_stand_below_is_told_why(root: Root, leaf: Leaf, fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(AttachmentRefusedError, match=complaint):
        Attachment(root.at, leaf.request(**fields), tls=None, insecure=False)
    assert root.states() == {"leaf": "ready"}


def test_a_parent_at_every_address_cannot_be_one() -> None:
    with (
        closing(Root(bind="0.0.0.0")) as root,
        closing(software_switch(LEAF)) as device,
        pytest.raises(AttachmentRefusedError, match="start it with --bind and the address of one interface"),
    ):
        Attachment(root.at, attach_request(device, "127.0.0.1:1"), tls=None, insecure=False)


def test_a_service_that_takes_no_switches_says_so() -> None:
    with closing(software_switch(ROOT)) as device:
        service = JoinServer(device, security=Security())
        port = service.start("127.0.0.1", 0)
        try:
            with pytest.raises(AttachmentRefusedError, match="does not take this one"):
                Attachment(f"127.0.0.1:{port}", attach_request(device, "127.0.0.1:1"), tls=None, insecure=False)
        finally:
            service.stop()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--parent", "127.0.0.1:1"], "--parent needs --host"),
        (["--host", "10.0.0.1"], "--host is for --parent"),
        (["--below", "leaf"], "--below needs --parent"),
        (["--parent", "127.0.0.1:1", "--host", "none", "--host", "10.0.0.1"], "leave out the others"),
        (["--parent", "127.0.0.1:1", "--host", "10.0.0.1", "--control", "127.0.0.1:2"], "exclude each other"),
    ],
)
def test_options_that_do_not_go_together_are_told(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(switch, arguments)
    assert result.exit_code == 2
    assert complaint in result.output


def test_a_parent_that_is_not_there_yet_is_asked_again() -> None:
    with contextlib.ExitStack() as cleanup:
        device = cleanup.enter_context(closing(software_switch(LEAF)))
        server = P4RuntimeServer(device, 0)
        cleanup.callback(server.stop)
        port = server.start("127.0.0.1:0")
        at = f"127.0.0.1:{unused_port()}"
        attachment = Attachment(at, attach_request(device, f"127.0.0.1:{port}"), tls=None, insecure=False)
        cleanup.callback(attachment.close)
        assert attachment.is_alive
        late = software_switch(ROOT)
        cleanup.callback(late.close)
        service = JoinServer(late, takes_switches=True)
        service.start("127.0.0.1", int(at.rpartition(":")[2]))
        cleanup.callback(service.stop)
        wait_until(lambda: any(found.name == "leaf" for found in service.report().switches), "it is there")
