"""Types every command of docs/mininet.md and compares its output with the page, except for numbers. Needs bmv2.

`sh sleep` is left out: the command after it is repeated until it gives the output on the page.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from wiresum_lab.pages import blocks
from wiresum_lab.patience import TimedOutError
from wiresum_lab.processes import wait_until

from .terminal import PROMPT, QUIET_S_MAX, Terminal

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "mininet.md"
SLEEP = "sh sleep "

pytestmark = pytest.mark.timeout(1200)


class Command(NamedTuple):
    prompt: str
    text: str
    output: list[str]
    """The lines on the page; "..." stands for any text."""


def commands() -> list[Command]:
    found: list[Command] = []
    for block in blocks(PAGE):
        for line in block.text.splitlines() if block.language == "console" else []:
            if match := re.match(r"(\$ |mininet> )(.*)", line):
                found.append(Command(match[1], match[2], []))
            elif line.strip():
                found[-1].output.append(line)
    return found


def comparable(line: str) -> str:
    """The line without numbers, random names and widths."""
    line = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line)
    line = re.sub(r"\bjob-[0-9a-f]{8}\b", "job-N", line)
    line = re.sub(r"[0-9][0-9.,+:]*", "N", line)
    return " ".join(re.sub(r"\b[KMG](?=bits/sec)", "", line).split())


def assert_shown(command: Command, shown: str) -> None:
    """All lines of the page are shown in order; where the page has "...", others may come between."""
    lines = [comparable(line) for line in shown.replace("\r", "").splitlines()]
    at = 0
    for expected in command.output:
        if expected == "...":
            continue
        pattern = ".*".join(re.escape(comparable(part)) for part in expected.split("..."))
        matching = [index for index in range(at, len(lines)) if re.fullmatch(pattern, lines[index])]
        assert matching, f"{command.prompt}{command.text}\ndid not print\n{expected}\nbut\n{shown}"
        at = matching[0] + 1


@pytest.fixture
def folder(mininet_here: None, tmp_path: Path) -> Path:
    """A folder with the needed parts of the repository, and a `build` and a home of its own."""
    for tool in ("simple_switch_grpc", "p4c-bm2-ss", "tshark", "mergecap"):
        if shutil.which(tool) is None:
            pytest.skip(f"the tutorial in docs/mininet.md is not tested: {tool} is not on PATH")
    for name in ("mininet", "bmv2_tests", "p4src"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    (tmp_path / "home").mkdir()
    return tmp_path


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def assert_comes(command: Command, terminal: Terminal) -> None:
    def comes() -> bool:
        try:
            assert_shown(command, terminal.type(command.text))
        except AssertionError as error:
            latest.append(str(error))
            return False
        return True

    latest: list[str] = []
    wait_until(comes, command.text, error=lambda text: TimedOutError(f"{text}\n{latest[-1]}"))


def made(text: str) -> list[str] | None:
    """The command that `make mininet` runs; None for any other command."""
    match = re.fullmatch(r"(?:sudo )?make mininet(?: ARGS=(.*))?", text)
    if match is None:
        return None
    arguments = shlex.split(shlex.split(match[1] or "''")[0])
    return [sys.executable, "-m", "wiresum_mininet", *arguments, "--output", "build/mininet"]


def in_shell(text: str, folder: Path) -> str:
    arguments = made(text) or text.removeprefix("sudo ").replace(".venv/bin/python", sys.executable)
    environment = os.environ | {"HOME": str(folder / "home")}
    done = subprocess.run(
        arguments if isinstance(arguments, list) else ["bash", "-c", arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=QUIET_S_MAX,
        check=False,
    )
    return done.stdout + done.stderr


def play(typed: list[Command], folder: Path, terminals: list[Terminal], *more: str) -> None:
    """`more`: options of `make mininet` that the page does not have."""
    for before, command, after in zip([None, *typed[:-1]], typed, [*typed[1:], None], strict=True):
        if command.text.startswith(SLEEP):
            continue
        if before is not None and before.text.startswith(SLEEP):
            assert_comes(command, terminals[-1])
        elif command.prompt == PROMPT:
            assert_shown(command, terminals[-1].type(command.text))
        elif (arguments := made(command.text)) is not None and after is not None and after.prompt == PROMPT:
            terminals.append(Terminal([*arguments, *more], folder))
            assert_shown(command, terminals[-1].until_prompt())
        elif not command.text.startswith("wireshark "):  # needs a display
            assert_shown(command, in_shell(command.text, folder))


@pytest.mark.nightly
def test_every_command_prints_the_output_on_the_page(folder: Path, terminals: list[Terminal]) -> None:
    typed = commands()
    assert len(typed) > 30
    play(typed, folder, terminals)


@pytest.mark.nightly
def test_a_job_goes_on_at_the_second_switch_as_the_page_says(
    kind: str, tmp_path: Path, terminals: list[Terminal]
) -> None:
    typed = commands()
    first = next(number for number, command in enumerate(typed) if "two-switches" in command.text)
    last = next(number for number in range(first, len(typed)) if typed[number].text == "exit")
    (tmp_path / "mininet").symlink_to(REPOSITORY / "mininet")
    play(typed[first : last + 1], tmp_path, terminals, "--switch", kind, "--no-captures")


def test_the_page_mentions_all_topologies_and_options() -> None:
    text = PAGE.read_text()
    help_text = in_shell("make mininet ARGS=--help", REPOSITORY)
    links, training = ("--topology", "--switch", "--rate", "--delay", "--loss"), ("--gloo", "--no-captures", "--output")
    for option in (*links, *training, "--log-level", "--commands"):
        assert option in text and option in help_text
    for topology in (REPOSITORY / "mininet" / "topologies").iterdir():
        assert f"| `{topology.name}` |" in text
