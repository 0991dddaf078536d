// SPDX-License-Identifier: Apache-2.0

// The addresses of the switch itself. A frame to its MAC and IPv4 address is for this program, and an ARP request for
// that address, which may be a broadcast. All others belong to somebody else and are forwarded untouched, whatever their
// port: as at a host, an IPv4 address alone makes no packet the switch's.

control Own(in headers_t hdr, inout metadata_t meta) {
    @id(ACTION_OWN_ADDRESS) @name(".own_address")
    action own_address(@id(1) @format(MAC_ADDRESS) mac_t mac) {
        meta.own_mac = mac;
        meta.fate = fate_t.DROP;  // until a later stage knows better
        meta.reason = reason_t.OTHER;
    }

    // A number that a controller leaves for the next one, under an address that is nobody's.
    @id(ACTION_NOTE) @name(".note") @noWarn("unused")
    action note(@id(1) bit<48> number) {
    }

    @id(TABLE_OWN) @name(".own")
    @brief("The switch itself: packets to these addresses are for this program.")
    table own {
        key = {
            meta.asked_address : exact @id(1) @name("address") @format(IPV4_ADDRESS);
            hdr.ethernet.dst : exact @id(2) @name("destination") @format(MAC_ADDRESS);
        }
        actions = { own_address; note; @defaultonly NoAction; }
        const default_action = NoAction();
        size = OWN_ENTRIES;
    }

    apply {
        own.apply();
    }
}

// ARP and ping: enough for hosts to find the switch and for people to test the path.
control Answer(inout headers_t hdr, inout metadata_t meta) {
    apply {
        if (hdr.arp.isValid()) {
            if (hdr.arp.operation == ARP_REQUEST) {
                hdr.ethernet.dst = hdr.arp.sender_mac;
                hdr.ethernet.src = meta.own_mac;
                hdr.arp.operation = ARP_REPLY;
                hdr.arp.target_mac = hdr.arp.sender_mac;
                hdr.arp.target_address = hdr.arp.sender_address;
                hdr.arp.sender_mac = meta.own_mac;
                hdr.arp.sender_address = meta.asked_address;
                meta.fate = fate_t.ANSWER;
            }
        } else if (hdr.icmp.isValid() && meta.damaged == 0) {
            if (hdr.icmp.icmp_type == ICMP_ECHO_REQUEST && hdr.icmp.code == 0) {
                hdr.ethernet.dst = hdr.ethernet.src;
                hdr.ethernet.src = meta.own_mac;
                hdr.ipv4.dst = hdr.ipv4.src;
                hdr.ipv4.src = meta.asked_address;
                hdr.ipv4.ttl = IPV4_TTL;
                hdr.icmp.icmp_type = ICMP_ECHO_REPLY;
                // The type is 8 less, in the upper byte of a word: the ones' complement sum grows by 0x0800.
                if (hdr.icmp.checksum >= 0xF800) {
                    hdr.icmp.checksum = hdr.icmp.checksum + 0x0801;
                } else {
                    hdr.icmp.checksum = hdr.icmp.checksum + 0x0800;
                }
                meta.edited = 1;
                meta.fate = fate_t.ANSWER;
            }
        }
    }
}
