"""Kills a worker (SIGKILL) of a training with torchft, many times. How long until the others commit their next step?

Three workers run plugins/torch/examples/torchft_ddp.py, with a software switch and torchft's lighthouse, all processes
of this host. Each kill comes at a random moment while all three take part; then the worker is started again.

    python -m wiresum_lab.benchmarks.cluster.lost_worker --kills 10 --folder build/lost_worker
    python -m wiresum_lab.benchmarks.cluster.lost_worker --kills 10 --folder build/lost_worker --heartbeat-ms 1500

Prints, for each kill and for all, when the first survivor knew that its step had failed, and when the first committed
one. Logs are in the folder.
"""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path

import click

from wiresum_lab.processes import SwitchProcess, wait_until
from wiresum_lab.ranks.replicas import Replicas

EXAMPLE = Path(__file__).resolve().parents[4] / "plugins" / "torch" / "examples" / "torchft_ddp.py"
NAMES = ("a", "b", "c")
WAIT_S_MAX = 120.0


def kill_one(replicas: Replicas, name: str) -> tuple[float, float]:
    """Kills this worker, and starts it again. Returns after how long another had to repeat its step, and committed one,
    in seconds."""
    others = [other for other in NAMES if other != name]
    killed_at = time.monotonic()
    replicas.programs[name].kill()
    wait_until(
        lambda: all(replicas.first_committed(other, 2, killed_at) for other in others), "the others go on", WAIT_S_MAX
    )
    steps = [step for other in others for step in replicas.steps(other) if step.at > killed_at]
    known_at = min((step.at for step in steps if step.verdict == "repeated"), default=killed_at)
    went_on_at = min(step.at for step in steps if step.verdict == "committed" and step.workers == 2)
    replicas.start(name)
    wait_until(lambda: replicas.first_committed(name, 3, killed_at), f"{name} takes part again", WAIT_S_MAX)
    return known_at - killed_at, went_on_at - killed_at


@click.command(help=__doc__)
@click.option("--kills", default=10, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True, help="for logs")
@click.option("--heartbeat-ms", default=5000, show_default=True, help="after which the lighthouse gives a worker up")
@click.option("--seed", default=1, show_default=True)
def main(kills: int, folder: Path, heartbeat_ms: int, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    choose = random.Random(seed)
    program = [str(EXAMPLE), "--until", "1000000", "--pause", "0.05"]
    lighthouse = ("--heartbeat_timeout_ms", str(heartbeat_ms))
    times = []
    with SwitchProcess(folder) as switch, Replicas(program, folder, switch.endpoint, lighthouse=lighthouse) as replicas:
        for name in NAMES:
            replicas.start(name)
        for name in NAMES:
            wait_until(lambda: replicas.first_committed(name, 3, 0.0), f"{name} takes part", WAIT_S_MAX)  # noqa: B023
        for kill in range(kills):
            time.sleep(choose.uniform(0.5, 1.5))
            name = choose.choice(NAMES)
            known, went_on = kill_one(replicas, name)
            times.append((known, went_on))
            click.echo(f"kill {kill + 1}, of {name}: known after {known:.1f} s, next step after {went_on:.1f} s")
    known_s, went_on_s = zip(*times, strict=True)
    click.echo(
        f"{kills} kills: known after {statistics.median(known_s):.1f} s (at most {max(known_s):.1f} s), next step "
        f"after {statistics.median(went_on_s):.1f} s (at most {max(went_on_s):.1f} s)"
    )


if __name__ == "__main__":
    main()
