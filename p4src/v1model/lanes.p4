// SPDX-License-Identifier: Apache-2.0

// The words of a cell. The round's first DATA writes them, even if it is a duplicate, and so does a parent's RESULT.
// Later DATA are added (each word modulo 2^32). EMPTY, other duplicates and questions leave the words. A round without
// DATA gives zeros.

// The top bit of each word: all words of the form 0x80000000, by doubling. p4c computes with constants of up to 2048 bits.
const bool LANES_HAVE_TOPS = static_assert(LANES <= 64, "on bmv2 a packet has at most 64 words: TOPS has no more");
const bit<64> TOPS_2 = 0x8000000080000000;
const bit<128> TOPS_4 = TOPS_2 ++ TOPS_2;
const bit<256> TOPS_8 = TOPS_4 ++ TOPS_4;
const bit<512> TOPS_16 = TOPS_8 ++ TOPS_8;
const bit<1024> TOPS_32 = TOPS_16 ++ TOPS_16;
const bit<2048> TOPS_64 = TOPS_32 ++ TOPS_32;
const words_t TOPS = (words_t)TOPS_64;

control Lanes(inout headers_t hdr, inout metadata_t meta) {
    @name(".sums")
    register<words_t>(CELLS) sums;

    bit<32> cell;
    words_t sum;

    // All words at once: added without their top bits no carry leaves a word; the top bit is the exclusive or of
    // both and the carry into it.
    @hidden action add() {
        sum = ((sum & ~TOPS) + (hdr.lanes.words & ~TOPS)) ^ ((sum ^ hdr.lanes.words) & TOPS);
        sums.write(cell, sum);
    }

    @hidden action write() {
        sum = hdr.lanes.words;
        sums.write(cell, sum);
    }

    @hidden action give_sum() {
        hdr.lanes.setValid();
        hdr.lanes.words = sum;
    }

    apply {
        cell = (bit<32>)meta.cell_index;
        sum = 0;
        if (meta.seen_data == 1) {
            sums.read(sum, cell);
        }
        if (hdr.wiresum.kind == kind_t.RESULT) {
            if (meta.fate == fate_t.MULTICAST && hdr.lanes.isValid()) {
                write();
            }
        } else if (hdr.wiresum.kind == kind_t.DATA) {
            if (meta.seen_data == 0) {
                write();
            } else if (meta.duplicate == 0) {
                add();
            }
        }
        if (meta.fate == fate_t.RAISE) {
            if (meta.seen_data == 1) {  // else the packet's own words, if it has any, are the sum
                give_sum();
            }
        } else if (meta.fate == fate_t.ASK) {
            hdr.lanes.setInvalid();
        } else if (hdr.wiresum.kind != kind_t.RESULT && hdr.wiresum.kind != kind_t.META) {
            if (meta.fate == fate_t.MULTICAST || meta.fate == fate_t.RESEND) {
                give_sum();
            }
        }
    }
}
