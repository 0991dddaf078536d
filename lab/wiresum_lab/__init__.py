"""What this project measures, shows and tests itself with: networks of namespaces, ranks that are driven in step,
benchmarks, soaks, demos, and doubles of the product's parts.

Installed from the checkout with `pip install --editable lab`. No part of the product imports it.
"""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
"""The checkout that this is installed from. What runs away from one, the doubles, does not use it."""
