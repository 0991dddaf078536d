"""Why a data path failed, in words: what the data path says of itself, put together with what the aggregators say."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from wiresum.agent import _native
from wiresum.agent.aggregators import Aggregator, Aggregators
from wiresum.agent.errors import CollectiveTimeoutError, DivergedError, SwitchUnreachableError, WiresumError
from wiresum.agent.way_out import IPV4_UDP_HEADER_BYTES

Status = _native.Status

GREETING_TIMEOUT_S = 10.0


class Traffic(NamedTuple):
    """With one aggregator."""

    results: int
    transport_error: int
    """An errno, 0 for none."""


class Causes:
    """Of one worker's data path. Any thread may call any method; asking the aggregators takes a bounded while."""

    def __init__(self, aggregators: Aggregators, job_name: str) -> None:
        self._aggregators = aggregators
        self._who = f"rank {next(iter(aggregators)).membership.grant.worker} of job '{job_name}'"

    def of_status(self, status: Status, tensor: int, *, greeted: bool) -> WiresumError:
        """Why a collective with this tag ended so. `greeted`: has the first sum come back right?"""
        sequence = tensor & 0xFFFF
        if status is Status.DIVERGED:
            return DivergedError(
                f"{self._who}: "
                + (
                    f"the workers call different collectives at number {sequence}. All ranks must call the same "
                    "collectives, with the same sizes and types, in the same order"
                    if greeted
                    else f"the first sum is of chunks that do not belong together: {self._why_wrong()}"
                )
            )
        if status is Status.TIMED_OUT:
            return CollectiveTimeoutError(
                f"{self._who}: collective number {sequence} ran out of time. " + self._aggregators.diagnose(tensor)
            )
        return WiresumError(f"{self._who}: the collective was aborted")

    def of_wrong_greeting(self, found: int, expected: int) -> WiresumError:
        return WiresumError(f"the first sum came back wrong ({found}, expected {expected}): {self._why_wrong()}")

    def of_unanswered_greeting(self, traffic: Sequence[Traffic]) -> SwitchUnreachableError:
        """`traffic` is in the aggregators' order."""
        return SwitchUnreachableError(self._why_data_does_not_pass(list(zip(self._aggregators, traffic, strict=True))))

    def _why_wrong(self) -> str:
        altered = "something between worker and switch alters packets"
        if len(self._aggregators) == 1:
            return altered
        return (
            "all workers must call the aggregators by the same names in WIRESUM_SWITCH, and not one by an address and "
            f"another by a host name. If they do, {altered}"
        )

    def _why_data_does_not_pass(self, parts: Sequence[tuple[Aggregator, Traffic]]) -> str:
        for aggregator, traffic in parts:
            if traffic.transport_error:
                return f"{_data_ports(aggregator)} cannot be used: {os.strerror(traffic.transport_error)}"
        for aggregator, traffic in parts:
            if traffic.results == 0:
                return _why_nothing_comes(aggregator)
        where = " and ".join(_data_ports(aggregator) for aggregator, _ in parts)
        return f"only part of what was sent to {where} came back: do all workers reach it?"


def _why_nothing_comes(aggregator: Aggregator) -> str:
    packet_bytes = 4 * aggregator.membership.grant.lanes + _native.HEADER_BYTES + IPV4_UDP_HEADER_BYTES
    return (
        f"the control connection works, but nothing came back from {_data_ports(aggregator)} in "
        f"{GREETING_TIMEOUT_S:.0f} s. Does a firewall block UDP, or does a link on the way not pass IP packets of "
        f"{packet_bytes} bytes (WIRESUM_LANES makes them smaller)?" + _doubt_about_multicast(aggregator)
    )


def _doubt_about_multicast(aggregator: Aggregator) -> str:
    group = aggregator.membership.grant.results_group
    if group is None:
        return ""
    return (
        f" The switch sends results to the multicast group {group.address}: does the network carry that from it to "
        "this worker (IGMP snooping needs a querier)? A switch without --multicast sends to each worker"
    )


def _data_ports(aggregator: Aggregator) -> str:
    grant = aggregator.membership.grant
    first = grant.switch_endpoint.port
    return f"the switch's data ports (UDP {grant.switch_endpoint.address}:{first}..{first + grant.threads - 1})"
