"""`make release` makes packages of a tagged, described and unchanged commit alone, after all checks."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from wiresum_lab import REPOSITORY

STEPS = ["run", "wheels", "test-wheels", "deb"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A commit that is release 1.2.0, with steps that only say that they ran."""
    steps = tmp_path / ".ci"
    steps.mkdir()
    shutil.copy(REPOSITORY / ".ci/release", steps)
    for step in STEPS:
        (steps / step).write_text(f"#!/bin/sh\necho step {step}\nmkdir -p dist && echo {step} >dist/wiresum-{step}\n")
        (steps / step).chmod(0o755)
    (tmp_path / "pyproject.toml").write_text('release = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.0] - 2026-12-01\n")
    (tmp_path / ".gitignore").write_text("dist\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Release")
    git(tmp_path, "tag", "v1.2.0")
    return tmp_path


def test_packages_are_made_after_all_checks_and_have_checksums(checkout: Path) -> None:
    done = release(checkout)
    assert done.returncode == 0, done.stderr
    assert [line.removeprefix("step ") for line in done.stdout.splitlines() if line.startswith("step ")] == STEPS
    sums = (checkout / "dist/SHA256SUMS").read_text().splitlines()
    assert [line.split()[1] for line in sums] == sorted(f"wiresum-{step}" for step in STEPS)


def test_all_that_is_missing_is_said_before_anything_runs(checkout: Path) -> None:
    (checkout / "pyproject.toml").write_text('release = "1.2"\n')  # a tag of a longer name is another one
    done = release(checkout)
    assert (done.returncode, done.stdout) == (1, "")
    for problem in ("the checkout differs", "no section '## [1.2] - YYYY-MM-DD'", "has no tag: git tag"):
        assert problem in done.stderr


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_ends_it(checkout: Path, step: str) -> None:
    script = checkout / ".ci" / step
    script.write_text("#!/bin/sh\nexit 3\n")
    git(checkout, "commit", "--quiet", "--all", "--message", "A failure")
    git(checkout, "tag", "--force", "v1.2.0")
    assert release(checkout).returncode == 3
    assert not (checkout / "dist/SHA256SUMS").exists()


def release(checkout: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([checkout / ".ci/release"], capture_output=True, text=True, check=False)


def git(checkout: Path, *arguments: str) -> None:
    of_nobody = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    author = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *author, *arguments], cwd=checkout, env=os.environ | of_nobody, check=True)
