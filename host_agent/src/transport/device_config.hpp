// The configuration of a transport over a network device, AF_XDP or DPDK.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "wire/packet.hpp"

namespace wiresum::transport {

struct DeviceConfig {
  std::string device;                // an interface's name (AF_XDP), or the EAL's arguments (DPDK)
  std::uint32_t address = 0;         // our IPv4 address, in host byte order
  std::vector<std::uint16_t> ports;  // our UDP ports, in order; packets to other ports are not ours
  /// The only peer whose packets are taken, by port; empty: any peer.
  std::vector<wire::Endpoint> peers;
  std::size_t datagram_bytes_max = 1464;
  /// How many transports drive the device, each in a thread of its own with queues of its own. Where the device steers,
  /// packets for port i come to the transport i modulo their number; otherwise to any of them (exchange.hpp).
  unsigned threads = 1;
};

/// True if packets from an endpoint to port number `port` are taken, given these peers.
[[nodiscard]] inline bool hears(std::span<const wire::Endpoint> peers, std::size_t port,
                                wire::Endpoint source) noexcept {
  return peers.empty() || peers[port] == source;
}

}  // namespace wiresum::transport
