"""Makes the system's Mininet importable in a virtual environment.

Debian's package installs Mininet for Debian's own Python, in a folder that a virtual environment does not see. So this
one package is loaded from there under its own name; our folder of the same name is never taken for it.

Call `import_mininet` before importing a module that imports `mininet.`.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path

DEBIAN_FOLDER = Path("/usr/lib/python3/dist-packages")
INSTALL = "apt-get install --no-install-recommends mininet bridge-utils tcpdump ethtool iputils-ping"
TOOLS = ("mnexec", "ifconfig", "brctl", "tc", "ip", "ethtool", "tcpdump", "ping", "setpriv", "unshare")


class MininetMissingError(ImportError):
    """The text says what is missing and how to get it."""


def missing() -> str:
    """What Mininet lacks here, and how to get it; empty: nothing."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    try:
        import_mininet()
        import mininet.node  # noqa: F401 - may need a module that newer Pythons lack
    except ImportError as error:
        absent.insert(0, f"Mininet ({error})")
    return f"missing: {', '.join(absent)}. On Debian or Ubuntu: {INSTALL}" if absent else ""


def import_mininet() -> None:
    """Afterwards `import mininet.net` finds it. Raises `MininetMissingError`."""
    loaded = sys.modules.get("mininet")
    if getattr(loaded, "__file__", None):
        return
    elsewhere = [folder for folder in sys.path if Path(folder, "mininet/__init__.py").exists()]
    spec = PathFinder.find_spec("mininet", [*elsewhere, str(DEBIAN_FOLDER)])
    if spec is None or spec.loader is None or spec.origin is None:
        raise MininetMissingError(f"no Python package `mininet` on this interpreter's path or in {DEBIAN_FOLDER}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mininet"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["mininet"]
        raise
