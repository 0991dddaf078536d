"""backend.cpp as a module: compiled against the installed PyTorch when a group is first made, and kept.

A C++ extension works only with the release of PyTorch that it was built with, so a wheel cannot contain this one. It is
compiled once for each release of PyTorch, Python and Wiresum, and stored with PyTorch's own extensions, in
TORCH_EXTENSIONS_DIR or ~/.cache/torch_extensions. For container images, `python -m wiresum.torch.extension` compiles it
beforehand. Where it cannot be compiled (no compiler, no Python.h, an unsupported PyTorch) process_group.py replaces it,
at all members of a group.
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import hashlib
import importlib.machinery
import importlib.util
import logging
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import ModuleType

import torch

log = logging.getLogger("wiresum")

COMPILE_TIMEOUT_S = 300.0
"""How long to wait for the compiler, or for another process that compiles the same module."""
LOCK_POLL_S = 0.1

# The agent is found, not imported: a setup compiles this before the agent's native module is there.
_AGENT = Path(str(importlib.util.find_spec("wiresum.agent").origin)).parent  # type: ignore[union-attr]
_MESSAGE_CHARACTERS_MAX = 600


class ExtensionError(RuntimeError):
    """The extension cannot be had; the text says why."""


@dataclasses.dataclass(frozen=True)
class Extension:
    """A C++ module that is compiled against the installed PyTorch.

    torch.utils.cpp_extension is not used: it needs ninja, and what it locks stays locked for ever if it is killed.
    """

    name: str
    source: Path
    headers: tuple[Path, ...] = ()
    """Our headers: if one changes, the module is compiled again."""
    optimization: str = "-O2"

    def build(self, timeout_s: float = COMPILE_TIMEOUT_S) -> Path:
        """Returns the module's file, and compiles it if it is missing. Raises ExtensionError or OSError."""
        command = self._command()
        path = _folder() / f"{self.name}-{self._digest(command)}.so"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.with_suffix(".lock").open("w") as lock:
                _acquire(lock.fileno(), timeout_s)
                if not path.exists():
                    log.warning(
                        "wiresum: compiling %s for PyTorch %s: a minute, once", self.source.name, torch.__version__
                    )
                    _compile(command, path, timeout_s)
        return path

    def load(self) -> ModuleType:
        """Imports the module. Raises what `build` does, and ImportError."""
        loader = importlib.machinery.ExtensionFileLoader(self.name, str(self.build()))
        spec = importlib.util.spec_from_loader(self.name, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return module

    def _command(self) -> list[str]:
        """The command that compiles and links, without the output's name."""
        root = Path(torch.__file__).parent
        include = root / "include"
        return [
            *shlex.split(os.environ.get("CXX", "c++")),
            *("-std=c++20", self.optimization, "-g0", "-fPIC", "-shared", "-fvisibility=hidden"),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            f"-DTORCH_EXTENSION_NAME={self.name}",
            *("-isystem", str(include), "-isystem", str(include / "torch" / "csrc" / "api" / "include")),
            *("-isystem", sysconfig.get_path("include")),
            f"-I{_AGENT.parents[1]}",
            str(self.source),
            *(f"-L{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"),
        ]

    def _digest(self, command: list[str]) -> str:
        parts = [*command, torch.__version__, str(torch.version.git_version), str(sysconfig.get_config_var("SOABI"))]
        digest = hashlib.sha256("\0".join(parts).encode())
        for file in (self.source, *self.headers):
            digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


BACKEND = Extension(
    "wiresum_torch_backend",
    Path(__file__).with_name("backend.cpp"),
    (Path(__file__).with_name("direct.hpp"), _AGENT / "capi.hpp"),
)


@functools.cache
def load() -> ModuleType | None:
    """Imports the backend's module; returns None, and warns, where it cannot be compiled."""
    try:
        return BACKEND.load()
    except (RuntimeError, ImportError, OSError) as error:
        log.warning(
            "wiresum: the C++ part of the backend could not be compiled: collectives work, but profiler and debuggers "
            "do not see them, torch.compile breaks its graphs at them, and the group has no other backend beside this "
            "one (`python -m wiresum.torch.extension` tries again): %s",
            error,
        )
        return None


def _compile(command: list[str], path: Path, timeout_s: float) -> None:
    """Compiles to `path`. The caller must hold the lock."""
    unfinished = path.with_suffix(".unfinished")
    try:
        # A process group of its own, since the compiler that the driver starts would survive the driver.
        with subprocess.Popen(
            [*command, "-o", str(unfinished)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as driver:
            try:
                _, complaint = driver.communicate(timeout=timeout_s)
            except BaseException:
                os.killpg(driver.pid, signal.SIGKILL)
                raise
        if driver.returncode != 0:
            raise ExtensionError(f"`{shlex.join(command)}` failed: {complaint[:_MESSAGE_CHARACTERS_MAX]}")
        unfinished.rename(path)  # atomic, so that nobody loads half of it
    except subprocess.TimeoutExpired as error:
        raise ExtensionError(f"`{shlex.join(command)}` did not end within {timeout_s:.0f} s") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _folder() -> Path:
    root = os.environ.get("TORCH_EXTENSIONS_DIR")
    return (Path(root) if root else Path("~/.cache/torch_extensions").expanduser()) / "wiresum"


def _acquire(lock: int, timeout_s: float) -> None:
    """Takes a lock that is released when its holder dies."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ExtensionError(f"another process was still compiling it after {timeout_s:.0f} s") from None
            time.sleep(LOCK_POLL_S)


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{BACKEND.build()}\n")
    except (RuntimeError, OSError) as error:
        sys.exit(f"wiresum.torch.extension: {error}")
