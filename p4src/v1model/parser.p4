// SPDX-License-Identifier: Apache-2.0

// What is not understood is left in the payload, and so forwarded as it came.

parser SwitchParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
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
        meta.asked_address = hdr.arp.target_address;
        transition accept;
    }

    state ipv4 {
        packet.extract(hdr.ipv4);
        meta.asked_address = hdr.ipv4.dst;
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
        meta.to_switch_port = 1;
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

control SwitchDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}
