"""Where packets stop, the doctor says so: a firewall is not blamed for a busy switch, nor a switch for a firewall."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from wiresum import join
from wiresum.agent import AggregatorStats, SessionStats, SparseStats, SwitchUnreachableError
from wiresum.agent.errors import JoinError
from wiresum.cli.doctor import path
from wiresum.cli.doctor.finding import Level
from wiresum.cli.doctor.path import Seen, Trial
from wiresum.controller.jobs.limits import Limits
from wiresum_lab.namespaces.star import Star
from wiresum_lab.processes import Program, wiresum

NAME = "doctor-here-1"
DOUBT = "eth0 is a veth that leaves work to a network card"
FIREWALL = "a firewall here or there must let UDP pass"


def data_problem(seen: Seen, doubt: str = "") -> tuple[str, str]:
    finding = path._failed(RuntimeError("the first sum did not come"), seen, doubt)
    assert finding.check == "data"
    return finding.what, finding.advice


@pytest.mark.parametrize(
    ("seen", "said", "blames_firewall"),
    [
        (Seen(), "What the switch counted is not known", True),
        (Seen(counted=0), "has counted none of this job's packets: they do not reach it", True),
        (
            Seen(counted=40, results=7),
            "counted 40 packets of this job, and 7 sums were complete, but none came back",
            True,
        ),
        (Seen(counted=40, results=7, came_back=3), "It is no firewall (3 sums came back)", False),
        (Seen(slow="s1: it did not say in 2 s"), "It is no firewall (s1: it did not say in 2 s)", False),
    ],
)
def test_the_place_where_packets_stop_decides_what_is_blamed(seen: Seen, said: str, blames_firewall: bool) -> None:
    what, advice = data_problem(seen)
    assert said in what
    assert (FIREWALL in advice) == blames_firewall
    assert ("look at the load of the switch's processor" in advice) != blames_firewall


@pytest.mark.parametrize(
    ("said", "code", "doubted"),
    [
        ("tcp handshaker shutdown", "UNAVAILABLE", True),
        ("it was reached, but did not answer", "DEADLINE_EXCEEDED", True),
        ("Connection refused", "UNAVAILABLE", False),
        ("SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED", "UNAVAILABLE", False),
        ("it is full", "RESOURCE_EXHAUSTED", False),
    ],
)
def test_frames_are_doubted_only_where_nobody_has_answered(said: str, code: str, doubted: bool) -> None:
    finding = path._failed(JoinError(said, code=code), Seen(), DOUBT)
    assert (finding.what, finding.advice) == (said, DOUBT if doubted else "")


@pytest.mark.parametrize(
    ("seen", "doubted"), [(Seen(), True), (Seen(counted=0), True), (Seen(counted=1), False), (Seen(came_back=1), False)]
)
def test_frames_of_this_host_are_doubted_unless_the_switch_has_counted_them(seen: Seen, doubted: bool) -> None:
    _, advice = data_problem(seen, DOUBT)
    assert advice.endswith(f". If they let it pass: {DOUBT}") == doubted
    assert advice.startswith(FIREWALL) == (not seen.came_back)


def test_an_address_that_may_be_translated_comes_before_a_firewall() -> None:
    error = SwitchUnreachableError("nothing came back. rank 1 ... (NAT)", translated="rank 1 ... (NAT)")
    finding = path._failed(error, Seen(counted=0), "")
    assert finding.advice.startswith(f"{join.TRANSLATION_ADVICE}. If no address is translated: {FIREWALL}")


@pytest.mark.parametrize(("code", "doubted"), [("UNAVAILABLE", True), ("RESOURCE_EXHAUSTED", False)])
def test_frames_are_doubted_where_the_service_is_not_reached(code: str, doubted: bool) -> None:
    error = RuntimeError("cannot join")
    error.code = code  # type: ignore[attr-defined]
    finding = path._failed(error, Seen(), DOUBT)
    assert (finding.check, finding.advice == DOUBT) == ("join", doubted)


def test_what_the_service_says_of_the_trials_job_is_kept() -> None:
    def report(uncounted: bool = False, **counted: int) -> join.Report:
        job = join.JobReport(name=NAME, slots=64, packets=counted, results=counted.get("admitted", 0) // 2)
        job.uncounted = uncounted
        other = join.JobReport(name="night", slots=64, packets={"admitted": 1000}, results=500)
        switch = join.SwitchReport(name="s1", uncounted=uncounted, trouble="it did not say" if uncounted else "")
        return join.Report(jobs=[other, job], switches=[switch])

    seen = Seen()
    path._note(join.Report(), NAME, seen)
    assert seen == Seen(counted=None)
    path._note(report(uncounted=True), NAME, seen)
    assert seen == Seen(counted=None, slow="s1: it did not say")
    path._note(report(), NAME, seen := Seen())
    assert seen == Seen(counted=0)
    path._note(report(admitted=8, resent=2), NAME, seen)
    path._note(report(uncounted=True), NAME, seen)
    path._note(join.Report(), NAME, seen)
    assert seen == Seen(counted=10, results=4, slow="s1: it did not say")


def trial(rtt_s: float) -> Trial:
    part = AggregatorStats(switch="s1", rtt_least_ns=round(rtt_s * 1e9), rtt_ns=10**9)
    sparse = SparseStats(*[0] * len(dataclasses.fields(SparseStats)))
    stats = SessionStats(aggregators=(part,), transport="udp", sharing=(), sparse=sparse, exact_sums=0)
    return Trial(wrong=0, numbers=1, seconds=1.0, lanes=360, stats=stats)


def test_a_lease_is_held_against_what_a_far_path_holds() -> None:
    assert Limits().slots_default == path.SLOTS_USUAL
    assert not list(path._far([trial(0.0), trial(0.000999)])), "a queue on a near path is not its length"
    (finding,) = path._far([trial(0.001), trial(0.05)])
    assert (finding.check, finding.level) == ("far", Level.NOTE)
    assert "takes 50 ms" in finding.what
    assert "for each Gbit/s this path holds 6.2 MB, and the usual lease of 256 slots 0.4 MB" in finding.what
    assert finding.why == "such a lease carries at most 59 Mbit/s here"
    assert finding.advice.endswith("Each Gbit/s takes 4,341")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "rule", "said"),
    [
        pytest.param(
            "output",
            "udp dport 43488-43503",
            "counted none of this job's packets: they do not reach it",
            marks=pytest.mark.nightly,
        ),
        (
            "input",
            "udp sport 43488-43503",
            "none came back: packets reach it, and what it sends does not reach this host",
        ),
    ],
)
def test_the_doctor_says_which_way_a_firewall_closes(
    star: Star, tmp_path: Path, hook: str, rule: str, said: str
) -> None:
    control = f"{star.switch.management_address}:43487"
    command = wiresum("switch", "--control", control, "--insecure", "--bind", star.switch.address)
    with Program(star.switch.command(command), tmp_path / "switch.log") as switch:
        switch.await_text("ready: ")
        worker = star.workers[0]
        chain = f"add table ip t\nadd chain ip t c {{ type filter hook {hook} priority 0; }}\n"
        worker.run(["nft", f"{chain}add rule ip t c {rule} drop\n"])
        asked = wiresum("doctor", "--check", "path", "--json", "--switch", control, "--insecure")
        asked += ["--address", worker.address, "--size", "1"]
        done = subprocess.run(worker.command(asked), capture_output=True, text=True, check=False)
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["check"] == "data"
    assert said in finding["what"]
    assert FIREWALL in finding["advice"]
