"""Hardware outside match and action: registers, counters, checksums, packets.

A packet can use a register once in a pass, and a register has at most four register actions. Both are checked, since
both are easily violated, and no single test packet shows the first for all paths.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Sequence
from typing import Any

from bmv2_tests.tna_interpreter.expressions import Cell, Expression
from bmv2_tests.tna_interpreter.values import (
    BOOLEAN,
    UNDEFINED,
    VOID,
    Bits,
    HardwareError,
    P4Error,
    Record,
    RecordType,
    Type,
    zero,
)

REGISTER_ACTIONS_MAX = 4
CHECKSUM_BITS = 16


class Clock:
    """Counts passes, each a packet's way through one parser, pipeline and deparser, and knows the pipe of the chip."""

    def __init__(self) -> None:
        self.passes = 0
        self.pipe = 0


class Once:
    """Something that a packet can use once in a pass."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._last = -1

    def use(self) -> None:
        if self._last == self._clock.passes:
            raise HardwareError(f"{self._name} is used twice in one pass")
        self._last = self._clock.passes


class Register:
    """A register, with separate values in each pipe."""

    def __init__(self, name: str, type_: Type, size: int, clock: Clock) -> None:
        self.name = name
        self.type = type_
        self.size = size
        self._clock = clock
        self._values: dict[tuple[int, int], Any] = {}
        self._once = Once(name, clock)
        self._actions = 0

    def call(self, method: str, arguments: Sequence[Expression]) -> Expression:
        raise P4Error(f"{self.name}.{method}: only register actions may touch a register")

    def add_action(self) -> None:
        self._actions += 1
        if self._actions > REGISTER_ACTIONS_MAX:
            raise HardwareError(f"{self.name} has more than {REGISTER_ACTIONS_MAX} register actions")

    def update(self, index: int, value: Cell, act: Callable[[], None]) -> None:
        """Reads the value, lets `act` change it, and writes it back."""
        if index >= self.size:
            raise HardwareError(f"{self.name} has {self.size} entries, and no {index}")
        self._once.use()
        place = self._clock.pipe, index
        value.value = self._values[place] if place in self._values else zero(self.type)
        act()
        self._values[place] = value.value

    def clear(self) -> None:
        """Sets all values to zero, as after loading the program."""
        self._values.clear()


class RegisterAction:
    """Returns the first of `results`, and writes the others into the arguments after the index."""

    def __init__(self, register: Register, result_type: Type, results: int) -> None:
        self._register = register
        self._result_type = result_type
        self.value = Cell()
        self.results = [Cell() for _ in range(results)]
        self.act: Callable[[], None] = lambda: None
        """Set when the body is compiled; its parameters are `value` and `results`."""
        register.add_action()

    def call(self, method: str, arguments: Sequence[Expression]) -> Expression:
        index, *others = arguments
        register, value, results, act = self._register, self.value, self.results, self.act
        writes = [other.write for other in others]
        if len(others) != max(len(results) - 1, 0):
            raise P4Error(f"{register.name}: a register action of {len(results)} results writes into {len(others)}")

        def execute() -> Any:
            for result in results:
                result.value = UNDEFINED
            register.update(index.read(), value, act)
            for write, result in zip(writes, results[1:], strict=True):
                assert write is not None
                write(result.value)
            return results[0].value if results else UNDEFINED

        return Expression(self._result_type, execute)


class Counter:
    def __init__(self, name: str, number: int, size: int) -> None:
        self.name = name
        self.number = number
        self.size = size
        self.counts: Tally[int] = Tally()

    def call(self, method: str, arguments: Sequence[Expression]) -> Expression:
        (index,) = arguments

        def count() -> None:
            at = index.read()
            if at >= self.size:
                raise HardwareError(f"{self.name} has {self.size} entries, and no {at}")
            self.counts[at] += 1

        return Expression(VOID, count)


class Checksum:
    """The checksum of IPv4 and ICMP: the complement of the ones' complement sum of 16-bit words."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pass = -1
        self._sum = 0

    def call(self, method: str, arguments: Sequence[Expression]) -> Expression:
        if method == "verify":
            return Expression(BOOLEAN, lambda: self._sum != (1 << CHECKSUM_BITS) - 1)  # true if the checksum is wrong
        (data,) = arguments
        if method == "update":
            return Expression(Bits(CHECKSUM_BITS), lambda: ~_sum16(data) & (1 << CHECKSUM_BITS) - 1)
        if method == "add":
            return Expression(VOID, lambda: self._add(_sum16(data)))
        raise P4Error(f"a checksum has no {method}()")

    def _add(self, value: int) -> None:
        if self._pass != self._clock.passes:
            self._pass, self._sum = self._clock.passes, 0
        self._sum = _fold(self._sum + value)


def _sum16(data: Expression) -> int:
    bits, width = 0, 0
    if isinstance(data.type, RecordType):
        bits, width = data.read().pack(undefined=0), data.type.width
    else:
        for item in data.read():
            if not isinstance(item.type, Bits):
                raise P4Error(f"a checksum over {item.type}")
            bits, width = bits << item.type.width | item.read(), width + item.type.width
    if width % CHECKSUM_BITS:
        raise P4Error(f"a checksum over {width} bits, which are no whole 16-bit words")
    return _fold(bits)


def _fold(value: int) -> int:
    """The ones' complement sum of a number's 16-bit words."""
    mask = (1 << CHECKSUM_BITS) - 1
    total = 0
    while value:
        total += value & mask
        value >>= CHECKSUM_BITS
    return _fold(total) if total > mask else total


class PacketTooShortError(Exception):
    """The packet ends before the header does."""


class PacketIn:
    """A packet as a parser sees it."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def extract(self, header: Record) -> None:
        header.unpack(int.from_bytes(self._take(header.type.width), "big"))

    def advance(self, bits: int) -> None:
        self._take(bits)

    def rest(self) -> bytes:
        """The payload; nothing if the packet ended within a header, since the remaining bytes count as that header."""
        return self._content[self._at :]

    def _take(self, bits: int) -> bytes:
        if bits % 8:
            raise HardwareError(f"{bits} bits of a packet are no whole bytes")
        end = self._at + bits // 8
        if end > len(self._content):
            self._at = len(self._content)
            raise PacketTooShortError
        taken = self._content[self._at : end]
        self._at = end
        return taken


class PacketOut:
    """A packet as a deparser makes it. Undefined fields get bits that no test expects."""

    _UNDEFINED_BITS = int.from_bytes(b"\xde\xad" * 8, "big")

    def __init__(self) -> None:
        self.content = b""

    def emit(self, record: Record) -> None:
        if not record.type.is_header:
            for part in record.fields.values():
                self.emit(part)
        elif record.valid:
            self.content += record.pack(self._UNDEFINED_BITS).to_bytes(record.type.width // 8, "big")
