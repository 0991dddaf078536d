"""The project's laboratory: networks of namespaces, ranks that are driven in step, benchmarks, soaks, demos, and
doubles of the product's parts.

`pip install --editable lab` installs the package from the checkout. No part of the product imports it.
"""

import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
"""The checkout that this package is installed from. The doubles do not use it, so that they run without a checkout."""


def tracked_files() -> list[Path]:
    """The files of the checkout, untracked ones included, without those that git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    return [REPOSITORY / name for name in listing.stdout.split("\0") if name and (REPOSITORY / name).is_file()]
