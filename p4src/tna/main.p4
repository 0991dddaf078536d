// SPDX-License-Identifier: Apache-2.0

// The switch program for Tofino 1 and 2 (TNA, T2NA). docs/tofino_design.md has the stage plan, docs/tofino.md how to build it.
//
// A packet's path is that of v1model/main.p4, but what is independent is asked at once, since stages are few: is it to
// the switch itself, of this protocol, from whom?
//
//   IngressParser <------------------------------------------------+
//     own, form, admit         to the switch? of what form? whose?   |
//     cells                    owner and round, bitmap, the rest     |
//     lanes                    the words; beside them forward,       |
//     verdict, answer, count   what becomes of it                    |
//     leave                    which way out                         |
//   IngressDeparser            puts `carry` in front                 |
//        |                                                           |
//        +-- Tofino 1, a sum with its words: recirculation port -----+
//        |
//   replication                one copy for each receiver
//        |
//   EgressParser               `carry` and headers, not the words
//     result, deliver          each copy becomes its receiver's
//   EgressDeparser
//
// Tofino 1 alone has two passes, of what leaves with the words of a sum. A stateful ALU there hands out one word of a
// pair, so the first pass adds the words and reads one half of the sum, then the packet goes back to the ingress through
// the recirculation port and reads the other half. Tofino 2 hands out both words, and each packet passes once.
//
// Between the passes others may write the cell only if they have the result already (docs/protocol_reasons.md, section
// 3). A packet whose round is no longer its cell's is dropped all the same: never do two rounds' words leave in one
// packet. Below a parent its RESULT may replace the words between the passes of a sum that goes up for the second time.
// That RESULT proves that the parent has this switch's contribution, so the packet is a duplicate there, and only read.

#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#else
#include <tna.p4>
#endif

// This compiler wants the size of a table whose entries are all constant, and bmv2's warns if it is given.
#define SIZES_OF_CONSTANT_TABLES

#include "../common/sizes.p4"
#include "../common/ids.p4"
#include "../common/wire.p4"
#include "../common/metadata.p4"

#if __TARGET_TOFINO__ == 1
#define TWO_PASSES
// Each pipe has a port that leads back to its ingress; ports are numbered pipe first.
#ifndef RECIRCULATION_PORT
#define RECIRCULATION_PORT 68
#endif
#define PORT_IN_PIPE_MASK 0x7F
// Queues of a port. On its way to the second pass a sum that its job waits for has another than one that a worker or a
// parent asks for again: of sums there are no more than contributions, but anybody may ask, with packets a fifth as long
// as the answer. docs/tofino_deploy.md says how the first gets the higher priority. Everything else is in queue 0.
#define QUEUE_OF_ANSWERS 0
#define QUEUE_OF_SUMS 1
#endif

// Of one pass through the ingress.
struct pass_t {
    bit<1> second;        // 0 on Tofino 2
    bit<1> compared;      // with the cell's owner and round
    bit<32> tag;          // the packet's round, as cells.p4 has it
    bitmap_t own_before;  // this worker's bit, if it had contributed before
    bitmap_t missing;     // who of the others has not
    bit<1> replaces;      // the cell's words, by the parent's: it is the RESULT that the cell waits for
}

struct ingress_metadata_t {
    metadata_t shared;  // with the egress, and with other targets' programs
    pass_t pass;
}

#include "headers.p4"
#include "../common/own.p4"
#include "../common/form.p4"
#include "../common/admit.p4"
#include "../common/verdict.p4"
#include "../common/result.p4"
#include "../common/forward.p4"
#include "../common/deliver.p4"
#include "parser.p4"
#include "cells.p4"
#include "lanes.p4"
#include "count.p4"

// What leaves with the words of a sum has only half of them after the first of two passes.
#ifdef TWO_PASSES
#define WITH_SUM(way) sum_again
#define WITH_ANSWER(way) answer_again
#else
#define WITH_SUM(way) way
#define WITH_ANSWER(way) way
#endif

// Where the packet goes from this pass.
control Leave(inout headers_t hdr, in metadata_t meta, in pass_t pass, in ingress_intrinsic_metadata_t intrinsic,
              inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
              inout ingress_intrinsic_metadata_for_tm_t for_tm) {
    action carry(bit<1> bare) {
        hdr.carry.setValid();
        hdr.carry.fate = meta.fate;
        hdr.carry.bare = bare;
        hdr.carry.diverged = meta.diverged;
        hdr.carry.ingress_port = meta.ingress_port;
        hdr.carry.cell_index = meta.cell_index;
        hdr.carry.group = meta.group;
        // What the architecture is told has no value before it is written: its container may have been another field's. So
        // all that leaves says whether it bypasses the egress, its queue if any has one, and whether it is dropped.
        for_tm.bypass_egress = 0;
#ifdef TWO_PASSES
        for_tm.qid = 0;
#endif
    }

    action carry_words() {
        carry(0);
    }

    action carry_bare() {
        carry(1);
        hdr.lanes.setInvalid();
    }

    action drop() {
        for_deparser.drop_ctl = 1;
    }

#ifdef TWO_PASSES
    action pass_again(bit<5> queue) {
        carry_words();
        for_tm.ucast_egress_port = intrinsic.ingress_port[8:7] ++ (bit<7>)RECIRCULATION_PORT;
        for_tm.bypass_egress = 1;
        for_tm.qid = queue;
    }

    action sum_again() {
        pass_again(QUEUE_OF_SUMS);
    }

    action answer_again() {
        pass_again(QUEUE_OF_ANSWERS);
    }
#endif

    action multicast() {
        carry_words();
        for_tm.mcast_grp_a = meta.group;
    }

    action multicast_bare() {
        carry_bare();
        for_tm.mcast_grp_a = meta.group;
    }

    action resend() {
        carry_words();
        for_tm.ucast_egress_port = meta.ingress_port;
    }

    action resend_bare() {
        carry_bare();
        for_tm.ucast_egress_port = meta.ingress_port;
    }

    action raise() {
        carry_words();
        for_tm.mcast_grp_a = meta.group | UPLINK_GROUPS;
    }

    action raise_bare() {
        carry_bare();
        for_tm.mcast_grp_a = meta.group | UPLINK_GROUPS;
    }

    action answer() {
        for_tm.ucast_egress_port = meta.ingress_port;
        for_tm.bypass_egress = 1;
#ifdef TWO_PASSES
        for_tm.qid = 0;
#endif
    }

    action flood() {
        carry_words();
        for_tm.mcast_grp_a = FLOOD_GROUP;
    }

    action forward() {
        carry_words();
        for_tm.ucast_egress_port = meta.forward_port;
    }

    @hidden
    table leave {
        key = {
            meta.fate : ternary;
            pass.second : ternary;
            meta.relation : ternary;
            hdr.wiresum.kind : ternary;
            hdr.lanes.isValid() : ternary @name("has_words");
            meta.seen_data : ternary;
            meta.flooded : ternary;
        }
        actions = {
#ifdef TWO_PASSES
            sum_again; answer_again;
#endif
            drop; multicast; multicast_bare; resend; resend_bare; raise; raise_bare; answer; flood; forward;
        }
        const default_action = drop();
        const entries = {
#ifdef TWO_PASSES
            (fate_t.MULTICAST, 1, relation_t.SAME, _, _, _, _) : multicast();
            (fate_t.RESEND, 1, relation_t.SAME, _, _, _, _) : resend();
            (fate_t.RAISE, 1, relation_t.SAME, _, _, _, _) : raise();
            (_, 1, _, _, _, _, _) : drop();  // the cell has gone on to another round
#endif
            (fate_t.MULTICAST, 0, _, kind_t.RESULT, false, _, _) : multicast_bare();
            (fate_t.MULTICAST, 0, _, kind_t.META, _, _, _) : multicast_bare();
            (fate_t.MULTICAST, 0, _, kind_t.DATA, _, _, _) : WITH_SUM(multicast)();
            (fate_t.MULTICAST, 0, _, _, _, 1, _) : WITH_SUM(multicast)();
            (fate_t.MULTICAST, 0, _, _, _, 0, _) : multicast();  // zeros, or the parent's words
            (fate_t.RESEND, 0, _, kind_t.META, _, _, _) : resend_bare();
            (fate_t.RESEND, 0, _, kind_t.DATA, _, _, _) : WITH_ANSWER(resend)();
            (fate_t.RESEND, 0, _, _, _, 1, _) : WITH_ANSWER(resend)();
            (fate_t.RESEND, 0, _, _, _, 0, _) : resend();
            (fate_t.MISSING, 0, _, _, _, _, _) : resend_bare();
            (fate_t.RAISE, 0, _, kind_t.DATA, _, _, _) : WITH_SUM(raise)();
            (fate_t.RAISE, 0, _, kind_t.MISSING, _, 1, _) : WITH_ANSWER(raise)();
            (fate_t.RAISE, 0, _, _, _, 1, _) : WITH_SUM(raise)();
            (fate_t.RAISE, 0, _, _, _, 0, _) : raise_bare();
            (fate_t.ASK, 0, _, _, _, _, _) : raise_bare();
            (fate_t.ANSWER, _, _, _, _, _, _) : answer();
            (fate_t.PASS, _, _, _, _, _, 1) : flood();
            (fate_t.PASS, _, _, _, _, _, 0) : forward();
        }
    }

    apply {
        leave.apply();
    }
}

// Two tables of one stage cannot write into one container. So that the compiler need not find out late, what the tables
// of the first stages write has containers of its own.
@pa_solitary("ingress", "meta.shared.fate")
@pa_solitary("ingress", "meta.shared.admitted")
@pa_solitary("ingress", "meta.shared.fits")
@pa_solitary("ingress", "meta.shared.in_lease")
@pa_solitary("ingress", "meta.shared.relation")
@pa_solitary("ingress", "meta.shared.seen_data")
@pa_solitary("ingress", "meta.shared.diverged")
@pa_solitary("ingress", "meta.pass.second")
@pa_solitary("ingress", "meta.pass.compared")
control Ingress(inout headers_t hdr, inout ingress_metadata_t meta, in ingress_intrinsic_metadata_t intrinsic,
                in ingress_intrinsic_metadata_from_parser_t from_parser,
                inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
                inout ingress_intrinsic_metadata_for_tm_t for_tm) {
    Own() own;
    Form() form;
    Admit() admit;
    Cells() cells;
    Lanes() lanes;
    Verdict() verdict;
    Answer() answer;
    Count() count;
    Forward() forward;
    Leave() leave;

#ifdef TWO_PASSES
    action resume() {
        meta.pass.second = 1;
        meta.shared.fate = hdr.carry.fate;
        meta.shared.diverged = hdr.carry.diverged;
        meta.shared.ingress_port = hdr.carry.ingress_port;
        meta.shared.cell_index = hdr.carry.cell_index;
        meta.shared.group = hdr.carry.group;
        meta.pass.tag = hdr.wiresum.round | TAG;
    }
#endif

    apply {
        for_deparser.drop_ctl = 0;
#ifdef TWO_PASSES
        if (hdr.carry.isValid()) {
            resume();
        } else
#endif
        {
            // A frame that ends within a header cannot be put together again.
            if (from_parser.parser_err != PARSER_ERROR_OK) {
                for_deparser.drop_ctl = 1;
            }
            own.apply(hdr, meta.shared);
            if (hdr.wiresum.isValid()) {
                if (from_parser.parser_err == PARSER_ERROR_OK) {
                    form.apply(hdr, meta.shared);
                }
                admit.apply(hdr, meta.shared);
                meta.pass.tag = hdr.wiresum.round | TAG;
            }
        }

        cells.apply(hdr, meta.shared, meta.pass);
        lanes.apply(hdr, meta.shared, meta.pass);

        if (meta.pass.second == 0) {
            if (meta.shared.fate == fate_t.PASS) {
                forward.apply(hdr, meta.shared);
            } else {
                if (meta.shared.to_switch_port == 1) {
                    verdict.apply(hdr, meta.shared);
                } else {
                    answer.apply(hdr, meta.shared);
                }
            }
        }
        count.apply(hdr, meta.shared, meta.pass);
        leave.apply(hdr, meta.shared, meta.pass, intrinsic, for_deparser, for_tm);
    }
}

control Egress(inout headers_t hdr, inout metadata_t meta, in egress_intrinsic_metadata_t intrinsic,
               in egress_intrinsic_metadata_from_parser_t from_parser,
               inout egress_intrinsic_metadata_for_deparser_t for_deparser,
               inout egress_intrinsic_metadata_for_output_port_t for_output_port) {
    Result() result;
    Deliver() deliver;

    apply {
        meta.fate = hdr.carry.fate;
        meta.bare = hdr.carry.bare;
        meta.diverged = hdr.carry.diverged;
        if (hdr.carry.fate != fate_t.PASS) {
            // Each pipe is a switch of its own in a job's tree, with workers numbered from 0, but `deliver` is all
            // pipes': so a receiver's top bits are its pipe, here and in the instances of copies.
            if (hdr.carry.fate == fate_t.RESEND || hdr.carry.fate == fate_t.MISSING) {
                meta.receiver = hdr.carry.ingress_port[8:7] ++ hdr.wiresum.worker[5:0];
            } else {
                meta.receiver = (worker_t)intrinsic.egress_rid;
            }
            result.apply(hdr, meta);
            deliver.apply(hdr, meta);
        } else if (intrinsic.egress_port == hdr.carry.ingress_port) {
            meta.lost = 1;  // whoever is behind this port has had it already
        }
        if (meta.lost == 1) {
            for_deparser.drop_ctl = 1;
        } else {
            for_deparser.drop_ctl = 0;
        }
    }
}

Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;
@pkginfo(name=PROGRAM_NAME, version=PROGRAM_VERSION)
Switch(pipe) main;
