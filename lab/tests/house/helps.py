"""Shows the help of the command, of all its subcommands and of programs, in one process: `helps.py MODULE...`.

It prints JSON: what each printed, its exit status, and which modules that take long to import it was the first to
import.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import click

from wiresum.cli.main import main

SLOW_TO_IMPORT = {"finsy", "grpc", "matplotlib", "mininet", "numpy", "sklearn", "torch", "wiresum.agent._native"}
COLUMNS = 1000
"""So that no path is broken into two lines."""
named: set[str] = set()
"""Of these, what has been imported so far."""


def shown(show: Callable[[], object]) -> dict[str, Any]:
    status = 0
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            show()
        except SystemExit as ended:
            status = int(ended.code or 0)
        except Exception:
            status = 1
            traceback.print_exc(file=output)
    imported = SLOW_TO_IMPORT & sys.modules.keys() - named
    named.update(imported)
    return {"status": status, "text": output.getvalue(), "imported": sorted(imported)}


def of_command(words: tuple[str, ...], context: click.Context) -> Iterator[tuple[str, dict[str, Any]]]:
    yield " ".join(("wiresum", *words)), shown(lambda: main([*words, "--help"], "wiresum", terminal_width=COLUMNS))
    each = context.command
    for name in each.list_commands(context) if isinstance(each, click.Group) else []:
        below = each.get_command(context, name)
        assert below is not None
        yield from of_command((*words, name), click.Context(below, context, name))


def of_program(module: str) -> dict[str, Any]:
    sys.argv = [module, "--help"]
    return shown(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


if __name__ == "__main__":
    found = dict(of_command((), click.Context(main)))
    found |= {module: of_program(module) for module in sys.argv[1:]}
    print(json.dumps(found))
