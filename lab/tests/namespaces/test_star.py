"""Stars in the kernel: built, reshaped, and gone afterwards whatever happens. Needs root.

Shares of packets are asserted within bounds that chance leaves once in far more than a million runs; rates never are.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum_lab.namespaces import probe
from wiresum_lab.namespaces import star as star_module
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star, StarError, sweep_stale_stars

DATAGRAMS = 4000


pytestmark = [pytest.mark.usefixtures("namespaces"), pytest.mark.timeout(120)]


@pytest.fixture
def star() -> Iterator[Star]:
    with Star(2) as built:
        yield built


def _namespaces_of(pid: int) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(f"wiresum-{pid}-")]


def test_workers_reach_each_other_and_the_switch_and_the_manager(star: Star) -> None:
    first, second = star.workers
    for sender, receiver in ((first, second), (second, star.switch), (star.switch, first)):
        assert probe.measure(sender, receiver, count=50).lost == 0
    assert "10.112.0.1 dev manage0" in first.run(["ip", "route", "get", star.manager.management_address])


def test_the_star_carries_nothing_to_the_outside(star: Star) -> None:
    routes = star.workers[0].run(["ip", "route"])
    assert "default" not in routes


def test_nothing_is_left_after_a_star() -> None:
    with Star(3, Link(rate_mbit=100, loss=0.1), aggregators=2) as star:
        assert len(_namespaces_of(os.getpid())) == 7
        star.close()
        star.close()
    assert _namespaces_of(os.getpid()) == []


def test_nothing_is_left_after_an_exception_and_its_processes_are_ended() -> None:
    process = None
    with pytest.raises(RuntimeError, match="on purpose"), Star(1) as star:
        process = star.workers[0].popen(["sh", "-c", "echo ready; exec sleep 600"], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"  # it is in its namespace, where a star looks for what to end
        raise RuntimeError("on purpose")
    assert _namespaces_of(os.getpid()) == []
    assert process is not None and process.stdout is not None
    assert process.wait(30) == -signal.SIGTERM
    process.stdout.close()


def test_a_process_that_ignores_sigterm_does_not_outlive_its_star(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(star_module, "TERMINATION_TIMEOUT_S", 0.5)
    with Star(1) as star:
        script = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
        process = star.workers[0].popen(["sh", "-c", script], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    assert process.wait(30) == -signal.SIGKILL
    process.stdout.close()
    assert _namespaces_of(os.getpid()) == []


def test_a_star_that_cannot_be_shaped_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(star_module, "tc_commands", lambda *_, **__: ["qdisc add dev star0 root nonsense"])
    with pytest.raises(StarError, match="nonsense"):
        Star(1, Link(rate_mbit=1))
    assert _namespaces_of(os.getpid()) == []


OWNER = """
import sys, time
from wiresum_lab.namespaces.star import Star, termination_as_exit
with termination_as_exit(), Star(1) as star:
    star.workers[0].popen(["sh", "-c", "echo $$; exec sleep 600"])
    time.sleep(600)
"""


def _owner_process() -> tuple[subprocess.Popen[str], int]:
    """Another process that has a star with a child in it; the child's number, which the child itself tells."""
    command = [sys.executable, "-c", OWNER]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert owner.stdout is not None
    return owner, int(owner.stdout.readline())


def _await_end(pid: int) -> bool:
    for _ in range(600):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_owner_that_is_told_to_stop_cleans_up_itself(number: signal.Signals) -> None:
    owner, child = _owner_process()
    owner.send_signal(number)
    owner.communicate(timeout=30)
    assert _namespaces_of(owner.pid) == []
    assert _await_end(child)


def test_the_star_of_a_killed_owner_is_swept_by_the_next_and_its_children_die() -> None:
    owner, child = _owner_process()
    owner.kill()
    owner.communicate(timeout=30)
    assert _await_end(child)
    left = _namespaces_of(owner.pid)
    assert len(left) == 3
    assert set(left) <= set(sweep_stale_stars())
    assert _namespaces_of(owner.pid) == []


def test_sweeping_spares_the_stars_of_the_living(star: Star) -> None:
    assert not set(sweep_stale_stars()) & {host.namespace for host in star.hosts}
    assert probe.measure(star.workers[0], star.workers[1], count=10).lost == 0


def test_a_shaped_link_loses_nothing_by_itself(star: Star) -> None:
    star.reshape(Link(rate_mbit=200))
    report = probe.measure(star.workers[0], star.workers[1], count=DATAGRAMS)
    # None of them late is not for a link to promise: a sender that changes its CPU overtakes itself.
    assert (report.received, report.duplicated) == (DATAGRAMS, 0)
    assert report.late < DATAGRAMS * 0.005


def test_loss_happens_to_single_packets_in_both_directions(star: Star) -> None:
    star.reshape(Link(rate_mbit=400, loss=0.2))
    for sender, receiver in ((star.workers[0], star.switch), (star.switch, star.workers[0])):
        report = probe.measure(sender, receiver, count=DATAGRAMS)
        assert 0.15 < report.lost / DATAGRAMS < 0.25
        assert report.duplicated == 0


def test_loss_happens_to_packets_even_if_the_sender_sends_trains(star: Star) -> None:
    """A sender with UDP segmentation offload hands the kernel 40 datagrams as one buffer."""
    star.reshape(Link(rate_mbit=400, loss=0.2))
    report = probe.measure(star.workers[0], star.switch, count=DATAGRAMS, train=40)
    assert 0.15 < report.lost / DATAGRAMS < 0.25
    # Trains that vanish as one would leave about DATAGRAMS / 40 * 0.2 * 0.8 = 16 gaps; packets leave 640.
    assert report.gaps > 400


def test_duplication_and_reordering_happen_and_lose_nothing_much(star: Star) -> None:
    star.reshape(Link(rate_mbit=200, duplicate=0.1, reorder=0.02))
    report = probe.measure(star.workers[0], star.switch, count=DATAGRAMS)
    assert 0.05 < report.duplicated / DATAGRAMS < 0.15
    assert report.late > DATAGRAMS * 0.005


def test_reshaping_takes_the_old_link_away(star: Star) -> None:
    star.reshape(Link(rate_mbit=50, loss=0.5, duplicate=0.5))
    star.reshape(Link())
    report = probe.measure(star.workers[0], star.workers[1], count=500)
    assert (report.lost, report.duplicated) == (0, 0)
    assert "tbf" not in star.workers[0].run(["tc", "qdisc", "show", "dev", "star0"])


def _full_datagram(mtu: int) -> int:
    return mtu - 20 - 8


def test_jumbo_packets_go_from_end_to_end_and_nothing_larger() -> None:
    with Star(2, Link(mtu=9000)) as star:
        first, second = star.workers
        for sender, receiver in ((first, second), (first, star.switch), (star.switch, second)):
            report = probe.measure(sender, receiver, count=50, datagram_bytes=_full_datagram(9000))
            assert (report.received, report.lost) == (50, 0)
        with pytest.raises(StarError, match="too long"):
            probe.measure(first, second, count=1, datagram_bytes=_full_datagram(9000) + 1)


def test_a_link_carries_no_jumbo_packet_unless_asked_to(star: Star) -> None:
    first, second = star.workers
    assert probe.measure(first, second, count=50, datagram_bytes=_full_datagram(1500)).lost == 0
    for larger in (_full_datagram(1500) + 1, _full_datagram(9000)):
        with pytest.raises(StarError, match="too long"):
            probe.measure(first, second, count=1, datagram_bytes=larger)


def test_jumbo_packets_pass_buckets_and_the_long_way_round() -> None:
    with Star(2, Link(rate_mbit=400, mtu=9000)) as star:
        full = _full_datagram(9000)
        report = probe.measure(star.workers[0], star.switch, count=500, datagram_bytes=full)
        assert (report.received, report.lost, report.duplicated) == (500, 0, 0)
        star.reshape(Link(rate_mbit=200, reorder=0.02, mtu=9000))
        report = probe.measure(star.workers[0], star.switch, count=2000, datagram_bytes=full)
        assert report.late > 2000 * 0.003


def test_a_star_keeps_its_mtu(star: Star) -> None:
    with pytest.raises(ValueError, match="MTU of 1500; build a new one"):
        star.reshape(Link(mtu=9000))
    assert star.link == Link()


def test_segmentation_offload_is_off_on_shaped_links_and_on_otherwise(star: Star) -> None:
    def features() -> str:
        return star.workers[0].run(["ethtool", "-k", "star0"])

    assert "tcp-segmentation-offload: on" in features()
    star.reshape(Link(rate_mbit=100))
    for feature in ("tcp-segmentation-offload", "generic-segmentation-offload", "tx-udp-segmentation"):
        assert f"{feature}: off" in features()
    star.reshape(Link())
    assert "tx-udp-segmentation: on" in features()


@pytest.mark.parametrize("workers", [0, 33])
def test_a_star_with_too_few_or_too_many_workers_is_refused(workers: int) -> None:
    with pytest.raises(ValueError, match="1 to 32"):
        Star(workers)
    with pytest.raises(ValueError, match="0 to 8 aggregators"):
        Star(1, aggregators=9)
    with pytest.raises(ValueError, match="2 workers are in 0 to 2 racks"):
        Star(2, racks=3)


def test_an_aggregator_is_reached_over_a_link_like_the_workers() -> None:
    with Star(1, Link(rate_mbit=200), aggregators=1) as star:
        (worker,), (aggregator,) = star.workers, star.aggregators
        for sender, receiver in ((worker, aggregator), (aggregator, worker)):
            assert probe.measure(sender, receiver, count=50).lost == 0
            assert "rate 200Mbit" in sender.run(["tc", "qdisc", "show", "dev", "star0"])


def test_a_rack_is_reached_over_a_link_like_the_workers() -> None:
    with Star(4, Link(rate_mbit=200), racks=2) as star:
        first, second = star.racks
        assert [star.rack_of(worker) for worker in range(4)] == [first, first, second, second]
        for sender, receiver in ((star.workers[0], star.workers[3]), (star.workers[3], first), (star.switch, second)):
            assert probe.measure(sender, receiver, count=50).lost == 0
        assert "rate 200Mbit" in first.run(["tc", "qdisc", "show", "dev", "uplink0"])
        assert "rate 200Mbit" in star.switch.run(["tc", "qdisc", "show", "dev", "rack1"])


def test_a_command_that_fails_in_a_namespace_is_an_error_with_its_text(star: Star) -> None:
    with pytest.raises(StarError, match="no-such-device"):
        star.workers[0].run(["ip", "link", "show", "no-such-device"])
