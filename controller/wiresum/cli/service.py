"""Asks a service: the options that name it, the calls, and the errors that explain a failed call.

A service is what workers join: a controller, or `wiresum switch` with its own. Where there are several (an active
controller and a standby), the active one answers, whichever is named first. A standby knows only itself, so it never
answers a question about jobs: where no active controller answers, there is no answer. Where a job is at several
aggregators, each has a service of its own, and a command is for all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from wiresum.cli.text import duration
from wiresum.cli.timing import Timing

if TYPE_CHECKING:
    import grpc

    from wiresum import join
    from wiresum.join import operator_pb2_grpc

TIMEOUT_S = 5.0
"""How long a service may take to answer; later it counts as unreachable."""
RECONNECT_MS_MAX = 1000
"""Longest pause between two attempts of one channel: `wiresum top` is to see at once that a service is back."""
OPTIONS = ("switch", "tls", "insecure")

T = TypeVar("T")


class ServiceError(click.ClickException):
    """Raised if no service answered, or one refused. The text says what to do."""

    def __init__(self, text: str, *, code: str) -> None:
        super().__init__(text)
        self.code = code
        """The name of a `grpc.StatusCode`."""


class _StandsByError(Exception):
    """Raised for a standby's report."""

    def __init__(self, report: join.Report) -> None:
        super().__init__("a standby")
        self.report = report


class Service:
    """The service at one of `targets`, each host:port; a host alone gets the usual port. Use it in a `with`.

    `tls` is a directory with ca.crt, tls.crt and tls.key, or "" for none; without one, `insecure` is needed for a
    service that is not on this host.
    """

    def __init__(
        self,
        targets: str,
        *,
        tls: str = "",
        insecure: bool = False,
        timeout_s: float = TIMEOUT_S,
        timing: Timing | None = None,
    ) -> None:
        """`targets` as in WIRESUM_SWITCH: commas between a service and its standbys, + between aggregators. `timeout_s`
        is for each report. `timing`: the clock of a command that asks repeatedly."""
        from wiresum.join.constants import CONTROL_PORT

        if targets == "local":
            raise click.BadParameter(
                "with WIRESUM_SWITCH=local each training starts a switch of its own: name where it serves, as "
                "`wiresum.torch.stats().service` says",
                param_hint="--switch",
            )
        named = [[target.strip() for target in part.split(",") if target.strip()] for part in targets.split("+")]
        if not all(named):
            raise click.BadParameter("at least one HOST:PORT is needed", param_hint="--switch")
        self._groups: Sequence[Sequence[str]] = tuple(
            tuple(target if ":" in target else f"{target}:{CONTROL_PORT}" for target in part) for part in named
        )
        self.tls, self.insecure, self.timeout_s = tls, insecure, timeout_s
        self.timing = timing or Timing()
        self._channels: dict[str, grpc.Channel] = {}

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    @property
    def targets(self) -> Sequence[str]:
        """The endpoints of all aggregators."""
        return tuple(target for group in self._groups for target in group)

    @property
    def switch(self) -> str:
        """All endpoints, written as in WIRESUM_SWITCH."""
        return "+".join(map(",".join, self._groups))

    def aggregators(self) -> list[Service]:
        """The services of the single aggregators. They live as long as this service."""
        parts = [
            Service(",".join(group), tls=self.tls, insecure=self.insecure, timeout_s=self.timeout_s, timing=self.timing)
            for group in self._groups
        ]
        for part in parts:
            part._channels = self._channels
        return parts

    def report(self, timeout_s: float | None = None) -> join.Report:
        """All jobs and switches as they are now, as the active controller reports them. Raises a `ServiceError`.

        For several aggregators the report is one, in which each switch's name says at which of them it is.
        """
        from wiresum import join

        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        if len(self._groups) == 1:
            return self._report_of(self._groups[0], timeout_s)
        merged = join.Report()
        for group in self._groups:
            report = self._report_of(group, timeout_s)
            for switch in report.switches:
                switch.name = f"{switch.name} ({group[0]})"
                switch.parent = switch.parent and f"{switch.parent} ({group[0]})"
            for job in report.jobs:
                job.switch_name = f"{job.switch_name} ({group[0]})"
            _add(merged, report)
        return merged

    def standbys(self) -> Mapping[str, join.Report]:
        """By endpoint, what each standby says of itself: its age, the switches that it reaches, and for how long it has
        seen no life of the active controller."""
        found: dict[str, join.Report] = {}
        for target in self.targets:
            try:
                self._ask_for_report(target, self.timeout_s)
            except _StandsByError as standby:
                found[target] = standby.report
            except Exception as error:
                self._explain(target, error)  # which raises what is not the service's
        return found

    def _report_of(self, group: Sequence[str], timeout_s: float) -> join.Report:
        return self._first_active(group, lambda target: self._ask_for_report(target, timeout_s), tries_all=True)

    def _ask_for_report(self, target: str, timeout_s: float) -> join.Report:
        """Asks one service for its report. Raises a `_StandsByError` instead of returning a standby's report."""
        from wiresum import join
        from wiresum.join import operator_pb2_grpc

        stub = operator_pb2_grpc.OperatorServiceStub(self._channel(target))
        report: join.Report = stub.GetReport(join.GetReportRequest(), timeout=timeout_s)
        if report.service.role == "standby":
            raise _StandsByError(report)
        return report

    def ended(self, timeout_s: float = TIMEOUT_S) -> join.EndedJobs:
        """Jobs that have ended, the newest first, at all aggregators. Raises a `ServiceError`."""
        from wiresum import join

        found: list[join.EndedJob] = []
        for part, group in zip(self.aggregators(), self._groups, strict=True):
            for job in part._ended(timeout_s):
                if len(self._groups) > 1 and job.switch_name:
                    job.switch_name = f"{job.switch_name} ({group[0]})"
                found.append(job)
        found.sort(key=lambda job: job.ended_at, reverse=True)
        return join.EndedJobs(jobs=found)

    def _ended(self, timeout_s: float) -> Iterator[join.EndedJob]:
        """Yields ended jobs page by page. The pages end: each is of an earlier time than the former one."""
        from wiresum import join
        from wiresum.join import operator_pb2_grpc

        def page(channel: grpc.Channel) -> join.EndedJobs:
            reply: join.EndedJobs = operator_pb2_grpc.OperatorServiceStub(channel).ListEnded(request, timeout=timeout_s)
            return reply

        request = join.ListEndedRequest()
        while True:
            reply = self.ask(page)
            yield from reply.jobs
            if not reply.next_page or 0 < request.page <= reply.next_page:
                return
            request.page = reply.next_page

    def tell(self, call: Callable[[operator_pb2_grpc.OperatorServiceStub], T]) -> T:
        """Makes a call that changes something; raises a `ServiceError`. Only one aggregator may be named, since a call
        changes only one."""
        if len(self._groups) > 1:
            raise ServiceError(
                f"{len(self._groups)} aggregators are named ({self.switch}), and this changes one: name it with "
                "--switch. A job that ends at one of its aggregators ends at all of them",
                code="INVALID_ARGUMENT",
            )
        from wiresum.join import operator_pb2_grpc

        return self.ask(lambda channel: call(operator_pb2_grpc.OperatorServiceStub(channel)), changes=True)

    def ask(self, call: Callable[[grpc.Channel], T], *, changes: bool = False) -> T:
        """Makes a call at the first service that takes it; raises a `ServiceError`. `changes`: the call changes
        something.

        After UNAVAILABLE the next service is tried: a service that cannot be reached, or a standby, has changed
        nothing. A service that does not answer in time may yet carry out a change, which the error says.
        """
        return self._first_active(self.targets, lambda target: call(self._channel(target)), changes=changes)

    def _first_active(
        self, group: Sequence[str], call: Callable[[str], T], *, tries_all: bool = False, changes: bool = False
    ) -> T:
        """Returns the answer of the first service that serves. `tries_all`: tries the next one also after a refusal.
        Raises a `ServiceError` about a service that does not stand by, if there is one, since the operator should look
        after that service; the error says which stand by."""
        errors: list[ServiceError] = []
        standbys: list[str] = []
        for target in group:
            try:
                return call(target)
            except _StandsByError as standby:
                standbys.append(f"{target} stands by: {about_standby(standby.report.service)}")
            except Exception as caught:
                error = self._explain(target, caught, changes=changes)
                if _is_of_standby(caught):
                    standbys.append(f"{target} stands by")
                    continue
                errors.append(error)
                if error.code != "UNAVAILABLE" and not tries_all:
                    raise error from None
        assert errors or standbys, "there is at least one target, and it either answered or failed"
        if not standbys:
            raise errors[0]
        if not errors:
            raise ServiceError(
                f"no active controller answers, and what runs is known to that alone. {'; '.join(standbys)}. Name the "
                "active controller too (--switch or WIRESUM_SWITCH, with commas). If it is gone, a standby takes over "
                "by itself: ask again in a moment; the standby's log says what it waits for",
                code="UNAVAILABLE",
            )
        raise ServiceError(
            f"{errors[0].message}. {'; '.join(standbys)}, and a standby does not know what runs. If the active "
            "controller is gone, it takes over by itself: ask again in a moment",
            code=errors[0].code,
        )

    def _channel(self, target: str) -> grpc.Channel:
        from wiresum import join
        from wiresum.join import credentials

        if target not in self._channels:
            options = [
                ("grpc.max_receive_message_length", join.REPORT_BYTES_MAX),
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
                ("grpc.use_local_subchannel_pool", 1),
            ]
            self._channels[target] = credentials.open_channel(
                target, tls=self.tls, insecure=self.insecure, options=options
            )
        return self._channels[target]

    def _explain(self, target: str, error: Exception, *, changes: bool = False) -> ServiceError:
        """Explains a failed call; raises an error that is no failure of a call. `changes`: the call would have changed
        something."""
        import grpc

        from wiresum.join import REFUSED_KEY
        from wiresum.join.credentials import CredentialsError, tls_advice

        if isinstance(error, CredentialsError):
            return ServiceError(str(error), code="UNAUTHENTICATED")
        if not isinstance(error, grpc.RpcError) or not isinstance(error, grpc.Call):
            raise error
        code, details = error.code(), error.details() or ""
        if any(key == REFUSED_KEY for key, _ in error.trailing_metadata() or ()):
            text = f"the service at {target} refuses: {details}"
        elif code is grpc.StatusCode.UNIMPLEMENTED:
            text = f"what listens at {target} is no Wiresum service of this version: is that the right --switch?"
        elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
            code = grpc.StatusCode.UNAVAILABLE
            text = (
                f"the service at {target} does not answer ({details}): its process is stopped or overloaded, or its "
                f"host is cut off (systemctl status, there); --switch or WIRESUM_SWITCH names another one"
            )
            if changes:
                text += ". It may yet do what it was told: look (`wiresum jobs`) before you tell it again"
        elif code is grpc.StatusCode.UNAVAILABLE:
            start = "start a switch with `wiresum switch`, or name another service with --switch or WIRESUM_SWITCH"
            advice = tls_advice(details, self.tls or "", "--switch or WIRESUM_SWITCH")
            text = f"cannot ask the service at {target} ({details}): {advice or start}"
            nobody_took_it = "to remote host" in details or "tcp handshaker" in details
            if not self.tls and not nobody_took_it:
                text += "; if it wants certificates, --tls or WIRESUM_TLS names the directory with yours"
        elif code is grpc.StatusCode.CANCELLED:
            # We never cancel. The code must not become UNAVAILABLE, after which `ask` tries the next service: this
            # service may have carried out the call.
            text = f"cannot ask the service at {target}: it went away while it was asked ({details})"
        else:
            text = f"asking the service at {target} failed: {details} ({code.name})"
        return ServiceError(text, code=code.name)


def about_standby(service: join.ServiceReport) -> str:
    """What a standby says of itself, a clause."""
    silent_s = service.active_silent_seconds
    seen = (
        f"it has seen no life of the active controller for {silent_s:.1f} s"
        if service.HasField("active_silent_seconds")
        else "it knows of no controller that serves"
    )
    return f"up {duration(service.age_seconds)}, {seen}"


def _is_of_standby(error: Exception) -> bool:
    """True if a standby turned the call away."""
    from wiresum import join

    details = getattr(error, "details", None)
    return details is not None and (details() or "").startswith(join.STANDS_BY)


def _add(merged: join.Report, report: join.Report) -> None:
    """Adds the report of one more aggregator. The part about the service is the first aggregator's; refusals are added
    up."""
    merged.jobs.extend(report.jobs)
    merged.switches.extend(report.switches)
    if not merged.HasField("service"):
        merged.service.CopyFrom(report.service)
        return
    for reason, count in report.service.refusals.items():
        merged.service.refusals[reason] += count


def service_options(command: Callable[..., T]) -> Callable[..., T]:
    """Gives a command the options that name a service, and passes it the `Service`, open, as its first argument.

    Options of a group count for its subcommands too: `wiresum jobs --switch A end B` asks A.
    """

    @click.option(
        "--switch",
        envvar="WIRESUM_SWITCH",
        default="127.0.0.1",
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT[,...][+...]",
        help="Control endpoint of the switch or controller. With commas between an active controller and its standbys, "
        "with + between several aggregators.",
    )
    @click.option(
        "--tls",
        envvar="WIRESUM_TLS",
        default="",
        show_envvar=True,
        metavar="DIRECTORY",
        help="Where your ca.crt, tls.crt and tls.key are (wiresum ca init).",
    )
    @click.option(
        "--insecure",
        is_flag=True,
        envvar="WIRESUM_INSECURE",
        show_envvar=True,
        help="Connect without encryption, even to another host.",
    )
    @click.pass_context
    @functools.wraps(command)
    def with_service(context: click.Context, *arguments: Any, **options: Any) -> T:
        switch, tls, insecure = (_inherited(context, name, options.pop(name)) for name in OPTIONS)
        with Service(switch, tls=tls, insecure=insecure, timing=context.find_object(Timing)) as service:
            return context.invoke(command, service, *arguments, **options)

    return with_service


def _inherited(context: click.Context, name: str, value: Any) -> Any:
    """The value of the group's option, if only the group was given the option on the command line; otherwise the
    command's."""
    parent = context.parent
    given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    if given or parent is None or parent.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
        return value
    return parent.params[name]
