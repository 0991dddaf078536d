// SPDX-License-Identifier: Apache-2.0

// What is not understood is left in the payload, and so forwarded as it came.

parser IngressParser(packet_in packet, out headers_t hdr, out ingress_metadata_t meta,
                     out ingress_intrinsic_metadata_t intrinsic) {
    Checksum() ipv4_checksum;

    state start {
        meta = ...;
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        meta.shared.ingress_port = intrinsic.ingress_port;
#ifdef TWO_PASSES
        transition select(intrinsic.ingress_port) {
            RECIRCULATION_PORT &&& PORT_IN_PIPE_MASK : second_pass;
            default : ethernet;
        }
    }

    // What the first pass sent: always the same headers, even where it had no words to begin with.
    state second_pass {
        packet.extract(hdr.carry);
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.wiresum);
        transition lanes;
#else
        transition ethernet;
#endif
    }

    state ethernet {
        packet.extract(hdr.ethernet);
        // The lowest bit of the first byte: a broadcast or multicast. Of those only ARP is for the switch.
        transition select(hdr.ethernet.dst[40:40], hdr.ethernet.ether_type) {
            (0, ETHERTYPE_IPV4) : ipv4;
            (_, ETHERTYPE_ARP) : arp;
            default : accept;
        }
    }

    state arp {
        packet.extract(hdr.arp);
        transition select(hdr.arp.protocol_type, hdr.arp.hardware_length, hdr.arp.protocol_length) {
            (ETHERTYPE_IPV4, 6, 4) : arp_ipv4;
            default : accept;
        }
    }

    state arp_ipv4 {
        meta.shared.asked_address = hdr.arp.target_address;
        transition accept;
    }

    state ipv4 {
        packet.extract(hdr.ipv4);
        ipv4_checksum.add(hdr.ipv4);
        meta.shared.damaged = (bit<1>)ipv4_checksum.verify();  // true: it is wrong
        meta.shared.asked_address = hdr.ipv4.dst;
        // Neither options nor fragments.
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.flags[0:0], hdr.ipv4.fragment_offset,
                          hdr.ipv4.protocol) {
            (4, 5, 0, 0, PROTOCOL_UDP) : udp;
            (4, 5, 0, 0, PROTOCOL_ICMP) : icmp;
            default : accept;
        }
    }

    state icmp {
        packet.extract(hdr.icmp);
        transition accept;
    }

    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            SWITCH_PORT &&& SWITCH_PORT_MASK : to_switch_port;
            default : accept;
        }
    }

    state to_switch_port {
        meta.shared.to_switch_port = 1;
        // The upper bits: is the length below 32, that of a packet without payload?
        transition select(hdr.udp.length[15:5]) {
            0 : accept;
            default : wiresum;
        }
    }

    state wiresum {
        packet.extract(hdr.wiresum);
        transition select(hdr.wiresum.kind, hdr.udp.length) {
            (kind_t.DATA, LENGTH_FULL) : lanes;
            (kind_t.RESULT, LENGTH_FULL) : lanes;
            default : accept;
        }
    }

    state lanes {
        packet.extract(hdr.lanes);
        transition accept;
    }
}

control IngressDeparser(packet_out packet, inout headers_t hdr, in ingress_metadata_t meta,
                        in ingress_intrinsic_metadata_for_deparser_t for_deparser) {
    Checksum() ipv4_checksum;

    apply {
        if (meta.shared.edited == 1) {
            hdr.ipv4.checksum = ipv4_checksum.update(IPV4_FIELDS);
        }
        packet.emit(hdr);
    }
}

// What comes here is a packet of others, which passes untouched, or one of this protocol, whose words pass untouched.
parser EgressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                    out egress_intrinsic_metadata_t intrinsic) {
    state start {
        meta = ...;
        packet.extract(intrinsic);
        packet.extract(hdr.carry);
        transition select(hdr.carry.fate) {
            fate_t.PASS : of_others;
            default : result;
        }
    }

    state of_others {
        packet.extract(hdr.leading);
        transition accept;
    }

    state result {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.wiresum);
        transition accept;
    }
}

control EgressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                       in egress_intrinsic_metadata_for_deparser_t for_deparser) {
    Checksum() ipv4_checksum;

    apply {
        if (meta.edited == 1) {
            hdr.ipv4.checksum = ipv4_checksum.update(IPV4_FIELDS);
        }
        packet.emit(hdr.leading);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.wiresum);
    }
}
