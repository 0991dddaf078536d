// SPDX-License-Identifier: Apache-2.0

// What the controller reads to say how a job fares, and who lags.

control Count(in headers_t hdr, in metadata_t meta, in pass_t pass) {
    // By job and reason: row * REASONS + reason.
    @id(COUNTER_PACKETS) @name(".packets")
    Counter<bit<64>, bit<11>>(JOB_ROWS * REASONS, CounterType_t.PACKETS) packets;

    // By job and worker, those that were admitted: row * SWITCH_WORKERS_MAX + worker.
    @id(COUNTER_CONTRIBUTIONS) @name(".contributions")
    Counter<bit<64>, bit<13>>(JOB_ROWS * SWITCH_WORKERS_MAX, CounterType_t.PACKETS) contributions;

    // By job: cells completed.
    @id(COUNTER_RESULTS) @name(".results")
    Counter<bit<64>, row_t>(JOB_ROWS, CounterType_t.PACKETS) results;

    action count_packet() {
        packets.count(meta.row ++ (bit<3>)meta.reason);
    }

    action count_contribution() {
        contributions.count(meta.row ++ hdr.wiresum.worker[4:0]);
    }

    action count_result() {
        results.count(meta.row);
    }

    @hidden
    table packet {
        key = {
            pass.second : ternary;
            meta.fate : ternary;
        }
        actions = { count_packet; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (0, fate_t.DROP) : count_packet();
            (0, fate_t.MULTICAST) : count_packet();
            (0, fate_t.RESEND) : count_packet();
            (0, fate_t.ANSWER) : count_packet();
            (0, fate_t.MISSING) : count_packet();
            (0, fate_t.RAISE) : count_packet();
            (0, fate_t.ASK) : count_packet();
        }
    }

    @hidden
    table contribution {
        key = {
            pass.second : ternary;
            meta.fate : ternary;
            meta.reason : ternary;
            hdr.wiresum.kind : ternary;
        }
        actions = { count_contribution; NoAction; }
        const default_action = NoAction();
        const entries = {
            (0, fate_t.DROP, reason_t.ADMITTED, _) : count_contribution();
            (0, fate_t.MULTICAST, reason_t.ADMITTED, kind_t.RESULT) : NoAction();
            (0, fate_t.MULTICAST, reason_t.ADMITTED, _) : count_contribution();
            (0, fate_t.RAISE, reason_t.ADMITTED, _) : count_contribution();
        }
    }

    @hidden
    table result {
        key = {
            pass.second : ternary;
            meta.fate : ternary;
        }
        actions = { count_result; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (0, fate_t.MULTICAST) : count_result();
        }
    }

    apply {
        packet.apply();
        contribution.apply();
        result.apply();
    }
}
