"""`wiresum health`: gRPC's health service, asked with our certificates, which a kubelet's own probe has not."""

from __future__ import annotations

import json

import click

from wiresum.cli.service import Service, ServiceError, service_options

EPILOG = """\b
Examples:
  wiresum health
  wiresum health --switch 10.0.0.5:43487,10.0.0.6:43487 --tls pki/operator
  wiresum health --ready || echo "no job can begin"
"""


@click.command(epilog=EPILOG)
@click.option("--ready", is_flag=True, help="Ask whether a job could begin now, and not only whether it serves.")
@click.option(
    "--timeout",
    "timeout_s",
    default=3.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="How long a service may take to answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@service_options
def health(service: Service, ready: bool, timeout_s: float, as_json: bool) -> None:
    """Ask a switch or controller whether it is healthy, for probes and scripts.

    Of several with commas between them, one must be: a standby serves nobody. The exit status is 0 if so, and 1 if not.
    """
    states = {part.switch: _state_of(part, ready, timeout_s) for part in service.aggregators()}
    if as_json:
        click.echo(json.dumps(states))
    else:
        for switch, state in states.items():
            click.echo(f"{switch}: {state}")
    if any(state != "SERVING" for state in states.values()):
        raise click.exceptions.Exit(1)


def _state_of(service: Service, ready: bool, timeout_s: float) -> str:
    """Of one aggregator, as gRPC calls it, or why it has none."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    request = health_pb2.HealthCheckRequest(service="wiresum.join.v1.JoinService" if ready else "")
    try:
        reply = service.ask(lambda channel: health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s))
    except ServiceError as error:
        return error.message
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
