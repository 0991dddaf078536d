// SPDX-License-Identifier: Apache-2.0

// What is on the wire: docs/protocol.md, section 2.

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_ARP 0x0806
#define PROTOCOL_ICMP 1
#define PROTOCOL_UDP 17
#define ICMP_ECHO_REPLY 0
#define ICMP_ECHO_REQUEST 8
#define ARP_REQUEST 1
#define ARP_REPLY 2

// The switch's base UDP port. Its low four bits are the number of the port, a job's thread plus the job's port offset,
// which this program calls `thread`.
#define SWITCH_PORT 0xA9E0
#define SWITCH_PORT_MASK 0xFFF0
#define THREAD_MASK 0x000F

#define WIRE_VERSION 1
enum bit<4> kind_t {
    DATA = 0,
    EMPTY = 1,
    RESULT = 2,
    META = 3,
    QUESTION = 4,
    MISSING = 5
}
#define FLAG_DIVERGED 2

#define IPV4_BYTES 20
#define IPV4_TTL 64
#define IPV4_DO_NOT_FRAGMENT 2
#define UDP_BYTES 8
#define HEADER_BYTES 24
// UDP lengths: a packet without payload, and one with all its words.
#define LENGTH_BARE (UDP_BYTES + HEADER_BYTES)
#define LENGTH_FULL (LENGTH_BARE + 4 * LANES)

typedef bit<48> mac_t;
typedef bit<32> address_t;

header ethernet_h {
    mac_t dst;
    mac_t src;
    bit<16> ether_type;
}

// Only Ethernet / IPv4 ARP is parsed as this.
header arp_h {
    bit<16> hardware_type;
    bit<16> protocol_type;
    bit<8> hardware_length;
    bit<8> protocol_length;
    bit<16> operation;
    mac_t sender_mac;
    address_t sender_address;
    mac_t target_mac;
    address_t target_address;
}

header ipv4_h {
    bit<4> version;
    bit<4> ihl;
    bit<6> dscp;
    bit<2> ecn;
    bit<16> length;
    bit<16> identification;
    bit<3> flags;
    bit<13> fragment_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    address_t src;
    address_t dst;
}

header icmp_h {
    bit<8> icmp_type;
    bit<8> code;
    bit<16> checksum;
}

header udp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

header wiresum_h {
    bit<4> version;
    kind_t kind;
    bit<8> flags;
    bit<16> job;
    bit<32> key;
    worker_t worker;
    bit<8> exponent;
    cell_t cell;
    bit<32> round;
    bit<32> tensor;
    bit<32> chunk;
}

// What the IPv4 checksum covers.
#define IPV4_FIELDS \
    { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.length, hdr.ipv4.identification, \
      hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst }
