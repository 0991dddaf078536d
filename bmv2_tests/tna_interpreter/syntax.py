"""From source files to a syntax tree: the C preprocessor, then grammar.lark."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache, lru_cache
from pathlib import Path

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from bmv2_tests.tna_interpreter.values import P4Error

Node = Tree[Token]

FOLDER = Path(__file__).resolve().parent
PREPROCESSOR_TIMEOUT_S = 60


def preprocess(main: Path, generation: int) -> str:
    """The program for Tofino 1 or 2 as one text. Raises `P4Error` if the C compiler is missing or complains."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise P4Error("no C compiler is on PATH, whose preprocessor P4 needs: install gcc")
    options = ["-E", "-P", "-undef", "-nostdinc", "-x", "assembler-with-cpp"]
    defines = [f"-D__TARGET_TOFINO__={generation}", f"-I{FOLDER / 'prelude'}"]
    command = [compiler, *options, *defines, str(main)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PREPROCESSOR_TIMEOUT_S, check=False)
    if done.returncode != 0 or done.stderr:
        raise P4Error(f"{' '.join(command)} ended with {done.returncode} and said:\n{done.stderr}")
    return done.stdout


@cache
def _parser() -> Lark:
    return Lark((FOLDER / "grammar.lark").read_text(), parser="lalr", propagate_positions=True, maybe_placeholders=True)


@lru_cache(maxsize=2)
def parse(text: str) -> Node:
    """The tree is shared, and no program changes it. Raises `P4Error` with the place of a syntax error."""
    try:
        return _parser().parse(text)
    except UnexpectedInput as error:
        raise P4Error(f"line {error.line} of the preprocessed program:\n{error.get_context(text)}{error}") from error
