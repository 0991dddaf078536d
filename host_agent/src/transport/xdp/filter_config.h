// The XDP program's configuration, set before it is loaded: read by the program (C, for BPF) and by its loader (C++).
#ifndef WIRESUM_TRANSPORT_XDP_FILTER_CONFIG_H
#define WIRESUM_TRANSPORT_XDP_FILTER_CONFIG_H

#include <linux/types.h>

#define WIRESUM_FILTER_PORTS 16

struct wiresum_filter_config {
  __be32 address;                      // ours
  __be16 ports[WIRESUM_FILTER_PORTS];  // ours; unused places repeat the first
  __u16 reserved;
  __u32 ipv4_bytes_max;  // longer packets are not from a peer of ours
};

#endif
