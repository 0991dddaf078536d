"""The forwarding pipeline: one fixed program, of the sizes that the switch was started with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

from finsy.proto import p4i, p4r
from google.protobuf import text_format

from wiresum import compiled
from wiresum.switch.p4runtime.refusal import invalid
from wiresum.switch.p4runtime.schema import Schema, shortest

CONFIG_BYTES_MAX = 4096
CELLS_MAX = 1 << 16
"""The most cells of a switch that is programmed over P4Runtime: `cell_base` has 16 bits."""

_PRIORITY_TOP = (1 << 31) - 1


@dataclass(frozen=True)
class PipelineSizes:
    lanes: int
    """32-bit words of a packet's payload; all jobs have as many."""
    slots: int


class Program:
    """The switch program, as the P4 compiler describes it."""

    def __init__(self) -> None:
        program = compiled.load("v1model")
        self.p4info = text_format.Parse(program.p4info, p4i.P4Info())
        self.schema = Schema(self.p4info)
        self._json = program.device_config

    @cached_property
    def constant_entries(self) -> list[p4r.TableEntry]:
        """The entries of constant tables, with bmv2's priorities: the first entry has the highest."""
        document = json.loads(self._json)
        entries = []
        names = {action["id"]: action["name"] for action in document["actions"]}
        actions = {action.preamble.alias: action.preamble.id for action in self.p4info.actions}
        constant = {table.name: table.id for table in self.schema.tables.values() if table.constant}
        for pipeline in document["pipelines"]:
            for table in pipeline["tables"]:
                if table["name"] not in constant:
                    continue
                for entry in table["entries"]:
                    made = p4r.TableEntry(table_id=constant[table["name"]], priority=_PRIORITY_TOP - entry["priority"])
                    for number, key in enumerate(entry["match_key"], start=1):
                        if mask := int(key["mask"], 16):
                            match = made.match.add(field_id=number)
                            match.ternary.value, match.ternary.mask = shortest(int(key["key"], 16)), shortest(mask)
                    action = made.action.action
                    action.action_id = actions[names[entry["action_entry"]["action_id"]]]
                    for number, value in enumerate(entry["action_entry"]["action_data"], start=1):
                        action.params.add(param_id=number, value=shortest(int(value, 16)))
                    entries.append(made)
        return entries

    def check(self, config: p4r.ForwardingPipelineConfig, most: PipelineSizes) -> PipelineSizes:
        """The sizes that the configuration asks for. Raises a `Refusal` if the configuration is not for this switch."""
        if config.p4info != self.p4info:
            raise invalid(
                "this switch runs one program, and its P4Info is not the one given: use the P4Info that comes with "
                "the same version of wiresum"
            )
        sizes = _sizes(config.p4_device_config)
        if not 1 <= sizes.lanes <= most.lanes:
            raise invalid(f"lanes must be 1 to {most.lanes}, not {sizes.lanes}: the switch was started with so many")
        slots_max = min(most.slots, CELLS_MAX // 2)
        if not 1 <= sizes.slots <= slots_max:
            raise invalid(f"slots must be 1 to {slots_max}, not {sizes.slots}: the switch was started with so many")
        return sizes


def _sizes(config: bytes) -> PipelineSizes:
    shape = 'p4_device_config of a software switch is JSON like {"lanes": 360, "slots": 4096}'
    if len(config) > CONFIG_BYTES_MAX:
        raise invalid(f"{shape}, not {len(config)} bytes: is that another target's?")
    try:
        document = json.loads(config)
    except (ValueError, RecursionError):
        raise invalid(f"{shape}, and this is not JSON") from None
    if not isinstance(document, dict) or document.keys() != {"lanes", "slots"}:
        raise invalid(f"{shape}: exactly these two")
    if not all(type(value) is int for value in document.values()):
        raise invalid(f"{shape}: both are whole numbers")
    return PipelineSizes(document["lanes"], document["slots"])
