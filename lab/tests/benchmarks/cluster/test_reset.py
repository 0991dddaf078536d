from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
STREAM_MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")

needs_nginx = pytest.mark.skipif(
    shutil.which("nginx") is None or not STREAM_MODULE.exists(),
    reason="nginx, or its stream module, is not installed: no proxy is put in front",
)


@pytest.mark.slow
@pytest.mark.parametrize("through", [(), pytest.param(("--through", "nginx"), marks=needs_nginx)], ids=["", "nginx"])
def test_workers_can_join_while_calls_are_reset_at_the_highest_rate(run_bench: Run, through: tuple[str, ...]) -> None:
    finished = run_bench("benchmarks.cluster.reset", "--seconds", "1", "--connections", "4", "--json", *through)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    outcome = json.loads(finished.stdout)
    assert outcome["resets_per_second"] > 100, "calls were reset during the run"
    assert outcome["attack"]["joins"] > 0
    assert outcome["after"]["resident_mib"] < outcome["quiet"]["resident_mib"] + 64
