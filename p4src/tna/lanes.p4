// SPDX-License-Identifier: Apache-2.0

// The words of a cell, two in a register. The round's first DATA writes them, later ones add to them (each word modulo
// 2^32), the parent's RESULT replaces them, all else leaves them. A round without DATA gives zeros.
//
// A stateful ALU of Tofino 1 gives one word for each access: the first of the two as the contribution goes in, the second
// when the packet that is to become the RESULT, or to go to the parent, comes by again. One of Tofino 2 gives both.

#ifdef TWO_PASSES
#define GIVEN out bit<32> word
#define GIVE(pair) word = pair.first;
#define EXECUTE(access) first = access.execute(meta.cell_index)
#else
#define GIVEN out bit<32> word, out bit<32> other
#define GIVE(pair) word = pair.first; other = pair.second;
#define EXECUTE(access) first = access.execute(meta.cell_index, second)
#endif

struct pair_t {
    bit<32> first;
    bit<32> second;
}

control Pair(in metadata_t meta, in pass_t pass, in kind_t kind, inout bit<32> first, inout bit<32> second) {
    Register<pair_t, cell_t>(CELLS) sums;

    RegisterAction<pair_t, cell_t, bit<32>>(sums) write_both = {
        void apply(inout pair_t sum, GIVEN) {
            sum.first = first;
            sum.second = second;
            GIVE(sum)
        }
    };

    RegisterAction<pair_t, cell_t, bit<32>>(sums) add_both = {
        void apply(inout pair_t sum, GIVEN) {
            sum.first = sum.first + first;
            sum.second = sum.second + second;
            GIVE(sum)
        }
    };

    RegisterAction<pair_t, cell_t, bit<32>>(sums) read = {
        void apply(inout pair_t sum, GIVEN) {
            GIVE(sum)
        }
    };

    action write() {
        EXECUTE(write_both);
    }

    action add() {
        EXECUTE(add_both);
    }

    action give() {
        EXECUTE(read);
    }

#ifdef TWO_PASSES
    RegisterAction<pair_t, cell_t, bit<32>>(sums) read_second = {
        void apply(inout pair_t sum, out bit<32> word) {
            word = sum.second;
        }
    };

    action give_second() {
        second = read_second.execute(meta.cell_index);
    }
#endif

    action give_zeros() {
        first = 0;
        second = 0;
    }

    @hidden
    table step {
        key = {
            meta.relation : ternary;
            pass.second : ternary;
            kind : ternary;
            meta.seen_data : ternary;
            pass.own_before : ternary;
            pass.replaces : ternary;
        }
        actions = {
#ifdef TWO_PASSES
            give_second;
#endif
            write; add; give; give_zeros; NoAction;
        }
        const default_action = NoAction();
        const entries = {
#ifdef TWO_PASSES
            (relation_t.SAME, 1, _, _, _, _) : give_second();
#endif
            (relation_t.NEWER, 0, kind_t.DATA, _, _, _) : write();
            (relation_t.SAME, 0, kind_t.DATA, 0, _, _) : write();
            (relation_t.SAME, 0, kind_t.DATA, 1, 0, _) : add();
            (relation_t.SAME, 0, kind_t.DATA, 1, _, _) : give();
            (relation_t.SAME, 0, kind_t.RESULT, _, _, 1) : write();
            (relation_t.SAME, 0, kind_t.RESULT, _, _, _) : NoAction();
            (relation_t.NEWER, 0, kind_t.RESULT, _, _, _) : NoAction();
            (relation_t.SAME, 0, _, 1, _, _) : give();
            (relation_t.SAME, 0, _, 0, _, _) : give_zeros();
            (relation_t.NEWER, 0, _, _, _, _) : give_zeros();
        }
    }

    apply {
        step.apply();
    }
}

#define PAIRS(DO) \
    DO(00, 01) DO(02, 03) DO(04, 05) DO(06, 07) DO(10, 11) DO(12, 13) DO(14, 15) DO(16, 17) \
    DO(20, 21) DO(22, 23) DO(24, 25) DO(26, 27) DO(30, 31) DO(32, 33) DO(34, 35) DO(36, 37) \
    DO(40, 41) DO(42, 43) DO(44, 45) DO(46, 47) DO(50, 51) DO(52, 53) DO(54, 55) DO(56, 57) \
    DO(60, 61) DO(62, 63) DO(64, 65) DO(66, 67) DO(70, 71) DO(72, 73) DO(74, 75) DO(76, 77)
#define DECLARE_PAIR(n, m) Pair() pair_##n;
#define APPLY_PAIR(n, m) pair_##n.apply(meta, pass, hdr.wiresum.kind, hdr.lanes.w##n, hdr.lanes.w##m);

control Lanes(inout headers_t hdr, in metadata_t meta, in pass_t pass) {
    PAIRS(DECLARE_PAIR)

    apply {
        // Others have words, or get none. Where this is not to leave with words, Leave takes them away.
        if (meta.relation != relation_t.OLDER && hdr.wiresum.kind != kind_t.DATA && hdr.wiresum.kind != kind_t.RESULT) {
            hdr.lanes.setValid();
        }
        PAIRS(APPLY_PAIR)
    }
}
