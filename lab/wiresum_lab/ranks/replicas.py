"""torchft's lighthouse and the workers that it keeps together, as processes that a test or a benchmark may kill.

Each worker is a replica group of its own, of one process.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch._C._distributed_c10d import TCPStore

from wiresum_lab.processes import Program, stop_all, unused_port
from wiresum_lab.ranks.cluster import environment

LIGHTHOUSE = Path(sys.executable).with_name("torchft_lighthouse")


class Replicas:
    """Workers that run `program`, which names them by `--name`, from `with` to its end."""

    def __init__(
        self,
        program: Sequence[str],
        folder: Path,
        switch: str,
        *,
        lighthouse: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`switch`: what WIRESUM_SWITCH says. `lighthouse`: its options beside those of every lighthouse."""
        self._program, self._folder = program, folder
        port = unused_port()
        command = [str(LIGHTHOUSE), "--bind", f"127.0.0.1:{port}", "--min_replicas", "2", *lighthouse]
        self._lighthouse = Program(command, folder / "lighthouse.log", {"RUST_LOG": "info"})
        self._variables = environment({"WIRESUM_SWITCH": switch, **(variables or {})})
        self._variables |= {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "RANK": "0", "WORLD_SIZE": "1"}
        self._stores: list[TCPStore] = []
        self.programs: dict[str, Program] = {}

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *_: object) -> None:
        stop_all([*self.programs.values(), self._lighthouse])

    def start(self, name: str) -> Program:
        """A worker of this name, for the first time or again. Its log begins anew."""
        self._stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        variables = self._variables | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._stores[-1].port)}
        command = [sys.executable, *self._program, "--name", name]
        self.programs[name] = Program(command, self._folder / f"{name}.log", variables)
        return self.programs[name]
