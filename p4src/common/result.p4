// SPDX-License-Identifier: Apache-2.0

// Turns the packet that triggered it into a RESULT, a question into a MISSING, or either into what goes to the switch
// above, as far as that is the same for every receiver.

control Result(inout headers_t hdr, inout metadata_t meta) {
    apply {
        if (meta.bare == 1) {
            hdr.ipv4.length = IPV4_BYTES + LENGTH_BARE;
            hdr.udp.length = LENGTH_BARE;
        } else {
            hdr.ipv4.length = IPV4_BYTES + LENGTH_FULL;
            hdr.udp.length = LENGTH_FULL;
        }
        hdr.wiresum.flags = 0;
        if (meta.fate == fate_t.MISSING || meta.fate == fate_t.ASK) {
            hdr.wiresum.exponent = 0;
        } else if (meta.diverged == 1) {
            hdr.wiresum.flags = FLAG_DIVERGED;
        }
        if (meta.fate == fate_t.MISSING) {
            hdr.wiresum.kind = kind_t.MISSING;
        } else if (meta.fate == fate_t.ASK) {
            hdr.wiresum.kind = kind_t.QUESTION;
        } else if (meta.fate != fate_t.RAISE) {
            hdr.wiresum.kind = kind_t.RESULT;
        } else if (meta.bare == 0) {
            hdr.wiresum.kind = kind_t.DATA;
        } else if (hdr.wiresum.kind != kind_t.META) {
            hdr.wiresum.kind = kind_t.EMPTY;
        }
        // From where it was sent to; ECN and DSCP stay as they came, so that a congestion mark reaches the workers.
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ipv4.src = hdr.ipv4.dst;
        hdr.ipv4.identification = 0;
        hdr.ipv4.flags = IPV4_DO_NOT_FRAGMENT;
        hdr.ipv4.ttl = IPV4_TTL;
        hdr.udp.src_port = hdr.udp.dst_port;
        meta.thread = hdr.udp.dst_port & THREAD_MASK;
        hdr.udp.checksum = 0;  // over IPv4: none
        meta.edited = 1;
    }
}
