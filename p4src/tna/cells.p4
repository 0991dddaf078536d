// SPDX-License-Identifier: Apache-2.0

// What a cell knows besides its words: whose contributions, of which round of which job. Registers start as zeros and
// cannot be written from outside. Nor need they be: a cell belongs to the job whose contribution began its round, and to
// a job with another key it is as if it had never been used. Key 0 is no job's.
//
// Theory of operation. A register is touched once in a pass, and what it gives is known one stage later. So the stages
// are: compare owner and round and take them over (1); start or continue the bitmap (2); from the bitmap as it was, say
// who is still missing, and start or continue the other registers, side by side (3). A second pass only looks whether
// the cell still has its round. A question takes the same way, but only looks at what it comes by; where it would begin
// a round it leaves the registers alone. So does MISSING. The parent's RESULT begins nothing either, and is taken once,
// by a cell that has all workers' contributions: it needs the bitmap before it may touch the other registers, which is
// why they come after it.
//
// Three things may be so: the cell is another job's, or waits for the packet's round (newer); it has the packet's round
// (same); neither (older). A stateful ALU compares twice, and gives one word. So a cell keeps not its round but the one
// that it goes on to, and the two comparisons are those that decide whether to go on: is the owner another, is the
// awaited round the packet's? If neither, the ALU gives the awaited round, and that is the packet's next if the cell has
// the packet's. Rounds stand here as tags, with a one for the lowest bit: a cell and its rounds have one parity, so that
// bit says nothing. A tag is odd, hence never the zero that the ALU gives where it went on; and what is left after the
// packet's tag is taken off is odd in that case alone.

const bit<32> TAG = 1;
// From a round to the next of the same cell: a slot's rounds alternate between its two.
const bit<32> ROUNDS_OF_SLOT = 2;

struct round_cell_t {
    bit<32> awaited;  // tag of the next round; 0 in a cell that was never used, which nobody owns
    bit<32> owner;    // key of the job whose contribution began the round
}

struct tensor_cell_t {
    bit<32> tensor;
    bit<32> diverged;
}

control Cells(inout headers_t hdr, inout metadata_t meta, inout pass_t pass) {
    Register<round_cell_t, cell_t>(CELLS) rounds;
    Register<bitmap_t, cell_t>(CELLS) bitmaps;
    Register<bit<8>, cell_t>(CELLS) exponents;
    Register<bit<1>, cell_t>(CELLS) seen_data;
    Register<tensor_cell_t, cell_t>(CELLS) tensors;

    bit<32> ahead = 0;  // how far the awaited round is, 2 if the cell has the packet's; odd if the packet begins a round
    bitmap_t before = 0;

    // An owner that is the packet's is written again: one comparison less to depend on.
    RegisterAction<round_cell_t, cell_t, bit<32>>(rounds) advance_round = {
        void apply(inout round_cell_t cell, out bit<32> awaited) {
            awaited = 0;
            if (cell.owner == hdr.wiresum.key && cell.awaited != pass.tag) {
                awaited = cell.awaited;
            } else {
                cell.awaited = pass.tag + ROUNDS_OF_SLOT;
            }
            cell.owner = hdr.wiresum.key;
        }
    };

    RegisterAction<round_cell_t, cell_t, bit<32>>(rounds) look_at_round = {
        void apply(inout round_cell_t cell, out bit<32> awaited) {
            awaited = 0;
            if (cell.owner == hdr.wiresum.key && cell.awaited != pass.tag) {
                awaited = cell.awaited;
            }
        }
    };

    action advance() {
        ahead = advance_round.execute(meta.cell_index) - pass.tag;
        pass.compared = 1;
    }

    action look() {
        ahead = look_at_round.execute(meta.cell_index) - pass.tag;
        pass.compared = 1;
    }

    @hidden
    table compare_rounds {
        key = {
            pass.second : ternary;
            meta.fate : ternary;
            meta.admitted : ternary;
            meta.fits : ternary;
            hdr.wiresum.kind : ternary;
        }
        actions = { advance; look; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (1, _, _, _, _) : look();
            (0, fate_t.DROP, 1, 1, kind_t.QUESTION) : look();
            (0, fate_t.DROP, 1, 1, kind_t.MISSING) : look();
            (0, fate_t.DROP, 1, 1, kind_t.RESULT) : look();
            (0, fate_t.DROP, 1, 1, _) : advance();
        }
    }

    action relate(relation_t relation) {
        meta.relation = relation;
    }

    @hidden
    table relation {
        key = { ahead : ternary; }
        actions = { relate; }
        const default_action = relate(relation_t.OLDER);
        const entries = {
            ROUNDS_OF_SLOT : relate(relation_t.SAME);
            TAG &&& TAG : relate(relation_t.NEWER);
        }
    }

    RegisterAction<bitmap_t, cell_t, bitmap_t>(bitmaps) begin_bitmap_action = {
        void apply(inout bitmap_t bitmap) {
            bitmap = meta.bit_own;
        }
    };

    RegisterAction<bitmap_t, cell_t, bitmap_t>(bitmaps) continue_bitmap_action = {
        void apply(inout bitmap_t bitmap, out bitmap_t bitmap_before) {
            bitmap_before = bitmap;
            bitmap = bitmap | meta.bit_own;
        }
    };

    RegisterAction<bitmap_t, cell_t, bitmap_t>(bitmaps) look_at_bitmap_action = {
        void apply(inout bitmap_t bitmap, out bitmap_t bitmap_before) {
            bitmap_before = bitmap;
        }
    };

    // This is for the parent's packet, whose bit_others are all workers: if the bitmap equals them, all are in, and the
    // parent is not.
    RegisterAction<bitmap_t, cell_t, bitmap_t>(bitmaps) finish_bitmap_action = {
        void apply(inout bitmap_t bitmap, out bitmap_t bitmap_before) {
            bitmap_before = bitmap;
            if (bitmap == meta.bit_others) {
                bitmap = bitmap | meta.bit_own;
            }
        }
    };

    action begin_bitmap() {
        begin_bitmap_action.execute(meta.cell_index);
    }

    action continue_bitmap() {
        before = continue_bitmap_action.execute(meta.cell_index);
    }

    action look_at_bitmap() {
        before = look_at_bitmap_action.execute(meta.cell_index);
    }

    action finish_bitmap() {
        before = finish_bitmap_action.execute(meta.cell_index);
    }

    @hidden
    table bitmap_step {
        key = {
            ahead : ternary;
            hdr.wiresum.kind : ternary;
        }
        actions = { begin_bitmap; continue_bitmap; look_at_bitmap; finish_bitmap; NoAction; }
        const default_action = NoAction();
        const entries = {
            (ROUNDS_OF_SLOT, kind_t.QUESTION) : look_at_bitmap();
            (ROUNDS_OF_SLOT, kind_t.MISSING) : look_at_bitmap();
            (ROUNDS_OF_SLOT, kind_t.RESULT) : finish_bitmap();
            (_, kind_t.QUESTION) : NoAction();
            (_, kind_t.MISSING) : NoAction();
            (_, kind_t.RESULT) : NoAction();
            (ROUNDS_OF_SLOT, _) : continue_bitmap();
            (TAG &&& TAG, _) : begin_bitmap();
        }
    }

    RegisterAction<bit<8>, cell_t, bit<8>>(exponents) begin_exponent_action = {
        void apply(inout bit<8> exponent) {
            exponent = hdr.wiresum.exponent;
        }
    };

    // The maximum is idempotent: a duplicate's does no harm.
    RegisterAction<bit<8>, cell_t, bit<8>>(exponents) continue_exponent_action = {
        void apply(inout bit<8> exponent, out bit<8> exponent_max) {
            exponent = max(exponent, hdr.wiresum.exponent);
            exponent_max = exponent;
        }
    };

    RegisterAction<bit<8>, cell_t, bit<8>>(exponents) look_at_exponent_action = {
        void apply(inout bit<8> exponent, out bit<8> exponent_max) {
            exponent_max = exponent;
        }
    };

    action begin_exponent() {
        begin_exponent_action.execute(meta.cell_index);
    }

    action continue_exponent() {
        hdr.wiresum.exponent = continue_exponent_action.execute(meta.cell_index);
    }

    action look_at_exponent() {
        hdr.wiresum.exponent = look_at_exponent_action.execute(meta.cell_index);
    }

    @hidden
    table exponent_step {
        key = {
            meta.relation : ternary;
            hdr.wiresum.kind : ternary;
        }
        actions = { begin_exponent; continue_exponent; look_at_exponent; NoAction; }
        const default_action = NoAction();
        const entries = {
            (relation_t.SAME, kind_t.QUESTION) : look_at_exponent();
            (relation_t.SAME, kind_t.MISSING) : look_at_exponent();
            (_, kind_t.QUESTION) : NoAction();
            (_, kind_t.MISSING) : NoAction();
            (relation_t.SAME, _) : continue_exponent();
            (relation_t.NEWER, _) : begin_exponent();
        }
    }

    RegisterAction<bit<1>, cell_t, bit<1>>(seen_data) set_seen = {
        void apply(inout bit<1> seen) {
            seen = 1;
        }
    };

    RegisterAction<bit<1>, cell_t, bit<1>>(seen_data) clear_seen = {
        void apply(inout bit<1> seen) {
            seen = 0;
        }
    };

    RegisterAction<bit<1>, cell_t, bit<1>>(seen_data) read_and_set_seen = {
        void apply(inout bit<1> seen, out bit<1> seen_before) {
            seen_before = seen;
            seen = 1;
        }
    };

    RegisterAction<bit<1>, cell_t, bit<1>>(seen_data) read_seen = {
        void apply(inout bit<1> seen, out bit<1> seen_before) {
            seen_before = seen;
        }
    };

    action begin_with_data() {
        set_seen.execute(meta.cell_index);
    }

    action begin_without_data() {
        clear_seen.execute(meta.cell_index);
    }

    action continue_with_data() {
        meta.seen_data = read_and_set_seen.execute(meta.cell_index);
    }

    action continue_without_data() {
        meta.seen_data = read_seen.execute(meta.cell_index);
    }

    // The parent's words, in place of the cell's.
    action replace_data() {
        set_seen.execute(meta.cell_index);
        pass.replaces = 1;
    }

    @hidden
    table seen_data_step {
        key = {
            meta.relation : ternary;
            hdr.wiresum.kind : ternary;
            hdr.lanes.isValid() : ternary @name("has_words");
        }
        actions = {
            begin_with_data; begin_without_data; continue_with_data; continue_without_data; replace_data; NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (relation_t.SAME, kind_t.RESULT, true) : replace_data();
            (relation_t.SAME, kind_t.DATA, _) : continue_with_data();
            (relation_t.SAME, _, _) : continue_without_data();
            (_, kind_t.QUESTION, _) : NoAction();
            (_, kind_t.MISSING, _) : NoAction();
            (relation_t.NEWER, kind_t.DATA, _) : begin_with_data();
            (relation_t.NEWER, _, _) : begin_without_data();
        }
    }

    RegisterAction<tensor_cell_t, cell_t, bit<1>>(tensors) begin_tensor_action = {
        void apply(inout tensor_cell_t cell) {
            cell.tensor = hdr.wiresum.tensor;
            cell.diverged = 0;
        }
    };

    RegisterAction<tensor_cell_t, cell_t, bit<1>>(tensors) continue_tensor_action = {
        void apply(inout tensor_cell_t cell, out bit<1> diverged) {
            if (cell.tensor != hdr.wiresum.tensor) {
                cell.diverged = 1;
            }
            diverged = (bit<1>)cell.diverged;
        }
    };

    // Nobody asks for the tensor of a round that has diverged: so it may be written, too, which makes this one action
    // for the round's first packet and later ones.
    RegisterAction<tensor_cell_t, cell_t, bit<1>>(tensors) diverge_action = {
        void apply(inout tensor_cell_t cell, out bit<1> diverged) {
            cell.tensor = hdr.wiresum.tensor;
            cell.diverged = 1;
            diverged = (bit<1>)cell.diverged;
        }
    };

    RegisterAction<tensor_cell_t, cell_t, bit<1>>(tensors) look_at_tensor_action = {
        void apply(inout tensor_cell_t cell, out bit<1> diverged) {
            diverged = (bit<1>)cell.diverged;
        }
    };

    action begin_tensor() {
        begin_tensor_action.execute(meta.cell_index);
    }

    action continue_tensor() {
        meta.diverged = continue_tensor_action.execute(meta.cell_index);
    }

    action diverge() {
        meta.diverged = diverge_action.execute(meta.cell_index);
    }

    action look_at_tensor() {
        meta.diverged = look_at_tensor_action.execute(meta.cell_index);
    }

    @hidden
    table tensor_step {
        key = {
            meta.relation : ternary;
            hdr.wiresum.kind : ternary;
            hdr.wiresum.flags : ternary;
        }
        actions = { begin_tensor; continue_tensor; diverge; look_at_tensor; NoAction; }
        const default_action = NoAction();
        const entries = {
            (relation_t.SAME, kind_t.QUESTION, _) : look_at_tensor();
            (relation_t.SAME, kind_t.MISSING, _) : look_at_tensor();
            (_, kind_t.QUESTION, _) : NoAction();
            (_, kind_t.MISSING, _) : NoAction();
            (relation_t.SAME, _, FLAG_DIVERGED &&& FLAG_DIVERGED) : diverge();
            (relation_t.NEWER, _, FLAG_DIVERGED &&& FLAG_DIVERGED) : diverge();
            (relation_t.SAME, _, _) : continue_tensor();
            (relation_t.NEWER, _, _) : begin_tensor();
        }
    }

    action compare_bitmaps() {
        pass.own_before = before & meta.bit_own;
        pass.missing = meta.bit_others & ~before;
    }

    action nobody() {
        meta.others_in = 1;
        meta.done = 1;
    }

    action the_parent_alone() {
        meta.others_in = 1;
    }

    @hidden
    table who_is_missing {
        key = {
            pass.missing : ternary;
            meta.has_parent : ternary;
        }
        actions = { nobody; the_parent_alone; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (0, _) : nobody();
            (PARENT_BIT, 1) : the_parent_alone();
        }
    }

    apply {
        // Compared here once more, because meta.in_lease is known a stage too late. Equal, both zero, in a second pass.
        if (meta.cell_prefix == meta.lease_prefix) {
            compare_rounds.apply();
        }
        if (pass.compared == 1) {
            relation.apply();
            if (pass.second == 0) {
                bitmap_step.apply();
                // A RESULT for a cell that has not all contributions, or has it already, changes nothing.
                if (hdr.wiresum.kind != kind_t.RESULT || before == meta.bit_others) {
                    exponent_step.apply();
                    seen_data_step.apply();
                    tensor_step.apply();
                }
                compare_bitmaps();
            }
        }
        if (pass.own_before != 0) {
            meta.duplicate = 1;
        }
        who_is_missing.apply();
    }
}
