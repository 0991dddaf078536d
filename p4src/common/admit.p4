// Who may contribute: one entry for each worker of a job and each of its threads, written by the controller. And where
// the switch has another above it in a job's tree: who that is. A packet that no entry matches has no effect on any job.

control Admit(in headers_t hdr, inout metadata_t meta) {
    // lease_mask has ones above the cells of this thread's part of the lease, lease_prefix says what must stand there;
    // cell_base is what the switch adds to a cell of the wire. bit_parent is 0 where there is no switch above.
    @id(ACTION_ADMIT_WORKER) @name(".admit_worker")
    action admit_worker(row_t row, group_t group, bitmap_t bit_own, bitmap_t bit_others, bitmap_t bit_parent,
                        cell_t cell_base, cell_t lease_mask, cell_t lease_prefix, port_t uplink_port,
                        worker_t uplink_worker) {
        meta.admitted = 1;
        meta.row = row;
        meta.contributor = hdr.wiresum.worker[4:0];
        meta.group = group;
        meta.bit_own = bit_own;
        meta.bit_others = bit_others;
        meta.bit_parent = bit_parent;
        meta.cell_index = hdr.wiresum.cell + cell_base;
        meta.cell_prefix = hdr.wiresum.cell & lease_mask;
        meta.lease_prefix = lease_prefix;
        meta.uplink_port = uplink_port;
        meta.uplink_worker = uplink_worker;
    }

    // The parent has a bit, too: bit_own; bit_others are all workers'.
    @id(ACTION_ADMIT_PARENT) @name(".admit_parent")
    action admit_parent(row_t row, group_t group, bitmap_t bit_own, bitmap_t bit_others, cell_t cell_base,
                        cell_t lease_mask, cell_t lease_prefix, port_t uplink_port, worker_t uplink_worker) {
        admit_worker(row, group, bit_own, bit_others, bit_own, cell_base, lease_mask, lease_prefix, uplink_port,
                     uplink_worker);
        meta.from_parent = 1;
    }

    @id(TABLE_ADMIT) @name(".admit")
    table admit {
        key = {
            meta.ingress_port : exact @name("ingress_port");
            hdr.ipv4.src : exact @name("source");
            hdr.udp.src_port : exact @name("source_port");
            hdr.udp.dst_port[3:0] : exact @name("thread");
            hdr.wiresum.job : exact @name("job");
            hdr.wiresum.key : exact @name("key");
            hdr.wiresum.worker : exact @name("worker");
        }
        actions = { admit_worker; @defaultonly NoAction; }
        const default_action = NoAction();
        size = ADMIT_ENTRIES;
    }

    // Whoever completed the sum above: its worker is no key.
    @id(TABLE_ADMIT_PARENT) @name(".admit_parent_entry")
    table admit_parent_entry {
        key = {
            meta.ingress_port : exact @name("ingress_port");
            hdr.ipv4.src : exact @name("source");
            hdr.udp.src_port : exact @name("source_port");
            hdr.udp.dst_port[3:0] : exact @name("thread");
            hdr.wiresum.job : exact @name("job");
            hdr.wiresum.key : exact @name("key");
        }
        actions = { admit_parent; @defaultonly NoAction; }
        const default_action = NoAction();
        size = ADMIT_PARENT_ENTRIES;
    }

    apply {
        if (hdr.wiresum.kind == KIND_RESULT || hdr.wiresum.kind == KIND_MISSING) {
            admit_parent_entry.apply();
        } else {
            admit.apply();
        }
        if (meta.cell_prefix == meta.lease_prefix) {
            meta.in_lease = 1;
        }
    }
}
