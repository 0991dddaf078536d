"""A Tofino that runs the program (interpreted), with workers at its ports and what a controller would have told it."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Address
from pathlib import Path

from frames import Host, UdpFrame
from tna_interpreter.switch import Copy, Switch
from vectors import PARENT, Job, Member

MAIN = Path(__file__).resolve().parents[1] / "p4src" / "tna" / "main.p4"
SWITCH = Host(bytes.fromhex("02000000fffe"), IPv4Address("10.0.0.1"))
SWITCH_PORT = 0xA9E0
STRANGER = Host(bytes.fromhex("02000000fffd"), IPv4Address("10.9.9.9"))
FLOOD_GROUP = 256
UPLINK_GROUPS = 512
RECEIVER_PARENT = 0xFF
PARENT_BIT = 1 << 31
REASONS = ("admitted", "resent", "duplicate", "stale", "out_of_lease", "unknown", "malformed", "other")
WORKERS_MAX = 32

_FIRST_PORT, _PORTS = 8, 56
"""Ports of a pipe that lead outside, on either generation."""


class TofinoNetwork:
    """Workers get their port, address and MAC in the order in which their jobs are admitted; a job of a number that was
    had before has its workers where that one's were."""

    def __init__(self, switch: Switch) -> None:
        switch.restart()
        self.switch = switch
        self._members: dict[Member, int] = {}
        self._rows: dict[int, int] = {}
        self._insert("own", {"address": int(SWITCH.address)}, "own_address", mac=int.from_bytes(SWITCH.mac, "big"))

    def _insert(self, table: str, matches: dict[str, int], action: str, **parameters: int) -> None:
        self.switch.program.tables[table].insert(matches, action, parameters)

    def _delete(self, table: str, matches: dict[str, int]) -> None:
        self.switch.program.tables[table].delete(matches)

    def port(self, member: Member) -> int:
        return _FIRST_PORT + self._members[member] % _PORTS

    def host(self, member: Member) -> Host:
        number = self._members[member]
        return Host(bytes.fromhex("02000000") + number.to_bytes(2, "big"), IPv4Address("10.1.0.0") + number)

    def base_port(self, member: Member) -> int:
        """Of a worker's UDP ports, one for each thread, which it sends from and listens at."""
        return 20000 + 16 * self._members[member]

    def admit(self, job: Job) -> None:
        row = self._rows[job.number] = len(self._rows) + 1
        parent = Member(job.number, PARENT)
        for member in job.members if job.parent is None else (*job.members, parent):
            self._members.setdefault(member, len(self._members))
        self.switch.groups[row] = [(self.port(member), member.worker) for member in job.members]
        everybody = (1 << job.workers) - 1
        for thread in range(job.threads):
            lease = self._lease(job, thread)
            for member in job.members:
                others = everybody & ~(1 << member.worker)
                self._insert(
                    "admit",
                    {**self._admit_key(job, member, thread), "worker": member.worker},
                    "admit_worker",
                    row=row,
                    group=row,
                    bit_own=1 << member.worker,
                    bit_others=others if job.parent is None else others | PARENT_BIT,
                    has_parent=int(job.parent is not None),
                    **lease,
                )
            if job.parent is not None:
                key = self._admit_key(job, parent, thread)
                told = {"row": row, "group": row, "bit_workers": everybody, **lease}
                self._insert("admit_parent_entry", key, "admit_parent", **told)
        for member in job.members:
            key = {"job": job.number, "receiver": member.worker}
            self._insert("deliver", key, "deliver_to", **self._address(member))
        if job.parent is not None:
            self.switch.groups[UPLINK_GROUPS + row] = [(self.port(parent), RECEIVER_PARENT)]
            key = {"job": job.number, "receiver": RECEIVER_PARENT}
            self._insert("deliver", key, "deliver_up", **self._address(parent), worker=job.parent)

    def _lease(self, job: Job, thread: int) -> dict[str, int]:
        cells_of_thread = 2 * job.slots // job.threads
        return {
            "cell_base": 2 * job.slot_base,
            "lease_mask": ~(cells_of_thread - 1) & 0xFFFF,
            "lease_prefix": thread * cells_of_thread,
        }

    def _address(self, member: Member) -> dict[str, int]:
        host = self.host(member)
        mac, address = int.from_bytes(host.mac, "big"), int(host.address)
        return {"mac": mac, "address": address, "port": self.base_port(member)}

    def evict(self, job: Job) -> None:
        """Its counters stay."""
        row, parent = self._rows[job.number], Member(job.number, PARENT)
        for member in job.members:
            for thread in range(job.threads):
                self._delete("admit", {**self._admit_key(job, member, thread), "worker": member.worker})
            self._delete("deliver", {"job": job.number, "receiver": member.worker})
        if job.parent is not None:
            for thread in range(job.threads):
                self._delete("admit_parent_entry", self._admit_key(job, parent, thread))
            self._delete("deliver", {"job": job.number, "receiver": RECEIVER_PARENT})
            del self.switch.groups[UPLINK_GROUPS + row]
        del self.switch.groups[row]

    def _admit_key(self, job: Job, member: Member, thread: int) -> dict[str, int]:
        """All but the worker's number, which is no key of the parent's."""
        return {
            "ingress_port": self.port(member),
            "source": int(self.host(member).address),
            "source_port": self.base_port(member) + thread,
            "thread": thread,
            "job": job.number,
            "key": job.key,
        }

    def frame(self, sender: Host, source_port: int, datagram: bytes, *, thread: int = 0, ecn: int = 0) -> UdpFrame:
        """A datagram to the switch."""
        return UdpFrame(sender, SWITCH, source_port, SWITCH_PORT + thread, datagram, ecn=ecn)

    def own_frame(self, member: Member, datagram: bytes, *, ecn: int = 0) -> UdpFrame:
        """As the first thread of this worker sends it."""
        return self.frame(self.host(member), self.base_port(member), datagram, ecn=ecn)

    def send(self, port: int, frame: bytes) -> list[Copy]:
        return self.switch.receive(port, frame)

    def packets(self) -> Counter[str]:
        """Packets to the switch, of all jobs, by reason."""
        counted: Counter[str] = Counter()
        for index, count in self.switch.program.counters["packets"].counts.items():
            counted[REASONS[index % len(REASONS)]] += count
        return counted

    def packets_of(self, job: int, reason: str) -> int:
        return self.switch.program.counters["packets"].counts[self._rows[job] * len(REASONS) + REASONS.index(reason)]

    def contributions(self, member: Member) -> int:
        index = self._rows[member.job] * WORKERS_MAX + member.worker
        return self.switch.program.counters["contributions"].counts[index]

    def results(self, job: int) -> int:
        return self.switch.program.counters["results"].counts[self._rows[job]]
