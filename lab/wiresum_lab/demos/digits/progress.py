"""Shows the progress of a run: a live line on a terminal, a line for each tenth of the run elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from wiresum_lab.demos.digits.runs import Run

LINES_OF_A_RUN = 10


class RunProgress:
    def __init__(self, console: Console, run: Run) -> None:
        self._console, self._run = console, run
        self._lines_shown = 0
        self._bar: Progress | None = None
        self._task = TaskID(0)
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("[bold]{task.description:8}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),
                console=console,
            )
            self._task = self._bar.add_task(run.name, total=None, text="starting the workers")

    def __enter__(self) -> RunProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def update(self) -> None:
        run = self._run
        if not run.steps:
            return
        if self._bar:
            self._bar.update(self._task, total=run.steps_planned, completed=run.steps, text=summary(run))
        elif run.steps * LINES_OF_A_RUN >= run.steps_planned * (self._lines_shown + 1):
            self._lines_shown = run.steps * LINES_OF_A_RUN // run.steps_planned
            self._console.print(f"{run.name:8} {summary(run)}", highlight=False)


def summary(run: Run) -> str:
    return (
        f"step {run.steps:4}/{run.steps_planned}  loss {run.losses[-1]:.4f}  accuracy {run.accuracy:6.2%}  "
        f"goodput {run.goodputs_mbit[-1]:5.0f} Mbit/s"
    )
