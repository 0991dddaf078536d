"""Each command, while the active controller does not answer: that is an error which names it, and whatever the standby
says is no answer to a question about jobs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Mapping

import pytest

from wiresum.cli.service import ServiceError
from wiresum.controller.store import LIFE_FILE_NAME
from wiresum_lab.laboratory import HOST, SWITCHES, Laboratory
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import Program, wiresum

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

COMMAND_S_MAX = 2 * PATIENCE_S
LIFE_S = 0.3
COMMANDS: Mapping[str, str] = {
    "jobs": "night +running",
    "jobs --json": '"name": "night"',
    "jobs --ended": "no job has ended yet",
    "jobs create made --workers 2": "^[0-9a-zA-Z_-]+$",
    "jobs end made": "job 'made' ends",
    "jobs end mad*": "^$",
    "jobs drain {empty}": "it takes no new jobs, and none run",
    "jobs drain {empty} --wait --timeout 1": "it takes no new jobs, and none run",
    "jobs drain {empty} --wait --timeout 1 --json": '"jobs": 0, "names": \\[\\]',
    "jobs resume {empty}": "it takes new jobs",
    "top --once --interval 0.1": "jobs: 1 running",
    "top --once --interval 0.1 --json": '"name": "night"',
    "doctor --check switch": "active answers",
    "doctor --check job": "'night' is",
    "health": "SERVING",
    "health --ready": "SERVING",
}
"""What each says when all is well, in an order in which they go together."""
LIES = (
    "no jobs",
    "none run",
    "0 still run",
    "no job has ended",
    "nothing is amiss",
    '"jobs": []',
    '"jobs": 0',
    " ends\n",
)


def settings(laboratory: Laboratory, *controllers: str) -> dict[str, str]:
    targets = ",".join(f"{HOST}:{laboratory.ports[name]}" for name in controllers)
    return os.environ | {"WIRESUM_SWITCH": targets, "WIRESUM_TLS": str(laboratory.pki.tls("operator"))}


def answers(laboratory: Laboratory, *controllers: str) -> dict[str, tuple[int, str]]:
    """Status and text of each command, all at once."""
    started = {
        words: subprocess.Popen(
            wiresum(*words.format(empty=SWITCHES[0]).split()),
            env=settings(laboratory, *controllers),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for words in COMMANDS
    }
    try:
        said = {words: process.communicate(timeout=COMMAND_S_MAX)[0] for words, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
    return {words: (process.returncode, said[words]) for words, process in started.items()}


def check_errors(found: Mapping[str, tuple[int, str]], *texts: str) -> None:
    """Each command has failed with all of the texts, and none has said something of jobs."""
    for words, (status, said) in found.items():
        assert status == 1, (words, said)
        together = " ".join(said.split())
        assert all(text in together for text in texts), (words, texts, said)
        assert not any(lie in said for lie in LIES), (words, said)


@contextlib.contextmanager
def life_is_shown(laboratory: Laboratory) -> Iterator[None]:
    """As long as this lasts the standby does not take over: a controller that no operator reaches may show life."""
    over = threading.Event()

    def show() -> None:
        while not over.wait(LIFE_S):
            (laboratory.folder / "state" / LIFE_FILE_NAME).touch()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def frozen(program: Program) -> Iterator[None]:
    os.kill(program.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(program.pid, signal.SIGCONT)


def test_every_command_says_what_the_active_controller_knows_or_that_it_does_not_answer(laboratory: Laboratory) -> None:
    active, standby = (f"{HOST}:{laboratory.ports[name]}" for name in ("active", "standby"))
    night = laboratory.job("night")
    empty = next(name for name in SWITCHES if name != laboratory.jobs_at()["night"])

    # Both well, the standby named first.
    for words, expected in COMMANDS.items():
        done = subprocess.run(
            wiresum(*words.format(empty=empty).split()),
            env=settings(laboratory, "standby", "active"), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert re.search(expected, done.stdout, re.MULTILINE), (words, done.stdout)

    # The standby alone.
    check_errors(answers(laboratory, "standby"), "no active controller answers", f"{standby} stands by")

    # Frozen.
    with life_is_shown(laboratory):
        with frozen(laboratory.controllers["active"]):
            found = answers(laboratory, "standby", "active")
            with pytest.raises(ServiceError, match=f"{active} does not answer"):
                laboratory.operator.report(1.0)
            assert laboratory.report(1.0) is None
        check_errors(found, f"the service at {active} does not answer", "systemctl status", f"{standby} stands by")
        assert "has seen no life of the active controller for" in found["jobs"][1]

        # Dead, and the standby does not serve yet.
        night.goes_on()
        laboratory.controllers["active"].kill()
        check_errors(
            answers(laboratory, "active", "standby"), f"cannot ask the service at {active}", f"{standby} stands by"
        )
        with urllib.request.urlopen(f"http://{HOST}:{laboratory.metrics['standby']}/metrics") as answer:
            exported = answer.read().decode()
        assert 'role="standby"' in exported
        assert "wiresum_active_silent_seconds" in exported
        assert "wiresum_jobs{" not in exported
        assert "wiresum_job_" not in exported
        assert "wiresum_switch_slots_free{" not in exported

        # Nobody.
        laboratory.controllers["standby"].kill()
        check_errors(answers(laboratory, "active", "standby"), f"at {active}")
    night.check()
