from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from wiresum.join import release
from wiresum.join.release import COMMIT_DIGITS, commit_of, software_version, version_to_build
from wiresum_lab import REPOSITORY
from wiresum_lab.patience import PATIENCE_S


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *arguments],
        check=True, capture_output=True, text=True, timeout=PATIENCE_S, env=os.environ | alone,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "--quiet")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "first")
    return folder


def test_the_commit_is_what_git_says_however_it_is_kept(checkout: Path, tmp_path: Path) -> None:
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD")
    git(checkout, "pack-refs", "--all")
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD"), "references in one file"
    git(checkout, "worktree", "add", "--quiet", "-b", "other", str(tmp_path / "other"))
    git(tmp_path / "other", "commit", "--quiet", "--allow-empty", "--message", "second")
    assert commit_of(tmp_path / "other") == git(tmp_path / "other", "rev-parse", "HEAD"), "another worktree's"
    assert commit_of(tmp_path / "other") != commit_of(checkout)
    git(checkout, "checkout", "--quiet", "--detach")
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD"), "no branch"


def test_a_folder_without_a_commit_has_none(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == ""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    assert commit_of(tmp_path) == ""


def test_a_build_of_the_tag_is_the_release_and_every_other_one_has_its_commit(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(checkout, "tag", "v0.9.0")
    assert version_to_build("0.9.0", checkout) == "0.9.0"
    with monkeypatch.context() as patched:
        patched.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        assert version_to_build("0.9.0", checkout) == "0.9.0", "root builds a checkout of another user"
    assert version_to_build("0.9.1", checkout) == f"0.9.1+g{git(checkout, 'rev-parse', 'HEAD')[:COMMIT_DIGITS]}"
    git(checkout, "commit", "--quiet", "--allow-empty", "--message", "after it")
    assert version_to_build("0.9.0", checkout) == f"0.9.0+g{git(checkout, 'rev-parse', 'HEAD')[:COMMIT_DIGITS]}"


def test_an_sdist_has_the_version_that_it_was_made_with(tmp_path: Path) -> None:
    assert version_to_build("0.9.0", tmp_path) == "0.9.0", "neither git nor sdist: a copy of the files"
    (tmp_path / "PKG-INFO").write_text(
        "Metadata-Version: 2.2\nName: wiresum\nVersion: 0.9.0+g0123abcde\n\nVersion: no\n"
    )
    assert version_to_build("0.9.0", tmp_path) == "0.9.0+g0123abcde"


def test_this_installation_says_its_checkouts_commit(monkeypatch: pytest.MonkeyPatch, checkout: Path) -> None:
    monkeypatch.setattr(release, "editable_checkout", lambda: checkout)
    assert software_version.__wrapped__().endswith(f"+g{commit_of(checkout)[:COMMIT_DIGITS]}")
    monkeypatch.setattr(release, "editable_checkout", lambda: None)
    monkeypatch.setattr(release.metadata, "version", lambda _name: "0.9.0+gbuilt")
    assert software_version.__wrapped__() == "0.9.0+gbuilt"


@pytest.mark.nightly
def test_sdist_and_the_wheel_of_it_have_one_version(tmp_path: Path) -> None:
    """A Debian package takes the wheel's."""
    pytest.importorskip("scikit_build_core", reason="it builds what is looked at here")

    def build(source: Path, what: str) -> str:
        code = f"import scikit_build_core.build as build; print('made', build.{what}({str(tmp_path)!r}))"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
        return done.stdout.split("made ")[-1].strip()

    archive = build(REPOSITORY, "build_sdist")
    version = archive.removeprefix("wiresum-").removesuffix(".tar.gz")
    assert commit_of(REPOSITORY)[:COMMIT_DIGITS] in version or "+" not in version
    with tarfile.open(tmp_path / archive) as opened:
        opened.extractall(tmp_path, filter="data")
    assert build(tmp_path / f"wiresum-{version}", "prepare_metadata_for_build_wheel") == f"wiresum-{version}.dist-info"
