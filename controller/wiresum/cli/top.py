"""`wiresum top`: shows live what runs at a service."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from wiresum.cli.rates import Sample, key_of, rates_of, stray_rate
from wiresum.cli.screen import SORTS, View, screen
from wiresum.cli.service import Service, ServiceError, service_options
from wiresum.cli.text import as_dict

PIPE_COLUMNS = 500
"""Wide enough that no line of a pipe is cut or folded."""

EPILOG = """\b
Examples:
  wiresum top
  wiresum top --job night --sort resent
  wiresum top --once --json | jq '.jobs[] | {name, rates}'
"""


@click.command(epilog=EPILOG)
@click.option("--job", default="", metavar="NAME", help="Show this job's workers too.")
@click.option(
    "--sort", type=click.Choice(list(SORTS)), default="results", show_default=True, help="Which jobs are first."
)
@click.option(
    "--interval",
    "interval_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1, max=3600),
    default=1.0,
    show_default=True,
    help="Time between two reports.",
)
@click.option("--once", is_flag=True, help="Show the rates of one interval, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each interval, on a line.")
@service_options
def top(service: Service, job: str, sort: str, interval_s: float, once: bool, as_json: bool) -> None:
    """Show live what runs at a switch or controller.

    Rates are those of the last interval. RESULTS: packets with a sum. GBIT: sums that each worker gets back, if all
    packets are full. RESENT: results that a worker asked for again. LATE: packets that came twice or too late. REFUSED:
    packets that no worker of the job sends. STRAY: packets of no job. MOST TAKEN: what is scarcest at a switch, and how
    much of it the jobs have. If the service goes away, this says so, and goes
    on when it is back. Ctrl-C ends it.

    With --job, of each worker: HEARTBEAT: how long ago its last one came. BEHIND: how many packets the worker with the
    most has sent more, so one that lags keeps the others waiting. STATE: an attending worker is connected to the
    service. WRONG SUMS: sums whose check word did not fit.
    """
    watch = Watch(service)
    view = View(sort=sort, job=job)
    with contextlib.suppress(KeyboardInterrupt):
        if once:
            _show_once(watch, view, interval_s, as_json=as_json)
        else:
            _show_always(watch, view, interval_s, as_json=as_json)


@dataclass
class Watch:
    """The newest two samples of a service, whether the service answers or not."""

    service: Service
    before: Sample | None = None
    now: Sample | None = None
    trouble: str = ""
    trouble_since: float = 0.0

    def look(self) -> None:
        """Takes a sample, or notes why there is none. Raises a `ServiceError` if the first request is refused."""
        try:
            report = self.service.report()
        except ServiceError as error:
            if self.now is None and error.code != "UNAVAILABLE":
                raise
            if not self.trouble:
                self.trouble_since = self.service.timing.now()
            self.trouble = error.message
            return
        # Rates over the time without samples would mean nothing.
        self.before = None if self.trouble else self.now
        self.now = Sample(report, self.service.timing.now())
        self.trouble = ""

    def view(self, view: View) -> View:
        silent_s = self.service.timing.now() - self.trouble_since if self.trouble else 0.0
        return dataclasses.replace(view, trouble=self.trouble, trouble_s=silent_s)

    def as_dict(self) -> dict[str, Any]:
        """The newest report with its rates, or the trouble."""
        if self.trouble or self.now is None:
            return {"time": time.time(), "error": self.trouble}
        seconds = self.now.taken_at - self.before.taken_at if self.before else None
        found: dict[str, Any] = {"time": time.time(), "interval_s": seconds, **as_dict(self.now.report)}
        rates = rates_of(self.before, self.now)
        for job, report in zip(found["jobs"], self.now.report.jobs, strict=True):
            of_job = rates.get(key_of(report))
            job["rates"] = dataclasses.asdict(of_job) if of_job else None
        for switch in found["switches"]:
            switch["stray_rate"] = stray_rate(self.before, self.now, switch["name"])
        return found


def _show_once(watch: Watch, view: View, interval_s: float, *, as_json: bool) -> None:
    for _ in range(2):
        watch.look()
        if watch.trouble:
            raise click.ClickException(watch.trouble)
        if watch.before is None:
            watch.service.timing.sleep(interval_s)
    _print(watch, view, as_json=as_json)
    if view.job and watch.now is not None and not any(job.name == view.job for job in watch.now.report.jobs):
        raise click.ClickException(f"there is no job {view.job!r}; `wiresum jobs` lists those that there are")


def _show_always(watch: Watch, view: View, interval_s: float, *, as_json: bool) -> None:
    timing = watch.service.timing
    with _display(as_json=as_json) as show:
        while True:
            started_at = timing.now()
            watch.look()
            show(watch, view)
            timing.sleep(started_at + interval_s - timing.now())


@contextlib.contextmanager
def _display(*, as_json: bool) -> Iterator[Callable[[Watch, View], None]]:
    """Redraws the terminal if there is one; otherwise prints each report below the last."""
    console = _console()
    if as_json or not console.is_terminal:
        yield lambda watch, view: _print(watch, view, as_json=as_json)
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda watch, view: live.update(screen(watch.before, watch.now, watch.view(view)), refresh=True)


def _print(watch: Watch, view: View, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(watch.as_dict()))
        return
    _console().print(screen(watch.before, watch.now, watch.view(view)))


def _console() -> Console:
    """Prints names that users chose as they are: `rich` might take parts of them for markup."""
    plain = functools.partial(Console, markup=False, emoji=False, highlight=False)
    console = plain()
    return console if console.is_terminal else plain(width=PIPE_COLUMNS)
