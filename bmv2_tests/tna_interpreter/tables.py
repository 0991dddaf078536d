"""Match and action."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from bmv2_tests.tna_interpreter.expressions import Cell, Expression
from bmv2_tests.tna_interpreter.externs import Clock, Once
from bmv2_tests.tna_interpreter.values import UNDEFINED, VOID, Bits, P4Error, Undefined, UndefinedError


class Action:
    """`body` reads the values of its parameters from `cells`."""

    def __init__(self, name: str, number: int, parameters: Mapping[str, Bits], cells: Sequence[Cell]) -> None:
        self.name = name
        self.number = number
        """Its id in P4Runtime, or 0 if the program gives none."""
        self.parameters = parameters
        self._cells = cells
        self.body: Callable[[], None] = lambda: None
        """Set when it is compiled."""

    def call(self, method: str, arguments: Sequence[Expression]) -> Expression:
        if len(arguments) != len(self._cells):
            raise P4Error(f"{self.name} takes {len(self._cells)} arguments, not {len(arguments)}")
        return Expression(VOID, lambda: self.run([argument.read() for argument in arguments]))

    def run(self, values: Sequence[int]) -> None:
        for cell, value in zip(self._cells, values, strict=True):
            cell.value = value
        self.body()


@dataclass(frozen=True)
class Match:
    """The required bits of one key field, where `mask` has ones."""

    value: int
    mask: int


@dataclass(frozen=True)
class TableEntry:
    matches: tuple[Match, ...]
    action: Action
    values: tuple[int, ...]

    def fits(self, key: Sequence[int | Undefined]) -> bool:
        """Raises `UndefinedError` if the result depends on an undefined field."""
        doubtful = False
        for value, match in zip(key, self.matches, strict=True):
            if match.mask == 0:
                continue
            if isinstance(value, Undefined):
                doubtful = True
            elif value & match.mask != match.value:
                return False
        if doubtful:
            raise UndefinedError("whether an entry matches depends on an undefined field")
        return True


@dataclass(frozen=True)
class KeyField:
    name: str
    type: Bits
    exact: bool
    read: Callable[[], int | Undefined]


class Table:
    """Entries are tried in order; the first match counts."""

    def __init__(self, name: str, number: int, clock: Clock) -> None:
        self.name = name
        self.number = number
        self.key: tuple[KeyField, ...] = ()
        self.actions: dict[str, Action] = {}
        self.default: TableEntry | None = None
        self.entries: list[TableEntry] = []
        """The constant entries of the program."""
        self._inserted: list[TableEntry] = []
        self.size = 0
        self._once = Once(name, clock)

    def call(self, method: str, arguments: Sequence[Expression]) -> Expression:
        if method != "apply" or arguments:
            raise P4Error(f"{self.name}.{method}() of a table")
        return Expression(VOID, self.apply)

    def apply(self) -> None:
        self._once.use()
        key = [field.read() for field in self.key]
        try:
            entry = next((entry for entry in chain(self.entries, self._inserted) if entry.fits(key)), self.default)
        except UndefinedError as error:
            names = [field.name for field, value in zip(self.key, key, strict=True) if value is UNDEFINED]
            raise UndefinedError(f"table {self.name}: {error}: {', '.join(names)}") from error
        if entry is not None:
            entry.action.run(entry.values)

    def insert(self, matches: Mapping[str, int | Match], action: str, parameters: Mapping[str, int]) -> None:
        """Inserts as a controller does. An omitted ternary field matches anything."""
        if len(self._inserted) >= self.size:
            raise P4Error(f"table {self.name} is full: it has {self.size} entries")
        key = self._key_of(matches)
        of = self.actions[action]
        if set(parameters) != set(of.parameters):
            raise P4Error(f"action {action} has the parameters {', '.join(of.parameters)}")
        values = tuple(parameters[name] for name in of.parameters)
        if any(value > type_.mask for value, type_ in zip(values, of.parameters.values(), strict=True)):
            raise P4Error(f"action {action}: a parameter is too large: {dict(parameters)}")
        self._inserted.append(TableEntry(key, of, values))

    def delete(self, matches: Mapping[str, int | Match]) -> None:
        """Deletes the entry with exactly this key, as a controller does."""
        key = self._key_of(matches)
        kept = [entry for entry in self._inserted if entry.matches != key]
        if len(kept) == len(self._inserted):
            raise P4Error(f"table {self.name} has no such entry: {dict(matches)}")
        self._inserted = kept

    def _key_of(self, matches: Mapping[str, int | Match]) -> tuple[Match, ...]:
        unknown = set(matches) - {field.name for field in self.key}
        if unknown:
            raise P4Error(f"table {self.name} has no key {', '.join(sorted(unknown))}")
        return tuple(_match(field, matches) for field in self.key)

    def clear(self) -> None:
        """Removes the entries that a controller inserted."""
        self._inserted.clear()


def _match(field: KeyField, matches: Mapping[str, int | Match]) -> Match:
    given = matches[field.name] if field.exact else matches.get(field.name, Match(0, 0))
    match = given if isinstance(given, Match) else Match(given, field.type.mask)
    if match.value & ~match.mask or match.mask > field.type.mask or (field.exact and match.mask != field.type.mask):
        raise P4Error(f"key {field.name}: {match} does not suit {field.type.width} bits")
    return match
