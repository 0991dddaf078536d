"""The model as a switch: tables, multicast groups, counters, and ports for frames.

The harness can add entries, but not remove them. So an entry is deleted in memory: the harness tells which words it
wrote, and the bits that the entry set there are cleared again.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from bmv2_tests.tna_interpreter.switch import Copy
from bmv2_tests.tofino_model import assembled, tracer, traffic_manager
from bmv2_tests.tofino_model.harness import BINARIES, Harness, HarnessError

SLOTS = 4096
FRAME_BYTES_MIN = 60
"""Length of an Ethernet frame without its check sequence; shorter ones are padded on the way to a switch."""
LOOK_S, LOOKS_MAX, LOOKS_BEFORE_TRACER = 0.001, 10_000, 20
"""The interval and the number of checks for the tracer, and the checks before it is sent at all."""

_WRITTEN = re.compile(r"table:1:write_sram\(0, (\d+:\d+:\d+), [^)]*?([0-9a-f]{32})\)")
_COUNTED = re.compile(r"counter \S+\((virtual|physical) \d+\):.*\bpackets=(\d+)")


def missing(generation: int) -> str:
    """Why the model cannot run here, or an empty text."""
    if shutil.which(BINARIES[generation]) is None:
        return (
            f"{BINARIES[generation]} is not on PATH: the test harness of the vendor's model, see docs/tofino_design.md"
        )
    return assembled.missing()


class ModelSwitch:
    """One chip with one program; `close` ends it."""

    def __init__(self, generation: int, program: Path) -> None:
        """`program`: a folder with the chip's binary and context.json. Loading it takes a while."""
        binary = shutil.which(BINARIES[generation])
        assert binary is not None, "the caller has checked `missing`"
        self.generation = generation
        self._binary, self._program = binary, program.resolve()
        self._memories = traffic_manager.MEMORIES[generation]
        self._start()

    def _start(self) -> None:
        self._harness = Harness(self._binary, self._program)
        self._next_slot = 0
        self._memory: dict[str, int] = {}
        """The words that hold entries, by stage, memory and address."""
        self._entries: dict[tuple[str, tuple[tuple[str, int], ...]], list[tuple[str, int]]] = {}
        """The bits that each entry set, by word."""
        self._groups: dict[int, Sequence[tuple[int, int]]] = {}
        try:
            self._load(traffic_manager.registers(self._memories))
            tracer.admit_in(self, SLOTS - 1)
        except HarnessError:
            self.close()
            raise
        self._entries.clear()  # the tracer's entries are never removed

    def close(self) -> None:
        self._harness.close()

    def fresh(self, slots: int) -> int:
        """Removes entries and groups; gives the first of so many unused slots. Counters are kept."""
        if self._next_slot + slots > SLOTS - 1:  # the tracer has the last one
            self.close()
            self._start()
        self._clear(list(self._entries))
        for group in self._groups.keys() - {tracer.ROW}:
            self.replicate(group, [])
        self._next_slot += slots
        return self._next_slot - slots

    def insert(self, table: str, matches: Mapping[str, int], action: str, parameters: Mapping[str, int]) -> None:
        key = (table, tuple(sorted(matches.items())))
        assert key not in self._entries, f"{table} has an entry {dict(matches)} already"
        fields = " ".join(f"{name}:{value}" for name, value in matches.items())
        arguments = ", ".join(f"{name}:{value}" for name, value in parameters.items())
        said = self._harness.run([f"add {table} {fields} {action}({arguments})"])
        bits = []
        for address, content in (match.groups() for line in said if (match := _WRITTEN.match(line))):
            before, after = self._memory.get(address, 0), int(content, 16)
            self._memory[address] = after
            bits.append((address, after & ~before))
        assert bits, f"the harness does not say where it wrote an entry of {table}: {said}"
        self._entries[key] = bits

    def delete(self, table: str, matches: Mapping[str, int]) -> None:
        self._clear([(table, tuple(sorted(matches.items())))])

    def _clear(self, entries: Sequence[tuple[str, tuple[tuple[str, int], ...]]]) -> None:
        written: set[str] = set()
        for entry in entries:
            for address, bits in self._entries.pop(entry):
                self._memory[address] &= ~bits
                written.add(address)
        self._harness.run([f"write_raw_sram {address} {self._memory[address]:032x}" for address in sorted(written)])

    def replicate(self, group: int, members: Sequence[tuple[int, int]]) -> None:
        """Makes one copy for each pair of port and instance; an empty list removes the group."""
        if members:
            self._groups[group] = list(members)
        else:
            del self._groups[group]
        written = traffic_manager.directory(self._memories, self._groups, group)
        self._load(traffic_manager.tree(self._memories, group, members) + written if members else written)

    def _load(self, content: bytes) -> None:
        self._harness.run([f"load {self._harness.file('memories', content)}"])

    def receive(self, port: int, frame: bytes, expected: int = 0) -> list[Copy]:
        """Sends a frame; gives the frames that leave. It waits for as many copies as expected, as long as any may
        still come; later ones are given by the next call or by `late`."""
        left = self._after(f"packet {port} {frame.ljust(FRAME_BYTES_MIN, bytes(1)).hex()}")
        for _ in range(LOOKS_BEFORE_TRACER):
            if len(left) >= expected:
                return left
            left += self._after(f"sleep {LOOK_S}")
        return left + self.late()

    def late(self) -> list[Copy]:
        """All frames that have left, once everything sent before has been handled."""
        left = self._after(f"packet {tracer.PORT} {tracer.frame().hex()}")
        for _ in range(LOOKS_MAX):
            if any(copy.port == tracer.PORT for copy in left):
                return [copy for copy in left if copy.port != tracer.PORT]
            left += self._after(f"sleep {LOOK_S}")
        raise HarnessError(f"the tracer did not come back in {LOOKS_MAX * LOOK_S:.0f} s; what has left: {left}")

    def _after(self, command: str) -> list[Copy]:
        self._harness.run([command, "wait"])
        return [Copy(port, content) for port, content in self._harness.packets()]

    def count(self, counter: str, indices: Sequence[int]) -> list[int]:
        """Packets since the program was loaded."""
        said = self._harness.run([f"check_counter {counter}({index})" for index in indices])
        counts: list[int] = []
        for kind, packets in (match.groups() for line in said if (match := _COUNTED.match(line))):
            if kind == "virtual":
                counts.append(0)
            else:
                counts[-1] = int(packets)
        assert len(counts) == len(indices), said
        return counts
