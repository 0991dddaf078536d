// SPDX-License-Identifier: Apache-2.0

// What becomes of a packet to the switch, and the reason it is counted under: docs/protocol.md, sections 3 and 8.
// lab/wiresum_lab/rules_p4.toml says which row is which rule.

#define WORKER_THAT_ASKS 0

control Verdict(in headers_t hdr, inout metadata_t meta) {
    // Of no job: counted in row 0.
    @id(ACTION_REFUSE_STRAY) @name(".refuse_stray")
    action refuse_stray(@id(1) reason_t reason) {
        meta.fate = fate_t.DROP;
        meta.reason = reason;
        meta.row = 0;
    }

    @id(ACTION_REFUSE) @name(".refuse")
    action refuse(@id(1) reason_t reason) {
        meta.fate = fate_t.DROP;
        meta.reason = reason;
    }

    @id(ACTION_HOLD) @name(".hold")
    action hold() {
        meta.fate = fate_t.DROP;
        meta.reason = reason_t.ADMITTED;
    }

    @id(ACTION_COMPLETE) @name(".complete")
    action complete() {
        meta.fate = fate_t.MULTICAST;
        meta.reason = reason_t.ADMITTED;
    }

    @id(ACTION_RESEND) @name(".resend")
    action resend() {
        meta.fate = fate_t.RESEND;
        meta.reason = reason_t.RESENT;
    }

    @id(ACTION_REPORT_MISSING) @name(".report_missing")
    action report_missing() {
        meta.fate = fate_t.MISSING;
        meta.reason = reason_t.RESENT;
    }

    @id(ACTION_RAISE) @name(".raise")
    action raise() {
        meta.fate = fate_t.RAISE;
        meta.reason = reason_t.ADMITTED;
    }

    @id(ACTION_RAISE_AGAIN) @name(".raise_again")
    action raise_again() {
        meta.fate = fate_t.RAISE;
        meta.reason = reason_t.RESENT;
    }

    @id(ACTION_ASK_PARENT) @name(".ask_parent")
    action ask_parent() {
        meta.fate = fate_t.ASK;
        meta.reason = reason_t.RESENT;
    }

    @id(TABLE_VERDICT) @name(".verdict")
    @brief("What becomes of a packet to the switch, and why.")
    table verdict {
        key = {
            meta.well_formed : ternary @id(1) @name("well_formed");
            meta.admitted : ternary @id(2) @name("admitted");
            meta.fits : ternary @id(3) @name("fits");
            meta.in_lease : ternary @id(4) @name("in_lease");
            meta.relation : ternary @id(5) @name("relation");
            meta.duplicate : ternary @id(6) @name("duplicate");
            meta.others_in : ternary @id(7) @name("others_in");
            meta.done : ternary @id(8) @name("done");
            meta.seen_data : ternary @id(9) @name("seen_data");
            hdr.wiresum.kind : ternary @id(10) @name("kind");
            hdr.wiresum.worker : ternary @id(11) @name("worker");
        }
        actions = { refuse_stray; refuse; hold; complete; resend; report_missing; raise; raise_again; ask_parent; }
        const default_action = hold();
#ifdef SIZES_OF_CONSTANT_TABLES
        size = 23;
#endif
        const entries = {
            (0, _, _, _, _, _, _, _, _, _, _) : refuse_stray(reason_t.MALFORMED);
            (1, 0, _, _, _, _, _, _, _, kind_t.RESULT, _) : refuse_stray(reason_t.MALFORMED);
            (1, 0, _, _, _, _, _, _, _, kind_t.MISSING, _) : refuse_stray(reason_t.MALFORMED);
            (1, 0, _, _, _, _, _, _, _, _, _) : refuse_stray(reason_t.UNKNOWN);
            (1, 1, 0, _, _, _, _, _, _, _, _) : refuse(reason_t.MALFORMED);
            (1, 1, 1, 0, _, _, _, _, _, _, _) : refuse(reason_t.OUT_OF_LEASE);
            // What the parent alone is admitted with.
            (1, 1, 1, 1, relation_t.SAME, 0, 1, _, _, kind_t.RESULT, _) : complete();
            (1, 1, 1, 1, relation_t.SAME, 1, 1, _, _, kind_t.RESULT, _) : refuse(reason_t.DUPLICATE);
            (1, 1, 1, 1, _, _, _, _, _, kind_t.RESULT, _) : refuse(reason_t.STALE);
            (1, 1, 1, 1, relation_t.SAME, 0, 1, _, _, kind_t.MISSING, _) : raise_again();
            (1, 1, 1, 1, relation_t.SAME, 1, 1, _, _, kind_t.MISSING, _) : refuse(reason_t.DUPLICATE);
            (1, 1, 1, 1, _, _, _, _, _, kind_t.MISSING, _) : refuse(reason_t.STALE);
            // What workers are.
            (1, 1, 1, 1, relation_t.OLDER, _, _, _, _, _, _) : refuse(reason_t.STALE);
            // All are in, and the parent has not answered. All workers wait for the same answer, so one of them asks.
            (1, 1, 1, 1, _, 1, 1, 0, 1, _, WORKER_THAT_ASKS) : ask_parent();
            (1, 1, 1, 1, _, 1, 1, 0, 0, kind_t.DATA, WORKER_THAT_ASKS) : ask_parent();
            (1, 1, 1, 1, _, 1, 1, 0, 0, _, WORKER_THAT_ASKS) : raise_again();
            (1, 1, 1, 1, _, 1, 1, 0, _, _, _) : refuse(reason_t.DUPLICATE);
            // Everything else; the last row is for where there is a parent.
            // TODO: what becomes of a packet that is in order. Five rows; the first that matches counts.
            (1, 1, 1, 1, _, 0, 1, 0, _, _, _) : raise();
        }
    }

    apply {
        verdict.apply();
    }
}
