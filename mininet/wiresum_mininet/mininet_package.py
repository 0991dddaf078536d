"""Makes the system's Mininet importable in a virtual environment.

Debian installs Mininet for its own Python, in a folder that a virtual environment does not see. This module loads only
the package `mininet` from there, and never our folder of the same name.

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
    """Raised if Mininet is missing; the text says what is missing, and how to get it."""


def missing() -> str:
    """Says what is missing for Mininet, and how to get it; empty: nothing."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    unfit = ""
    try:
        import_mininet()
        import mininet.node  # noqa: F401 - needs a module that newer Pythons lack
    except MininetMissingError as error:
        absent.insert(0, f"Mininet ({error})")
    except ImportError as error:
        unfit = _unfit(error)
    sentences = [f"missing: {', '.join(absent)}. On Debian or Ubuntu: {INSTALL}"] if absent else []
    return ". ".join([*sentences, unfit] if unfit else sentences)


def _unfit(error: ImportError) -> str:
    """Says what to do where Mininet is installed and this Python cannot load it."""
    said = f"Mininet is installed, but Python {sys.version_info.major}.{sys.version_info.minor} cannot load it: {error}"
    if error.name == "distutils":
        return (
            f"{said}. Python 3.12 and later have none, but setuptools does: {sys.executable} -m pip install setuptools"
        )
    return f"{said}. Make the virtual environment with the system's own Python, which Mininet was made for"


def import_mininet() -> None:
    """Makes `import mininet.net` work. Raises `MininetMissingError`."""
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
