"""Join calls that are repeated, and workers that replace one that has gone away."""

from __future__ import annotations

import pytest

from wiresum import join
from wiresum.controller.driver import SwitchSizes
from wiresum.controller.jobs.job import Asker, State
from wiresum.controller.jobs.outputs import Grant, Refuse
from wiresum_lab.doubles.controller import JobsHarness, join_request


def test_a_repeated_join_with_the_same_attempt_gets_the_same_place() -> None:  # R7.7
    harness = JobsHarness()
    first = harness.ask(rank=0, world_size=2, attempt="first")
    harness.jobs.hung_up(first, first.call, harness.now)
    harness.wait(2)
    assert harness.ask(rank=0, world_size=2, attempt="first") is first
    harness.wait(5)
    harness.ask(rank=1, world_size=2, attempt="second")
    assert [grant.worker.rank for grant in harness.outputs(Grant)] == [0, 1]
    granted = harness.outputs(Grant)[0].reply
    harness.done.clear()
    assert harness.ask(rank=0, world_size=2, attempt="first") is first, "its grant was lost on the way"
    (again,) = harness.outputs(Grant)
    assert again.reply == granted


def test_a_call_that_was_replaced_by_a_newer_one_may_break() -> None:
    harness = JobsHarness()
    worker = harness.ask(rank=0, world_size=2, attempt="first")
    call = worker.call
    harness.ask(rank=0, world_size=2, attempt="first")
    harness.jobs.hung_up(worker, call, harness.now)
    harness.wait(5)
    assert worker.away_since is None
    assert harness.outputs(Refuse) == []


@pytest.mark.parametrize("fields", [{"attempt": "second"}, {"attempt": ""}, {"attempt": "first", "port": 9000}])
def test_a_rank_that_is_taken_is_refused_to_another_attempt(fields: dict[str, object]) -> None:
    harness = JobsHarness()
    harness.ask(rank=0, world_size=2, attempt="first")
    port = fields.pop("port", 5000)
    again = {"rank": 0, "world_size": 2, "endpoint": join.Endpoint(address="127.0.0.1", port=port)} | fields
    code, text = harness.refusal_of(lambda: harness.ask(**again))
    assert code == "ALREADY_EXISTS"
    assert "rank 0 (127.0.0.1, process 1000 on 'host-0') has that place" in text
    harness.ask(rank=1, world_size=2)
    assert harness.refusal_of(lambda: harness.ask(**again))[0] == "ALREADY_EXISTS", "also when the job runs"


def test_another_attempt_may_replace_a_worker_that_has_gone_away() -> None:
    harness = JobsHarness()
    old = harness.ask(rank=0, world_size=2, attempt="old")
    harness.jobs.hung_up(old, old.call, harness.now)
    new = harness.ask(rank=0, world_size=2, attempt="new", process_id=77)
    harness.wait(5)
    harness.ask(rank=1, world_size=2)
    assert harness.outputs(Grant)[0].worker is new
    assert harness.refusal_of(lambda: harness.ask(rank=0, world_size=2, attempt="old"))[0] == "ALREADY_EXISTS"


def test_a_queued_job_is_given_up_when_a_worker_does_not_come_back() -> None:
    harness = JobsHarness(SwitchSizes(slots=16, lanes_max=360, jobs_max=8))
    holder = harness.ask(job_name="holder", slots=16)
    workers = harness.ask_all(2, slots=16)
    harness.jobs.hung_up(workers[0], workers[0].call, harness.now)
    harness.leave(holder)
    assert workers[0].job.state is State.QUEUED, "a job with a missing worker gets no slots"
    harness.wait(10.2)
    code, text = harness.refused(workers[1])
    assert code == "ABORTED"
    assert "went away before job 'a-job' began; missing now: rank 0 of 2" in text
    assert harness.slots_free == 16


def test_workers_of_one_job_must_agree_on_its_tenant() -> None:
    harness = JobsHarness()
    harness.ask(rank=0, world_size=2, tenant="vision")
    for fields, complaint in (
        ({"tenant": "sound"}, "another tenant's than 'sound'"),
        ({}, "another tenant's than ''"),
    ):
        code, text = harness.refusal_of(lambda fields=fields: harness.ask(rank=1, world_size=2, **fields))
        assert code == "FAILED_PRECONDITION"
        assert complaint in text
    assert harness.ask(rank=1, world_size=2, tenant="vision").job.state is State.RUNNING


@pytest.mark.parametrize("state", ["forming", "running", "ending"])
def test_a_refusal_reveals_nothing_of_another_tenants_job(state: str) -> None:
    harness = JobsHarness()
    ranks = range(1 if state == "forming" else 2)
    workers = [harness.ask(rank=rank, world_size=2, tenant="vision", host_name="secret-host") for rank in ranks]
    if state == "ending":
        harness.switch_answers = False
        harness.abort(workers[0], "secret reason")
    _, text = harness.refusal_of(lambda: harness.ask(tenant="sound", job_token="7", world_size=5))
    assert "another tenant's" in text
    assert "secret" not in text
    assert "vision" not in text


def ask_as(harness: JobsHarness, name: str, **fields: object) -> State:
    """Joins with a certificate of this name that names no tenant."""
    asker = Asker(f"{name} at 10.0.0.7", "10.0.0.7", certificate="ab12", holder=name, own_account=True)
    worker = harness.jobs.ask(join_request(tenant=name, world_size=2, **fields), harness.now, asker)
    harness.settle()
    return worker.job.state


@pytest.mark.parametrize("made_by", ["host-0", "vision", ""])
def test_a_certificate_without_a_tenant_joins_only_jobs_of_its_own_name(made_by: str) -> None:
    harness = JobsHarness()
    harness.ask(rank=0, world_size=2, tenant=made_by)
    code, text = harness.refusal_of(lambda: ask_as(harness, "host-1", rank=1))
    assert code == "PERMISSION_DENIED"
    assert "is another tenant's than 'host-1', as whom this worker's certificate counts" in text
    if made_by == "host-0":
        assert ask_as(harness, "host-0", rank=1) is State.RUNNING


@pytest.mark.parametrize(("reserved_for", "enter"), [("", True), ("host-0", False), ("vision", False)])
def test_certificates_without_a_tenant_share_an_operators_job_only_if_it_is_reserved_for_no_tenant(
    reserved_for: str, enter: bool
) -> None:
    harness = JobsHarness()
    asked = join.CreateJobRequest(job_name="a-job", world_size=2, tenant=reserved_for)
    token = harness.jobs.create(asked, harness.now)
    if reserved_for != "vision":
        ask_as(harness, "host-0", rank=0, job_token=token)
    if enter:
        assert ask_as(harness, "host-1", rank=1, job_token=token) is State.RUNNING
    else:
        code, _ = harness.refusal_of(lambda: ask_as(harness, "host-1", rank=1, job_token=token))
        assert code == "PERMISSION_DENIED"


def test_a_certificate_with_a_tenant_cannot_join_a_job_reserved_for_no_tenant() -> None:
    harness = JobsHarness()
    token = harness.jobs.create(join.CreateJobRequest(job_name="a-job", world_size=2), harness.now)
    code, text = harness.refusal_of(lambda: harness.ask(rank=0, world_size=2, tenant="vision", job_token=token))
    assert (code, "another tenant's than 'vision'" in text) == ("FAILED_PRECONDITION", True)
    assert "WIRESUM_TENANT" in text
    asker = Asker("node7 at 10.0.0.7", "10.0.0.7", certificate="ab12", holder="node7")
    request = join_request(rank=0, world_size=2, tenant="vision", job_token=token)
    _, text = harness.refusal_of(lambda: harness.jobs.ask(request, harness.now, asker))
    assert "whose certificate this worker has: give all its workers certificates of one tenant" in text
    assert text.index("certificates of one tenant") < text.index("WIRESUM_TENANT"), "which only chooses among several"


def test_all_workers_hear_which_settings_differ() -> None:  # R7.6
    harness = JobsHarness()
    for rank, bits in enumerate(["32", "16", "32"]):
        harness.ask(rank=rank, world_size=3, agreed={"WIRESUM_BITS": bits, "sparse": "1"})
    refusals = {refuse.worker.rank: refuse.refusal for refuse in harness.outputs(Refuse)}
    assert sorted(refusals) == [0, 1, 2]
    for refusal in refusals.values():
        assert refusal.code == "FAILED_PRECONDITION"
        assert "WIRESUM_BITS is 32 at rank 0 (127.0.0.1, process 1000 on 'host-0') and 16 at rank 1 (" in refusal.text
        assert "sparse" not in refusal.text
    for rank in range(3):
        harness.ask(rank=rank, world_size=3, agreed={"WIRESUM_BITS": "16"})
    assert len(harness.outputs(Grant)) == 3, "the name is free, and they agree now"


def test_a_setting_that_only_one_worker_names_is_not_compared() -> None:
    harness = JobsHarness()
    harness.ask(rank=0, world_size=3, agreed={"WIRESUM_BITS": "32"})
    harness.ask(rank=1, world_size=3)
    harness.ask(rank=2, world_size=3, agreed={"WIRESUM_BITS": "32", "WIRESUM_OF_LATER": "1"})
    assert len(harness.outputs(Grant)) == 3
