"""`wiresum health`: asks gRPC's health service, with certificates. A kubelet's own probe has none."""

from __future__ import annotations

import json

import click

from wiresum.cli.options import json_option
from wiresum.cli.service import Service, ServiceError, service_options
from wiresum.cli.text import visible

SERVING = "SERVING"
"""The healthy state, as gRPC names it."""

EPILOG = """\b
Examples:
  wiresum health
  wiresum health --switch 10.0.0.5:43487,10.0.0.6:43487 --tls pki/operator
  wiresum health --ready || echo "no job can begin"
"""


@click.command(epilog=EPILOG)
@click.option("--ready", is_flag=True, help="Ask whether jobs are taken, not only whether the service runs.")
@click.option(
    "--timeout",
    "timeout_s",
    default=3.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="How long a service may take to answer.",
)
@json_option
@service_options
def health(service: Service, ready: bool, timeout_s: float, as_json: bool) -> None:
    """Ask a switch or controller whether it is healthy, for probes and scripts.

    Of an active controller and its standbys one must be healthy, of several aggregators all. If one is not, the
    reason is printed. Exit status: 0 if healthy, else 1.
    """
    states = {part.switch: _state_of(part, ready, timeout_s) for part in service.aggregators()}
    if as_json:
        click.echo(json.dumps(states))
    else:
        for switch, state in states.items():
            click.echo(f"{switch}: {state}")
    if any(state != SERVING for state in states.values()):
        raise click.exceptions.Exit(1)


def _state_of(service: Service, ready: bool, timeout_s: float) -> str:
    """The state of one aggregator as gRPC names it, with the reason if the service gives one; or why the state is not
    known."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from wiresum.join import JOIN_SERVICE, WHY_NOT_KEY

    request = health_pb2.HealthCheckRequest(service=JOIN_SERVICE if ready else "")
    try:
        reply, call = service.ask(
            lambda channel: health_pb2_grpc.HealthStub(channel).Check.with_call(request, timeout=timeout_s)
        )
    except ServiceError as error:
        return error.message
    state = str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
    why_not = dict(call.trailing_metadata() or ()).get(WHY_NOT_KEY, b"")
    return f"{state}: {visible(why_not.decode(errors='replace'))}" if why_not and state != SERVING else state
