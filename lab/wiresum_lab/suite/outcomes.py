"""How a test ended: passed, failed, timed out (what it waited for did not come), or skipped for a reason."""

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
"""What a wait raises that runs out; asyncio's and the socket's are `TimeoutError`, but asyncio's before Python 3.11."""
OF_THE_WHOLE_TEST = re.compile(r"Timeout \(>[\d.]+s\) from pytest-timeout")
CAUSES_MAX = 20


def waited_for(error: BaseException, place: str = "") -> str | None:
    """What did not come in time, if that is why a test ended: the error's first line. None: something was wrong.
    `place`: where the test was, for a limit that does not know it."""
    for each in _causes(error):
        text = (str(each).splitlines() or [""])[0]
        if OF_THE_WHOLE_TEST.match(text):
            return f"{text.removesuffix('.')}, at {place}" if place else text
        if isinstance(each, WAITS) or type(each).__name__ == "FutureTimeoutError":  # gRPC's, which need not be imported
            return text or type(each).__name__
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it was raised from. What it was raised beside counts only if a wait of ours ran out there: a
    test may expect a time-out of the product, and find something wrong with it."""
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
    """What a person or a program reads first: how many tests ended how, by pytest's categories."""

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
