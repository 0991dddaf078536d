"""Types and values.

A value is an int, a bool, a `Record`, a list, a string (member of an enum), or `UNDEFINED`: what hardware would leave
there from another packet. Undefined values may be copied; whoever computes or decides with one gets `UndefinedError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn


class P4Error(Exception):
    """The program is wrong, or uses what this interpreter does not know."""


class HardwareError(P4Error):
    """The program asks for what the hardware cannot do."""


class UndefinedError(P4Error):
    """Something depends on a field of an absent header, or on a variable that was never written."""


class Undefined:
    """Has no operator that gives anything."""

    def _refuse(self, *_: object) -> NoReturn:
        raise UndefinedError("a result depends on an undefined value")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refuse
    __bool__ = __index__ = __int__ = __hash__ = _refuse

    def __repr__(self) -> str:
        return "UNDEFINED"


UNDEFINED = Undefined()


@dataclass(frozen=True)
class Bits:
    width: int

    @property
    def mask(self) -> int:
        return (1 << self.width) - 1


@dataclass(frozen=True)
class Other:
    """A type that nothing need be known of but its name."""

    name: str


LITERAL = Other("integer literal")
BOOLEAN = Other("bool")
LIST = Other("list")
DEFAULT = Other("...")
VOID = Other("void")


@dataclass(frozen=True)
class RecordType:
    """A struct, or a header: that can be absent, and is on the wire field by field."""

    name: str
    is_header: bool
    fields: dict[str, Type] = field(hash=False, compare=False)

    def sized_fields(self) -> Iterator[tuple[str, int]]:
        """Names and widths. `P4Error` unless all are bits."""
        for name, type_ in self.fields.items():
            if not isinstance(type_, Bits):
                raise P4Error(f"{self.name}.{name} is not bits, so it cannot be on the wire")
            yield name, type_.width

    @property
    def width(self) -> int:
        return sum(width for _, width in self.sized_fields())


Type = Bits | Other | RecordType


class Record:
    """A struct's or a header's value. Assigned in place, since parameters refer to it."""

    __slots__ = ("fields", "type", "valid")

    def __init__(self, type_: RecordType, fields: dict[str, Any], valid: bool) -> None:
        self.type = type_
        self.fields = fields
        self.valid = valid

    def assign(self, other: Record) -> None:
        """Takes over all values of a record of its type."""
        for name, value in other.fields.items():
            mine = self.fields[name]
            if isinstance(mine, Record):
                mine.assign(value)
            else:
                self.fields[name] = value
        self.valid = other.valid

    def set_valid(self) -> None:
        """Makes a header present; what it did not hold before is undefined."""
        if not self.valid:
            self.fields = dict.fromkeys(self.fields, UNDEFINED)
            self.valid = True

    def set_invalid(self) -> None:
        self.valid = False

    def unpack(self, bits: int) -> None:
        """Fills a header from as many bits as it is wide."""
        shift = self.type.width
        for name, width in self.type.sized_fields():
            shift -= width
            self.fields[name] = bits >> shift & (1 << width) - 1
        self.valid = True

    def pack(self, undefined: int) -> int:
        """All fields as one integer; what is undefined becomes the bits of `undefined`, over and over."""
        bits = 0
        for name, width in self.type.sized_fields():
            value = self.fields[name]
            bits = bits << width | (undefined & (1 << width) - 1 if value is UNDEFINED else value)
        return bits


def zero(type_: Type) -> Any:
    """The default value: zeros, and headers absent."""
    if isinstance(type_, RecordType):
        return Record(type_, {name: zero(of) for name, of in type_.fields.items()}, valid=not type_.is_header)
    return False if type_ is BOOLEAN else 0


def fresh(type_: Type) -> Any:
    """The value of a variable that nobody has written: undefined, and headers absent."""
    if isinstance(type_, RecordType):
        return Record(type_, {name: fresh(of) for name, of in type_.fields.items()}, valid=not type_.is_header)
    return UNDEFINED
