"""Checks whether a stateful ALU can execute the body of a register action.

An entry of a register is one word, or two words of the same width. An access has at most two comparisons, each between
a word of the entry and a value of the packet or a constant; it uses at most two values of the packet; it computes each
new word by one operation; and it returns one word (on Tofino 2, four). With two words in the entry, a returned word
cannot be computed: it is one of the words.

The compiler has more limits (constants, routing of fields to the ALU); these are the ones to plan by.
"""

from __future__ import annotations

from collections.abc import Set

from lark import Tree

from bmv2_tests.tna_interpreter.syntax import Node
from bmv2_tests.tna_interpreter.values import Bits, HardwareError, RecordType, Type

WORDS_MAX = 2
WORD_BITS_MAX = 32
COMPARISONS_MAX = 2
PACKET_VALUES_MAX = 2
RESULTS_MAX = {1: 1, 2: 4}
"""By generation of Tofino."""

_OPPOSITES = {"!=": "==", ">=": "<", "<=": ">"}
"""One comparison gives both results."""
_MIRRORED = {"<": ">", ">": "<"}


def check_entry(register: str, type_: Type) -> None:
    """Raises `HardwareError` unless an entry of a register can have this type."""
    words = list(type_.fields.values()) if isinstance(type_, RecordType) else [type_]
    fits = all(isinstance(word, Bits) and word.width <= WORD_BITS_MAX for word in words)
    if not fits or len(words) > WORDS_MAX or len(set(words)) != 1:
        raise HardwareError(f"{register}: an entry is one word, or two of one width, of {WORD_BITS_MAX} bits at most")


class ActionCheck:
    """Checks one register action for a generation of Tofino. `constants` are the names of the program's constants."""

    def __init__(self, name: str, method: Node, entry: Type, constants: Set[str], generation: int) -> None:
        parameters, block = _trees(method)
        self._entry_name, *self._result_names = (str(child.children[-1]) for child in _trees(parameters))
        self._name = name
        self._results_max = RESULTS_MAX[generation]
        self._has_pair = isinstance(entry, RecordType) and len(entry.fields) > 1
        self._constants = constants
        self._block = block
        self._comparisons: set[tuple[str, ...]] = set()
        self._packet_values: set[str] = set()

    def run(self) -> None:
        """Raises `HardwareError` with the limit that is exceeded."""
        self._statement(self._block)
        if len(self._result_names) > self._results_max:
            raise self._error(f"{len(self._result_names)} results, and a stateful ALU gives {self._results_max}")
        if len(self._comparisons) > COMPARISONS_MAX:
            raise self._error(f"{len(self._comparisons)} comparisons, and a stateful ALU has {COMPARISONS_MAX}")
        if len(self._packet_values) > PACKET_VALUES_MAX:
            raise self._error(
                f"{len(self._packet_values)} values of the packet, and a stateful ALU takes {PACKET_VALUES_MAX}"
            )

    def _error(self, complaint: str) -> HardwareError:
        return HardwareError(f"register action {self._name}: {complaint}")

    def _statement(self, node: Node) -> None:
        inner = _trees(node)
        if node.data == "assignment":
            self._assignment(*inner)
            return
        if node.data == "if":
            self._condition(inner.pop(0))
        elif node.data != "block":
            raise self._error(f"a {node.data} in its body")
        for statement in inner:
            self._statement(statement)

    def _condition(self, node: Node) -> None:
        if node.data != "comparison":
            if node.data not in ("logical_and", "logical_or", "logical_not"):
                raise self._error(f"a condition that is a {node.data}")
            for operand in _trees(node):
                self._condition(operand)
            return
        left, right = _trees(node)
        symbol = str(node.children[1])
        symbol = _OPPOSITES.get(symbol, symbol)
        if not self._is_word(left):
            left, right, symbol = right, left, _MIRRORED.get(symbol, symbol)
        if not self._is_word(left) or self._is_word(right):
            raise self._error("a comparison is of a word of the entry with a value of the packet or a constant")
        self._comparisons.add((self._operand(left), symbol, self._operand(right)))

    def _assignment(self, target: Node, value: Node) -> None:
        is_result = target.data == "name" and str(target.children[0]) in self._result_names
        if not is_result and not self._is_word(target):
            raise self._error("an assignment to what is neither of the entry nor the result")
        operation = self._operands(value)
        if is_result and self._has_pair and len(operation) > 1:
            raise self._error("what it hands out is computed, but with two words in the entry no ALU is left for that")
        for operand in operation:
            self._operand(operand)

    def _operands(self, value: Node) -> list[Node]:
        """The operands of the single operation in a value."""
        if value.data == "cast":
            return self._operands(_trees(value)[-1])
        if value.data == "binary":
            return _trees(value)
        if value.data == "call" and str(_trees(value)[0].children[0]) == "max":
            return _trees(_trees(value)[1])
        return [value]

    def _operand(self, node: Node) -> str:
        """A name for an operand; values of the packet are counted."""
        if self._is_word(node) or node.data == "number":
            return str(node)
        if node.data == "name" and str(node.children[0]) in self._constants:
            return str(node)
        if node.data not in ("name", "member") or str(node.children[0]) in self._result_names:
            raise self._error(f"more than one operation: {node.data}")
        self._packet_values.add(str(node))
        return str(node)

    def _is_word(self, node: Node) -> bool:
        of = node.children[0] if node.data == "member" else node
        return isinstance(of, Tree) and of.data == "name" and str(of.children[0]) == self._entry_name


def _trees(node: Node) -> list[Node]:
    return [child for child in node.children if isinstance(child, Tree)]
