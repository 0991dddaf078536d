"""Makes the modules of the rooms importable for their tests, as they are for their programs."""

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER / room) for room in ("namespaces", "benchmarks", "demos", "network")]
