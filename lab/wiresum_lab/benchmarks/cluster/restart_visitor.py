"""Short jobs of two workers, one after the other, while `restart.py` kills controllers: so that kills come while
jobs form, are admitted, run and end, and not only while one trains. Each sums numbers and compares every one.

Started by the benchmark. Ends when the file `stop` is in its folder, and writes `visitor.json`: how many jobs, and what
failed.
"""

import array
import json
import threading
import time
from pathlib import Path

import click

from wiresum.agent import AgentConfig, Dtype, Region, Session

WORKERS = 2
NUMBERS = 10_000
JOB_S_MAX = 90.0
PAUSE_S = 0.1
FAILURES_MAX = 20


def visit(name: str) -> list[str]:
    """One job: joins, sums, leaves. Returns what failed at both workers."""
    failures: list[str] = []

    def work(rank: int) -> None:
        try:
            _work(name, rank)
        except Exception as error:
            failures.append(f"{name}, rank {rank}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(WORKERS)]
    for thread in threads:
        thread.start()
    for rank, thread in enumerate(threads):
        thread.join(JOB_S_MAX)
        if thread.is_alive():
            failures.append(f"{name}, rank {rank}: did not end in {JOB_S_MAX:.0f} s")
    return failures


def _work(name: str, rank: int) -> None:
    session = Session.join(AgentConfig.from_environment(job=""), job_name=name, rank=rank, world_size=WORKERS)
    try:
        values = array.array("i", range(rank, rank + NUMBERS))
        region = Region(values.buffer_info()[0], values.buffer_info()[0], NUMBERS)
        session.submit([region], dtype=Dtype.I32, timeout_s=JOB_S_MAX, notify=False).wait()
        if values != array.array("i", range(1, 2 * NUMBERS + 1, 2)):
            raise AssertionError("the sum is wrong")
    finally:
        session.close()


@click.command(help=__doc__)
@click.option("--folder", type=click.Path(path_type=Path), required=True)
def main(folder: Path) -> None:
    jobs, failures = 0, list[str]()
    while not (folder / "stop").exists() and len(failures) < FAILURES_MAX:
        failures += visit(f"visit-{jobs}")
        jobs += 1
        time.sleep(PAUSE_S)
    (folder / "visitor.json").write_text(json.dumps({"jobs": jobs, "failures": failures}))


if __name__ == "__main__":
    main()
