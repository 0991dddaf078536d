"""The outcomes of tests: passed, failed, timed out (an awaited event did not come), or skipped for a reason."""

from __future__ import annotations

import concurrent.futures
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wiresum_lab.patience import TimedOutError

TIMED_OUT = "timed out"
WAITS = (TimedOutError, subprocess.TimeoutExpired, TimeoutError, concurrent.futures.TimeoutError)
"""The errors of waits that run out. asyncio's is a `TimeoutError` since Python 3.11, a socket's always."""
OF_THE_WHOLE_TEST = re.compile(r"Timeout \(>[\d.]+s\) from pytest-timeout")
CAUSES_MAX = 20


def waited_for(error: BaseException, place: str = "") -> str | None:
    """The first line of a time-out's text, if a time-out has ended a test; None if the test has failed otherwise.
    `place` is the line of the test, for pytest-timeout, whose text does not have it."""
    for each in _causes(error):
        text = (str(each).splitlines() or [""])[0]
        if OF_THE_WHOLE_TEST.match(text):
            return f"{text.removesuffix('.')}, at {place}" if place else text
        if isinstance(each, WAITS) or type(each).__name__ == "FutureTimeoutError":  # gRPC's error, without an import
            return text or type(each).__name__
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes. A context that is not the cause counts only if it is a time-out of a test's wait: a test
    may catch a time-out of the product, and then fail on another error."""
    yield error
    each: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if each is None:
            break
        beside = None if each.__suppress_context__ else each.__context__
        each = each.__cause__ or (beside if isinstance(beside, TimedOutError | subprocess.TimeoutExpired) else None)
        if each is not None:
            yield each


def last_line(stats: Mapping[str, Sequence[Any]]) -> str:
    """The last line of a run: how many tests passed, failed, timed out, and were skipped."""

    def count(*categories: str) -> int:
        return sum(len(stats.get(category, ())) for category in categories)

    skips = Counter(_reason(report) for report in stats.get("skipped", ()))
    reasons = "; ".join(f"{reason}: {number}" for reason, number in skips.most_common())
    return (
        f"{count('passed', 'xfailed')} passed, {count('failed', 'error', 'xpassed')} failed, "
        f"{count(TIMED_OUT)} timed out, {count('skipped')} skipped" + (f" ({reasons})" if reasons else "")
    )


def _reason(report: Any) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(text).removeprefix("Skipped: ").partition("\n")[0] or "no reason"
