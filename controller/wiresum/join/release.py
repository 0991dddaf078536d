"""Which release of Wiresum this is. A development build adds its commit, so that two builds are told apart.

The build backend calls `dynamic_metadata` (pyproject.toml), and so imports this file alone: only the standard library.
An editable checkout changes after its installation, so its commit is read again for each question, without a process of
git: a process that trains may not fork.
"""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

CHECKOUT = Path(__file__).resolve().parents[3]
"""The root of the checkout or unpacked sdist that contains this file."""
COMMIT_DIGITS = 9
GIT_S_MAX = 30.0


@functools.cache
def software_version() -> str:
    """The release, `0.1.0`, or a development build, `0.1.0+gd5b597990`; empty if Wiresum is not installed."""
    try:
        installed = metadata.version("wiresum")
    except metadata.PackageNotFoundError:
        return ""
    checkout = editable_checkout()
    commit = commit_of(checkout) if checkout else ""
    return development_version(installed, commit) if commit else installed


def development_version(release: str, commit: str) -> str:
    return f"{release.partition('+')[0]}+g{commit[:COMMIT_DIGITS]}"


def installed_from() -> tuple[Path | None, bool]:
    """The folder or wheel of this machine that pip had Wiresum from, None if this is not known or it is gone; and
    whether Wiresum is installed as editable."""
    try:
        recorded = metadata.distribution("wiresum").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None, False
    if not recorded:
        return None, False
    origin = json.loads(recorded)
    url = urlsplit(origin["url"])
    path = Path(unquote(url.path))
    if url.scheme != "file" or not path.exists():
        return None, False
    return path, bool(origin.get("dir_info", {}).get("editable"))


def editable_checkout() -> Path | None:
    path, editable = installed_from()
    return path if editable else None


def commit_of(checkout: Path) -> str:
    """The commit that is checked out, in hexadecimal; empty if it cannot be read."""
    try:
        own = checkout / ".git"
        if own.is_file():  # a worktree has a file
            own = checkout / own.read_text().removeprefix("gitdir:").strip()
        shared = own / (own / "commondir").read_text().strip() if (own / "commondir").is_file() else own
        head = (own / "HEAD").read_text().strip()
        return _commit_named(head.removeprefix("ref:").strip(), own, shared) if head.startswith("ref:") else head
    except (OSError, UnicodeDecodeError):
        return ""


def _commit_named(reference: str, *folders: Path) -> str:
    for folder in folders:
        if (folder / reference).is_file():
            return (folder / reference).read_text().strip()
    for line in (folders[-1] / "packed-refs").read_text().splitlines():
        commit, _, name = line.partition(" ")
        if name == reference:
            return commit
    return ""


def dynamic_metadata(settings: Mapping[str, Any], _project: Mapping[str, Any]) -> dict[str, str]:
    """Gives the build backend the version of what is built. An sdist keeps the version of the checkout that it was made
    from."""
    return {"version": version_to_build(str(settings["release"]), CHECKOUT)}


def version_to_build(release: str, source: Path) -> str:
    packed = source / "PKG-INFO"
    if packed.is_file():
        return next(
            line.partition(":")[2].strip() for line in packed.read_text().splitlines() if line.startswith("Version:")
        )
    commit = commit_of(source)
    return development_version(release, commit) if commit and f"v{release}" not in _tags(source) else release


def _tags(checkout: Path) -> list[str]:
    """Tags of the commit that is checked out. The checkout may be another user's: whoever builds it, as root in a
    container perhaps, runs its code anyhow."""
    command = ["git", "-c", "safe.directory=*", "-C", str(checkout), "tag", "--points-at", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=GIT_S_MAX, check=False).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        return []
