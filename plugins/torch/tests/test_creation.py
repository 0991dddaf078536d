from __future__ import annotations

import re
from importlib import metadata

import pytest

import wiresum.torch
from wiresum.agent.config import AgentConfig
from wiresum.join import name_problem
from wiresum.torch import creation


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("variables", "job", "expected"),
    [
        ({}, "", "job-RANDOM"),
        ({"TORCHELASTIC_RUN_ID": "night"}, "", "night-RANDOM"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "", "job-RANDOM"),
        ({"SLURM_JOB_ID": "4711", "TORCHELASTIC_RUN_ID": "4711"}, "", "slurm-4711-RANDOM"),
        ({"SLURM_JOB_ID": "4711", "TORCHELASTIC_RESTART_COUNT": "2"}, "", "slurm-4711-RANDOM-restart2"),
        ({"SLURM_JOB_ID": "4711"}, "mine", "mine"),
    ],
)
def test_the_default_job_name_comes_from_the_launcher(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], job: str, expected: str
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    name = creation._job_name(AgentConfig(job=job), "", 1)
    assert re.fullmatch(expected.replace("RANDOM", "[0-9a-f]{8}"), name)
    assert not name_problem(name)


def test_the_package_lists_lazily_imported_names_and_its_version() -> None:
    assert {"Options", "GroupStats", "WiresumTimeoutError", "stats", "__version__"} <= set(dir(wiresum.torch))
    assert wiresum.torch.__version__ == metadata.version("wiresum")
