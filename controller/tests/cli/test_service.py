from __future__ import annotations

import click
import grpc
import pytest

from wiresum import join
from wiresum.cli.service import Service, ServiceError
from wiresum_lab.doubles.operator_service import WrittenService, example_report


def test_an_endpoint_without_a_port_gets_the_default_port() -> None:
    assert Service("10.0.0.1, b:1").targets == ("10.0.0.1:43487", "b:1")


def test_the_switch_of_a_training_is_named_by_where_it_serves() -> None:
    with pytest.raises(click.BadParameter, match="WIRESUM_SWITCH=local each training starts a switch of its own"):
        Service("local")


def test_each_aggregator_has_a_service_of_its_own() -> None:
    service = Service("10.0.0.1, b:1 + c")
    assert service.switch == "10.0.0.1:43487,b:1+c:43487"
    assert [part.targets for part in service.aggregators()] == [("10.0.0.1:43487", "b:1"), ("c:43487",)]
    with pytest.raises(click.BadParameter, match="HOST:PORT"):
        Service("a+")


def test_reports_of_several_aggregators_are_merged_under_the_names_of_their_switches(service: WrittenService) -> None:
    other = WrittenService()
    other.start()
    for written in (service, other):
        written.reports = [example_report()]
        written.reports[0].service.refusals["rate"] = 2
    with Service(f"{service.target}+{other.target}") as both:
        report = both.report()
        rack1 = [f"rack1 ({written.target})" for written in (service, other)]
        assert [switch.name for switch in report.switches] == rack1
        assert [job.switch_name for job in report.jobs if job.name == "night-run"] == rack1
        assert (report.service.role, report.service.refusals["rate"]) == ("active", 4)
        other.stop()
        with pytest.raises(ServiceError, match=other.target):
            both.report()


def test_a_change_needs_a_single_aggregator(service: WrittenService) -> None:
    with (
        Service(f"{service.target}+127.0.0.1:1") as both,
        pytest.raises(ServiceError, match="2 aggregators are named") as caught,
    ):
        both.tell(lambda stub: stub.EndJob(join.EndJobRequest(job_name="x")))
    assert (caught.value.code, service.asked) == ("INVALID_ARGUMENT", [])


def test_a_standby_is_skipped_whichever_endpoint_is_named_first(service: WrittenService) -> None:
    standby = WrittenService()
    standby.start()
    standby.reports = [join.Report(service=join.ServiceReport(role="standby"))]
    service.reports = [join.Report(service=join.ServiceReport(role="active"))]
    with Service(f"127.0.0.1:1,{standby.target},{service.target}") as both:
        assert both.report().service.role == "active"
        assert set(both.standbys()) == {standby.target}
    standby.stop()


@pytest.mark.parametrize("standby_first", [True, False])
def test_a_standby_is_no_answer_for_an_active_controller_that_fails(
    service: WrittenService, standby_first: bool
) -> None:
    standby = WrittenService()
    standby.start()
    standby.reports = [join.Report(service=join.ServiceReport(role="standby", active_silent_seconds=7.5))]
    active = service.target
    service.stop()
    targets = (standby.target, active) if standby_first else (active, standby.target)
    with Service(",".join(targets)) as both, pytest.raises(ServiceError) as caught:
        both.report()
    assert caught.value.code == "UNAVAILABLE"
    assert f"cannot ask the service at {active} " in caught.value.message
    assert f"{standby.target} stands by: up 0s, it has seen no life of the active controller for 7.5 s" in str(
        caught.value
    )
    with Service(standby.target) as alone, pytest.raises(ServiceError, match="no active controller answers") as caught:
        alone.report()
    assert caught.value.code == "UNAVAILABLE"
    standby.stop()


def test_a_change_that_was_not_answered_may_yet_be_carried_out(service: WrittenService) -> None:
    service.answering.clear()
    with Service(service.target) as one, pytest.raises(ServiceError, match="It may yet do what it was told"):
        one.tell(lambda stub: stub.EndJob(join.EndJobRequest(job_name="x"), timeout=0.2))
    with Service(service.target) as one, pytest.raises(ServiceError) as caught:
        one.report(0.2)
    assert "may yet" not in str(caught.value)


def test_a_change_goes_to_the_first_endpoint_that_accepts_it(service: WrittenService) -> None:
    standby = WrittenService()
    standby.start()
    standby.refusal = (grpc.StatusCode.UNAVAILABLE, "this is a standby")
    with Service(f"{standby.target},{service.target}") as both:
        both.tell(lambda stub: stub.EndJob(join.EndJobRequest(job_name="x")))
    standby.stop()
    assert [request.job_name for request in service.asked] == ["x"]


def test_a_refused_change_is_not_tried_at_another_endpoint(service: WrittenService) -> None:
    other = WrittenService()
    other.start()
    service.refusal = (grpc.StatusCode.NOT_FOUND, "there is no job 'x'")
    with (
        Service(f"{service.target},{other.target}") as both,
        pytest.raises(ServiceError, match=r"refuses: there is no job 'x'") as caught,
    ):
        both.tell(lambda stub: stub.EndJob(join.EndJobRequest(job_name="x")))
    other.stop()
    assert (caught.value.code, other.asked) == ("NOT_FOUND", [])


def test_a_standby_does_not_hide_why_the_other_one_does_not_answer(service: WrittenService) -> None:
    service.refusal = (grpc.StatusCode.UNAVAILABLE, f"{join.STANDS_BY}: another controller serves")
    for targets in (f"{service.target},127.0.0.1:1", f"127.0.0.1:1,{service.target}"):
        with Service(targets) as both, pytest.raises(ServiceError, match=r"at 127\.0\.0\.1:1 ") as error:
            both.tell(lambda stub: stub.EndJob(join.EndJobRequest()))
        assert error.value.code == "UNAVAILABLE"
    with Service(service.target) as one, pytest.raises(ServiceError, match="no active controller answers"):
        one.tell(lambda stub: stub.EndJob(join.EndJobRequest()))


def test_a_foreign_service_and_an_unreachable_one_give_different_errors() -> None:
    stranger = grpc.server(None, handlers=[])
    port = stranger.add_insecure_port("127.0.0.1:0")
    stranger.start()
    with Service(f"127.0.0.1:{port}") as service, pytest.raises(ServiceError, match="no Wiresum service"):
        service.report()
    stranger.stop(None)
    with (
        Service("127.0.0.1:1") as service,
        pytest.raises(ServiceError, match="start a switch with `wiresum switch`") as caught,
    ):
        service.report()
    assert caught.value.code == "UNAVAILABLE"


def test_a_service_that_stops_during_a_change_is_named_and_no_other_is_tried(service: WrittenService) -> None:
    def stopped(_request: join.EndJobRequest, context: grpc.ServicerContext) -> join.EndJobReply:
        context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")  # as gRPC does with calls that come as it shuts down

    service.EndJob = stopped  # type: ignore[method-assign]
    service.stop()
    service.start()
    with Service(f"{service.target},127.0.0.1:1") as both, pytest.raises(ServiceError, match="it went away") as caught:
        both.tell(lambda stub: stub.EndJob(join.EndJobRequest(job_name="x")))
    assert service.target in str(caught.value)
