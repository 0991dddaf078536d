// SPDX-License-Identifier: Apache-2.0

// Each word of a packet is a field of its own: half of a register. Names have the word's number in octal.

#if LANES != 64
#error "on Tofino a packet has 64 words"
#endif

#define WORDS(row) \
    bit<32> w##row##0; bit<32> w##row##1; bit<32> w##row##2; bit<32> w##row##3; \
    bit<32> w##row##4; bit<32> w##row##5; bit<32> w##row##6; bit<32> w##row##7;

header lanes_h {
    WORDS(0)
    WORDS(1)
    WORDS(2)
    WORDS(3)
    WORDS(4)
    WORDS(5)
    WORDS(6)
    WORDS(7)
}

// In front of a packet on its way from one pipe to the next, the second ingress or the egress. Never leaves the switch.
// Each field has bytes of its own: so each can be moved in one operation.
header carry_h {
    @padding bit<5> fate_padding;
    fate_t fate;
    @padding bit<7> bare_padding;
    bit<1> bare;
    @padding bit<7> diverged_padding;
    bit<1> diverged;
    @padding bit<7> port_padding;
    port_t ingress_port;
    cell_t cell_index;
    group_t group;
}

// How a frame of others begins. The egress parser must take 65 bytes of each packet, the architecture's own included, and
// no Ethernet frame is shorter than this and `carry` together.
header leading_h {
    bit<240> bytes;
}

struct headers_t {
    carry_h carry;
    leading_h leading;
    ethernet_h ethernet;
    arp_h arp;
    ipv4_h ipv4;
    icmp_h icmp;
    udp_h udp;
    wiresum_h wiresum;
    lanes_h lanes;
}
