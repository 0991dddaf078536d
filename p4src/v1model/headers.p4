// SPDX-License-Identifier: Apache-2.0

// The words of a packet are one field here: bmv2 computes with integers of any width, and one operation on all words
// costs it far less than one on each.

typedef bit<(32 * LANES)> words_t;

header lanes_h {
    words_t words;
}

struct headers_t {
    ethernet_h ethernet;
    arp_h arp;
    ipv4_h ipv4;
    icmp_h icmp;
    udp_h udp;
    wiresum_h wiresum;
    lanes_h lanes;
}
