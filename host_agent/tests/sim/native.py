"""Loads the simulation's native module `wiresum_sim`, which is built beside this file."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType


def _load() -> ModuleType:
    # WIRESUM_SIM names the folder of a module from another build.
    folder = Path(os.environ.get("WIRESUM_SIM") or Path(__file__).parent)
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
