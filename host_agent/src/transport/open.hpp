// Opens transports of a given kind, at ports that are bound already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.hpp"
#include "transport/udp/socket.hpp"

namespace wiresum::transport {

enum class TransportKind : std::uint8_t { kUdp, kXdp, kDpdk };
struct Spec {
  TransportKind kind = TransportKind::kUdp;
  std::string device;   // AF_XDP: the interface's name, "" for the one with the address. DPDK: the EAL's arguments
  bool offload = true;  // UDP: use GSO and GRO if the kernel has them
  /// Wraps each transport that is opened: in tests, in a network that loses packets.
  std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)>
      around{};  // NOLINT(readability-redundant-member-init): else g++ misses it in lists
};

/// Parses WIRESUM_TRANSPORT: "udp", "udp:plain" (no offload), "xdp", "xdp:eth1", "dpdk:-a 0000:01:00.0". Throws
/// std::invalid_argument for anything else.
[[nodiscard]] Spec spec_of(const std::string& text);

/// The address to serve, its peers, and the sizes that follow from the job.
struct PathConfig {
  std::uint32_t address = 0;  // our address, in host byte order
  /// The only peer whose packets are taken, by port; empty: any peer. UDP sockets are connected beforehand instead.
  std::vector<wire::Endpoint> peers;
  std::size_t datagram_bytes_max = 1464;
  std::size_t receive_buffer_bytes = wire::kSocketBufferBytes;  // UDP: for each socket
};

/// A transport, and the sockets that go with it.
struct DataPath {
  /// Sockets that only reserve the ports where packets come in otherwise: nobody else gets these ports, and the kernel
  /// does not report them as closed.
  std::vector<UdpSocket> reserved;
  std::unique_ptr<Transport> transport;
};

/// Opens a transport for each thread, at `sockets`, which are bound to the ports to serve, at least as many as threads:
/// the i-th of n serves the sockets i, i + n, ..., numbered 0, 1, ... Throws std::system_error, std::invalid_argument
/// or std::runtime_error, whose text says what is missing.
[[nodiscard]] std::vector<DataPath> open_for_threads(const Spec& spec, const PathConfig& place,
                                                     std::vector<UdpSocket> sockets, unsigned threads);

}  // namespace wiresum::transport
