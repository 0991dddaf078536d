// Which thread takes which packets, where several drive the same ports.
//
// A port has one receive queue, or one for each thread. With one, a single thread takes everything, and passes on in
// software what is for other threads' UDP ports (transport/exchange.hpp). With one for each, the device chooses: by
// flow rules, UDP port to queue, if its driver supports them; else by a hash of addresses and ports (RSS), if it has
// one; else as its other end does. Packets that reach the wrong thread are passed on by the exchange.
#pragma once

#include <rte_flow.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace wiresum::transport::dpdk {

/// The numbers of a port's queues each way, on a device with at most so many: one, or as many as threads.
struct QueueCounts {
  std::uint16_t receive = 1;
  std::uint16_t send = 1;
};
[[nodiscard]] QueueCounts queues_for(unsigned threads, std::size_t receive_max, std::size_t send_max,
                                     bool peer_has_as_many) noexcept;

/// True if this thread takes the packets of queue `queue` of the port with index `port`, as exactly one does. Ports
/// with one queue go to the threads in turn.
[[nodiscard]] bool takes(unsigned thread, unsigned threads, std::size_t port, std::uint16_t queue,
                         std::uint16_t queues) noexcept;

/// A rule that brings UDP datagrams over IPv4 to an address and port to a queue. Pattern and actions refer to the
/// object itself, which must therefore stay in place.
class FlowRule {
 public:
  FlowRule(std::uint32_t address, std::uint16_t port, std::uint16_t queue) noexcept;
  FlowRule(const FlowRule&) = delete;
  FlowRule& operator=(const FlowRule&) = delete;

  [[nodiscard]] const rte_flow_attr& attributes() const noexcept { return attributes_; }
  [[nodiscard]] const rte_flow_item* pattern() const noexcept { return pattern_.data(); }
  [[nodiscard]] const rte_flow_action* actions() const noexcept { return actions_.data(); }

 private:
  rte_flow_attr attributes_{};
  rte_flow_item_ipv4 ipv4_{};
  rte_flow_item_ipv4 ipv4_mask_{};
  rte_flow_item_udp udp_{};
  rte_flow_item_udp udp_mask_{};
  rte_flow_action_queue queue_{};
  std::array<rte_flow_item, 4> pattern_{};
  std::array<rte_flow_action, 2> actions_{};
};

/// Gives a started port a rule for each of these UDP ports, the i-th to queue i modulo `queues`: all, or none if the
/// driver does not take them all. Rules go when the port is closed.
[[nodiscard]] bool steer(std::uint16_t port_id, std::uint32_t address, std::span<const std::uint16_t> ports,
                         std::uint16_t queues) noexcept;

}  // namespace wiresum::transport::dpdk
