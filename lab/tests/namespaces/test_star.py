"""Stars in the kernel are built, reshaped, and always removed. Needs root.

The bounds on random loss are so wide that chance exceeds them less than once in a million runs. Rates are never
asserted.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum_lab.namespaces import probe
from wiresum_lab.namespaces import star as star_module
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star, StarError, sweep_stale_stars
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

DATAGRAMS = 4000


pytestmark = [pytest.mark.usefixtures("namespaces"), pytest.mark.timeout(120)]


@pytest.fixture
def star() -> Iterator[Star]:
    with Star(2) as built:
        yield built


def _namespaces_of(pid: int) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(f"wiresum-{pid}-")]


def _full_datagram(mtu: int) -> int:
    return mtu - 20 - 8


def test_workers_switch_and_manager_reach_each_other(star: Star) -> None:
    first, second = star.workers
    for sender, receiver in ((first, second), (second, star.switch), (star.switch, first)):
        assert probe.measure(sender, receiver, count=50, datagram_bytes=_full_datagram(1500)).lost == 0
    with pytest.raises(StarError, match="too long"):
        probe.measure(first, second, count=1, datagram_bytes=_full_datagram(1500) + 1)
    assert "10.112.0.1 dev manage0" in first.run(["ip", "route", "get", star.manager.management_address])


def test_the_star_has_no_connection_to_the_outside(star: Star) -> None:
    routes = star.workers[0].run(["ip", "route"])
    assert "default" not in routes


def test_nothing_is_left_after_a_star() -> None:
    with Star(3, Link(rate_mbit=100, loss=0.1), aggregators=2) as star:
        assert len(_namespaces_of(os.getpid())) == 7
        star.close()
        star.close()
    assert _namespaces_of(os.getpid()) == []


def test_an_exception_removes_the_star_and_ends_its_processes() -> None:
    process = None
    with pytest.raises(RuntimeError, match="on purpose"), Star(1) as star:
        process = star.workers[0].popen(["sh", "-c", "echo ready; exec sleep 600"], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"  # it is in its namespace now, where the star looks for it
        raise RuntimeError("on purpose")
    assert _namespaces_of(os.getpid()) == []
    assert process is not None and process.stdout is not None
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    process.stdout.close()


def test_a_process_that_ignores_sigterm_is_killed_with_its_star() -> None:
    with Star(1, kill_after_s=0.0) as star:
        script = "trap '' TERM; echo ready; exec sleep 600"
        process = star.workers[0].popen(["sh", "-c", script], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    process.stdout.close()
    assert _namespaces_of(os.getpid()) == []


def test_a_star_with_an_unsupported_link_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(star_module, "tc_commands", lambda *_, **__: ["qdisc add dev star0 root nonsense"])
    with pytest.raises(StarError, match="nonsense"):
        Star(1, Link(rate_mbit=1))
    assert _namespaces_of(os.getpid()) == []


OWNER = """
import signal
from wiresum_lab.namespaces.star import Star, termination_as_exit
with termination_as_exit(), Star(1) as star:
    star.workers[0].popen(["sh", "-c", "echo $$; exec sleep 600"])
    signal.pause()
"""


def _owner_process() -> tuple[subprocess.Popen[str], int]:
    """Starts another process that owns a star with a child in it; also gives the child's process id, which the child
    reports."""
    command = [sys.executable, "-c", OWNER]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert owner.stdout is not None
    return owner, int(owner.stdout.readline())


def _await_end(pid: int) -> None:
    def has_ended() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_until(has_ended, f"process {pid} has ended")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_owner_that_gets_sigterm_cleans_up_itself(number: signal.Signals) -> None:
    owner, child = _owner_process()
    owner.send_signal(number)
    owner.communicate(timeout=PATIENCE_S)
    assert _namespaces_of(owner.pid) == []
    _await_end(child)


def test_the_star_of_a_killed_owner_is_removed_by_the_next_sweep_and_its_children_die() -> None:
    owner, child = _owner_process()
    assert len(_namespaces_of(owner.pid)) == 3
    owner.kill()
    owner.communicate(timeout=PATIENCE_S)
    _await_end(child)
    sweep_stale_stars()
    # A test that builds a star meanwhile sweeps, too.
    wait_until(lambda: not _namespaces_of(owner.pid), "the star of the killed owner is gone")


def test_a_sweep_spares_the_stars_of_running_processes(star: Star) -> None:
    assert not set(sweep_stale_stars()) & {host.namespace for host in star.hosts}
    assert probe.measure(star.workers[0], star.workers[1], count=10).lost == 0


def test_a_shaped_link_alone_loses_nothing(star: Star) -> None:
    star.reshape(Link(rate_mbit=200))
    report = probe.measure(star.workers[0], star.workers[1], count=DATAGRAMS)
    # A few may be late: a sender that moves to another CPU can overtake itself.
    assert (report.received, report.duplicated) == (DATAGRAMS, 0)
    assert report.late < DATAGRAMS * 0.005


def test_loss_hits_single_packets_of_a_train_in_both_directions(star: Star) -> None:
    """A sender with UDP segmentation offload gives the kernel 40 datagrams as one buffer."""
    star.reshape(Link(rate_mbit=400, loss=0.2))
    for sender, receiver in ((star.workers[0], star.switch), (star.switch, star.workers[0])):
        report = probe.measure(sender, receiver, count=DATAGRAMS, train=40)
        assert 0.15 < report.lost / DATAGRAMS < 0.25
        # Lost trains would leave about DATAGRAMS / 40 * 0.2 * 0.8 = 16 gaps; lost packets leave 640.
        assert report.gaps > 400


def test_packets_are_duplicated_and_reordered(star: Star) -> None:
    star.reshape(Link(rate_mbit=200, duplicate=0.1, reorder=0.03))
    report = probe.measure(star.workers[0], star.switch, count=DATAGRAMS)
    assert 0.05 < report.duplicated / DATAGRAMS < 0.15
    # More than may be late by chance on a link that reorders nothing, and far less than the 60 to be expected here.
    assert report.late > DATAGRAMS * 0.005


def test_reshaping_removes_the_old_shape(star: Star) -> None:
    star.reshape(Link(rate_mbit=50, loss=0.5, duplicate=0.5))
    star.reshape(Link())
    report = probe.measure(star.workers[0], star.workers[1], count=500)
    assert (report.lost, report.duplicated) == (0, 0)
    assert "tbf" not in star.workers[0].run(["tc", "qdisc", "show", "dev", "star0"])


@pytest.mark.nightly
def test_jumbo_packets_pass_rate_limits_and_reordering() -> None:
    with Star(2, Link(rate_mbit=400, mtu=9000)) as star:
        full = _full_datagram(9000)
        report = probe.measure(star.workers[0], star.switch, count=500, datagram_bytes=full)
        assert (report.received, report.lost, report.duplicated) == (500, 0, 0)
        star.reshape(Link(rate_mbit=200, reorder=0.03, mtu=9000))
        report = probe.measure(star.workers[0], star.switch, count=DATAGRAMS, datagram_bytes=full)
        assert report.late > DATAGRAMS * 0.005


def test_the_mtu_of_a_star_is_fixed(star: Star) -> None:
    with pytest.raises(ValueError, match="MTU of 1500; build a new one"):
        star.reshape(Link(mtu=9000))
    assert star.link == Link()


def test_segmentation_offload_is_off_only_on_shaped_links(star: Star) -> None:
    def features() -> str:
        return star.workers[0].run(["ethtool", "-k", "star0"])

    assert "tcp-segmentation-offload: on" in features()
    star.reshape(Link(rate_mbit=100))
    for feature in ("tcp-segmentation-offload", "generic-segmentation-offload", "tx-udp-segmentation"):
        assert f"{feature}: off" in features()
    star.reshape(Link())
    assert "tx-udp-segmentation: on" in features()


@pytest.mark.parametrize("workers", [0, 33])
def test_a_star_with_an_invalid_number_of_hosts_is_refused(workers: int) -> None:
    with pytest.raises(ValueError, match="1 to 32"):
        Star(workers)
    with pytest.raises(ValueError, match="0 to 8 aggregators"):
        Star(1, aggregators=9)
    with pytest.raises(ValueError, match="2 workers are in 0 to 2 racks"):
        Star(2, racks=3)


@pytest.mark.nightly
def test_an_aggregator_is_behind_a_link_like_the_workers() -> None:
    with Star(1, Link(rate_mbit=200), aggregators=1) as star:
        (worker,), (aggregator,) = star.workers, star.aggregators
        for sender, receiver in ((worker, aggregator), (aggregator, worker)):
            assert probe.measure(sender, receiver, count=50).lost == 0
            assert "rate 200Mbit" in sender.run(["tc", "qdisc", "show", "dev", "star0"])


@pytest.mark.nightly
def test_a_rack_is_behind_a_link_like_the_workers() -> None:
    with Star(4, Link(rate_mbit=200), racks=2) as star:
        first, second = star.racks
        assert [star.rack_of(worker) for worker in range(4)] == [first, first, second, second]
        for sender, receiver in ((star.workers[0], star.workers[3]), (star.workers[3], first), (star.switch, second)):
            assert probe.measure(sender, receiver, count=50).lost == 0
        assert "rate 200Mbit" in first.run(["tc", "qdisc", "show", "dev", "uplink0"])
        assert "rate 200Mbit" in star.switch.run(["tc", "qdisc", "show", "dev", "rack1"])


def test_a_failed_command_in_a_namespace_is_an_error_with_its_output(star: Star) -> None:
    with pytest.raises(StarError, match="no-such-device"):
        star.workers[0].run(["ip", "link", "show", "no-such-device"])
