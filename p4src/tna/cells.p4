// What a cell knows besides its words: whose contributions, of which round. Registers start as zeros and cannot be
// written from outside: the controller never uses a round for the first time that is not newer than all before, and
// never round 0.
//
// Theory of operation. A register is touched once in a pass, and what it gives is known one stage later. So the stages
// are: compare the round and take it over (1); start or continue the other registers, side by side (2); from the bitmap
// as it was, say who is still missing (3). A second pass only looks whether the cell still has its round. A question
// takes the same way, but only looks at what it comes by; where its round is newer it leaves the registers alone.
//
// Rounds are serial numbers (RFC 1982): newer by less than half the circle; exactly half is neither, and counts as
// older. A stateful ALU compares plain numbers, two at a time, and no differences modulo 2^32. So the question is put
// as: does the cell's round lie between the packet's round and the opposite point of the circle? If the packet's round
// is in the upper half, both comparisons must hold; in the lower half, where that arc passes through zero, one of them.

const bit<32> HALF_CIRCLE = 0x80000000;

struct tensor_cell_t {
    bit<32> tensor;
    bit<32> diverged;
}

control Cells(inout headers_t hdr, inout metadata_t meta, inout pass_t pass) {
    Register<bit<32>, cell_t>(CELLS) rounds;
    Register<bitmap_t, cell_t>(CELLS) bitmaps;
    Register<bit<8>, cell_t>(CELLS) exponents;
    Register<bit<1>, cell_t>(CELLS) seen_data;
    Register<tensor_cell_t, cell_t>(CELLS) tensors;

    bit<32> ahead = 0;
    bitmap_t before = 0;

    RegisterAction<bit<32>, cell_t, bit<32>>(rounds) advance_in_upper_half = {
        void apply(inout bit<32> round, out bit<32> ahead_of_cell) {
            ahead_of_cell = hdr.wiresum.round - round;
            if (round < hdr.wiresum.round && round > pass.opposite_round) {
                round = hdr.wiresum.round;
            }
        }
    };

    RegisterAction<bit<32>, cell_t, bit<32>>(rounds) advance_in_lower_half = {
        void apply(inout bit<32> round, out bit<32> ahead_of_cell) {
            ahead_of_cell = hdr.wiresum.round - round;
            if (round < hdr.wiresum.round || round > pass.opposite_round) {
                round = hdr.wiresum.round;
            }
        }
    };

    RegisterAction<bit<32>, cell_t, bit<32>>(rounds) look_at_round = {
        void apply(inout bit<32> round, out bit<32> ahead_of_cell) {
            ahead_of_cell = hdr.wiresum.round - round;
        }
    };

    action advance_upper() {
        ahead = advance_in_upper_half.execute(meta.cell_index);
        pass.compared = 1;
    }

    action advance_lower() {
        ahead = advance_in_lower_half.execute(meta.cell_index);
        pass.compared = 1;
    }

    action look() {
        ahead = look_at_round.execute(meta.cell_index);
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
            hdr.wiresum.round[31:31] : ternary @name("round_upper_half");
        }
        actions = { advance_upper; advance_lower; look; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (1, _, _, _, _, _) : look();
            (0, FATE_DROP, 1, 1, KIND_QUESTION, _) : look();
            (0, FATE_DROP, 1, 1, _, 1) : advance_upper();
            (0, FATE_DROP, 1, 1, _, 0) : advance_lower();
        }
    }

    action relate(bit<2> relation) {
        meta.relation = relation;
    }

    @hidden
    table relation {
        key = { ahead : ternary; }
        actions = { relate; }
        const default_action = relate(ROUND_OLDER);
        const entries = {
            0 : relate(ROUND_SAME);
            0 &&& HALF_CIRCLE : relate(ROUND_NEWER);
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

    action begin_bitmap() {
        begin_bitmap_action.execute(meta.cell_index);
    }

    action continue_bitmap() {
        before = continue_bitmap_action.execute(meta.cell_index);
    }

    action look_at_bitmap() {
        before = look_at_bitmap_action.execute(meta.cell_index);
    }

    @hidden
    table bitmap_step {
        key = {
            ahead : ternary;
            hdr.wiresum.kind : ternary;
        }
        actions = { begin_bitmap; continue_bitmap; look_at_bitmap; NoAction; }
        const default_action = NoAction();
        const entries = {
            (0, KIND_QUESTION) : look_at_bitmap();
            (_, KIND_QUESTION) : NoAction();
            (0, _) : continue_bitmap();
            (0 &&& HALF_CIRCLE, _) : begin_bitmap();
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
            ahead : ternary;
            hdr.wiresum.kind : ternary;
        }
        actions = { begin_exponent; continue_exponent; look_at_exponent; NoAction; }
        const default_action = NoAction();
        const entries = {
            (0, KIND_QUESTION) : look_at_exponent();
            (_, KIND_QUESTION) : NoAction();
            (0, _) : continue_exponent();
            (0 &&& HALF_CIRCLE, _) : begin_exponent();
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

    @hidden
    table seen_data_step {
        key = {
            ahead : ternary;
            hdr.wiresum.kind : ternary;
        }
        actions = {
            begin_with_data; begin_without_data; continue_with_data; continue_without_data; NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (0, KIND_QUESTION) : continue_without_data();
            (_, KIND_QUESTION) : NoAction();
            (0, KIND_DATA) : continue_with_data();
            (0, _) : continue_without_data();
            (0 &&& HALF_CIRCLE, KIND_DATA) : begin_with_data();
            (0 &&& HALF_CIRCLE, _) : begin_without_data();
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

    action look_at_tensor() {
        meta.diverged = look_at_tensor_action.execute(meta.cell_index);
    }

    @hidden
    table tensor_step {
        key = {
            ahead : ternary;
            hdr.wiresum.kind : ternary;
        }
        actions = { begin_tensor; continue_tensor; look_at_tensor; NoAction; }
        const default_action = NoAction();
        const entries = {
            (0, KIND_QUESTION) : look_at_tensor();
            (_, KIND_QUESTION) : NoAction();
            (0, _) : continue_tensor();
            (0 &&& HALF_CIRCLE, _) : begin_tensor();
        }
    }

    action compare_bitmaps() {
        pass.own_before = before & meta.bit_own;
        pass.missing = meta.bit_others & ~before;
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
                exponent_step.apply();
                seen_data_step.apply();
                tensor_step.apply();
                compare_bitmaps();
            }
        }
        if (pass.own_before != 0) {
            meta.duplicate = 1;
        }
        if (pass.missing == 0) {
            meta.others_in = 1;
        }
    }
}
