"""Jobs that share switches, at the same time and one after the other on the same slots, behave as if they ran alone.

pytest host_agent/tests/sim/test_shared.py --seeds 10000        a long run
pytest host_agent/tests/sim/test_shared.py --seed 1234          repeats a seed
"""

from __future__ import annotations

import random

from wiresum_lab.simulation import sim

from .scenarios import MS, Scenario, replay
from .test_faults import KINDS, MAKERS
from .test_simulation import check_outputs
from .trees import hosts_of

JOBS_MAX = 5


def make_shared_scenarios(seed: int) -> tuple[list[Scenario], list[int | None]]:
    """The jobs, and for each the job whose number and slots it takes over when that one has ended, or None."""
    rng = random.Random(f"shared {seed}")
    scenarios: list[Scenario] = []
    follows: list[int | None] = []
    racks = rng.choice([0, 0, 2])
    things_go_wrong = rng.random() < 0.4
    for number in range(rng.randrange(2, JOBS_MAX + 1)):
        scenario = rng.choice(MAKERS)(JOBS_MAX * seed + number)
        config = scenario.config
        free = [job for job in range(number) if job not in follows]
        follows.append(rng.choice(free) if number and rng.random() < 0.5 else None)
        before = follows[-1]
        if before is not None:
            config.slots = scenarios[before].config.slots
            config.threads = min(config.threads, config.slots)
        if racks:  # each rack has at least one of the job's hosts
            used = min(racks, hosts_of(config))
            config.parents = [0] * (1 + used)
            config.leaves = [1 + host % used for host in range(hosts_of(config))]
        if things_go_wrong:
            config.faults = make_faults(rng, config.workers)
            for call in scenario.calls:
                call.timeout = rng.choice([50 * MS, 2_000 * MS])
        scenarios.append(scenario)
    return scenarios, follows


def make_faults(rng: random.Random, workers: int) -> list[sim.Fault]:
    faults = []
    for _ in range(rng.choice([0, 1, 2])):
        kind = rng.choice(list(KINDS.values()))
        worker, at = rng.randrange(workers), rng.randrange(rng.choice([MS, 20 * MS, 200 * MS]))
        faults.append(sim.Fault(kind, worker, at))
        if kind == sim.FaultKind.SWITCH_RESTART:  # hits all jobs; the switch may get this one back
            faults.append(sim.Fault(sim.FaultKind.SWITCH_RETURN, worker, at + rng.choice([0, 0, 10 * MS])))
    return faults


def run_and_check(scenarios: list[Scenario], follows: list[int | None], seed: int) -> list[sim.Report]:
    reports = sim.run_together([scenario.job() for scenario in scenarios], follows)
    things_go_wrong = any(scenario.config.faults for scenario in scenarios)
    for number, (scenario, report) in enumerate(zip(scenarios, reports, strict=True)):
        assert report.finished, f"job {number}: {report.failure}; {replay(seed)}\n{scenario} {follows}"
        if not any(call.timeout for call in scenario.calls):
            assert not things_go_wrong
            assert report.rejected == 0, f"job {number}: an honest RESULT was rejected; {replay(seed)}\n{scenario}"
            check_outputs(scenario, seed)
        check_outputs(scenario, seed, report)
    return reports


def test_jobs_that_share_switches_equal_the_reference(shared_seed: int) -> None:
    scenarios, follows = make_shared_scenarios(shared_seed)
    run_and_check(scenarios, follows, shared_seed)


def test_a_job_is_not_slowed_down_by_others() -> None:
    """Without random events, since a worker waits only for its own job."""
    scenario = quiet(7)
    (alone,) = run_and_check([scenario], [None], 7)
    for report in run_and_check([quiet(7), quiet(7), quiet(7)], [None, None, 1], 7):
        assert (report.time_ns, report.packets_sent) == (alone.time_ns, alone.packets_sent)


def quiet(seed: int) -> Scenario:
    scenario = MAKERS[0](seed)
    config = scenario.config
    config.up, config.down = sim.Link(), sim.Link()
    config.interruption_max = config.task_max = config.device_delay_max = 0
    config.stalls = []
    return scenario
