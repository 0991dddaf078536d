// The metadata of the TNA architecture that the Tofino program uses, written from the architecture's public description.
// Externs (registers, counters, checksums) are in externs.py.

const bit<16> PARSER_ERROR_OK = 0;
const bit<32> PORT_METADATA_SIZE = 64;

enum CounterType_t { PACKETS, BYTES, PACKETS_AND_BYTES }

header ingress_intrinsic_metadata_t {
    bit<1> resubmit_flag;
    @padding bit<1> pad_1;
    bit<2> packet_version;
    @padding bit<3> pad_2;
    bit<9> ingress_port;
    bit<48> ingress_mac_tstamp;
}

struct ingress_intrinsic_metadata_from_parser_t {
    bit<16> parser_err;
}

struct ingress_intrinsic_metadata_for_tm_t {
    bit<9> ucast_egress_port;
    bit<1> bypass_egress;
    bit<5> qid;
    bit<16> mcast_grp_a;
}

struct ingress_intrinsic_metadata_for_deparser_t {
    bit<3> drop_ctl;
}

header egress_intrinsic_metadata_t {
    @padding bit<7> pad_0;
    bit<9> egress_port;
    bit<16> egress_rid;
}

struct egress_intrinsic_metadata_from_parser_t {
    bit<16> parser_err;
}

struct egress_intrinsic_metadata_for_deparser_t {
    bit<3> drop_ctl;
}

struct egress_intrinsic_metadata_for_output_port_t {
    bit<1> capture_tstamp_on_tx;
}
