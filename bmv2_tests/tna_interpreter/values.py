"""Types and values.

A value is an int, a bool, a `Record`, a list, a string (member of an enum), or `UNDEFINED`: the remains of another
packet in hardware. Undefined values may be copied; to compute or decide with one raises `UndefinedError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn


class P4Error(Exception):
    """The program is invalid, or uses something that this interpreter does not support."""


class HardwareError(P4Error):
    """The program requires what the hardware cannot do."""


class UndefinedError(P4Error):
    """A result depends on a field of an absent header, or on a variable that was never written."""


class Undefined:
    """Supports no operation."""

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
    """A type of which only the name matters."""

    name: str


LITERAL = Other("integer literal")
BOOLEAN = Other("bool")
LIST = Other("list")
DEFAULT = Other("...")
VOID = Other("void")


@dataclass(frozen=True)
class RecordType:
    """A struct, or a header, which can be absent and is on the wire field by field."""

    name: str
    is_header: bool
    fields: dict[str, Type] = field(hash=False, compare=False)

    def sized_fields(self) -> Iterator[tuple[str, int]]:
        """Names and widths. Raises `P4Error` unless all fields are bits."""
        for name, type_ in self.fields.items():
            if not isinstance(type_, Bits):
                raise P4Error(f"{self.name}.{name} is not bits, so it cannot be on the wire")
            yield name, type_.width

    @property
    def width(self) -> int:
        return sum(width for _, width in self.sized_fields())


Type = Bits | Other | RecordType


class Record:
    """The value of a struct or header. It is assigned in place, since parameters refer to it."""

    __slots__ = ("fields", "type", "valid")

    def __init__(self, type_: RecordType, fields: dict[str, Any], valid: bool) -> None:
        self.type = type_
        self.fields = fields
        self.valid = valid

    def assign(self, other: Record) -> None:
        """Copies all values of a record of its type."""
        for name, value in other.fields.items():
            mine = self.fields[name]
            if isinstance(mine, Record):
                mine.assign(value)
            else:
                self.fields[name] = value
        self.valid = other.valid

    def set_valid(self) -> None:
        """Makes a header present; its fields are undefined if it was absent."""
        if not self.valid:
            self.fields = dict.fromkeys(self.fields, UNDEFINED)
            self.valid = True

    def set_invalid(self) -> None:
        self.valid = False

    def unpack(self, bits: int) -> None:
        """Fills a header from as many bits as it has."""
        shift = self.type.width
        for name, width in self.type.sized_fields():
            shift -= width
            self.fields[name] = bits >> shift & (1 << width) - 1
        self.valid = True

    def pack(self, undefined: int) -> int:
        """All fields as one integer; undefined ones are filled with the bits of `undefined`, repeated."""
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
    """The value of an unwritten variable: undefined, and headers absent."""
    if isinstance(type_, RecordType):
        return Record(type_, {name: fresh(of) for name, of in type_.fields.items()}, valid=not type_.is_header)
    return UNDEFINED
