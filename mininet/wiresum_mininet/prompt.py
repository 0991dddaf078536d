"""The `mininet>` prompt: Mininet's own, with commands for workers and packets."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import IO

from mininet.cli import CLI
from mininet.log import error, output

from wiresum_mininet.lose_packet import PREFERENCE, first_data_of
from wiresum_mininet.programs import Program
from wiresum_mininet.topology import BMV2
from wiresum_mininet.wiresum_net import WiresumNet

FOLDER = Path(__file__).resolve().parent
LOG_LINES_SHOWN = 20
NUMBER_MAX = (1 << 16) - 1


class Prompt(CLI):  # type: ignore[misc]
    """The constructor runs the prompt: it executes `commands`, or else reads input until `exit` or the end."""

    def __init__(self, net: WiresumNet, commands: IO[str] | None = None) -> None:
        self._net, self._commands = net, commands
        self._programs: list[Program] = []
        super().__init__(net)

    def run(self) -> None:
        """Runs all commands."""
        if self._commands is None:
            super().run()
            return
        for line in self._commands:
            if line.strip():
                output(f"{self.prompt}{line.rstrip()}\n")
                if self.onecmd(line.rstrip("\n")):
                    break

    def do_workers(self, line: str) -> None:
        """Run a command at all workers at once: workers COMMAND [&]

        Each worker's output is in logs/hN.log of the output folder; the first one's is shown. With & it runs on, and
        `workers` alone says later how it went.
        """
        if line == "stop":
            for program in self._programs:
                program.stop()
        elif line and self._running():
            error("*** The command before still runs: `workers` says how it goes, `workers stop` ends it\n")
            return
        elif line:
            words = shlex.split(line)
            background = words[-1] == "&"
            self._programs = self._net.start_workers(words[: len(words) - background])
            if background:
                output("*** Started at all workers; `workers` says how it goes\n")
                return
            self._await_programs()
        self._report()

    def do_sum(self, line: str) -> None:
        """Sum a tensor of all workers: sum [ELEMENTS] [--times N] [--pause SECONDS] [&]"""
        self.do_workers(f"{sys.executable} {FOLDER / 'sum.py'} {line}")

    def do_lose(self, line: str) -> None:
        """Lose what a worker sends of a collective: lose HOST NUMBER, and lose HOST nothing to end that

        Collectives are numbered from 1 in each job. Only DATA is lost, and only the first time: what the worker sends
        again goes through.
        """
        words = line.split()
        names = [host.name for host in self._net.workers]
        if len(words) != 2 or words[0] not in names or not (words[1].isdecimal() or words[1] == "nothing"):
            error(f"*** lose HOST NUMBER, or lose HOST nothing; a host is one of {', '.join(names)}\n")
            return
        port = self._net[words[0]].defaultIntf()
        if words[1] == "nothing":
            port.unfilter(PREFERENCE)
        elif int(words[1]) > NUMBER_MAX:
            error(f"*** Collectives are numbered to {NUMBER_MAX}\n")
        else:
            port.filter(PREFERENCE, first_data_of(int(words[1])))

    def do_register(self, line: str) -> None:
        """Read a register of the switch that sums: register NAME [CELL], like register rounds

        The registers are those of p4src/v1model/cells.p4. Without a cell all are shown that are not zero.
        """
        if self._net.kind_of(self._net.topology.root) != BMV2:
            error("*** Only bmv2 has registers (--switch bmv2); `c0 wiresum jobs` has what a software switch counts\n")
            return
        switch = self._net[self._net.topology.root.name]
        out, errors, _ = switch.pexec([sys.executable, str(FOLDER / "register_read.py"), *shlex.split(line)])
        output(out or errors)

    def _running(self) -> bool:
        return any(program.exit_code is None for program in self._programs)

    def _await_programs(self) -> None:
        try:
            for program in self._programs:
                program.process.wait()
        except KeyboardInterrupt:
            for program in self._programs:
                program.stop()

    def _report(self) -> None:
        if not self._programs:
            error("*** Nothing was started yet: workers COMMAND\n")
            return
        first = self._programs[0]
        lines = first.log.read_text(errors="replace").splitlines()
        output("".join(f"{line}\n" for line in lines[-LOG_LINES_SHOWN:]))
        if self._running():
            output("*** It runs\n")
        for program in self._programs:
            if program.exit_code:
                output(f"{program.host} ended with exit code {program.exit_code}: {program.log}\n")
