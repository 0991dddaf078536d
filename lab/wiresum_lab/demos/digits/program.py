"""The main program of the demos: errors, the file with the result, and the exit status."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from wiresum_lab import REPOSITORY
from wiresum_lab.namespaces.star import StarError
from wiresum_lab.processes import ProgramError

EXIT_INTERRUPTED = 130

Result = dict[str, object]


def parser_of(description: str | None, target: str, *, epochs: int, writes: str) -> argparse.ArgumentParser:
    """A parser with the options of all demos. `target` is the demo's name for make, and the folder below build/ for its
    results, which `writes` names."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog=f"make {target} ARGS='...'",
    )
    add = parser.add_argument
    add("--workers", type=int, default=4, help="workers that train together (default: %(default)s)")
    add("--epochs", type=int, default=epochs, help="passes over the training images (default: %(default)s)")
    add("--seed", type=int, default=1, help="of split, order and parameters (default: %(default)s)")
    folder = f"build/{target}"
    add("--output", type=Path, default=REPOSITORY / folder, help=f"folder for {writes} ({folder})")
    return parser


def run_demo(
    options: argparse.Namespace,
    run: Callable[[argparse.Namespace], Result],
    show: Callable[[Result, Path, Console], None],
) -> int:
    """Runs a demo and returns the exit status. `run` prints to `options.console`; its result goes to run.json in the
    folder `options.output`, and to `show`."""
    options.output.mkdir(parents=True, exist_ok=True)
    options.console = console = Console(soft_wrap=True)
    try:
        result = run(options)
    except (ProgramError, StarError) as error:
        console.print(f"[bold red]The demo failed:[/] {error}")
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted; everything that was started has been stopped.")
        return EXIT_INTERRUPTED
    (options.output / "run.json").write_text(json.dumps(result, indent=2) + "\n")
    show(result, options.output, console)
    return 0 if result["parameters_identical"] else 1
