from __future__ import annotations

import copy

from wiresum import join
from wiresum.cli.doctor import job
from wiresum.cli.doctor.finding import Finding, Level
from wiresum.cli.rates import Sample
from wiresum_lab.doubles.operator_service import example_report, later, racks_report


def healthy() -> join.Report:
    report = example_report()
    del report.jobs[1]
    report.jobs[0].packets.clear()
    report.jobs[0].packets["admitted"] = 1000
    for worker in report.jobs[0].workers:
        worker.heartbeat_age_ms, worker.contributions = 100, 500
    return report


def findings(report: join.Report, before: join.Report | None = None, name: str = "") -> list[Finding]:
    return list(job.findings(Sample(before or report, 0.0), Sample(report, 1.5), name))


def test_a_healthy_job_is_one_line_with_its_rate() -> None:
    (finding,) = findings(later(healthy(), packets=600, results=300), before=healthy())
    assert (finding.level, finding.check) == (Level.OK, "health")
    assert "'night-run' is running, 2 workers, 200 results/s" in finding.what


def test_missing_workers_are_named_by_rank() -> None:
    forming = join.JobReport(name="new", state="forming", world_size=4, joined=2, waiting="ranks 1, 3 of 4")
    (finding,) = findings(join.Report(jobs=[forming]))
    assert (finding.check, finding.level) == ("missing", Level.WARNING)
    assert finding.what == "'new' has 2 of 4 workers: ranks 1, 3 of 4"


def test_a_queued_job_says_what_it_waits_for() -> None:
    (finding,) = findings(example_report(), name="next")
    assert finding.check == "queued"
    assert finding.what == "job 'next' is number 1 of 1"


def test_a_job_that_moves_says_what_it_waits_for() -> None:
    report = healthy()
    report.jobs[0].waiting = "it moves when another place can take it, since an operator drains leaf, 5 s ago: full"
    (finding,) = findings(later(report, packets=600, results=300), before=report)
    assert (finding.check, finding.level) == ("moving", Level.NOTE)
    assert "since an operator drains leaf" in finding.what
    report.jobs[0].state = "moving"
    report.jobs[0].waiting = "it moves, since leaf is lost (no answer), 2 s ago, and waits for rank 1 to halt"
    (finding,) = findings(report)
    assert (finding.check, finding.level) == ("moving", Level.WARNING)
    assert "waits for rank 1 to halt" in finding.what


def test_a_late_heartbeat_names_its_worker() -> None:
    report = healthy()
    report.jobs[0].workers[1].heartbeat_age_ms = 3400
    late = [finding for finding in findings(report) if finding.check == "heartbeat"]
    assert len(late) == 1
    assert "rank 1 (10.0.0.1, process 101 on 'host1') came 3.4 s ago" in late[0].what


def test_workers_that_had_wrong_sums_are_named_with_their_switch() -> None:
    report = healthy()
    report.jobs[0].workers[1].sums_wrong = 3
    (finding,) = findings(report)
    assert (finding.check, finding.level) == ("sums", Level.WARNING)
    assert "rank 1 (10.0.0.1, process 101 on 'host1') got 3 wrong sums from 'rack1'" in finding.what


def test_the_lagging_worker_is_named() -> None:
    report = healthy()
    report.jobs[0].workers[1].contributions -= 1
    (finding,) = findings(report)
    assert finding.check == "lags"
    assert "the others wait for rank 1 (10.0.0.1, process 101 on 'host1')" in finding.what


def test_of_workers_that_share_a_stream_the_one_is_named_that_has_begun_less() -> None:
    report = healthy()
    report.jobs[0].workers.add().CopyFrom(report.jobs[0].workers[1])
    for rank, said in enumerate((0xABCD0000, 0xFFFF, 0x12340000)):
        worker = report.jobs[0].workers[rank]
        worker.peer.rank, worker.tensor_said, worker.contributions = rank, said, 500 - (rank > 0)
    (finding,) = findings(report)
    assert "the others wait for rank 1 " in finding.what
    report.jobs[0].workers[1].tensor_said = 0
    assert len(findings(report)) == 2, "nobody knows which of the two"


def test_a_job_on_one_host_is_not_said_to_sum_nothing() -> None:
    report = healthy()
    report.jobs[0].streams = 1
    (finding,) = findings(report)
    assert (finding.level, finding.check) == (Level.OK, "health")
    assert "on one host: no switch sees their sums" in finding.what


def answered(report: join.Report, count: int) -> join.Report:
    """The same moment later: the switch has answered single workers so often, and no result came."""
    asked = copy.deepcopy(report)
    asked.jobs[0].packets["resent"] += count
    return asked


def test_a_laggard_of_which_nothing_came_may_be_behind_a_translation_of_addresses() -> None:
    report = healthy()
    laggard = report.jobs[0].workers[1]
    laggard.peer.called_from = "192.0.2.9"
    laggard.contributions -= 1
    assert [finding.check for finding in findings(report)] == ["lags"], "its packets come"
    laggard.contributions = 0
    (finding,) = findings(report)
    assert (finding.check, finding.level) == ("translated", Level.WARNING)
    assert "calls the service from 192.0.2.9, and says that its data comes from 10.0.0.1" in finding.what
    assert finding.advice.startswith(f"{join.TRANSLATION_ADVICE}. If no address is translated: that rank is in its")


def test_a_laggard_that_the_switch_answers_in_vain_does_not_hear() -> None:
    report = healthy()
    report.jobs[0].workers[1].contributions -= 1
    report.jobs[0].workers[1].endpoint.CopyFrom(join.Endpoint(address="10.0.0.1", port=45000))
    (finding,) = findings(answered(report, 3), before=report)
    assert (finding.level, finding.check) == (Level.WARNING, "deaf")
    assert "the others wait for rank 1 (10.0.0.1, process 101 on 'host1'), to which the switch sent 3" in finding.what
    assert "10.0.0.1, port 45000" in finding.advice
    assert "py-spy" not in finding.advice
    (finding,) = findings(answered(report, 2), before=report)
    assert finding.check == "lags", "two answers may have been on their way"


def test_a_worker_that_does_not_hear_is_noticed_at_the_end_of_a_tensor_too() -> None:
    (finding,) = findings(answered(healthy(), 4), before=healthy())
    assert finding.check == "deaf"
    assert "the switch sent 4 answers to single workers" in finding.what


def test_with_several_laggards_nobody_is_said_to_be_deaf_by_name() -> None:
    report = healthy()
    report.jobs[0].workers.add(peer=join.Peer(rank=2), contributions=400)
    report.jobs[0].workers[1].contributions -= 1
    found = findings(answered(report, 4), before=report)
    assert [finding.check for finding in found] == ["lags", "lags", "deaf"]
    assert "rank" not in found[2].what


def test_sums_that_are_lost_between_switches_are_not_blamed_on_a_worker() -> None:
    found = findings(answered(racks_report(), 9), before=racks_report())
    assert [finding.check for finding in found if finding.check != "resent"] == ["uplink"]


def test_no_worker_lags_while_results_come_or_the_slowest_one_changes() -> None:
    report = healthy()
    report.jobs[0].workers[1].contributions -= 1
    assert [finding.check for finding in findings(later(report, 10, 5), before=report)] == ["health"]
    other = copy.deepcopy(report)
    other.jobs[0].workers[0].contributions -= 1
    other.jobs[0].workers[1].contributions += 1
    assert [finding.check for finding in findings(other, before=report)] == ["still"], "no worker is behind both times"


def test_a_link_that_loses_sums_is_named_by_its_two_switches_if_no_worker_lags() -> None:
    (finding,) = findings(racks_report())
    assert (finding.check, finding.level) == ("uplink", Level.WARNING)
    assert "no worker is behind, but the sums of leaf2 are at spine" in finding.what
    with_laggard = racks_report()
    with_laggard.jobs[0].workers[1].contributions -= 7
    (finding,) = findings(with_laggard)
    assert finding.check == "lags", "the leaf waits for its own worker"
    going_on = later(racks_report(), packets=100, results=50)
    assert findings(going_on, before=racks_report())[0].check == "health"


def test_a_switch_of_a_tree_that_does_not_answer_is_named() -> None:
    report = racks_report()
    report.jobs[0].uncounted = report.jobs[0].switches[2].uncounted = True
    (finding,) = findings(report)
    assert "'wide': 'leaf2' does not say what it counted" in finding.what


def test_many_repeated_results_and_refused_packets_are_reported() -> None:
    report = healthy()
    report.jobs[0].packets["resent"] = 4
    assert [finding.check for finding in findings(report)] == ["still"], "a few are normal"
    report.jobs[0].packets["resent"] = 50
    report.jobs[0].packets["unknown"] = 7
    found = {finding.check: finding.what for finding in findings(report)}
    assert "50 results were asked for again, 10.0% of all" in found["resent"]
    assert "7 unknown" in found["refused"]
    assert "health" not in found


def test_an_unknown_job_is_a_problem_that_lists_the_known_ones() -> None:
    (finding,) = findings(healthy(), name="nobody")
    assert (finding.level, finding.check) == (Level.PROBLEM, "there")
    assert "'night-run'" in finding.what
    (none,) = findings(join.Report())
    assert none.level is Level.OK


def test_a_job_that_sums_nothing_is_not_called_healthy() -> None:
    (finding,) = findings(healthy(), before=healthy())
    assert (finding.level, finding.check) == (Level.NOTE, "still")
    assert "summed nothing in 1.5 s" in finding.what


def test_a_job_whose_switch_does_not_answer_is_not_called_healthy() -> None:
    report = healthy()
    report.jobs[0].uncounted = True
    report.jobs[0].packets.clear()
    (finding,) = findings(report, before=healthy())
    assert (finding.level, finding.check) == (Level.WARNING, "uncounted")
    assert "'rack1' does not say what it counted" in finding.what
