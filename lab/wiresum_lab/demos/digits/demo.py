"""Trains on handwritten digits with gradients summed by a software switch, then over Gloo, and compares.

Starts `wiresum switch` on this machine, four workers with torchrun over init_process_group("wiresum"), and the same
workers with the same seed over Gloo. Shows progress, draws a picture, and writes what came out as JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from wiresum_lab import REPOSITORY
from wiresum_lab.demos.digits import picture
from wiresum_lab.demos.digits.processes import Processes
from wiresum_lab.demos.digits.progress import RunProgress
from wiresum_lab.demos.digits.runs import Run, RunReader

HERE = Path(__file__).resolve().parent
SWITCH_START_S_MAX = 30.0
RUN_S_MAX = 600.0
POLL_S = 0.1
LOG_LINES_SHOWN = 40
EXIT_INTERRUPTED = 130


class DemoError(Exception):
    """Something that was started went wrong; the text says what, and where its output is."""


class Demo:
    def __init__(self, options: argparse.Namespace, console: Console, processes: Processes) -> None:
        self._options, self._console, self._processes = options, console, processes
        self._output: Path = options.output

    def run(self) -> dict[str, object]:
        switch = self._start_switch()
        wiresum = self._train("wiresum", {"WIRESUM_SWITCH": switch, "WIRESUM_ADDRESS": "127.0.0.1"})
        gloo = self._train("gloo", {"GLOO_SOCKET_IFNAME": "lo"})
        picture.draw([wiresum, gloo], self._output / "run.png", world_size=self._options.workers)
        return self._result(wiresum, gloo)

    def _start_switch(self) -> str:
        """Returns the endpoint at which workers join, once the switch says that it is ready."""
        log = self._output / "switch.log"
        command = [str(Path(sys.executable).with_name("wiresum")), "switch", "--control", "127.0.0.1:0", "--port", "0"]
        switch = self._processes.start(command, log=log, environment={})
        give_up_at = time.monotonic() + SWITCH_START_S_MAX
        while not (ready := re.search(r"^ready: control (\S+), data (\S+)", log.read_text(), re.MULTILINE)):
            if switch.poll() is not None:
                raise DemoError(f"the switch ended with exit code {switch.returncode} at its start\n{tail(log)}")
            if time.monotonic() > give_up_at:
                raise DemoError(f"the switch was not ready within {SWITCH_START_S_MAX:.0f} s\n{tail(log)}")
            time.sleep(POLL_S)
        self._console.print(
            f"A software switch serves joins at {ready[1]} and sums at UDP {ready[2]}.", highlight=False
        )
        return ready[1]

    def _train(self, backend: str, environment: dict[str, str]) -> Run:
        folder = self._output / backend
        folder.mkdir(exist_ok=True)
        for old in folder.glob("rank-*.jsonl"):
            old.unlink()
        log = self._output / f"{backend}.log"
        run = Run(backend)
        reader = RunReader(run, folder, self._options.workers)
        workers = self._start_workers(backend, folder, log, environment)
        give_up_at = time.monotonic() + RUN_S_MAX
        with RunProgress(self._console, run) as progress:
            while workers.poll() is None:
                if time.monotonic() > give_up_at:
                    raise DemoError(f"training over {backend} took longer than {RUN_S_MAX:.0f} s\n{tail(log)}")
                time.sleep(POLL_S)
                reader.read()
                progress.update()
            reader.read()
            progress.update()
        if workers.returncode != 0:
            raise DemoError(f"training over {backend} failed with exit code {workers.returncode}\n{tail(log)}")
        return run

    def _start_workers(
        self, backend: str, folder: Path, log: Path, environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        options = self._options
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        command += ["--nproc-per-node", str(options.workers), str(HERE / "train.py"), "--backend", backend]
        command += ["--epochs", str(options.epochs), "--seed", str(options.seed), "--output", str(folder)]
        # One thread each, so that workers do not fight for cores and sums inside a worker have one order.
        return self._processes.start(command, log=log, environment={"OMP_NUM_THREADS": "1", **environment})

    def _result(self, wiresum: Run, gloo: Run) -> dict[str, object]:
        workers = self._options.workers
        return {
            "accuracy": wiresum.accuracy,
            "accuracy_gloo": gloo.accuracy,
            "parameters_identical": wiresum.parameters_identical(workers),
            "parameters_identical_gloo": gloo.parameters_identical(workers),
            "seconds": wiresum.seconds,
            "seconds_gloo": gloo.seconds,
            "retransmissions": wiresum.retransmissions,
            "goodput_mbit": wiresum.goodput_mbit,
            "goodput_gloo_mbit": gloo.goodput_mbit,
            "loss": wiresum.losses[-1],
            "loss_gloo": gloo.losses[-1],
            "steps": wiresum.steps,
            "bytes": wiresum.bytes,
            "world_size": workers,
            "seed": self._options.seed,
            "versions": {"python": platform.python_version(), "torch": version("torch"), "wiresum": version("wiresum")},
        }


def tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    return "\n".join([f"--- the end of {log} ---", *lines])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="make demo ARGS='...'"
    )
    parser.add_argument("--workers", type=int, default=4, help="processes that train together (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the training images (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of split, order and parameters (default: %(default)s)")
    parser.add_argument(
        "--output", type=Path, default=REPOSITORY / "build/demo", help="folder for run.png and run.json (build/demo)"
    )
    return parser.parse_args()


def show(result: dict[str, object], output: Path, console: Console) -> None:
    same = "bit for bit the same at all workers" if result["parameters_identical"] else "NOT the same at all workers"
    console.print(f"Test accuracy {result['accuracy']:.2%} with wiresum, {result['accuracy_gloo']:.2%} with Gloo.")
    console.print(f"Parameters after training: {same}.")
    console.print(f"{output / 'run.png'}\n{output / 'run.json'}", highlight=False)


def main() -> int:
    options = parse_arguments()
    options.output.mkdir(parents=True, exist_ok=True)
    console = Console(soft_wrap=True)
    # `kill` is to clean up like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Processes() as processes:
            result = Demo(options, console, processes).run()
    except DemoError as error:
        console.print(f"[bold red]The demo failed:[/] {error}")
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted; everything that was started has been stopped.")
        return EXIT_INTERRUPTED
    (options.output / "run.json").write_text(json.dumps(result, indent=2) + "\n")
    show(result, options.output, console)
    return 0 if result["parameters_identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
