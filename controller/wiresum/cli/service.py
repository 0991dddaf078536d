"""Asks a service: the options that name it, the calls, and the errors that explain a failed call.

A service is what workers join: a controller, or `wiresum switch` with its own. Where there are several (an active
controller and a standby), the one that is active answers, whichever is named first. Where a job is at several
aggregators, each has a service of its own, and a command is for all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    import grpc

    from wiresum import join
    from wiresum.join import operator_pb2_grpc

TIMEOUT_S = 5.0
"""A service that has not answered by then counts as one that cannot be reached."""
RECONNECT_MS_MAX = 1000
"""Longest pause between two attempts of one channel: `wiresum top` is to see at once that a service is back."""
OPTIONS = ("switch", "tls", "insecure")

T = TypeVar("T")


class ServiceError(click.ClickException):
    """No service answered, or it refused. The text says what to do."""

    def __init__(self, text: str, *, code: str) -> None:
        super().__init__(text)
        self.code = code
        """The name of a `grpc.StatusCode`."""


class Service:
    """The service at one of `targets`, each host:port; a host alone gets the usual port. Use it in a `with`.

    `tls` is a directory with ca.crt, tls.crt and tls.key, or "" for none; without one, `insecure` is needed for a
    service that is not on this host.
    """

    def __init__(self, targets: str, *, tls: str = "", insecure: bool = False, timeout_s: float = TIMEOUT_S) -> None:
        """`targets` as in WIRESUM_SWITCH: commas between a service and its standbys, + between aggregators.
        `timeout_s` is for each report."""
        from wiresum.join.constants import CONTROL_PORT

        named = [[target.strip() for target in part.split(",") if target.strip()] for part in targets.split("+")]
        if not all(named):
            raise click.BadParameter("at least one HOST:PORT is needed", param_hint="--switch")
        self._groups: Sequence[Sequence[str]] = tuple(
            tuple(target if ":" in target else f"{target}:{CONTROL_PORT}" for target in part) for part in named
        )
        self.tls, self.insecure, self.timeout_s = tls, insecure, timeout_s
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
        """The service of each aggregator alone. They live as long as this one."""
        parts = [
            Service(",".join(group), tls=self.tls, insecure=self.insecure, timeout_s=self.timeout_s)
            for group in self._groups
        ]
        for part in parts:
            part._channels = self._channels
        return parts

    def report(self, timeout_s: float | None = None) -> join.Report:
        """All jobs and switches as they are now; a standby's view only if nobody is active. Raises a `ServiceError`.

        Of several aggregators it is one report, in which each switch's name says at which of them it is.
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

    def _report_of(self, group: Sequence[str], timeout_s: float) -> join.Report:
        from wiresum import join
        from wiresum.join import operator_pb2_grpc

        standby: join.Report | None = None
        error: ServiceError | None = None
        for target in group:
            try:
                stub = operator_pb2_grpc.OperatorServiceStub(self._channel(target))
                report = stub.GetReport(join.GetReportRequest(), timeout=timeout_s)
            except Exception as caught:
                error = error or self._explain(target, caught)
                continue
            if report.service.role != "standby":
                return report
            standby = standby or report
        if standby is not None:
            return standby
        assert error is not None, "there is at least one target, and it either answered or failed"
        raise error

    def ended(self, timeout_s: float = TIMEOUT_S) -> join.EndedJobs:
        """Jobs that have ended, the newest first, at all aggregators. Raises a `ServiceError`."""
        from wiresum import join

        found: list[join.EndedJob] = []
        for part, group in zip(self.aggregators(), self._groups, strict=True):
            reply = part.tell(lambda stub: stub.ListEnded(join.ListEndedRequest(), timeout=timeout_s))
            for job in reply.jobs:
                if len(self._groups) > 1 and job.switch_name:
                    job.switch_name = f"{job.switch_name} ({group[0]})"
                found.append(job)
        found.sort(key=lambda job: job.ended_at, reverse=True)
        return join.EndedJobs(jobs=found)

    def tell(self, call: Callable[[operator_pb2_grpc.OperatorServiceStub], T]) -> T:
        """Makes a call that changes something; raises a `ServiceError`. Only one aggregator may be named, since only
        that one changes."""
        if len(self._groups) > 1:
            raise ServiceError(
                f"{len(self._groups)} aggregators are named ({self.switch}), and this changes one: name it with "
                "--switch. A job that ends at one of its aggregators ends at all of them",
                code="INVALID_ARGUMENT",
            )
        from wiresum.join import operator_pb2_grpc

        return self.ask(lambda channel: call(operator_pb2_grpc.OperatorServiceStub(channel)))

    def ask(self, call: Callable[[grpc.Channel], T]) -> T:
        """Makes a call at the first service that takes it; raises a `ServiceError`.

        After UNAVAILABLE it tries the next one: a service that cannot be reached, or a standby, has changed nothing.
        """
        from wiresum import join

        errors: list[ServiceError] = []
        for target in self.targets:
            try:
                return call(self._channel(target))
            except Exception as caught:
                errors.append(self._explain(target, caught))
                if errors[-1].code != "UNAVAILABLE":
                    raise errors[-1] from None
        # A standby says only that another one serves: why that one does not answer says more.
        raise next((error for error in errors if join.STANDS_BY not in str(error)), errors[0])

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

    def _explain(self, target: str, error: Exception) -> ServiceError:
        import grpc

        from wiresum.join import REFUSED_KEY
        from wiresum.join.credentials import CredentialsError

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
        elif code is grpc.StatusCode.UNAVAILABLE:
            text = (
                f"cannot ask the service at {target} ({details}): start a switch with `wiresum switch`, or name "
                f"another service with --switch or WIRESUM_SWITCH"
            )
            nobody_took_it = "to remote host" in details or "tcp handshaker" in details
            if not self.tls and not nobody_took_it:
                text += "; if it wants certificates, --tls or WIRESUM_TLS names the directory with yours"
        elif code is grpc.StatusCode.CANCELLED:
            # We never cancel. The code must not become UNAVAILABLE, after which `ask` tries the next service: this one
            # may have carried out the call.
            text = f"cannot ask the service at {target}: it went away while it was asked ({details})"
        else:
            text = f"asking the service at {target} failed: {details} ({code.name})"
        return ServiceError(text, code=code.name)


def _add(merged: join.Report, report: join.Report) -> None:
    """Adds the report of one more aggregator. What it says of the service is the first one's; refusals are added up."""
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
        with Service(switch, tls=tls, insecure=insecure) as service:
            return context.invoke(command, service, *arguments, **options)

    return with_service


def _inherited(context: click.Context, name: str, value: Any) -> Any:
    """The group's value, if only the group was given one on the command line."""
    parent = context.parent
    given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    if given or parent is None or parent.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
        return value
    return parent.params[name]
