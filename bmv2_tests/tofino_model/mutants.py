"""Do the vectors notice a mistake of the compiler? Changes one instruction of the assembly, and plays them.

An instruction of an action or of a stateful ALU is removed, or replaced by another. Some changes have no effect outside
the switch, so a surviving mutant must be examined, and is not necessarily a gap in the vectors.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bmv2_tests.tofino_model import assembled
from bmv2_tests.tofino_model.harness import HarnessError
from bmv2_tests.tofino_model.model_switch import ModelSwitch
from bmv2_tests.tofino_network import Tofino
from wiresum.conformance.checks import all_checks, chosen

_CHANGES = (
    ("add ", "sub "),
    ("sub ", "add "),
    ("or ", "and "),
    ("and ", "or "),
    ("andcb ", "and "),
    ("equ ", "neq "),
    ("neq ", "equ "),
    ("maxu ", "minu "),
    ("output alu_lo", "output mem_lo"),
    ("output mem_lo", "output mem_hi"),
    ("output mem_hi", "output mem_lo"),
    ("output word0, alu_lo", "output word0, mem_lo"),
    ("output word0, mem_lo", "output word0, mem_hi"),
    ("output word1, alu_hi", "output word1, mem_hi"),
    ("output word1, mem_hi", "output word1, mem_lo"),
    ("set ", None),
    ("alu_a ", None),
    ("deposit-field ", None),
    ("bitmasked-set ", None),
)
"""How an instruction begins, and its replacement in a mutant; None removes the instruction."""
_CONSTANT = re.compile(r"(?P<set>set .*, )(?P<value>\d+)")
"""A mutant sets another constant."""
_ACTIONS = re.compile(r"^stage \d+ (ingress|egress):$")
_INSTRUCTION = re.compile(r"^\s+- (?P<instruction>[a-z_-]+ .*)$")


@dataclass(frozen=True)
class Mutant:
    line: int
    """The line in the assembly, from 0."""
    before: str
    after: str
    """The new instruction; an empty text removes it."""

    def of(self, assembly: str) -> str:
        lines = assembly.splitlines()
        lines[self.line] = lines[self.line].replace(self.before, self.after) if self.after else ""
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return f"line {self.line + 1}: {self.before} -> {self.after or 'nothing'}"


def mutants(assembly: str) -> Iterator[Mutant]:
    in_stages = False
    for number, line in enumerate(assembly.splitlines()):
        in_stages = in_stages or bool(_ACTIONS.match(line))
        found = _INSTRUCTION.match(line)
        if not in_stages or not found:
            continue
        after = _changed(found["instruction"])
        if after is not None:
            yield Mutant(number, found["instruction"], after)


def _changed(instruction: str) -> str | None:
    """The changed instruction; an empty text removes it, and None means that it has no mutant."""
    if constant := _CONSTANT.fullmatch(instruction):
        return f"{constant['set']}{int(constant['value']) ^ 1}"
    for begin, instead in _CHANGES:
        if instruction.startswith(begin):
            return "" if instead is None else instead + instruction.removeprefix(begin)
    return None


def noticed(mutant: Mutant, assembly: str, generation: int) -> str:
    """The first difference that the vectors find, or the assembler's complaint; empty if there is none."""
    with tempfile.TemporaryDirectory(prefix="wiresum-mutant-") as scratch:
        source = Path(scratch) / "main.bfa"
        source.write_text(mutant.of(assembly))
        try:
            with closing(ModelSwitch(generation, assembled.assemble(source, Path(scratch) / "assembled"))) as switch:
                seen = Tofino(switch)
                checks = chosen(all_checks(), seen.profiles)
                return next((failed[0].text for check in checks if (failed := check.failures(seen))), "")
        except (assembled.AssembleError, HarnessError) as error:
            return str(error)
