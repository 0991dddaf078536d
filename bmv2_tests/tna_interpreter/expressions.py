"""Expressions are compiled to closures: each node of the tree is compiled once, into a function that reads its value.

P4 has no recursion, so each variable has one fixed place (`Cell`), which closures refer to directly.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lark import Tree

from bmv2_tests.tna_interpreter.syntax import Node
from bmv2_tests.tna_interpreter.values import (
    BOOLEAN,
    DEFAULT,
    LIST,
    LITERAL,
    UNDEFINED,
    VOID,
    Bits,
    Other,
    P4Error,
    Record,
    RecordType,
    Type,
    UndefinedError,
    zero,
)


@dataclass(frozen=True)
class Expression:
    type: Type
    read: Callable[[], Any]
    write: Callable[[Any], None] | None = None
    """None for an expression that cannot be assigned to."""


class Instance(Protocol):
    """An object with methods: a control, a table, an extern."""

    def call(self, method: str, arguments: Sequence[Expression]) -> Expression:
        """Compiles a call, which happens when the expression is read."""


class Cell:
    """The place of one variable."""

    __slots__ = ("value",)

    def __init__(self, value: Any = UNDEFINED) -> None:
        self.value = value


def variable(type_: Type, cell: Cell) -> Expression:
    def read() -> Any:
        return cell.value

    def write(value: Any) -> None:
        if isinstance(cell.value, Record):
            cell.value.assign(value)
        else:
            cell.value = value

    return Expression(type_, read, write)


def constant(type_: Type, value: Any) -> Expression:
    return Expression(type_, lambda: value)


class Scope:
    """Names, innermost first."""

    def __init__(self, outer: Scope | None = None) -> None:
        self._outer = outer
        self._names: dict[str, Expression | Instance] = {}

    def add(self, name: str, meaning: Expression | Instance) -> None:
        if name in self._names:
            raise P4Error(f"{name} is declared twice")
        self._names[name] = meaning

    def find(self, name: str) -> Expression | Instance:
        if name in self._names:
            return self._names[name]
        if self._outer is None:
            raise P4Error(f"nothing is called {name}")
        return self._outer.find(name)


def adapted(expression: Expression, type_: Type) -> Expression:
    """Adapts an expression for assignment to this type: literals take its width, and others must already have it."""
    if expression.type is DEFAULT:
        return Expression(type_, lambda: zero(type_))
    if expression.type is LITERAL and isinstance(type_, Bits):
        value = expression.read()
        if not 0 <= value <= type_.mask:
            raise P4Error(f"{value} does not fit {type_.width} bits")
        return constant(type_, value)
    if expression.type != type_:
        raise P4Error(f"{expression.type} where {type_} is needed")
    return expression


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "%": operator.mod,
    "<<": operator.lshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}


class Expressions:
    """Compiles the expressions and types of one program."""

    def __init__(self) -> None:
        self.types: dict[str, Type] = {}
        self._members: dict[tuple[str, str], Expression] = {}

    def add_enum(self, name: str, width: int | None, members: Mapping[str, str | None]) -> None:
        """Declares an enum. One with a width is bits, with a number for each member."""
        type_ = self.types[name] = Other(name) if width is None else Bits(width)
        for member, number in members.items():
            value = adapted(constant(LITERAL, int(number, 0)), type_) if number is not None else constant(type_, member)
            self._members[name, member] = value

    def type(self, node: Node) -> Type:
        if node.data == "boolean":
            return BOOLEAN
        if node.data == "bits":
            (width,) = node.children
            return Bits(self.compile(width, Scope()).read() if isinstance(width, Tree) else int(width))
        name = str(node.children[0])
        return self.types.get(name, Other(name))

    def compile(self, node: Node, scope: Scope) -> Expression:
        method: Callable[[Node, Scope], Expression] = getattr(self, f"_{node.data}")
        return method(node, scope)

    def all(self, node: Node, scope: Scope) -> list[Expression]:
        """Compiles the children, such as a list of arguments; an empty list has one child, None."""
        return [self.compile(child, scope) for child in node.children if isinstance(child, Tree)]

    def _two(self, node: Node, scope: Scope) -> tuple[Expression, Expression]:
        left, right = self.compile(_node(node, 0), scope), self.compile(_node(node, -1), scope)
        if left.type is LITERAL and isinstance(right.type, Bits):
            left = adapted(left, right.type)
        elif right.type is LITERAL and isinstance(left.type, Bits):
            right = adapted(right, left.type)
        return left, right

    def _name(self, node: Node, scope: Scope) -> Expression:
        found = scope.find(str(node.children[0]))
        if not isinstance(found, Expression):
            raise P4Error(f"{node.children[0]} is no value")
        return found

    def _number(self, node: Node, scope: Scope) -> Expression:
        width, mark, digits = str(node.children[0]).rpartition("w")
        value = int(digits, 0)
        return adapted(constant(LITERAL, value), Bits(int(width))) if mark else constant(LITERAL, value)

    def _truth(self, node: Node, scope: Scope) -> Expression:
        return constant(BOOLEAN, node.children[0] == "true")

    def _enum_member(self, node: Node, scope: Scope) -> Expression:
        name, member = map(str, node.children)
        if (name, member) not in self._members:
            raise P4Error(f"{name} has no {member}")
        return self._members[name, member]

    def _list(self, node: Node, scope: Scope) -> Expression:
        items = self.all(node, scope)
        return Expression(LIST, lambda: items)

    def _default(self, node: Node, scope: Scope) -> Expression:
        return constant(DEFAULT, None)

    def _logical_or(self, node: Node, scope: Scope) -> Expression:
        left, right = (side.read for side in self._two(node, scope))
        return Expression(BOOLEAN, lambda: left() or right())

    def _logical_and(self, node: Node, scope: Scope) -> Expression:
        left, right = (side.read for side in self._two(node, scope))
        return Expression(BOOLEAN, lambda: left() and right())

    def _logical_not(self, node: Node, scope: Scope) -> Expression:
        operand = self.compile(_node(node, 0), scope).read
        return Expression(BOOLEAN, lambda: not operand())

    def _comparison(self, node: Node, scope: Scope) -> Expression:
        left, right = self._two(node, scope)
        if left.type != right.type:
            raise P4Error(f"{left.type} is compared with {right.type}")
        compare, left_read, right_read = _COMPARISONS[str(node.children[1])], left.read, right.read
        return Expression(BOOLEAN, lambda: compare(left_read(), right_read()))

    def _binary(self, node: Node, scope: Scope) -> Expression:
        left, right = self._two(node, scope)
        symbol, left_read, right_read = str(node.children[1]), left.read, right.read
        if symbol == "++":
            low = _width(right)
            return Expression(Bits(_width(left) + low), lambda: left_read() << low | right_read())
        if left.type != right.type:
            raise P4Error(f"{symbol} with {left.type} and {right.type}")
        if symbol == "|-|":
            return Expression(left.type, lambda: max(left_read() - right_read(), 0))
        operate = _OPERATORS[symbol]
        if left.type is LITERAL:
            return constant(LITERAL, operate(left_read(), right_read()))
        mask = (1 << _width(left)) - 1
        return Expression(left.type, lambda: operate(left_read(), right_read()) & mask)

    def _complement(self, node: Node, scope: Scope) -> Expression:
        operand = self.compile(_node(node, 0), scope)
        mask, read = (1 << _width(operand)) - 1, operand.read
        return Expression(operand.type, lambda: ~read() & mask)

    def _cast(self, node: Node, scope: Scope) -> Expression:
        type_ = self.type(_node(node, 0))
        read = self.compile(_node(node, 1), scope).read
        if not isinstance(type_, Bits):
            raise P4Error(f"a cast to {type_}")
        mask = type_.mask
        return Expression(type_, lambda: int(read()) & mask)

    def _slice(self, node: Node, scope: Scope) -> Expression:
        operand, high, low = self.all(node, scope)
        read, shift = operand.read, low.read()
        type_ = Bits(high.read() - shift + 1)
        mask = type_.mask

        def part() -> Any:
            value = read()
            return value if value is UNDEFINED else value >> shift & mask

        return Expression(type_, part)

    def _member(self, node: Node, scope: Scope) -> Expression:
        record, name = self.compile(_node(node, 0), scope), str(node.children[1])
        if not isinstance(record.type, RecordType) or name not in record.type.fields:
            raise P4Error(f"{record.type} has no {name}")
        parent = record.read

        def read() -> Any:
            of = parent()
            return of.fields[name] if of.valid else UNDEFINED

        def write(value: Any) -> None:
            of = parent()
            if not of.valid:
                if value is UNDEFINED:
                    return  # a call that did nothing may write the undefined value back
                raise UndefinedError(f"{of.type.name}.{name} is written, but the header is absent")
            of.fields[name] = value

        if isinstance(record.type.fields[name], RecordType):
            return Expression(record.type.fields[name], lambda: parent().fields[name])
        return Expression(record.type.fields[name], read, write)

    def _call(self, node: Node, scope: Scope) -> Expression:
        callee, arguments = _node(node, 0), self.all(_node(node, 1), scope)
        if callee.data == "name":
            name = str(callee.children[0])
            if name == "max":
                return _maximum(*arguments)
            return _instance(scope.find(name), name).call("", arguments)
        target, method = _node(callee, 0), str(callee.children[1])
        if target.data == "name":
            found = scope.find(str(target.children[0]))
            if not isinstance(found, Expression):
                return found.call(method, arguments)
        return _method(self.compile(target, scope), method, arguments)


def _node(parent: Node, index: int) -> Node:
    child = parent.children[index]
    if not isinstance(child, Tree):
        raise P4Error(f"{child} where more was expected")
    return child


def _width(expression: Expression) -> int:
    if not isinstance(expression.type, Bits):
        raise P4Error(f"{expression.type} has no width")
    return expression.type.width


def _instance(found: Expression | Instance, name: str) -> Instance:
    if isinstance(found, Expression):
        raise P4Error(f"{name} cannot be called")
    return found


def _maximum(left: Expression, right: Expression) -> Expression:
    return Expression(left.type, lambda: max(left.read(), right.read()))


def _method(target: Expression, method: str, arguments: Sequence[Expression]) -> Expression:
    """A method of a header, or of a packet, which is a Python object with methods of the same names."""
    read = target.read
    if not isinstance(target.type, RecordType):
        return Expression(VOID, lambda: getattr(read(), method)(*(argument.read() for argument in arguments)))
    if method == "isValid":
        return Expression(BOOLEAN, lambda: read().valid)
    if method == "setValid":
        return Expression(VOID, lambda: read().set_valid())
    if method == "setInvalid":
        return Expression(VOID, lambda: read().set_invalid())
    raise P4Error(f"a header has no {method}()")
