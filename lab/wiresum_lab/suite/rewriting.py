"""pytest rewrites the asserts of every test module and keeps what it compiled, which takes more than ten seconds of
processor time in a fresh checkout. Workers begin to collect at the same moment, with the same file: so each of them
would do all of it. The controlling process does it before they start, with a process for each core.

This calls what pytest keeps to itself; its version is fixed in pyproject.toml.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def rewrite_stale(config: pytest.Config, files: Sequence[Path], cores: int) -> None:
    """Compiles those that pytest has not compiled as they are now. An error is left to the collection to report."""
    if sys.dont_write_bytecode or config.getoption("assertmode") != "rewrite":
        return
    stale = [file for file in files if rewrite._read_pyc(file, cached(file)) is None]
    children = []
    for core in range(min(cores, len(stale))):
        child = os.fork()
        if child == 0:
            try:
                _rewrite(config, stale[core::cores])
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def cached(file: Path) -> Path:
    return rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"


def _rewrite(config: pytest.Config, files: Sequence[Path]) -> None:
    for file in files:
        rewrite.try_makedirs(cached(file).parent)
        source, code = rewrite._rewrite_test(file, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, cached(file))
