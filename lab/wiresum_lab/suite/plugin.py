"""Hooks of pytest. The controlling process reports; each worker of pytest-xdist collects and runs tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Generator

import hypothesis
import pytest

from wiresum_lab.patience import FACTOR, PATIENCE_S
from wiresum_lab.suite import proofs, times
from wiresum_lab.suite.outcomes import TIMED_OUT, last_line, waited_for

UNPROVED = "unproved: a nightly test of what has changed since the last nightly run, which make test-all runs, too"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("suite")
    group.addoption("--write-times", action="store_true", help=f"write what each file's tests took to {times.TABLE}")


def pytest_configure(config: pytest.Config) -> None:
    # How long an example takes says how busy the machine is.
    hypothesis.settings.register_profile(
        "wiresum", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("wiresum")
    config.addinivalue_line("markers", UNPROVED)
    if not is_worker(config):
        config.pluginmanager.register(Reporter(config))


def pytest_report_header() -> str:
    return f"patience: {PATIENCE_S:.0f} s for an event, {FACTOR:g} times that of a quiet machine"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Wraps the hooks by which conftests mark tests, and by which marks select them."""
    unproved = proofs.unproved(config.rootpath)
    for item in items:
        if item.get_closest_marker("nightly") and proofs.proves(item.nodeid, unproved):
            item.add_marker("unproved")
    yield
    if is_worker(config):  # a person who runs some tests in one process chooses their order
        sort(items, times.load(config.rootpath))
    for item in items:
        scale_limit(item, FACTOR)


def sort(items: list[pytest.Item], table: times.Table) -> None:
    """Sorts tests by the seconds of their files, the longest first. Tests of a file stay together, in their order."""
    tiers = defaultdict(set)
    for item in items:
        tiers[file_of(item.nodeid)].add(tier_of(item.keywords))
    seconds = {file: table.of(file, found) for file, found in tiers.items()}
    items.sort(key=lambda item: (-seconds[file_of(item.nodeid)], file_of(item.nodeid)))


def scale_limit(item: pytest.Item, factor: float) -> None:
    """Multiplies pytest-timeout's limit of a test, from its mark or the settings, by a factor."""
    if factor == 1:
        return
    mark = item.get_closest_marker("timeout")
    said = dict(mark.kwargs) if mark else {}
    positional = list(mark.args) if mark else []
    limit = positional.pop(0) if positional else said.pop("timeout", None)
    if limit is None:
        limit = item.config.getoption("timeout", None)
    if limit is None:
        limit = item.config.getini("timeout")
    if limit:
        item.add_marker(pytest.mark.timeout(float(limit) * factor, *positional, **said), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None:
        # A worker sends all attributes of a report to the controlling process.
        report.__dict__["waited_for"] = waited_for(call.excinfo.value, place_of(item, call.excinfo))
    return report


def place_of(item: pytest.Item, error: pytest.ExceptionInfo[BaseException]) -> str:
    """The innermost line of the test's own file in a traceback, with its text; empty if there is none."""
    for entry in reversed(error.traceback):
        if entry.path == item.path:
            return f"{item.path.name}:{entry.lineno + 1}: {str(entry.statement).strip()}"
    return ""


class Reporter:
    """The reports of the controlling process: time-outs apart from failures, the last line, and the times."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: dict[str, dict[str, float]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        if report.failed and getattr(report, "waited_for", None):
            return TIMED_OUT, "T", "TIMED OUT"
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        of_tier = self._seconds.setdefault(tier_of(report.keywords), defaultdict(float))
        of_tier[file_of(report.nodeid)] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        style = self._config.getoption("tbstyle")
        terminalreporter.summary_failures_combined(TIMED_OUT, TIMED_OUT.upper(), style=style)
        for report in terminalreporter.stats.get(TIMED_OUT, ()):
            terminalreporter.write_line(f"TIMED OUT {report.nodeid} - {report.waited_for}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None]:
        """Writes the times, and the last line, after pytest's own closing line."""
        yield
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        # After failures, too: the house test of the table fails until the table is written.
        if exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED} and self._config.getoption("write_times"):
            times.write(self._config.rootpath, self._seconds)
        if reporter is not None and session.testscollected:
            reporter.write_line(last_line(reporter.stats))


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def file_of(test: str) -> str:
    return test.partition("::")[0]


def tier_of(marks: Container[str]) -> str:
    """The tier of a test, by its marks."""
    return next((tier for tier in ("nightly", "slow") if tier in marks), "quick")
