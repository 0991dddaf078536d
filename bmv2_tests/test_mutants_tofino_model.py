"""The vectors notice a changed instruction in the compiled program."""

from __future__ import annotations

import logging
import os
import random

from bmv2_tests.tofino_model import assembled
from bmv2_tests.tofino_model.mutants import mutants, noticed

LOGGER = logging.getLogger(__name__)
SEED = int(os.environ.get("WIRESUM_MODEL_SEED", "1"))
COUNT = int(os.environ.get("WIRESUM_MODEL_MUTANTS", "3"))
"""Each is assembled, loaded, and run until a vector fails: half a minute, or minutes if none fails."""


def test_each_changed_instruction_fails_a_vector(tofino_generation: int) -> None:
    assembly = assembled.assembly(tofino_generation).read_text()
    survivors = []
    for mutant in random.Random(SEED).sample(list(mutants(assembly)), COUNT):
        said = noticed(mutant, assembly, tofino_generation)
        LOGGER.info("%s\n    %s", mutant, said or "survives")
        survivors += [] if said else [str(mutant)]
    assert survivors == [], f"seed {SEED}"
