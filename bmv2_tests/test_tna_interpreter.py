"""The interpreter of the Tofino program refuses what hardware cannot do, and results that depend on undefined
values."""

from __future__ import annotations

from pathlib import Path

import pytest

from bmv2_tests.tna_interpreter.switch import Copy, Switch
from bmv2_tests.tna_interpreter.tables import Match
from bmv2_tests.tna_interpreter.values import HardwareError, P4Error, UndefinedError

PROGRAM = """
#include <core.p4>
#include <tna.p4>
header first_h {{ bit<8> kind; bit<8> value; }}
header second_h {{ bit<16> word; }}
struct headers_t {{ first_h first; second_h second; }}
enum bit<8> colour_t {{ RED = 4, GREEN = 9 }}

struct metadata_t {{ bit<8> mark; }}
struct pair_t {{ bit<32> low; bit<32> high; }}
struct triple_t {{ bit<32> low; bit<32> middle; bit<32> high; }}
struct uneven_t {{ bit<32> low; bit<16> high; }}
const bit<32> LIMIT = 7;

parser IngressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                     out ingress_intrinsic_metadata_t intrinsic) {{
    state start {{
        meta = ...;
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        packet.extract(hdr.first);
        transition select(hdr.first.kind) {{
            2 : second;
            default : accept;
        }}
    }}
    state second {{
        packet.extract(hdr.second);
        transition accept;
    }}
}}

control Ingress(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t intrinsic,
                in ingress_intrinsic_metadata_from_parser_t from_parser,
                inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
                inout ingress_intrinsic_metadata_for_tm_t for_tm) {{
    {declarations}
    apply {{
        for_tm.ucast_egress_port = 5;
        for_tm.bypass_egress = 1;
        for_tm.qid = 0;
        for_deparser.drop_ctl = 0;
        {statements}
    }}
}}

control IngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta) {{
    apply {{ packet.emit(hdr); }}
}}

parser EgressParser(packet_in packet, out headers_t hdr, out metadata_t meta) {{
    state start {{ transition accept; }}
}}
control Egress(inout headers_t hdr) {{ apply {{ }} }}
control EgressDeparser(packet_out packet, inout headers_t hdr) {{ apply {{ }} }}
Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;
"""
COUNTING_REGISTER = """
    Register<bit<8>, bit<8>>(4) hits;
    RegisterAction<bit<8>, bit<8>, bit<8>>(hits) hit = {
        void apply(inout bit<8> value, out bit<8> before) { before = value; value = value + 1; }
    };
"""
PAIR_REGISTER = """
    bit<32> first = 0;
    bit<32> second = 0;
    bit<32> third = 0;
    Register<pair_t, bit<8>>(4) pairs;
    RegisterAction<pair_t, bit<8>, bit<32>>(pairs) act = {
        void apply(inout pair_t cell, out bit<32> before) { %s }
    };
"""


TWO_RESULTS = """
    bit<8> other = 0;
    Register<bit<8>, bit<8>>(4) hits;
    RegisterAction<bit<8>, bit<8>, bit<8>>(hits) hit = {
        void apply(inout bit<8> value, out bit<8> before, out bit<8> after) {
            before = value;
            value = value + 3;
            after = value;
        }
    };
"""


def switch(folder: Path, statements: str, declarations: str = "", *, generation: int = 1) -> Switch:
    main = folder / "main.p4"
    main.write_text(PROGRAM.format(statements=statements, declarations=declarations))
    return Switch(main, generation=generation)


def test_a_packet_leaves_with_the_fields_that_the_program_wrote(tmp_path: Path) -> None:
    made = switch(tmp_path, "hdr.first.value = hdr.first.value + 0xFF;")
    assert made.receive(1, b"\x01\x05rest") == [Copy(5, b"\x01\x04rest")]


def test_an_enum_with_a_width_is_its_numbers(tmp_path: Path) -> None:
    made = switch(tmp_path, "hdr.first.value = colour_t.GREEN;")
    assert made.receive(1, b"\x01\x05") == [Copy(5, b"\x01\x09")]
    with pytest.raises(P4Error, match="colour_t has no BLUE"):
        switch(tmp_path, "hdr.first.value = colour_t.BLUE;")


def test_a_program_that_does_not_forward_sends_nothing(tmp_path: Path) -> None:
    assert switch(tmp_path, "for_deparser.drop_ctl = 1;").receive(1, b"\x01\x05") == []


def test_a_program_that_leaves_the_queue_undefined_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UndefinedError, match="qid was never written"):
        switch(tmp_path, "bit<5> nothing; for_tm.qid = nothing;").receive(1, b"\x01\x05")


def test_a_program_that_leaves_the_drop_flag_undefined_is_refused(tmp_path: Path) -> None:
    unwritten = "bit<3> nothing; for_deparser.drop_ctl = nothing;"
    with pytest.raises(UndefinedError, match="drop_ctl was never written"):
        switch(tmp_path, unwritten).receive(1, b"\x01\x05")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("hdr.first.value - 7", 0xFE),
        ("hdr.first.value |-| 7", 0),
        ("~hdr.first.value", 0xFA),
        ("hdr.first.value & 6 | 0x80 ^ 1", 0x85),
        ("hdr.first.value[2:1] ++ 6w3", 0x83),
        ("(bit<8>)(hdr.first.value & 4 == 4)", 1),
        ("(bit<8>)(hdr.first.value > 4 && !(hdr.first.value != 5))", 1),
        ("max(hdr.first.value, hdr.first.kind)", 5),
    ],
)
def test_operators_follow_the_language(tmp_path: Path, expression: str, value: int) -> None:
    (copy,) = switch(tmp_path, f"hdr.first.value = {expression};").receive(1, b"\x01\x05")
    assert copy.frame == bytes([1, value])


def test_a_register_keeps_its_value_between_packets(tmp_path: Path) -> None:
    made = switch(tmp_path, "hdr.first.value = hit.execute(hdr.first.kind);", COUNTING_REGISTER)
    assert [made.receive(1, b"\x01\x00")[0].frame[1] for _ in range(3)] == [0, 1, 2]
    assert made.receive(1, b"\x03\x00")[0].frame[1] == 0


def test_a_second_use_of_a_register_in_a_pass_is_refused(tmp_path: Path) -> None:
    twice = "meta.mark = hit.execute(0); if (hdr.first.value == 9) { meta.mark = hit.execute(1); }"
    made = switch(tmp_path, twice, COUNTING_REGISTER)
    assert made.receive(1, b"\x01\x05")
    with pytest.raises(HardwareError, match="hits is used twice in one pass"):
        made.receive(1, b"\x01\x09")


def test_an_index_beyond_a_register_is_refused(tmp_path: Path) -> None:
    made = switch(tmp_path, "meta.mark = hit.execute(hdr.first.kind);", COUNTING_REGISTER)
    with pytest.raises(HardwareError, match="hits has 4 entries, and no 4"):
        made.receive(1, b"\x04\x05")


def test_a_register_of_tofino_2_gives_several_results(tmp_path: Path) -> None:
    statements = "hdr.first.value = hit.execute(hdr.first.kind, other); hdr.first.kind = other;"
    made = switch(tmp_path, statements, TWO_RESULTS, generation=2)
    assert [made.receive(1, b"\x01\x05")[0].frame for _ in range(2)] == [b"\x03\x00", b"\x06\x03"]


def test_a_register_of_tofino_1_gives_one_result(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match="2 results, and a stateful ALU gives 1"):
        switch(tmp_path, "hdr.first.value = hit.execute(hdr.first.kind, other);", TWO_RESULTS)


def test_more_results_than_are_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(P4Error, match="a register action of 2 results writes into 0"):
        switch(tmp_path, "hdr.first.value = hit.execute(hdr.first.kind);", TWO_RESULTS, generation=2)


def test_a_fifth_register_action_is_refused(tmp_path: Path) -> None:
    action = "RegisterAction<bit<8>, bit<8>, bit<8>>(hits) act_{} = {{ void apply(inout bit<8> value) {{ }} }};"
    four_more = "\n".join(action.format(number) for number in range(4))
    with pytest.raises(HardwareError, match="hits has more than 4 register actions"):
        switch(tmp_path, "", COUNTING_REGISTER + four_more)


@pytest.mark.parametrize(
    "body",
    [
        "cell.low = cell.low + 1; before = cell.high;",
        "if (cell.low == first && cell.high != second) { cell.low = second - cell.low; } before = cell.low;",
        "if (cell.low == first) { cell.low = 0; } else if (cell.low != first) { cell.high = max(cell.high, second); }",
        "if (cell.low < first || first <= cell.low) { before = 1; }",
        "if (second > cell.high && !(cell.low == LIMIT)) { cell.low = (bit<32>)first; cell.high = first; }",
    ],
)
def test_what_a_stateful_alu_can_compute_is_accepted(tmp_path: Path, body: str) -> None:
    switch(tmp_path, "", PAIR_REGISTER % body)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("if (cell.low == first || cell.high == 1 || cell.high == 2) { cell.low = 1; }", "3 comparisons"),
        ("if (cell.low == first) { cell.low = second; } else { cell.low = third; }", "3 values of the packet"),
        ("if (cell.low == cell.high) { cell.low = 1; }", "a comparison is of a word"),
        ("if (first == second) { cell.low = 1; }", "a comparison is of a word"),
        ("if (cell.low + 1 == first) { cell.low = 1; }", "a comparison is of a word"),
        ("if (cell.low == first + 1) { cell.low = 1; }", "more than one operation"),
        ("if (true) { cell.low = 1; }", "a condition that is a"),
        ("cell.low = cell.low + first + 1;", "more than one operation"),
        ("cell.low = cell.low + 1; cell.high = before;", "more than one operation"),
        ("cell.low = cell.low + 1; before = cell.low - first;", "what it hands out is computed"),
        ("first = cell.low;", "neither of the entry nor the result"),
        ("bit<32> more = 1; cell.low = more;", "a variable in its body"),
        ("other.apply();", "a perform in its body"),
    ],
)
def test_what_a_stateful_alu_cannot_compute_is_refused(tmp_path: Path, body: str, complaint: str) -> None:
    with pytest.raises(P4Error, match=complaint):
        switch(tmp_path, "", PAIR_REGISTER % body)


@pytest.mark.parametrize("type_", ["bit<64>", "headers_t", "triple_t", "uneven_t"])
def test_a_register_entry_of_more_than_two_words_is_refused(tmp_path: Path, type_: str) -> None:
    with pytest.raises(HardwareError, match="an entry is one word, or two of one width"):
        switch(tmp_path, "", f"Register<{type_}, bit<8>>(4) hits;")


def test_a_table_that_is_applied_twice_in_a_pass_is_refused(tmp_path: Path) -> None:
    table = "table t { key = { meta.mark : exact; } actions = { NoAction; } const default_action = NoAction(); }"
    with pytest.raises(HardwareError, match="t is used twice in one pass"):
        switch(tmp_path, "t.apply(); t.apply();", table).receive(1, b"\x01\x05")


@pytest.mark.parametrize(
    "statements",
    [
        "if (hdr.second.word == 1) { meta.mark = 1; }",
        "hdr.first.value = hdr.second.word[7:0] + 1;",
        "hdr.second.word = 1;",
        "bit<8> unset; hdr.first.value = unset + 1;",
    ],
)
def test_use_of_an_absent_header_is_refused(tmp_path: Path, statements: str) -> None:
    made = switch(tmp_path, statements)
    with pytest.raises(UndefinedError):
        made.receive(1, b"\x01\x05")


def test_a_wildcard_may_match_an_absent_header(tmp_path: Path) -> None:
    table = """
    action mark(bit<8> value) { hdr.first.value = value; }
    table t {
        key = { hdr.first.kind : ternary; hdr.second.word : ternary; }
        actions = { mark; }
        const default_action = mark(0);
        const entries = {
            (2, 0 &&& 0xFF00) : mark(20);
            (1, _) : mark(10);
            (3, 7) : mark(30);
        }
    }
    """
    made = switch(tmp_path, "t.apply();", table)
    assert made.receive(1, b"\x01\x05")[0].frame == b"\x01\x0a"
    assert made.receive(1, b"\x02\x05\x00\x07")[0].frame == b"\x02\x14\x00\x07"
    assert made.receive(1, b"\x02\x05\x07\x00")[0].frame == b"\x02\x00\x07\x00"
    with pytest.raises(UndefinedError, match="table t"):
        made.receive(1, b"\x03\x05")


def test_the_fields_of_a_new_header_are_undefined(tmp_path: Path) -> None:
    made = switch(tmp_path, "hdr.second.setValid(); if (hdr.second.word == 0) { meta.mark = 1; }")
    with pytest.raises(UndefinedError):
        made.receive(1, b"\x01\x05")


@pytest.mark.parametrize(("generation", "port", "passes"), [(1, 68, 2), (2, 6, 1)])
def test_a_packet_that_loops_for_ever_is_refused(tmp_path: Path, generation: int, port: int, passes: int) -> None:
    made = switch(tmp_path, f"for_tm.ucast_egress_port = {port};", generation=generation)
    with pytest.raises(HardwareError, match=f"more than {passes} times"):
        made.receive(1, b"\x01\x05")


def test_an_entry_that_does_not_fit_the_table_is_refused(tmp_path: Path) -> None:
    table = """
    action mark(bit<8> value) { hdr.first.value = value; }
    table t { key = { hdr.first.kind : exact @name("kind"); } actions = { mark; } size = 1; }
    """
    inserted = switch(tmp_path, "t.apply();", table).program.tables["t"]
    with pytest.raises(P4Error, match="no key colour"):
        inserted.insert({"kind": 1, "colour": 1}, "mark", {"value": 1})
    with pytest.raises(P4Error, match="has the parameters value"):
        inserted.insert({"kind": 1}, "mark", {})
    with pytest.raises(P4Error, match="too large"):
        inserted.insert({"kind": 1}, "mark", {"value": 256})
    with pytest.raises(P4Error, match="does not suit"):
        inserted.insert({"kind": Match(1, 1)}, "mark", {"value": 1})
    inserted.insert({"kind": 1}, "mark", {"value": 1})
    with pytest.raises(P4Error, match="full"):
        inserted.insert({"kind": 2}, "mark", {"value": 1})
    with pytest.raises(P4Error, match="no such entry"):
        inserted.delete({"kind": 2})
    inserted.delete({"kind": 1})
    inserted.insert({"kind": 2}, "mark", {"value": 1})


@pytest.mark.parametrize(
    ("statements", "complaint"),
    [
        ("meta.mark = hdr.second.word;", "needed"),
        ("meta.mark = 256;", "does not fit 8 bits"),
        ("meta.mark = nobody;", "nothing is called nobody"),
        ("meta.mark = hdr.first.kind + hdr.second.word;", "with"),
        ("if (meta.mark) ", "preprocessed program"),
    ],
)
def test_an_invalid_program_is_refused(tmp_path: Path, statements: str, complaint: str) -> None:
    with pytest.raises(P4Error, match=complaint):
        switch(tmp_path, statements)
