from __future__ import annotations

import pytest
from finsy.proto import p4r

from wiresum.switch.p4runtime.pipeline import PipelineSizes
from wiresum.switch.p4runtime.refusal import Refusal
from wiresum_lab.doubles.p4runtime_controller import PROGRAM

MOST = PipelineSizes(lanes=360, slots=4096)


def config(device_config: bytes) -> p4r.ForwardingPipelineConfig:
    return p4r.ForwardingPipelineConfig(p4info=PROGRAM.p4info, p4_device_config=device_config)


@pytest.mark.parametrize("sizes", [MOST, PipelineSizes(1, 1), PipelineSizes(64, 1024)])
def test_sizes_up_to_those_of_the_process_are_accepted(sizes: PipelineSizes) -> None:
    assert PROGRAM.check(config(b'{"slots": %d, "lanes": %d}' % (sizes.slots, sizes.lanes)), MOST) == sizes


@pytest.mark.parametrize(
    ("device_config", "complaint"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 4000, "not JSON"),
        (b" " * 5000, "5000 bytes: is that another target's"),
        (b"[360, 4096]", "exactly these two"),
        (b'{"lanes": 360}', "exactly these two"),
        (b'{"lanes": 360, "slots": 4096, "ports": 4}', "exactly these two"),
        (b'{"lanes": "360", "slots": 4096}', "whole numbers"),
        (b'{"lanes": true, "slots": 4096}', "whole numbers"),
        (b'{"lanes": 361, "slots": 4096}', "lanes must be 1 to 360, not 361"),
        (b'{"lanes": 0, "slots": 4096}', "lanes must be"),
        (b'{"lanes": 360, "slots": 4097}', "slots must be 1 to 4096, not 4097"),
    ],
)
def test_an_invalid_device_config_is_refused(device_config: bytes, complaint: str) -> None:
    with pytest.raises(Refusal, match=complaint) as refusal:
        PROGRAM.check(config(device_config), MOST)
    assert refusal.value.code.name == "INVALID_ARGUMENT"


def test_slots_are_also_bounded_by_the_cell_numbers_of_entries() -> None:
    with pytest.raises(Refusal, match="slots must be 1 to 32768"):
        PROGRAM.check(config(b'{"lanes": 4, "slots": 40000}'), PipelineSizes(lanes=4, slots=65536))


def test_the_p4info_of_another_program_is_refused() -> None:
    other = config(b'{"lanes": 360, "slots": 4096}')
    other.p4info.tables[0].size += 1
    with pytest.raises(Refusal, match="P4Info"):
        PROGRAM.check(other, MOST)
