"""The same random packets into the interpreter of the Tofino program and into the vendor's model, which runs the
compiled program: both answer with the same bytes."""

from __future__ import annotations

import os
from collections import Counter

from bmv2_tests.test_differential import assert_all_kinds_occurred
from bmv2_tests.test_differential_tofino import DROPPED, JOBS, Tofino, job_entry
from bmv2_tests.tna_interpreter.switch import Switch
from bmv2_tests.tofino_model.model_switch import ModelSwitch
from bmv2_tests.tofino_network import MAIN
from bmv2_tests.traffic import Traffic

SEED = int(os.environ.get("WIRESUM_MODEL_SEED", "1"))
PACKETS = int(os.environ.get("WIRESUM_MODEL_PACKETS", "400"))
"""The model needs about a fifth of a second for each packet."""


def test_the_compiled_program_and_its_source_answer_alike(tofino_model: ModelSwitch) -> None:
    entries = [job_entry(index) for index in range(len(JOBS))]
    source = Tofino(Switch(MAIN, generation=tofino_model.generation), entries)
    compiled = Tofino(tofino_model, entries)
    answered: Counter[int] = Counter()
    reasons = set()
    for sending in Traffic(SEED, entries).packets(PACKETS):
        reason, expected = source.play(sending)
        counted, found = compiled.play(sending, len(expected))
        assert (counted, sorted(found)) == (reason, sorted(expected)), f"seed {SEED}: {sending}"
        answered += Counter(answer.kind for answer in found[:1])
        reasons.add(reason)
    assert tofino_model.late() == []
    assert_all_kinds_occurred(answered, PACKETS)
    assert reasons >= DROPPED | {"admitted", "resent"}, f"seed {SEED}: each reason was met"
