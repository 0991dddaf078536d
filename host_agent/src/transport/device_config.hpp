// What a transport over a network device is made from, whichever way it drives the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "wire/packet.hpp"

namespace wiresum::transport {

struct DeviceConfig {
  std::string device;                // an interface's name (AF_XDP), or the EAL's arguments (DPDK)
  std::uint32_t address = 0;         // our IPv4 address, in host byte order
  std::vector<std::uint16_t> ports;  // our UDP ports, in order; others' packets are not ours
  /// Who alone is heard, by port; empty: anybody.
  std::vector<wire::Endpoint> peers;
  std::size_t datagram_bytes_max = 1464;
  /// How many transports drive the device, each in a thread of its own with queues of its own. Where the device steers,
  /// what is for port i comes to the transport i modulo their number; the others may hear it too (exchange.hpp).
  unsigned threads = 1;

  /// Is what comes from there to port number `port` heard?
  [[nodiscard]] bool hears(std::size_t port, wire::Endpoint source) const noexcept {
    return peers.empty() || peers[port] == source;
  }
};

}  // namespace wiresum::transport
