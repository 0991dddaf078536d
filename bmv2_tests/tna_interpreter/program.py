"""A whole program: its declarations, controls, parsers, actions and tables as executable objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lark import Tree

from bmv2_tests.tna_interpreter.expressions import (
    Cell,
    Expression,
    Expressions,
    Instance,
    Scope,
    adapted,
    constant,
    variable,
)
from bmv2_tests.tna_interpreter.externs import (
    Checksum,
    Clock,
    Counter,
    PacketTooShortError,
    Register,
    RegisterAction,
)
from bmv2_tests.tna_interpreter.stateful import ActionCheck, check_entry
from bmv2_tests.tna_interpreter.syntax import Node
from bmv2_tests.tna_interpreter.tables import Action, KeyField, Match, Table, TableEntry
from bmv2_tests.tna_interpreter.values import BOOLEAN, VOID, Bits, P4Error, RecordType, Type, fresh

Run = Callable[[], None]
STATES_MAX = 64
"""Bound on the states of a parser for one packet; a program that exceeds it has a loop."""


@dataclass
class Parameter:
    direction: str
    type: Type
    cell: Cell = field(default_factory=Cell)


class Block:
    """An instance of a control or a parser. The cells of its parameters are set before `run`."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = parameters
        self.run: Run = lambda: None

    def call(self, method: str, arguments: Sequence[Expression]) -> Expression:
        if method != "apply" or len(arguments) != len(self.parameters):
            raise P4Error(f".{method}() with {len(arguments)} arguments of a control with {len(self.parameters)}")
        pairs = [(p, adapted(argument, p.type)) for p, argument in zip(self.parameters, arguments, strict=True)]

        def run() -> None:
            for parameter, argument in pairs:
                parameter.cell.value = argument.read()
            self.run()
            for parameter, argument in pairs:
                if parameter.direction != "in" and not isinstance(parameter.type, RecordType):
                    assert argument.write is not None
                    argument.write(parameter.cell.value)

        return Expression(VOID, run)


class Program:
    """The compiled declarations. `blocks` are instantiated by name; each has tables and registers of its own."""

    def __init__(self, tree: Node, clock: Clock, generation: int) -> None:
        self._clock = clock
        self._generation = generation
        self._expressions = Expressions()
        self._globals = Scope()
        self._constants: set[str] = set()
        self._blocks: dict[str, Node] = {}
        self.tables: dict[str, Table] = {}
        self.counters: dict[str, Counter] = {}
        self.registers: dict[str, Register] = {}
        self.pipeline: tuple[str, ...] = ()
        """Names of the blocks of the pipeline, in the architecture's order."""
        no_action = Action("NoAction", 0, {}, [])
        self._globals.add("NoAction", no_action)
        for declaration in tree.children:
            assert isinstance(declaration, Tree)
            self._declare(declaration)

    def type(self, name: str) -> RecordType:
        found = self._expressions.types[name]
        assert isinstance(found, RecordType)
        return found

    def constant(self, name: str) -> int:
        found = self._globals.find(name)
        assert isinstance(found, Expression)
        return int(found.read())

    def _declare(self, node: Node) -> None:
        children: list[Any] = [child for child in node.children if not _is(child, "annotation")]
        types = self._expressions.types
        if node.data == "constant":
            type_, name, value = children
            compiled = adapted(self._compile(value, self._globals), self._expressions.type(type_))
            self._globals.add(str(name), constant(compiled.type, compiled.read()))
            self._constants.add(str(name))
        elif node.data == "assertion":
            _, name, condition, message = children
            if not self._compile(condition, self._globals).read():
                raise P4Error(f"{name}: {message}")
        elif node.data == "typedef":
            types[str(children[1])] = self._expressions.type(children[0])
        elif node.data == "enum":
            width, name, *enumerators = children
            members = {str(each.children[0]): each.children[1] for each in enumerators}
            self._expressions.add_enum(str(name), None if width is None else int(width), members)
        elif node.data == "record":
            self._declare_record(children)
        elif node.data in ("parser", "control"):
            self._blocks[str(children[0])] = node
        elif node.data == "instance" and str(children[0].children[0]) == "Pipeline":
            self.pipeline = tuple(str(child.children[0]) for child in children[1].children)

    def _declare_record(self, children: list[Any]) -> None:
        kind, name, *fields = children
        types = {}
        for each in fields:
            *_, type_, field_name = each.children
            types[str(field_name)] = self._expressions.type(type_)
        self._expressions.types[str(name)] = RecordType(str(name), kind == "header", types)

    def _compile(self, node: Node, scope: Scope) -> Expression:
        return self._expressions.compile(node, scope)

    def instantiate(self, block: str, path: str = "") -> Block:
        """`path` names the instance's tables and registers, unless an annotation does."""
        node = self._blocks[block]
        children: list[Any] = [child for child in node.children if not _is(child, "annotation")]
        _, parameters, *rest = children
        scope = Scope(self._globals)
        instance = Block(self._parameters(parameters, scope))
        locals_ = [child for child in rest if child.data not in ("state", "block")]
        setup = [start for child in locals_ if (start := self._local(child, scope, path)) is not None]
        if node.data == "control":
            main = self._block(rest[-1], scope)
        else:
            main = self._states([child for child in rest if child.data == "state"], scope)
        instance.run = _in_order([*setup, main])
        return instance

    def _parameters(self, node: Node, scope: Scope) -> list[Parameter]:
        parameters = []
        for child in node.children:
            if not isinstance(child, Tree):
                continue
            *_, direction, type_, name = child.children
            parameter = Parameter(str(direction or "in"), self._expressions.type(_tree(type_)))
            scope.add(str(name), variable(parameter.type, parameter.cell))
            parameters.append(parameter)
        return parameters

    def _local(self, node: Node, scope: Scope, path: str) -> Run | None:
        """Declares a local; returns what must be done whenever its control starts."""
        if node.data == "variable":
            return self._variable(node, scope)
        if node.data == "action":
            self._action(node, scope)
        elif node.data == "table":
            self._table(node, scope, path)
        else:
            self._instance(node, scope, path)
        return None

    def _variable(self, node: Node, scope: Scope) -> Run:
        type_node, name, initial = node.children
        type_ = self._expressions.type(_tree(type_node))
        cell = Cell()
        value = None if initial is None else adapted(self._compile(_tree(initial), scope), type_)
        scope.add(str(name), variable(type_, cell))

        def start() -> None:
            cell.value = fresh(type_) if value is None else value.read()

        return start

    def _action(self, node: Node, scope: Scope) -> None:
        name, parameters, block = [child for child in node.children if not _is(child, "annotation")]
        inner = Scope(scope)
        compiled = self._parameters(_tree(parameters), inner)
        names = [str(_tree(child).children[-1]) for child in _tree(parameters).children if child is not None]
        types = {each: p.type for each, p in zip(names, compiled, strict=True) if isinstance(p.type, Bits)}
        cells = [parameter.cell for parameter in compiled]
        action = Action(_annotated(node, "name", str(name)), _number(node), types, cells)
        action.body = self._block(_tree(block), inner)
        scope.add(str(name), action)

    def _table(self, node: Node, scope: Scope, path: str) -> None:
        name, *properties = [child for child in node.children if not _is(child, "annotation")]
        table = Table(_annotated(node, "name", path + str(name)), _number(node), self._clock)
        for each in map(_tree, properties):
            if each.data == "key":
                table.key = tuple(self._key_field(_tree(child), scope) for child in each.children)
            elif each.data == "actions":
                offered = [_action_of(scope, str(_tree(child).children[-1])) for child in each.children]
                table.actions = {action.name: action for action in offered}
            elif each.data == "default_action":
                table.default = TableEntry((), *self._invocation(_tree(each.children[-1]), scope))
            elif each.data == "entries":
                table.entries = [self._entry(_tree(child), table, scope) for child in each.children]
            else:
                table.size = self._compile(_tree(each.children[0]), scope).read()
        scope.add(str(name), table)
        self.tables[table.name] = table

    def _key_field(self, node: Node, scope: Scope) -> KeyField:
        expression = _as_bits(self._compile(_tree(node.children[0]), scope))
        if not isinstance(expression.type, Bits):
            raise P4Error(f"a key of {expression.type}")
        name = _annotated(node, "name", "")
        return KeyField(name, expression.type, str(node.children[1]) == "exact", expression.read)

    def _invocation(self, node: Node, scope: Scope) -> tuple[Action, tuple[int, ...]]:
        name, arguments = node.children
        action = _action_of(scope, str(name))
        compiled = self._expressions.all(arguments, scope) if isinstance(arguments, Tree) else []
        types = action.parameters.values()
        return action, tuple(adapted(each, type_).read() for each, type_ in zip(compiled, types, strict=True))

    def _entry(self, node: Node, table: Table, scope: Scope) -> TableEntry:
        matches = self._keyset(_tree(node.children[0]), [key.type for key in table.key], scope)
        return TableEntry(matches, *self._invocation(_tree(node.children[1]), scope))

    def _keyset(self, node: Node, types: Sequence[Bits], scope: Scope) -> tuple[Match, ...]:
        return tuple(self._match(_tree(child), type_, scope) for child, type_ in zip(node.children, types, strict=True))

    def _match(self, node: Node, type_: Bits, scope: Scope) -> Match:
        values = [adapted(_as_bits(each), type_).read() for each in self._expressions.all(node, scope)]
        if not values:
            return Match(0, 0)
        return Match(*values) if len(values) == 2 else Match(values[0], type_.mask)

    def _instance(self, node: Node, scope: Scope, path: str) -> None:
        *_, type_node, arguments, name, method = node.children
        kind, *type_arguments = _tree(type_node).children
        full = _annotated(node, "name", path + str(name))
        compiled = self._expressions.all(_tree(arguments), scope) if str(kind) != "RegisterAction" else []
        types = [self._expressions.type(_tree(each)) for each in type_arguments if each is not None]
        made: Instance
        if str(kind) in self._blocks:
            made = self.instantiate(str(kind), f"{full}.")
        elif kind == "Register":
            check_entry(full, types[0])
            made = self.registers[full] = Register(full, types[0], compiled[0].read(), self._clock)
        elif kind == "RegisterAction":
            ActionCheck(full, _tree(method), types[0], self._constants, self._generation).run()
            made = self._register_action(_tree(arguments), types[2], _tree(method), scope)
        elif kind == "Counter":
            made = self.counters[full] = Counter(full, _number(node), compiled[0].read())
        elif kind == "Checksum":
            made = Checksum(self._clock)
        else:
            raise P4Error(f"nothing is known of extern {kind}")
        scope.add(str(name), made)

    def _register_action(self, arguments: Node, result_type: Type, method: Node, scope: Scope) -> RegisterAction:
        register = scope.find(str(_tree(arguments.children[0]).children[0]))
        assert isinstance(register, Register)
        parameters, block = map(_tree, method.children)
        action = RegisterAction(register, result_type, len(parameters.children) - 1)
        inner = Scope(scope)
        for child, cell in zip(parameters.children, (action.value, *action.results), strict=True):
            *_, type_, name = _tree(child).children
            inner.add(str(name), variable(self._expressions.type(_tree(type_)), cell))
        action.act = self._block(block, inner)
        return action

    def _block(self, node: Node, outer: Scope) -> Run:
        scope = Scope(outer)
        return _in_order([self._statement(_tree(child), scope) for child in node.children])

    def _statement(self, node: Node, scope: Scope) -> Run:
        if node.data == "block":
            return self._block(node, scope)
        if node.data == "variable":
            return self._variable(node, scope)
        if node.data == "if":
            return self._if(node, scope)
        if node.data == "perform":
            return self._compile(_tree(node.children[0]), scope).read
        target = self._compile(_tree(node.children[0]), scope)
        value = adapted(self._compile(_tree(node.children[1]), scope), target.type)
        write, read = target.write, value.read
        if write is None:
            raise P4Error(f"an assignment to what cannot be assigned to: {node}")
        return lambda: write(read())

    def _if(self, node: Node, scope: Scope) -> Run:
        condition, then, otherwise = node.children
        holds = self._compile(_tree(condition), scope).read
        yes = self._statement(_tree(then), scope)
        no: Run = (lambda: None) if otherwise is None else self._statement(_tree(otherwise), scope)
        return lambda: yes() if holds() else no()

    def _states(self, nodes: Sequence[Node], scope: Scope) -> Run:
        states: dict[str, tuple[Run, Callable[[], str]]] = {}
        for node in nodes:
            name, *statements, transition = node.children
            run = self._block(Tree("block", statements), scope)
            states[str(name)] = (run, self._transition(_tree(transition), scope))

        def parse() -> None:
            state = "start"
            for _ in range(STATES_MAX):
                if state == "accept":
                    return
                run, next_state = states[state]
                run()
                state = next_state()
            raise P4Error(f"a parser passes through more than {STATES_MAX} states")

        return parse

    def _transition(self, node: Node, scope: Scope) -> Callable[[], str]:
        if node.data == "goto":
            name = str(node.children[0])
            return lambda: name
        selectors = [self._compile(_tree(child), scope) for child in node.children if not _is(child, "case")]
        types = [selector.type for selector in selectors if isinstance(selector.type, Bits)]
        cases = []
        for child in node.children[len(selectors) :]:
            keyset, target = _tree(child).children
            whole = _is(_tree(keyset).children[0], "anything") and len(_tree(keyset).children) == 1
            matches = (Match(0, 0),) * len(types) if whole else self._keyset(_tree(keyset), types, scope)
            cases.append((matches, str(target)))

        def select() -> str:
            key = [selector.read() for selector in selectors]
            for matches, target in cases:
                if all(value & match.mask == match.value for value, match in zip(key, matches, strict=True)):
                    return target
            raise P4Error("no case of a select matches")

        return select


def runs_short(parser: Block) -> bool:
    """Runs a parser; true if the packet ended before its headers did."""
    try:
        parser.run()
    except PacketTooShortError:
        return True
    return False


def _as_bits(expression: Expression) -> Expression:
    """Converts a key: true and false are one bit."""
    if expression.type is not BOOLEAN:
        return expression
    return Expression(Bits(1), lambda: int(expression.read()))


def _in_order(steps: Sequence[Run]) -> Run:
    def run() -> None:
        for step in steps:
            step()

    return run


def _tree(child: Any) -> Node:
    if not isinstance(child, Tree):
        raise P4Error(f"{child!r} where more was expected")
    return child


def _is(child: Any, rule: str) -> bool:
    return isinstance(child, Tree) and child.data == rule


def _action_of(scope: Scope, name: str) -> Action:
    action = scope.find(name)
    if not isinstance(action, Action):
        raise P4Error(f"{name} is no action")
    return action


def _number(node: Node) -> int:
    return int(_annotated(node, "id", "0"), 0)


def _annotated(node: Node, annotation: str, default: str) -> str:
    """The text of an annotation, without the dot at the beginning of a global name."""
    for child in node.children:
        if isinstance(child, Tree) and child.data == "annotation" and child.children[0] == annotation:
            return str(child.children[1]).strip('"').removeprefix(".")
    return default
