"""Runs the switch program on bmv2, the P4 reference switch, in place of the software switch, for the eight workers of
`make bench NAMES=packets`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from wiresum.controller import DriverError, Endpoint, JobEntry
from wiresum.controller.p4runtime import P4RuntimeSwitch
from wiresum_lab.namespaces.bmv2 import bmv2_missing
from wiresum_lab.namespaces.bmv2_star import Bmv2Star
from wiresum_lab.namespaces.star import StarError, check_prerequisites
from wiresum_lab.processes import ProgramError, on_core

WORKER_PORT = 20_000
"""Port of the first worker. Port, job number and key are those of packet_bench.cpp."""
JOB, KEY = 1, 0xBEEF


class Bmv2Error(Exception):
    """bmv2 is not available; the text has the reason."""


@dataclass(frozen=True)
class Bmv2:
    """A running bmv2 with a job."""

    prefix: list[str]
    """First words of a command that runs in the workers' namespace."""
    worker_address: str
    switch_address: str
    switch_port: int
    lanes: int


@contextlib.contextmanager
def running_bmv2(workers: int, slots: int, core: int) -> Iterator[Bmv2]:
    """Runs bmv2 on this core until the block ends. Raises `Bmv2Error`."""
    if missing := bmv2_missing():
        raise Bmv2Error(missing)
    with contextlib.ExitStack() as cleanup:
        try:
            check_prerequisites()
            with on_core(core):
                star = cleanup.enter_context(Bmv2Star(1))
            switch = cleanup.enter_context(contextlib.closing(P4RuntimeSwitch(star.target(), election_id=1)))
            switch.wait_ready()
            switch.reconcile([])
            host = star.workers[0]
            entry = JobEntry(
                job=JOB,
                key=KEY,
                workers=workers,
                threads=1,
                lanes=switch.sizes.lanes_max,
                slot_base=0,
                slots=slots,
                endpoints=tuple(Endpoint(host.address, WORKER_PORT + worker) for worker in range(workers)),
            )
            switch.admit(entry)
        except (StarError, ProgramError, DriverError) as error:
            raise Bmv2Error(str(error)) from error
        prefix = ["ip", "netns", "exec", host.namespace]
        yield Bmv2(prefix, host.address, switch.endpoint.address, switch.endpoint.port, entry.lanes)
