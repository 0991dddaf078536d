"""Makes the modules of this folder importable for its tests, as they are for its programs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
