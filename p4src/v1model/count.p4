// SPDX-License-Identifier: Apache-2.0

// What the controller reads to say how a job fares, and who lags.

control Count(in headers_t hdr, in metadata_t meta) {
    // By job and reason: row * REASONS + reason.
    @id(COUNTER_PACKETS) @name(".packets")
    counter(JOB_ROWS * REASONS, CounterType.packets) packets;

    // By job and worker, those that were admitted: row * SWITCH_WORKERS_MAX + worker.
    @id(COUNTER_CONTRIBUTIONS) @name(".contributions")
    counter(JOB_ROWS * SWITCH_WORKERS_MAX, CounterType.packets) contributions;

    // By job: cells completed.
    @id(COUNTER_RESULTS) @name(".results")
    counter(JOB_ROWS, CounterType.packets) results;

    apply {
        packets.count((bit<32>)(meta.row ++ (bit<3>)meta.reason));
        if (meta.reason == reason_t.ADMITTED && hdr.wiresum.kind != kind_t.RESULT) {
            contributions.count((bit<32>)(meta.row ++ hdr.wiresum.worker[4:0]));
        }
        if (meta.fate == fate_t.MULTICAST) {
            results.count((bit<32>)meta.row);
        }
    }
}
