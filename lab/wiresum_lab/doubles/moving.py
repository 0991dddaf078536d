"""Jobs that move, for tests of their state machine: switches, jobs in several phases, and the orders to workers."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from wiresum import join
from wiresum.controller.driver import Endpoint, SwitchSizes
from wiresum.controller.jobs import report
from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.job import Worker
from wiresum.controller.jobs.outputs import Admit, GoOn, Halt, Tell
from wiresum.controller.jobs.positions import roles_of
from wiresum.join.constants import SWITCH_PORT
from wiresum_lab.doubles.controller import JobsHarness, member, switch

SIZES = SwitchSizes(slots=512, lanes_max=360, jobs_max=8)


def two(first: SwitchSizes = SIZES, second: SwitchSizes = SIZES) -> list[Switch]:
    """Two switches that reach all hosts. If the second has more slots, jobs go there first."""
    return [
        switch("first", first, endpoint=Endpoint("10.0.0.1", SWITCH_PORT)),
        switch("second", second, endpoint=Endpoint("10.0.0.2", SWITCH_PORT)),
    ]


def running(made: JobsHarness, name: str = "a-job", world_size: int = 3, **fields: object) -> list[Worker]:
    """The workers of a running job that can move."""
    return made.running(world_size, job_name=name, **fields)


def in_the_way(made: JobsHarness, name: str, slots: int) -> Worker:
    """The only worker of a job at the second switch that cannot move."""
    made.jobs.drain("first", resume=False)
    (worker,) = made.ask_all(1, job_name=name, slots=slots)
    made.jobs.drain("first", resume=True)
    assert worker.job.lease.switch_name == "second"
    made.jobs.attend(member(worker), made.now)
    return worker


def restart(made: JobsHarness, name: str) -> None:
    """Restarts a switch, which loses all its jobs."""
    made.change(name, "it was killed")
    made.reloaded = True
    made.change(name, "")


def halting(*, deaf: int) -> tuple[JobsHarness, list[Worker]]:
    """A job of three workers that is halting to move, since its switch was restarted. The worker of rank `deaf` ignores
    the order to halt."""
    made = JobsHarness(SIZES)
    workers = running(made)
    made.deaf = {workers[deaf].token}
    restart(made, "leaf")
    return made, workers


def being_admitted() -> tuple[JobsHarness, list[Worker], Admit]:
    """A job that moves from the first switch, which is drained, and is being admitted at the second one."""
    made = JobsHarness(switches=two())
    workers = running(made)
    made.jobs.drain("first", resume=False)
    made.switch_answers = False
    made.wait(0.2, beating=workers)
    (admit,) = made.outputs(Admit)
    return made, workers, admit


def moves(made: JobsHarness) -> list[join.Move]:
    return [output.event.move for output in made.outputs(GoOn)]


def halts(made: JobsHarness) -> list[tuple[int, int]]:
    """The ranks that were ordered to halt, and the numbers of their moves."""
    return [(output.worker.rank, output.event.halt.move_number) for output in made.outputs(Halt)]


def ends(made: JobsHarness) -> set[str]:
    """The reasons of the ends that workers were told."""
    return {tell.ended.reason for tell in made.outputs(Tell)}


def end_of(made: JobsHarness) -> join.JobEnded:
    return made.outputs(Tell)[0].ended


def positions(*rounds: int, slots: int = 16) -> bytes:
    """Encoded positions of a halted worker: `rounds` in the first slots, 7 in the others."""
    return struct.pack(f">{slots}I", *rounds, *[7] * (slots - len(rounds)))


def roles(said: Sequence[Sequence[int]]) -> list[bytes]:
    """What each worker resends first, from the positions of all workers as numbers."""
    return roles_of([struct.pack(f">{len(mine)}I", *mine) for mine in said])


def said_of(made: JobsHarness) -> str:
    """The report's text on what the only job waits for."""
    (job,) = (job for job in report.report(made.jobs, {}, made.now).jobs if job.state != "ending")
    return str(job.waiting)
