// SPDX-License-Identifier: Apache-2.0

// The switch program for bmv2 (v1model). docs/switch_program.md walks through it.
//
// A packet's path:
//
//   parser
//     own               to the switch itself?  -- no --> forward
//     checksums         is it whole?
//      |  |
//      |  +-- answer    ARP and ping
//     form              of this protocol?
//     admit             from whom?
//     cells             what does its cell know?
//     verdict           what becomes of it?
//     lanes             the words
//     count
//     result            what is alike for all receivers
//   replication         one copy for each receiver
//     deliver           each copy becomes its receiver's
//   checksums, deparser

#include <core.p4>
#include <v1model.p4>

#include "../common/sizes.p4"
#include "../common/ids.p4"
#include "../common/wire.p4"
#include "../common/metadata.p4"
#include "headers.p4"
#include "../common/own.p4"
#include "../common/form.p4"
#include "../common/admit.p4"
#include "../common/verdict.p4"
#include "../common/result.p4"
#include "../common/forward.p4"
#include "../common/deliver.p4"
#include "parser.p4"
#include "checksums.p4"
#include "cells.p4"
#include "lanes.p4"
#include "count.p4"

// What a worker sent to the switch's port.
control Aggregate(inout headers_t hdr, inout metadata_t meta) {
    Form() form;
    Admit() admit;
    Cells() cells;
    Lanes() lanes;
    Verdict() verdict;

    apply {
        form.apply(hdr, meta);
        if (meta.well_formed == 1) {
            admit.apply(hdr, meta);
        }
        bool has_cell = meta.admitted == 1 && meta.fits == 1 && meta.in_lease == 1;
        if (has_cell) {
            cells.apply(hdr, meta);
        }
        verdict.apply(hdr, meta);
        if (has_cell && meta.relation != relation_t.OLDER) {
            lanes.apply(hdr, meta);
        }
        meta.bare = hdr.lanes.isValid() ? 0 : 1w1;
    }
}

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    CheckLength() check_length;
    Own() own;
    Aggregate() aggregate;
    Answer() answer;
    Count() count;
    Result() result;
    Forward() forward;

    apply {
        meta.ingress_port = standard.ingress_port;
        meta.damaged = (bit<1>)(standard.parser_error != error.NoError || standard.checksum_error == 1);
        own.apply(hdr, meta);
        if (meta.fate == fate_t.PASS) {
            forward.apply(hdr, meta);
        } else {
            check_length.apply(hdr, standard.packet_length, meta);
            if (meta.to_switch_port == 1) {
                aggregate.apply(hdr, meta);
            } else {
                answer.apply(hdr, meta);
            }
            count.apply(hdr, meta);
            if (meta.fate != fate_t.DROP && meta.fate != fate_t.ANSWER) {
                result.apply(hdr, meta);
            }
        }

        if (meta.fate == fate_t.MULTICAST) {
            standard.mcast_grp = meta.group;
        } else if (meta.fate == fate_t.RAISE || meta.fate == fate_t.ASK) {
            standard.mcast_grp = meta.group | UPLINK_GROUPS;
        } else if (meta.fate == fate_t.RESEND || meta.fate == fate_t.MISSING || meta.fate == fate_t.ANSWER) {
            standard.egress_spec = standard.ingress_port;
        } else if (meta.fate == fate_t.DROP) {
            mark_to_drop(standard);
        } else if (meta.flooded == 1) {
            standard.mcast_grp = FLOOD_GROUP;
        } else {
            standard.egress_spec = meta.forward_port;
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Deliver() deliver;

    apply {
        if (meta.fate != fate_t.PASS && meta.fate != fate_t.DROP && meta.fate != fate_t.ANSWER) {
            if (meta.fate == fate_t.RESEND || meta.fate == fate_t.MISSING) {
                meta.receiver = hdr.wiresum.worker;
            } else {
                meta.receiver = (worker_t)standard.egress_rid;
            }
            deliver.apply(hdr, meta);
        } else if (meta.fate == fate_t.PASS && standard.egress_port == standard.ingress_port) {
            meta.lost = 1;  // whoever is behind this port has had it already
        }
        // What followed the datagram that came is no part of the one that leaves.
        if (meta.edited == 1) {
            truncate(ETHERNET_BYTES + (bit<32>)hdr.ipv4.length);
        } else if (meta.fate == fate_t.ANSWER) {
            truncate(FRAME_BYTES_MIN);
        }
        if (meta.lost == 1) {
            mark_to_drop(standard);
        }
    }
}

@pkginfo(name=PROGRAM_NAME, version=PROGRAM_VERSION)
V1Switch(SwitchParser(), SwitchVerifyChecksum(), SwitchIngress(), SwitchEgress(), SwitchComputeChecksum(),
         SwitchDeparser()) main;
