// SPDX-License-Identifier: Apache-2.0

// Is a packet to the switch as its sender made it, and what will tell its receiver so? Ethernet's own check covers a
// link, not the memories and buses on the way, and a flipped bit of a word, or of a cell's number, would be a wrong sum
// that nobody notices. So a packet is whole if the frame has all that IPv4 says it has, and both checksums are right.
//
// UDP's covers all words. A received zero says that there is none, which only hardware switches send
// (docs/protocol.md, section 2).

#define ETHERNET_BYTES 14
#define FRAME_BYTES_MIN 60
#define ICMP_ECHO_BYTES 8

// What UDP's checksum covers, but itself and the words. RFC 768 has the pseudo-header in front.
#define UDP_FIELDS \
    hdr.ipv4.src, hdr.ipv4.dst, 8w0, hdr.ipv4.protocol, hdr.udp.length, \
    hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.length, \
    hdr.wiresum.version, hdr.wiresum.kind, hdr.wiresum.flags, hdr.wiresum.job, hdr.wiresum.key, hdr.wiresum.worker, \
    hdr.wiresum.exponent, hdr.wiresum.cell, hdr.wiresum.round, hdr.wiresum.tensor, hdr.wiresum.chunk

control SwitchVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5, IPV4_FIELDS, hdr.ipv4.checksum,
                        HashAlgorithm.csum16);
        // Over the checksum, too: then what is right comes out as zero, also where 0xFFFF stands for zero. A packet of
        // another length has no effect, whatever its checksum.
        verify_checksum(hdr.lanes.isValid() && hdr.udp.checksum != 0,
                        { UDP_FIELDS, hdr.udp.checksum, hdr.lanes.words }, meta.zero, HashAlgorithm.csum16);
        verify_checksum(hdr.wiresum.isValid() && hdr.udp.length == LENGTH_BARE && hdr.udp.checksum != 0,
                        { UDP_FIELDS, hdr.udp.checksum }, meta.zero, HashAlgorithm.csum16);
    }
}

control CheckLength(in headers_t hdr, in bit<32> frame_bytes, inout metadata_t meta) {
    apply {
        // What IPv4 says of a frame may be less than its bytes: what follows is Ethernet's padding, or nobody's.
        if (hdr.ipv4.isValid() && ETHERNET_BYTES + (bit<32>)hdr.ipv4.length > frame_bytes) {
            meta.damaged = 1;
        }
        if (hdr.icmp.isValid() && hdr.ipv4.length < IPV4_BYTES + ICMP_ECHO_BYTES) {
            meta.damaged = 1;
        }
    }
}

control SwitchComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        // Of what we wrote ourselves: what passes through keeps the checksums that it came with, right or wrong.
        update_checksum(meta.edited == 1, IPV4_FIELDS, hdr.ipv4.checksum,
                        HashAlgorithm.csum16);
        update_checksum(meta.edited == 1 && hdr.lanes.isValid(),
                        { UDP_FIELDS, hdr.lanes.words }, hdr.udp.checksum, HashAlgorithm.csum16);
        update_checksum(meta.edited == 1 && hdr.wiresum.isValid() && !hdr.lanes.isValid(),
                        { UDP_FIELDS }, hdr.udp.checksum, HashAlgorithm.csum16);
        // Zero would say that there is none. The checksum of a zero is 0xFFFF, the same number in ones' complement.
        update_checksum(meta.edited == 1 && hdr.wiresum.isValid() && hdr.udp.checksum == 0,
                        { 16w0 }, hdr.udp.checksum, HashAlgorithm.csum16);
    }
}
