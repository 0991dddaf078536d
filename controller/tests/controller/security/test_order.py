"""A call that breaks every rule is refused by the first, and so on: the rules are those of docs/security.md, "What the
service checks, in this order"."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from wiresum import join
from wiresum.controller import JoinServer, Limits
from wiresum.controller.config import SecurityConfig
from wiresum.controller.jobs.limits import Quota
from wiresum.controller.security import Security
from wiresum.controller.security.rates import TokenBuckets
from wiresum.controller.security.shares import Shares
from wiresum_lab import REPOSITORY
from wiresum_lab.doubles.controller import Client, RecordingDriver, join_request
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

LIMITS = Limits(positions_tenant_bytes_max=1)
QUOTA = Quota("vision", waiting_jobs=1)


def documented() -> list[set[str]]:
    """As what each rule's refusals are counted, but those of TLS."""
    text = (REPOSITORY / "docs/security.md").read_text().partition("## What the service checks, in this order\n")[2]
    rows = re.findall(r"^\| .* \| ([^|]+) \|$", text.partition("\n\n**")[0], re.MULTILINE)
    assert rows[0] == "no connection"
    return [set(re.findall(r"`(\w+)`", row)) for row in rows[1:]]


class Attacker:
    """Says what breaks all rules that are left."""

    def __init__(self, security: Security, server: JoinServer, cleanup: contextlib.ExitStack) -> None:
        self._security, self._port, self._cleanup = security, server.port, cleanup
        self.refused: list[str] = []

    def connect(self, tls: Path) -> None:
        self._client = self._cleanup.enter_context(contextlib.closing(Client(self._port, tls=tls)))

    def call(self, *messages: bytes, method: str = "Join", said: str = "") -> None:
        """`said`: in the text of the refusal, which is noted by the name that it is counted as."""
        before = self._security.refusals.copy()
        call = self._client.channel.stream_stream(f"/wiresum.join.v1.JoinService/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter(messages), timeout=PATIENCE_S))
        assert said in caught.value.details()
        wait_until(lambda: self._security.refusals.total() == before.total() + 1, "it is counted")
        self.refused += self._security.refusals - before

    def join(self, said: str, **fields: Any) -> None:
        self.call(join_request(**{"world_size": 2} | fields).SerializeToString(), said=said)


@pytest.fixture
def security(controller_tls: Path) -> Iterator[Security]:
    security = Security(SecurityConfig(tls=controller_tls))
    yield security
    security.close()


@pytest.fixture
def server(security: Security) -> Iterator[JoinServer]:
    server = JoinServer(RecordingDriver(), LIMITS, quotas=[QUOTA], security=security)
    server.start("127.0.0.1", 0)
    yield server
    server.stop(0.1)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    yield
    setattr(owner, name, before)


def test_the_first_rule_that_a_call_breaks_refuses_it(
    security: Security, server: JoinServer, issue: Callable[..., Path], operator_tls: Path
) -> None:
    interceptor = security.interceptor
    with contextlib.ExitStack() as cleanup:
        attacker = Attacker(security, server, cleanup)
        attacker.connect(operator_tls)
        connections = cleanup.enter_context(contextlib.ExitStack())
        connections.enter_context(replaced(security.front, "_shares", Shares(0)))
        rate = connections.enter_context(contextlib.ExitStack())
        rate.enter_context(replaced(interceptor, "_buckets", TokenBuckets(1, 0)))
        calls = rate.enter_context(contextlib.ExitStack())
        calls.enter_context(replaced(interceptor, "_shares", Shares(0)))
        with replaced(interceptor, "_is_revoked", lambda _serial: True):
            attacker.call()
        attacker.call()
        attacker.connect(issue("worker", jobs=("vision-*",), tenants=("vision",)))
        for held in (calls, rate, connections):
            attacker.call()
            held.close()
        attacker.call()
        attacker.call(b"\xff" * (join.POSITIONS_BYTES_MAX + 1))
        attacker.call(b"\xff" * join.POSITIONS_BYTES_MAX)

        operator, worker, other = (
            cleanup.enter_context(contextlib.closing(Client(server.port, tls=tls)))
            for tls in (operator_tls, *(issue("worker", tenants=(tenant,)) for tenant in ("vision", "speech")))
        )
        made = join.CreateJobRequest(job_name="vision-made", world_size=2, tenant="speech")
        operator.operator.CreateJob(made, timeout=PATIENCE_S)
        made.job_name, made.tenant = "vision-own", "vision"
        operator.operator.CreateJob(made, timeout=PATIENCE_S)
        names = ("vision-theirs", "vision-forms")
        asked = [
            client.join_soon(job_name=name, world_size=2) for client, name in zip((other, worker), names, strict=True)
        ]
        wait_until(lambda: {each.name for each in operator.jobs()} >= set(names), "both form")
        resumed = join.Resumed(slots=32, threads=1, lanes=64, positions=bytes(4 * 32), job_id=bytes(16))
        wrong = {
            "endpoint": join.Endpoint(address="192.0.2.7", port=5000), "job_token": "guess",
            "resumed": resumed, "slots": 32,
        }  # fmt: skip
        attacker.join("must be letters", job_name="-theirs", tenant="speech", **wrong)
        attacker.join("tenant 'speech' was asked for", job_name="theirs", tenant="speech", **wrong)
        attacker.join("is for jobs 'vision-*'", job_name="theirs", **wrong)
        attacker.join("names no address", job_name="vision-theirs", **wrong)
        del wrong["endpoint"]
        for name in ("vision-theirs", "vision-made"):
            attacker.join("another tenant's", job_name=name, **wrong)
        attacker.join("WIRESUM_JOB_TOKEN", job_name="vision-own", **wrong)
        del wrong["job_token"]
        attacker.join("more than", job_name="vision-new", world_size=4096, **wrong)
        attacker.join("1 jobs of tenant 'vision' form or wait", job_name="vision-new", **wrong)
        counted = security.refusals.total()
        operator.operator.EndJob(join.EndJobRequest(job_name="vision-forms"), timeout=PATIENCE_S)
        wait_until(lambda: security.refusals.total() == counted + 1, "its worker is told, and there is room")
        attacker.join("needs room for", job_name="vision-new", **wrong)
        guessed = join.Heartbeat(member=join.Member(job=1, token="guess"))
        attacker.call(guessed.SerializeToString(), method="Attend")
        asked[0].cancel()
    rules = documented()
    found = attacker.refused
    # Two rules are tried twice: of the certificate, and of the tenant.
    assert found.pop(9) == "permission_denied" and found.pop(11) == "failed_precondition"
    assert len(found) == len(rules)
    assert [(name, rule) for name, rule in zip(found, rules, strict=True) if name not in rule] == []
