// SPDX-License-Identifier: Apache-2.0

// What a cell knows besides its words: whose contributions, of which round of which job. Registers start as zeros and
// cannot be written from outside. Nor need they be: a cell belongs to the job whose contribution began its round, and to
// a job with another key it is as if it had never been used. Key 0 is no job's.

// From a round to the next of the same cell: a slot's rounds alternate between its two.
const bit<32> ROUNDS_OF_SLOT = 2;

control Cells(inout headers_t hdr, inout metadata_t meta) {
    @name(".owners")
    register<bit<32>>(CELLS) owners;
    @name(".rounds")
    register<bit<32>>(CELLS) rounds;
    @name(".bitmaps")
    register<bitmap_t>(CELLS) bitmaps;
    @name(".exponents")
    register<bit<8>>(CELLS) exponents;
    @name(".seen_data")
    register<bit<1>>(CELLS) seen_data;
    @name(".tensors")
    register<bit<32>>(CELLS) tensors;
    @name(".diverged")
    register<bit<1>>(CELLS) diverged;

    bit<32> cell;
    bitmap_t bitmap;

    // Another job's cell begins with whatever round comes; its own goes on to the next round alone.
    @hidden action compare_rounds() {
        bit<32> owner;
        owners.read(owner, cell);
        bit<32> round;
        rounds.read(round, cell);
        meta.relation = (hdr.wiresum.round == round) ? relation_t.SAME : relation_t.OLDER;
        meta.relation = (hdr.wiresum.round == round + ROUNDS_OF_SLOT) ? relation_t.NEWER : meta.relation;
        meta.relation = (owner != hdr.wiresum.key) ? relation_t.NEWER : meta.relation;
    }

    @hidden action begin_round() {
        owners.write(cell, hdr.wiresum.key);
        rounds.write(cell, hdr.wiresum.round);
        tensors.write(cell, hdr.wiresum.tensor);
        meta.diverged = hdr.wiresum.flags[1:1];
        diverged.write(cell, meta.diverged);
        exponents.write(cell, hdr.wiresum.exponent);
    }

    @hidden action look_at_bitmap() {
        bitmaps.read(bitmap, cell);
        seen_data.read(meta.seen_data, cell);
    }

    @hidden action continue_round() {
        bit<8> exponent;
        exponents.read(exponent, cell);
        // The maximum is idempotent: a duplicate's does no harm.
        hdr.wiresum.exponent = (exponent > hdr.wiresum.exponent) ? exponent : hdr.wiresum.exponent;
        exponents.write(cell, hdr.wiresum.exponent);
        bit<32> tensor;
        tensors.read(tensor, cell);
        diverged.read(meta.diverged, cell);
        meta.diverged = (tensor != hdr.wiresum.tensor) ? 1w1 : (meta.diverged | hdr.wiresum.flags[1:1]);
        diverged.write(cell, meta.diverged);
    }

    // For QUESTION and MISSING, which merge nothing.
    @hidden action look_at_round() {
        exponents.read(hdr.wiresum.exponent, cell);
        diverged.read(meta.diverged, cell);
    }

    @hidden action contribute() {
        bitmaps.write(cell, bitmap | meta.bit_own);
        seen_data.write(cell, hdr.lanes.isValid() ? 1w1 : meta.seen_data);
    }

    @hidden action compare_bitmaps() {
        meta.duplicate = (bitmap & meta.bit_own != 0) ? 1w1 : 0;
        bitmap_t missing = meta.bit_others & ~bitmap;
        meta.done = (missing == 0) ? 1w1 : 0;
        meta.others_in = (missing == 0 || (meta.has_parent == 1 && missing == PARENT_BIT)) ? 1w1 : 0;
    }

    apply {
        cell = (bit<32>)meta.cell_index;
        bitmap = 0;
        compare_rounds();
        if (meta.relation == relation_t.SAME) {
            look_at_bitmap();
        }
        compare_bitmaps();
        if (hdr.wiresum.kind == kind_t.QUESTION || hdr.wiresum.kind == kind_t.MISSING) {
            if (meta.relation == relation_t.SAME) {
                look_at_round();
            }
        } else if (hdr.wiresum.kind == kind_t.RESULT) {
            if (meta.relation == relation_t.SAME && meta.others_in == 1 && meta.duplicate == 0) {
                continue_round();
                contribute();
            }
        } else if (meta.relation != relation_t.OLDER) {
            if (meta.relation == relation_t.NEWER) {
                begin_round();
            } else {
                continue_round();
            }
            contribute();
        }
    }
}
