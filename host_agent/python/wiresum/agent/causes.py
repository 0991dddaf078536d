"""This module says in words why a data path failed, from the reports of the data path and of the aggregators."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from wiresum.agent.aggregators import Aggregator, Aggregators
from wiresum.agent.diagnosis import who_is_cut_off, why_translated
from wiresum.agent.errors import (
    CollectiveTimeoutError,
    DivergedError,
    ImpossibleSumError,
    SwitchUnreachableError,
    WiresumError,
    WrongSumError,
)
from wiresum.agent.statistics import TrafficStats
from wiresum.agent.way_out import path_mtu
from wiresum.join import TRANSLATION_ADVICE, Diagnosis
from wiresum.join.lanes import lanes_of_mtu, packet_bytes

GREETING_TIMEOUT_S = 10.0
FIXED_LANES = "Where a controller programs the switch, `lanes` in its configuration says how large they are"
TOO_LARGE = (errno.EMSGSIZE, errno.EINVAL)
"""Errors by which the kernel refuses a packet, or a train of them, that is larger than the MTU."""


class Causes:
    """Explains failures of one worker's data path. Any thread may call any method; asking the aggregators takes a
    bounded while."""

    def __init__(self, aggregators: Aggregators, who: str) -> None:
        """`who` names the worker for people."""
        self._aggregators, self._who = aggregators, who

    def of_status(self, status: str, tensor: int, states: Sequence[TrafficStats], *, greeted: bool) -> WiresumError:
        """Explains why a collective with this tag ended "diverged", "timed-out", "no-memory", "impossible", "wrong-sum"
        or "aborted". `states` are in the aggregators' order. `greeted`: the first sum has come back right."""
        sequence = tensor & 0xFFFF
        if status == "diverged" and greeted:
            return DivergedError(
                f"{self._who}: the workers {DivergedError.WORDS} at number {sequence}. All ranks must call the same "
                "collectives, with the same sizes and types, in the same order",
                number=sequence,
            )
        if status == "diverged":
            return DivergedError(
                f"{self._who}: the first sum is of chunks that do not belong together: {self._why_wrong()}",
                number=sequence,
            )
        if status == "timed-out" and not greeted:
            return self._of_unanswered_greeting(states, tensor)
        if status == "timed-out":
            why = (
                (f"{stop[0].upper()}{stop[1:]}. " if (stop := self._aggregators.own_stop()) else "")
                + self._aggregators.diagnose(tensor)
                + "".join(_doubt_about_multicast(one) for one in self._aggregators if one.membership.group_is_silent)
                + self._what_was_not_sent(states)
            )
            text = f"{self._who}: Timed out waiting for collective number {sequence}. {why}"
            return CollectiveTimeoutError(text, number=sequence, why=why)
        if status == "no-memory":
            return WiresumError(
                f"{self._who}: this worker's process could not allocate the memory that collective number {sequence} "
                "needs beside the tensor itself (sparse and exact sums keep what they send apart). Give the process "
                "more memory, or let exact sums go: WIRESUM_PRECISION=block at all workers"
            )
        if status == "impossible":
            return ImpossibleSumError(
                f"{self._who}: in collective number {sequence} a sum came back that the workers cannot have made, of "
                f"what each of them has of a tensor: {ImpossibleSumError.WHY}"
            )
        if status == "wrong-sum":
            return WrongSumError(f"{self._who}: in collective number {sequence} {self._which_sum(states)}")
        return WiresumError(f"{self._who}: the collective was aborted")

    def of_wrong_greeting(self, found: int, expected: int) -> WiresumError:
        return WiresumError(f"the first sum came back wrong ({found}, expected {expected}): {self._why_wrong()}")

    def _of_unanswered_greeting(self, states: Sequence[TrafficStats], tensor: int) -> SwitchUnreachableError:
        parts = list(zip(self._aggregators, states, strict=True))
        text, translated = self._why_data_does_not_pass(parts, tensor)
        return SwitchUnreachableError(text, translated=translated)

    def of_shrunken_path(self, index: int) -> SwitchUnreachableError | None:
        """Explains why the kernel refused a packet for its size. Returns None if packets fit again: then the packet was
        resent."""
        aggregator = list(self._aggregators)[index]
        mtu_bytes = path_mtu(aggregator.address, aggregator.membership.grant.switch_endpoint.address)
        if mtu_bytes is None or mtu_bytes >= _packet_bytes(aggregator):
            return None
        return SwitchUnreachableError(
            f"{self._who}: IP packets of {_packet_bytes(aggregator)} bytes do not fit the way to "
            f"{_data_ports(aggregator)} any more: the MTU there is {mtu_bytes} now ({os.strerror(errno.EMSGSIZE)}). "
            f"Set it back (ip link set ... mtu), or start the job again with WIRESUM_LANES={lanes_of_mtu(mtu_bytes)} "
            f"at all workers. {FIXED_LANES}"
        )

    def _which_sum(self, states: Sequence[TrafficStats]) -> str:
        """Names the sum that was wrong twice."""
        parts = zip(self._aggregators, states, strict=True)
        aggregator, slot = next((one, state.slot_wrong - 1) for one, state in parts if state.slot_wrong)
        return (
            f"the sum of slot {slot} at switch '{aggregator.membership.grant.switch_name}' ({aggregator.switch}) was "
            "wrong, and wrong again when it was asked for: its check word does not fit. Either the sums of this switch "
            "are wrong, or what lies between changes packets beyond their checksums. If workers of several hosts say "
            "so, take the switch out (`wiresum jobs drain`) and test its memory; if those of one host do, test that "
            "host's memory and network card"
        )

    def _what_was_not_sent(self, states: Sequence[TrafficStats]) -> str:
        """Returns the system's reason for packets that could not be sent, if there were any."""
        return "".join(
            f". This host could not send {state.send_failures} packets to {_data_ports(aggregator)}; it said last: "
            f"{os.strerror(state.transport_error)}"
            for aggregator, state in zip(self._aggregators, states, strict=True)
            if state.transport_error and state.send_failures
        )

    def _why_wrong(self) -> str:
        altered = "something between worker and switch alters packets"
        if len(self._aggregators) == 1:
            return altered
        return (
            "all workers must call the aggregators by the same names in WIRESUM_SWITCH, and not one by an address and "
            f"another by a host name. If they do, {altered}"
        )

    def _why_data_does_not_pass(self, parts: Sequence[tuple[Aggregator, TrafficStats]], tensor: int) -> tuple[str, str]:
        """Returns the reason, and the part of it that is about translated addresses."""
        for aggregator, state in parts:
            if state.transport_error:
                refused = f"{_data_ports(aggregator)} cannot be used: {os.strerror(state.transport_error)}"
                by_us = ". A firewall of this host drops what it sends (`nft list ruleset`)"
                return refused + (by_us if state.transport_error == errno.EPERM else ""), ""
        for aggregator, state in parts:
            if state.results == 0:
                return _why_nothing_comes(aggregator)
        where = " and ".join(_data_ports(aggregator) for aggregator, _ in parts)
        who = self._aggregators.diagnose(tensor)
        return f"only part of what was sent to {where} came back: {who}. Do packets pass there, both ways?", ""


def _why_nothing_comes(aggregator: Aggregator) -> tuple[str, str]:
    try:
        diagnosis = aggregator.membership.diagnose()
    except SwitchUnreachableError:
        diagnosis = Diagnosis()
    translated = why_translated(diagnosis)
    doubt = f"{translated}: {TRANSLATION_ADVICE}. If nothing does: does" if translated else "Does"
    if cut_off := who_is_cut_off(diagnosis):
        doubt = f"{cut_off}. {doubt}"
    return (
        f"the control connection works, but nothing came back from {_data_ports(aggregator)} in "
        f"{GREETING_TIMEOUT_S:.0f} s. {doubt} a firewall block UDP, or does a link on the way not pass IP packets of "
        f"{_packet_bytes(aggregator)} bytes (WIRESUM_LANES makes them smaller. {FIXED_LANES})?"
        + _doubt_about_multicast(aggregator)
    ), translated


def _packet_bytes(aggregator: Aggregator) -> int:
    return packet_bytes(aggregator.membership.grant.lanes)


def _doubt_about_multicast(aggregator: Aggregator) -> str:
    group = aggregator.membership.grant.results_group.address
    if not group:
        return ""
    return (
        f" The switch sends results to the multicast group {group}: does the network carry that from it to "
        "this worker (IGMP snooping needs a querier)? A switch without --multicast sends to each worker"
    )


def _data_ports(aggregator: Aggregator) -> str:
    grant = aggregator.membership.grant
    first = grant.switch_endpoint.port
    to_last = f"..{first + grant.threads - 1}" if grant.threads > 1 else ""
    return f"the switch's data ports (UDP {grant.switch_endpoint.address}:{first}{to_last})"
