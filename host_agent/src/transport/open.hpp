// A transport of whichever kind is asked for, at ports that are ours already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.hpp"
#include "transport/udp/socket.hpp"

namespace wiresum::transport {

enum class Kind : std::uint8_t { kUdp, kXdp, kDpdk };
/// Of "udp", "xdp", "dpdk". Throws std::invalid_argument for anything else.
[[nodiscard]] Kind kind_of(const std::string& name);

struct Spec {
  Kind kind = Kind::kUdp;
  std::string device;   // AF_XDP: the interface's name, "" for the one with the address. DPDK: the EAL's arguments
  bool offload = true;  // UDP: use GSO and GRO if the kernel has them
};

/// What one thread's transport is to serve.
struct Place {
  std::uint32_t address = 0;  // ours, in host byte order
  wire::Endpoint peer;        // who alone is heard; port 0: anybody. UDP sockets are connected to it beforehand instead
  std::size_t datagram_bytes_max = 1464;
  std::size_t receive_buffer_bytes = 8u << 20;  // UDP: for each socket
};

/// A transport, and what it stands on.
struct DataPath {
  /// Where packets do not come in through sockets, these only hold the ports: nobody else gets them, and the kernel
  /// tells no peer that they are closed.
  std::vector<UdpSocket> reserved;
  std::unique_ptr<Transport> transport;
};

/// `sockets`: bound to the ports that are served, in the order of the transport's port numbers. Throws
/// std::system_error, std::invalid_argument or std::runtime_error, whose text says what is missing.
[[nodiscard]] DataPath open(const Spec& spec, const Place& place, std::vector<UdpSocket> sockets);

}  // namespace wiresum::transport
