// The kernel's description of a network interface. Setup only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/ethernet/frame.hpp"

namespace wiresum::transport::xdp {

struct InterfaceInfo {
  std::string name;
  int index = 0;
  ethernet::MacAddress mac;
  std::size_t mtu = 0;       // bytes of an IP packet
  std::uint32_t queues = 1;  // number of receive queues
  std::string driver;        // "veth", "ice"; empty if unknown
};

/// Queries the interface `name`, which must have the IPv4 address `address` (host byte order). Throws
/// std::system_error, or std::runtime_error that says why AF_XDP does not work there: no such interface, no Ethernet
/// (lo), not up, not its address.
[[nodiscard]] InterfaceInfo query_interface(const std::string& name, std::uint32_t address);

}  // namespace wiresum::transport::xdp
