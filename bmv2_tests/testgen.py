"""Test cases that p4testgen finds by symbolic execution of the program: entries, one packet, and what comes out.

    python bmv2_tests/testgen.py      finds cases that cover the program, and rewrites CASES

Theory of operation. p4testgen walks through the v1model program path by path, solves for entries and for a packet that
take a path, and writes down what comes out (Ruffy et al., "P4Testgen: An Extensible Test Oracle For P4", SIGCOMM 2023).
It knows the program and not the protocol. So its cases show where bmv2, or the Tofino program with its other parser,
cells and deparser, differs from the source of the v1model program.

p4testgen supports no multicast and no `truncate`, does not know the contents of registers, and generates any entries.
Therefore it gets a modified program: a copy to a group goes to one port; the controller's guarantees about its entries
are assumed; sender and receiver differ, so that an address that was not written is noticed; and all cases use the first
cells of a new lease. Later rounds and repairs are covered by the vectors (README.md there).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

FOLDER = Path(__file__).resolve().parent
PROGRAM = FOLDER.parent / "p4src"
CASES = FOLDER / "testgen.stf"
SLOTS = 8
"""Unused slots that a case needs."""
PORTS = 4
FLOOD_PORT = 3
"""The port of a flooded copy."""
COVERAGE_MIN = 0.80
"""Share of statements, parser states, actions and constant entries. The rest needs used cells."""
SEED = 1
RANDOM_CASES = 24
SECONDS_MAX = 600

_FRAME_BYTES = (60, 400)  # Ethernet has no shorter frames.
_ENTRY = re.compile(r'add "(?P<table>\w+)" (?P<matches>.*?) ?"(?P<action>\w+)"\((?P<parameters>.*)\)')
_FIELD = re.compile(r'"(\w+)":0x([0-9A-Fa-f]+)')
_CHANGES = (
    ("// What a worker sent to the switch's port.\n", "extern void testgen_assume(in bool check);\n"),
    ("standard.mcast_grp = meta.group | UPLINK_GROUPS;", "standard.egress_spec = standard.ingress_port;"),
    ("standard.mcast_grp = meta.group;", "standard.egress_spec = standard.ingress_port;"),
    ("standard.mcast_grp = FLOOD_GROUP;", f"standard.egress_spec = {FLOOD_PORT};"),
    (
        "            forward.apply(hdr, meta);\n",
        f"            forward.apply(hdr, meta);\n            testgen_assume(meta.forward_port < {PORTS});\n",
    ),
    (
        "                answer.apply(hdr, meta);\n",
        "                answer.apply(hdr, meta);\n"
        "                testgen_assume(meta.fate != fate_t.ANSWER ||"
        " (meta.own_mac != 0 && hdr.ethernet.dst != hdr.ethernet.src));\n",
    ),
    (
        "            deliver.apply(hdr, meta);\n",
        "            deliver.apply(hdr, meta);\n"
        "            testgen_assume(meta.lost == 1 || (hdr.ethernet.dst != hdr.ethernet.src &&"
        " hdr.ipv4.dst != hdr.ipv4.src && hdr.udp.dst_port != hdr.udp.src_port));\n",
    ),
    ("            truncate(ETHERNET_BYTES + (bit<32>)hdr.ipv4.length);\n", ""),
    ("            truncate(FRAME_BYTES_MIN);\n", ""),
    (
        "            admit.apply(hdr, meta);\n",
        "            admit.apply(hdr, meta);\n"
        "            testgen_assume(meta.admitted == 0 || meta.in_lease == 0 || meta.fits == 0 ||"
        f" meta.cell_index < {2 * SLOTS});\n"
        "            testgen_assume(meta.admitted == 0 || (meta.group != 0 && meta.group < 256 && meta.row != 0 &&"
        " meta.bit_own != 0 && (meta.bit_own & meta.bit_others) == 0));\n",
    ),
)


class GenerateError(RuntimeError):
    """p4testgen is missing or failed."""


@dataclass(frozen=True)
class GeneratedEntry:
    table: str
    matches: Mapping[str, int]
    action: str
    parameters: Mapping[str, int]


@dataclass(frozen=True)
class Frame:
    port: int
    content: bytes


@dataclass(frozen=True)
class Case:
    """A case whose output is known completely."""

    number: int
    entries: tuple[GeneratedEntry, ...]
    truncated: bool
    """Whether the packet ends within a header."""
    packet: Frame
    expected: Frame | None

    def __str__(self) -> str:
        return str(self.number)


class EmptySwitch(Protocol):
    """A switch that runs the program; `fresh` removes all entries and gives the first of `SLOTS` unused slots."""

    def fresh(self, slots: int) -> int: ...
    def insert(self, table: str, matches: Mapping[str, int], action: str, parameters: Mapping[str, int]) -> None: ...
    def replicate(self, group: int, members: Sequence[tuple[int, int]]) -> None: ...
    def play(self, frame: Frame) -> list[Frame]: ...


def complaint(case: Case, switch: EmptySwitch, first_port: int = 0) -> str:
    """The difference from p4testgen's result, or an empty text. `first_port` is the switch's port for port 0 of the
    cases."""
    first_slot = switch.fresh(SLOTS)
    for entry in case.entries:
        matches, parameters = dict(entry.matches), dict(entry.parameters)
        for fields, name in ((matches, "ingress_port"), (parameters, "port")):
            if name in fields and entry.table != "deliver":
                fields[name] += first_port
        if "cell_base" in parameters:
            parameters["cell_base"] = parameters["cell_base"] + 2 * first_slot & 0xFFFF
        switch.insert(entry.table, matches, entry.action, parameters)
    port = case.packet.port + first_port
    for group in (row for entry in case.entries if (row := entry.parameters.get("group"))):
        switch.replicate(group, [(port, 0)])
        switch.replicate(group | 512, [(port, 0)])
    switch.replicate(256, [(FLOOD_PORT + first_port, 0)])
    came = switch.play(Frame(port, case.packet.content))
    wanted = [] if case.expected is None else [Frame(case.expected.port + first_port, case.expected.content)]
    if came == wanted:
        return ""
    return f"case {case.number}:\n  came   {_shown(came)}\n  wanted {_shown(wanted)}"


def _shown(frames: Sequence[Frame]) -> str:
    return ", ".join(f"port {frame.port}: {frame.content.hex()}" for frame in frames) or "nothing"


def load(text: str) -> list[Case]:
    """Parses cases, each after a line `# case <number>` or `# case <number>, truncated`."""
    _, *parts = re.split(r"^# case (\d+)(.*)$", text, flags=re.MULTILINE)
    cases = zip(*[iter(parts)] * 3, strict=True)
    return [_case(int(number), truncated != "", body) for number, truncated, body in cases]


def _case(number: int, truncated: bool, body: str) -> Case:
    entries: list[GeneratedEntry] = []
    frames: dict[str, Frame] = {}
    for line in body.splitlines():
        if match := _ENTRY.fullmatch(line):
            matches, parameters = _fields(match["matches"]), _fields(match["parameters"])
            entries.append(GeneratedEntry(match["table"], matches, match["action"], parameters))
        elif line and not line.startswith("#"):
            verb, port, content = line.split()
            frames[verb] = Frame(int(port), bytes.fromhex(content.removesuffix("$")))
    return Case(number, tuple(entries), truncated, frames["packet"], frames.get("expect"))


def _fields(text: str) -> dict[str, int]:
    return {name: int(value, 16) for name, value in _FIELD.findall(text)}


def missing() -> str:
    """Why no cases can be generated here, or an empty text."""
    return "" if shutil.which("p4testgen") else "p4testgen is not on PATH: p4c has it, built with ENABLE_TEST_TOOLS"


def _generate(seed: int, options: Sequence[str]) -> tuple[list[str], float]:
    """Generated cases, and the share of the program that they reach, if `options` ask for it. Raises
    `GenerateError`."""
    if why := missing():
        raise GenerateError(why)
    with tempfile.TemporaryDirectory(prefix="wiresum-testgen-") as scratch:
        sources, found = Path(scratch) / "p4src", Path(scratch) / "cases"
        for folder in ("common", "v1model"):
            shutil.copytree(PROGRAM / folder, sources / folder)
        main = sources / "v1model" / "main.p4"
        text = main.read_text()
        for before, after in _CHANGES:
            if before not in text:
                raise GenerateError(f"the program does not say {before.strip()!r} any more")
            text = text.replace(before, after)
        main.write_text(text)
        command = ["p4testgen", "--target", "bmv2", "--arch", "v1model", "--std", "p4-16", "--test-backend", "STF"]
        command += ["--seed", str(seed), "--port-ranges", f"0:{PORTS - 1}", "--out-dir", str(found), *options]
        command += ["--packet-size-range", ":".join(str(8 * size) for size in _FRAME_BYTES), str(main)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        if done.returncode != 0:
            raise GenerateError(f"{' '.join(command)} ended with {done.returncode} and said:\n{done.stderr[-4000:]}")
        files = sorted(found.glob("*.stf"), key=lambda path: int(path.stem.rpartition("_")[2]))
        cases = [_shortened(path.read_text()) for path in files]
    covered = re.findall(r"Nodes covered: ([0-9.]+)", done.stdout + done.stderr)
    # A case with asterisks depends on unknown bits, such as those beyond an absent header.
    return [case for case in cases if "*" not in case], float(covered[-1]) if covered else 0.0


def _shortened(text: str) -> str:
    """The text without the path through the program, but with a mark if a header could not be read."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return "\n".join([", truncated" if "[ExtractFailure]" in text else "", *lines])


def covering(seed: int) -> list[str]:
    """Cases that each reach something new in the program."""
    items = ("STATEMENTS", "PARSER_STATES", "ACTIONS", "TABLE_ENTRIES")
    options = ["--max-tests", "0", "--stop-metric", "MAX_NODE_COVERAGE", "--path-selection", "GREEDY_STATEMENT_SEARCH"]
    options += [option for item in items for option in ("--track-coverage", item)]
    cases, covered = _generate(seed, [*options, "--only-covering-tests"])
    if covered < COVERAGE_MIN:
        raise GenerateError(f"the cases reach {covered:.1%} of the program, and not {COVERAGE_MIN:.0%}")
    return cases


def random_paths(seed: int, cases: int) -> list[str]:
    return _generate(seed, ["--max-tests", str(cases), "--path-selection", "RANDOM_BACKTRACK"])[0]


def numbered(cases: Sequence[str]) -> str:
    """A text for `load`."""
    return "".join(f"# case {number}{case}\n\n" for number, case in enumerate(cases, 1))


def main() -> int:
    try:
        cases = covering(SEED) + random_paths(SEED, RANDOM_CASES)
    except GenerateError as error:
        print(error, file=sys.stderr)
        return 1
    CASES.write_text(numbered(cases))
    print(f"{len(cases)} cases in {CASES.relative_to(FOLDER.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
