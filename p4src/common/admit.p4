// SPDX-License-Identifier: Apache-2.0

// Who may contribute: one entry for each worker of a job and each of its threads, written by the controller. And where
// the switch has another above it in a job's tree: who that is. A packet that no entry matches has no effect on any job.

control Admit(in headers_t hdr, inout metadata_t meta) {
    // lease_mask has ones above the cells of this thread's part of the lease, lease_prefix says what must stand there;
    // cell_base is what the switch adds to a cell of the wire. bit_others are all whose contributions make a cell
    // complete but the sender's: with has_parent PARENT_BIT among them.
    @id(ACTION_ADMIT_WORKER) @name(".admit_worker")
    action admit_worker(@id(1) row_t row, @id(2) group_t group, @id(3) bitmap_t bit_own, @id(4) bitmap_t bit_others,
                        @id(5) bit<1> has_parent, @id(6) cell_t cell_base, @id(7) cell_t lease_mask,
                        @id(8) cell_t lease_prefix) {
        meta.admitted = 1;
        meta.row = row;
        meta.group = group;
        meta.bit_own = bit_own;
        meta.bit_others = bit_others;
        meta.has_parent = has_parent;
        meta.cell_index = hdr.wiresum.cell + cell_base;
        meta.cell_prefix = hdr.wiresum.cell & lease_mask;
        meta.lease_prefix = lease_prefix;
    }

    // bit_workers are those without whom there is nothing to answer.
    @id(ACTION_ADMIT_PARENT) @name(".admit_parent")
    action admit_parent(@id(1) row_t row, @id(2) group_t group, @id(3) bitmap_t bit_workers, @id(4) cell_t cell_base,
                        @id(5) cell_t lease_mask, @id(6) cell_t lease_prefix) {
        admit_worker(row, group, PARENT_BIT, bit_workers, 0, cell_base, lease_mask, lease_prefix);
    }

    @id(TABLE_ADMIT) @name(".admit")
    // Counters have a column for each of SWITCH_WORKERS_MAX workers, and no key is 0: nobody's.
    @entry_restriction("worker < 32 && key != 0")
    @brief("Who may contribute to which cells: a job, key, worker and thread, and where they come from.")
    table admit {
        key = {
            meta.ingress_port : exact @id(1) @name("ingress_port");
            hdr.ipv4.src : exact @id(2) @name("source") @format(IPV4_ADDRESS);
            hdr.udp.src_port : exact @id(3) @name("source_port");
            hdr.udp.dst_port[3:0] : exact @id(4) @name("thread");
            hdr.wiresum.job : exact @id(5) @name("job");
            hdr.wiresum.key : exact @id(6) @name("key");
            hdr.wiresum.worker : exact @id(7) @name("worker");
        }
        actions = { admit_worker; @defaultonly NoAction; }
        const default_action = NoAction();
        size = ADMIT_ENTRIES;
    }

    // The header that the parent echoes may be of any of its workers: which one is no key.
    @id(TABLE_ADMIT_PARENT) @name(".admit_parent_entry")
    @entry_restriction("key != 0")
    @brief("Where the switch above is, in a job's tree: whose RESULT and MISSING count.")
    table admit_parent_entry {
        key = {
            meta.ingress_port : exact @id(1) @name("ingress_port");
            hdr.ipv4.src : exact @id(2) @name("source") @format(IPV4_ADDRESS);
            hdr.udp.src_port : exact @id(3) @name("source_port");
            hdr.udp.dst_port[3:0] : exact @id(4) @name("thread");
            hdr.wiresum.job : exact @id(5) @name("job");
            hdr.wiresum.key : exact @id(6) @name("key");
        }
        actions = { admit_parent; @defaultonly NoAction; }
        const default_action = NoAction();
        size = ADMIT_PARENT_ENTRIES;
    }

    apply {
        if (hdr.wiresum.kind == kind_t.RESULT || hdr.wiresum.kind == kind_t.MISSING) {
            admit_parent_entry.apply();
        } else {
            admit.apply();
        }
        if (meta.cell_prefix == meta.lease_prefix) {
            meta.in_lease = 1;
        }
    }
}
