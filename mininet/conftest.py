"""Makes the modules of the rooms importable for their tests, as they are for their programs; and Mininet."""

import contextlib
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOMS = ("namespaces", "benchmarks", "demos", "network", "exercise")
sys.path[:0] = [*(str(FOLDER / room) for room in ROOMS), str(FOLDER.parent / "bmv2_tests")]

# pytest takes this folder, by its name, for a package `mininet` without an __init__.py. Where Mininet is installed, it
# comes in its place.
with contextlib.suppress(ImportError):
    from wiresum_mininet.mininet_package import import_mininet

    import_mininet()
