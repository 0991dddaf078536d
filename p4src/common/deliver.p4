// SPDX-License-Identifier: Apache-2.0

// Addresses a copy of a RESULT, or a MISSING, or what goes to the parent, to its receiver. Runs once for each copy.

control Deliver(inout headers_t hdr, inout metadata_t meta) {
    // port: of the receiver's thread 0.
    @id(ACTION_DELIVER_TO) @name(".deliver_to")
    action deliver_to(@id(1) @format(MAC_ADDRESS) mac_t mac, @id(2) @format(IPV4_ADDRESS) address_t address,
                      @id(3) bit<16> port) {
        hdr.ethernet.dst = mac;
        hdr.ipv4.dst = address;
        hdr.udp.dst_port = port + meta.thread;
    }

    // To the parent, which knows this switch as one of its workers.
    @id(ACTION_DELIVER_UP) @name(".deliver_up")
    action deliver_up(@id(1) @format(MAC_ADDRESS) mac_t mac, @id(2) @format(IPV4_ADDRESS) address_t address,
                      @id(3) bit<16> port, @id(4) worker_t worker) {
        deliver_to(mac, address, port);
        hdr.wiresum.worker = worker;
    }

    // A copy for which there is no entry goes nowhere: its job has just ended.
    @id(ACTION_NO_RECEIVER) @name(".no_receiver")
    action no_receiver() {
        meta.lost = 1;
    }

    @id(TABLE_DELIVER) @name(".deliver")
    @brief("How a copy is addressed to its receiver.")
    table deliver {
        key = {
            hdr.wiresum.job : exact @id(1) @name("job");
            meta.receiver : exact @id(2) @name("receiver");
        }
        actions = { deliver_to; deliver_up; @defaultonly no_receiver; }
        const default_action = no_receiver();
        size = DELIVER_ENTRIES;
    }

    apply {
        deliver.apply();
    }
}
