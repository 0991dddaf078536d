"""The simulation (host_agent/tests/sim) for Python: the native module `sim`, which is built beside its sources, and
regular trees of switches."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

from wiresum_lab import REPOSITORY


def _load() -> ModuleType:
    # WIRESUM_SIM may name the folder of a module from another build.
    folder = Path(os.environ.get("WIRESUM_SIM") or REPOSITORY / "host_agent/tests/sim")
    built = sorted(folder.glob("wiresum_sim*.so"))
    if not built:
        raise ModuleNotFoundError(
            "wiresum_sim is not built. Build it with: cmake -S . -B build/dev -G Ninja -DWIRESUM_TESTS=ON"
            " -DWIRESUM_PYTHON=ON -DWIRESUM_INPLACE=ON && cmake --build build/dev --target wiresum_sim"
        )
    spec = importlib.util.spec_from_file_location("wiresum_sim", built[0])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sim = _load()


def racks(workers: int, *sizes: int) -> tuple[list[int], list[int]]:
    """The parent of each switch, and the switch of each worker, in a regular tree: leaves of sizes[0] workers, switches
    of sizes[1] leaves above these if given, and so on, below one root."""
    tiers = []
    count = workers
    for size in sizes:
        count = -(-count // size)
        tiers.append(count)
    parents, first = [0], 1
    sizes_above = [*sizes[1:], *tiers[-1:]]
    for tier, size, above in zip(reversed(tiers), reversed(sizes_above), [1, *reversed(tiers)], strict=False):
        parents += [first - above + switch // size for switch in range(tier)]
        first += tier
    leaves = len(parents) - tiers[0] if tiers else 0
    return parents, [leaves + worker // sizes[0] if tiers else 0 for worker in range(workers)]
