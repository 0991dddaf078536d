// What a cell knows besides its words: whose contributions, of which round. Registers start as zeros and cannot be
// written from outside: the controller never uses a round for the first time that is not newer than all before, and
// never round 0.

control Cells(inout headers_t hdr, inout metadata_t meta) {
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

    // A serial number (RFC 1982): newer by less than half the circle. Exactly half is neither, and counts as older.
    @hidden action compare_rounds() {
        bit<32> round;
        rounds.read(round, cell);
        bit<32> ahead = hdr.wiresum.round - round;
        meta.relation = (ahead[31:31] == 0) ? (bit<2>)ROUND_NEWER : ROUND_OLDER;
        meta.relation = (ahead == 0) ? (bit<2>)ROUND_SAME : meta.relation;
    }

    @hidden action begin_round() {
        rounds.write(cell, hdr.wiresum.round);
        tensors.write(cell, hdr.wiresum.tensor);
        diverged.write(cell, 0);
        exponents.write(cell, hdr.wiresum.exponent);
    }

    @hidden action continue_round() {
        bitmaps.read(bitmap, cell);
        seen_data.read(meta.seen_data, cell);
        bit<8> exponent;
        exponents.read(exponent, cell);
        // The maximum is idempotent: a duplicate's does no harm.
        hdr.wiresum.exponent = (exponent > hdr.wiresum.exponent) ? exponent : hdr.wiresum.exponent;
        exponents.write(cell, hdr.wiresum.exponent);
        bit<32> tensor;
        tensors.read(tensor, cell);
        diverged.read(meta.diverged, cell);
        meta.diverged = (tensor != hdr.wiresum.tensor) ? 1w1 : meta.diverged;
        diverged.write(cell, meta.diverged);
    }

    // For a question, which merges nothing.
    @hidden action look_at_round() {
        bitmaps.read(bitmap, cell);
        seen_data.read(meta.seen_data, cell);
        exponents.read(hdr.wiresum.exponent, cell);
        diverged.read(meta.diverged, cell);
    }

    @hidden action contribute() {
        bitmaps.write(cell, bitmap | meta.bit_own);
        seen_data.write(cell, (hdr.wiresum.kind == KIND_DATA) ? 1w1 : meta.seen_data);
    }

    @hidden action compare_bitmaps() {
        meta.duplicate = (bitmap & meta.bit_own != 0) ? 1w1 : 0;
        meta.others_in = (meta.bit_others & ~bitmap == 0) ? 1w1 : 0;
    }

    apply {
        cell = (bit<32>)meta.cell_index;
        bitmap = 0;
        compare_rounds();
        if (hdr.wiresum.kind == KIND_QUESTION) {
            if (meta.relation == ROUND_SAME) {
                look_at_round();
            }
        } else if (meta.relation != ROUND_OLDER) {
            if (meta.relation == ROUND_NEWER) {
                begin_round();
            } else {
                continue_round();
            }
            contribute();
        }
        compare_bitmaps();
    }
}
