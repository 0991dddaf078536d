// Who may contribute: one entry for each worker of a job and each of its threads, written by the controller. A packet
// that none matches has no effect on any job.

control Admit(in headers_t hdr, inout metadata_t meta) {
    // lease_mask has ones above the cells of this thread's part of the lease, lease_prefix says what must stand there;
    // cell_base is what the switch adds to a cell of the wire.
    @id(ACTION_ADMIT_WORKER) @name(".admit_worker")
    action admit_worker(row_t row, group_t group, bitmap_t bit_own, bitmap_t bit_others, cell_t cell_base,
                        cell_t lease_mask, cell_t lease_prefix) {
        meta.admitted = 1;
        meta.row = row;
        meta.group = group;
        meta.bit_own = bit_own;
        meta.bit_others = bit_others;
        meta.cell_index = hdr.wiresum.cell + cell_base;
        meta.cell_prefix = hdr.wiresum.cell & lease_mask;
        meta.lease_prefix = lease_prefix;
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

    apply {
        admit.apply();
        if (meta.cell_prefix == meta.lease_prefix) {
            meta.in_lease = 1;
        }
    }
}
