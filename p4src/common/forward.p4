// SPDX-License-Identifier: Apache-2.0

// Everything that is not for the switch: Ethernet, by destination. The controller writes the hosts; the rest is flooded.

control Forward(in headers_t hdr, inout metadata_t meta) {
    @id(ACTION_FORWARD_TO) @name(".forward_to")
    action forward_to(@id(1) port_t port) {
        meta.forward_port = port;
    }

    @id(ACTION_FLOOD) @name(".flood")
    action flood() {
        meta.flooded = 1;
    }

    @id(TABLE_FORWARD) @name(".forward")
    @brief("Where other hosts are.")
    table forward {
        key = { hdr.ethernet.dst : exact @id(1) @name("mac") @format(MAC_ADDRESS); }
        actions = { forward_to; flood; }
        default_action = flood();
        size = FORWARD_ENTRIES;
    }

    apply {
        forward.apply();
    }
}
