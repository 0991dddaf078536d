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
  wire::Endpoint peer;               // who alone is heard; port 0: anybody
  std::size_t datagram_bytes_max = 1464;
};

}  // namespace wiresum::transport
