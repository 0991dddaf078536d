"""A service, and calls from several addresses of one IPv6 network, in a network namespace that has them:

    python ipv6_callers.py ADDRESS...

It prints how many calls each address holds, whether a worker at another address could join, and as whom they count.
"""

from __future__ import annotations

import json
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from wiresum.controller import JoinServer
from wiresum.controller.config import SecurityConfig
from wiresum.controller.security import Security, Shares
from wiresum.join.credentials import open_channel
from wiresum_lab.doubles.controller import Client, RecordingDriver
from wiresum_lab.proxies import Proxies

CALLS, CALLS_OF_EACH = 64, 20


def main() -> None:
    security, proxies = Security(SecurityConfig(insecure=True)), Proxies()
    security.interceptor._shares = shares = Shares(CALLS)
    server = JoinServer(RecordingDriver(), security=security)
    port = server.start("0.0.0.0", 0)  # of IPv6 too
    held, kept = [], []  # calls and channels that are forgotten end
    for address in sys.argv[1:]:
        channel = open_channel(f"127.0.0.1:{proxies.make(port, address).port}")
        stub = health_pb2_grpc.HealthStub(channel)
        calls = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(CALLS_OF_EACH)]
        kept += [channel, *calls]
        held.append(sum(map(is_admitted, calls)))
    grant = Client(port).join(job_name="victim")
    said = {"held": held, "joined": grant.workers == 1, "parties": sorted(map(str, shares._held))}
    print(json.dumps(said), flush=True)
    server.stop(0.1)


def is_admitted(call: grpc.Call) -> bool:
    try:
        next(call)
    except grpc.RpcError:
        return False
    return True


if __name__ == "__main__":
    main()
