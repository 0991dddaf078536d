// SPDX-License-Identifier: Apache-2.0

// Is it a packet of this protocol, of a length that goes with its kind, and that IPv4 and UDP agree about? What is not
// is never admitted.

// The lengths of UDP and of IPv4, of a packet with all its words and of one without.
#define FULL LENGTH_FULL, IPV4_BYTES + LENGTH_FULL
#define BARE LENGTH_BARE, IPV4_BYTES + LENGTH_BARE

control Form(in headers_t hdr, inout metadata_t meta) {
    @hidden action well_formed() {
        meta.well_formed = 1;
    }

    // Besides: has it the length that every job at this switch has, and a cell of its round's parity?
    @hidden action fits() {
        meta.well_formed = 1;
        meta.fits = 1;
    }

    @hidden
    table form {
        key = {
            hdr.wiresum.version : ternary;
            hdr.wiresum.kind : ternary;
            hdr.udp.length : ternary;
            hdr.ipv4.length : ternary;
            hdr.wiresum.cell[0:0] : ternary @name("cell_parity");
            hdr.wiresum.round[0:0] : ternary @name("round_parity");
        }
        actions = { well_formed; fits; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (WIRE_VERSION, kind_t.DATA, FULL, 0, 0) : fits();
            (WIRE_VERSION, kind_t.DATA, FULL, 1, 1) : fits();
            // Whole words, of another number or parity.
            (WIRE_VERSION, kind_t.DATA, 0 &&& 3, 0 &&& 3, _, _) : well_formed();
            (WIRE_VERSION, kind_t.EMPTY, BARE, 0, 0) : fits();
            (WIRE_VERSION, kind_t.EMPTY, BARE, 1, 1) : fits();
            (WIRE_VERSION, kind_t.EMPTY, BARE, _, _) : well_formed();
            (WIRE_VERSION, kind_t.META, BARE, 0, 0) : fits();
            (WIRE_VERSION, kind_t.META, BARE, 1, 1) : fits();
            (WIRE_VERSION, kind_t.META, BARE, _, _) : well_formed();
            (WIRE_VERSION, kind_t.QUESTION, BARE, 0, 0) : fits();
            (WIRE_VERSION, kind_t.QUESTION, BARE, 1, 1) : fits();
            (WIRE_VERSION, kind_t.QUESTION, BARE, _, _) : well_formed();
            (WIRE_VERSION, kind_t.MISSING, BARE, 0, 0) : fits();
            (WIRE_VERSION, kind_t.MISSING, BARE, 1, 1) : fits();
            (WIRE_VERSION, kind_t.MISSING, BARE, _, _) : well_formed();
            (WIRE_VERSION, kind_t.RESULT, FULL, 0, 0) : fits();
            (WIRE_VERSION, kind_t.RESULT, FULL, 1, 1) : fits();
            (WIRE_VERSION, kind_t.RESULT, BARE, 0, 0) : fits();
            (WIRE_VERSION, kind_t.RESULT, BARE, 1, 1) : fits();
            (WIRE_VERSION, kind_t.RESULT, 0 &&& 3, 0 &&& 3, _, _) : well_formed();
        }
    }

    apply {
        if (hdr.wiresum.isValid() && meta.damaged == 0) {
            form.apply();
        }
    }
}
