#include "transport/dpdk/steering.hpp"

#include <rte_byteorder.h>

namespace wiresum::transport::dpdk {

QueueCounts queues_for(unsigned threads, std::size_t receive_max, std::size_t send_max,
                       bool peer_has_as_many) noexcept {
  const auto all = static_cast<std::uint16_t>(threads);
  if (!peer_has_as_many) return {};
  return {.receive = receive_max >= threads ? all : std::uint16_t{1},
          .send = send_max >= threads ? all : std::uint16_t{1}};
}

bool takes(unsigned thread, unsigned threads, std::size_t port, std::uint16_t queue, std::uint16_t queues) noexcept {
  return queues == 1 ? port % threads == thread : queue == thread;
}

FlowRule::FlowRule(std::uint32_t address, std::uint16_t port, std::uint16_t queue) noexcept {
  attributes_.ingress = 1;
  ipv4_.hdr.dst_addr = rte_cpu_to_be_32(address);
  ipv4_mask_.hdr.dst_addr = UINT32_MAX;
  udp_.hdr.dst_port = rte_cpu_to_be_16(port);
  udp_mask_.hdr.dst_port = UINT16_MAX;
  queue_.index = queue;
  pattern_[0] = {.type = RTE_FLOW_ITEM_TYPE_ETH, .spec = nullptr, .last = nullptr, .mask = nullptr};
  pattern_[1] = {.type = RTE_FLOW_ITEM_TYPE_IPV4, .spec = &ipv4_, .last = nullptr, .mask = &ipv4_mask_};
  pattern_[2] = {.type = RTE_FLOW_ITEM_TYPE_UDP, .spec = &udp_, .last = nullptr, .mask = &udp_mask_};
  pattern_[3] = {.type = RTE_FLOW_ITEM_TYPE_END, .spec = nullptr, .last = nullptr, .mask = nullptr};
  actions_[0] = {.type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &queue_};
  actions_[1] = {.type = RTE_FLOW_ACTION_TYPE_END, .conf = nullptr};
}

bool steer(std::uint16_t port_id, std::uint32_t address, std::span<const std::uint16_t> ports,
           std::uint16_t queues) noexcept {
  for (std::size_t i = 0; i != ports.size(); ++i) {
    const FlowRule rule(address, ports[i], static_cast<std::uint16_t>(i % queues));
    rte_flow_error error{};
    if (rte_flow_validate(port_id, &rule.attributes(), rule.pattern(), rule.actions(), &error) == 0 &&
        rte_flow_create(port_id, &rule.attributes(), rule.pattern(), rule.actions(), &error) != nullptr) {
      continue;
    }
    if (i != 0) static_cast<void>(rte_flow_flush(port_id, &error));
    return false;
  }
  return true;
}

}  // namespace wiresum::transport::dpdk
