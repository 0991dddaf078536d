// Selects our frames: whole UDP datagrams over IPv4, to our address and one of our ports. They go to the AF_XDP socket
// of the queue that they came in on. Everything else goes on into the kernel unchanged, and so do our frames while
// there is no socket.
//
// Frames that it selects are validated in full in user space: this program only classifies.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

// These come after the kernel's types.
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "filter_config.h"

#define IPV4_HEADER_WORDS 5    // one without options
#define FRAGMENT_MASK 0x3FFF   // "more fragments", and the offset
#define QUEUES_UNTIL_LOADED 1  // the loader knows how many there are

// In a section of its own by its name, .rodata; the loader writes it.
const volatile struct wiresum_filter_config config;

struct {
  __uint(type, BPF_MAP_TYPE_XSKMAP);
  __uint(max_entries, QUEUES_UNTIL_LOADED);
  __type(key, __u32);
  __type(value, __u32);
} sockets SEC(".maps");

static __always_inline int is_our_port(__be16 port) {
#pragma unroll
  for (int i = 0; i < WIRESUM_FILTER_PORTS; ++i) {
    if (config.ports[i] == port) {
      return 1;
    }
  }
  return 0;
}

static __always_inline int steer(struct xdp_md* context) {
  const void* const end = (const void*)(long)context->data_end;
  const struct ethhdr* const ethernet = (const void*)(long)context->data;
  const struct iphdr* const ipv4 = (const void*)(ethernet + 1);
  const struct udphdr* const udp = (const void*)(ipv4 + 1);
  if ((const void*)(udp + 1) > end) {
    return XDP_PASS;
  }
  if (ethernet->h_proto != bpf_htons(ETH_P_IP) || ipv4->version != 4 || ipv4->ihl != IPV4_HEADER_WORDS ||
      ipv4->protocol != IPPROTO_UDP || (ipv4->frag_off & bpf_htons(FRAGMENT_MASK)) != 0) {
    return XDP_PASS;
  }
  if (ipv4->daddr != config.address || !is_our_port(udp->dest) || bpf_ntohs(ipv4->tot_len) > config.ipv4_bytes_max) {
    return XDP_PASS;
  }
  return (int)bpf_redirect_map(&sockets, context->rx_queue_index, XDP_PASS);
}

SEC("xdp")
int wiresum_filter(struct xdp_md* context) { return steer(context); }

// The same, and the kernel may show it frames that lie in several buffers: it sees the first, where the headers are.
SEC("xdp.frags")
int wiresum_filter_jumbo(struct xdp_md* context) { return steer(context); }

// The helpers used here are not among those that the kernel keeps for programs under the GPL.
char filter_license[] SEC("license") = "Apache-2.0";
