"""A switch under test that a vendor's script programs; docs/conformance.md has the script's contract."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wiresum.conformance.switch import RESULTS, PlacedJob, SwitchError
from wiresum.conformance.wires import Wires
from wiresum.controller.driver import REASONS, Endpoint
from wiresum.controller.switches import Host

CALL_S_MAX = 60.0
"""The script may take so long for one call."""


class Hooked:
    """The switch, from construction, which loads it, to `close`."""

    def __init__(self, script: Path, wires: Wires, profiles: frozenset[str], *, lanes: int, slots: int) -> None:
        self.own, self.ports, self.lanes, self.profiles = wires.own, wires.ports, lanes, profiles
        self._script, self._wires, self._slots = script, wires, slots
        self._jobs: list[PlacedJob] = []
        self._next_slot = slots  # the first use loads the switch

    def close(self) -> None:
        self._wires.close()

    def fresh(self, slots: int) -> int:
        for job in [job for job in self._jobs if not self._wires.is_fence(job)]:
            self.evict(job)
        if self._next_slot + slots > self._slots:
            self._jobs.clear()
            self._call("load", address=str(self.own.address), mac=self.own.mac.hex(":"))
            for fence in self._wires.fences(self):
                self.admit(fence)
            self._next_slot = self._wires.fence_slots
        self._next_slot += slots
        return self._next_slot - slots

    def admit(self, job: PlacedJob) -> None:
        self._jobs.append(job)
        self._call("admit", job=document(job))

    def evict(self, job: PlacedJob) -> None:
        if job in self._jobs:
            self._jobs.remove(job)
            self._call("evict", job=job.entry.job)

    def exchange(self, sent: Sequence[tuple[int, bytes]], expected: int = 0) -> list[tuple[int, bytes]]:
        return self._wires.exchange(sent)

    def counted(self) -> Counter[str] | None:
        said = self._call("count")
        if said is None:
            return None
        if not isinstance(said, dict) or not said.keys() <= {*REASONS, RESULTS}:
            raise SwitchError(f"{self._script} says of its counters {said!r}, and not numbers of {(*REASONS, RESULTS)}")
        counted = Counter({reason: int(count) for reason, count in said.items()})
        counted.subtract(self._wires.counted)  # differences count, so these may be below 0
        return counted

    def _call(self, verb: str, **about: Any) -> Any:
        """Returns the script's answer; None if the answer is empty."""
        try:
            done = subprocess.run(
                [self._script, verb],
                input=json.dumps(about),
                capture_output=True,
                text=True,
                timeout=CALL_S_MAX,
                check=False,
            )
            said = json.loads(done.stdout) if done.stdout.strip() else None
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise SwitchError(f"{self._script} {verb}: {error}") from error
        if done.returncode != 0:
            raise SwitchError(f"{self._script} {verb} ended with {done.returncode}: {done.stderr[-2000:].strip()}")
        return said


def document(placed: PlacedJob) -> dict[str, Any]:
    """Describes a job to the script: the rows of who may contribute, and the receivers of its RESULTs."""
    job, uplink = placed.entry, placed.entry.uplink
    full = (1 << job.workers) - 1
    workers = [
        {"worker": worker, "bit": 1 << worker} | _place(endpoint, host)
        for worker, (endpoint, host) in enumerate(zip(job.endpoints, placed.hosts, strict=True))
    ]
    parent = None
    if uplink is not None and placed.parent is not None:
        parent = {"number_at_parent": uplink.worker} | _place(uplink.parent, placed.parent)
    cells = 2 * job.slots // job.threads
    threads = [
        {
            "thread": job.port_offset + thread,
            "cells": [cells * thread, cells * (thread + 1)],
            "source_port_offset": thread,
        }
        for thread in range(job.threads)
    ]
    return {
        "job": job.job,
        "key": job.key,
        "lanes": job.lanes,
        "cell_base": 2 * job.slot_base,
        "full": full,
        "threads": threads,
        "workers": workers,
        "parent": parent,
    }


def _place(endpoint: Endpoint, host: Host) -> dict[str, Any]:
    return {"port": host.port, "mac": host.mac, "address": endpoint.address, "udp_port": endpoint.port}
