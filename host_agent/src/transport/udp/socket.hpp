// Setting up UDP sockets: binding, buffers, offloads. The datapath is in udp.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "process/descriptor.hpp"
#include "wire/packet.hpp"

namespace wiresum::transport {

[[nodiscard]] std::string to_string(wire::Endpoint endpoint);
/// Parses dotted IPv4 to host byte order. Throws std::invalid_argument, naming the text, for anything else.
[[nodiscard]] std::uint32_t parse_ipv4(const std::string& text);

/// A bound, non-blocking UDP socket.
class UdpSocket {
 public:
  /// Binds to `local` (port 0: any). Throws std::system_error whose text names the address.
  explicit UdpSocket(wire::Endpoint local);
  /// Binds to a multicast group and hears its datagrams at the interface with the address `interface`. Any number of a
  /// machine's sockets may. Throws std::system_error whose text names both.
  [[nodiscard]] static UdpSocket in_group(wire::Endpoint group, std::uint32_t interface);

  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }
  [[nodiscard]] wire::Endpoint local() const noexcept { return local_; }

  /// Restricts the socket to `peer`, whose refusals (ICMP port unreachable) are then seen.
  void connect(wire::Endpoint peer);
  [[nodiscard]] bool connected() const noexcept { return connected_; }
  /// The MTU of the route to the connected peer, in bytes of IP packet.
  [[nodiscard]] std::size_t path_mtu() const;
  /// Asks for socket buffers of this size; takes what the system grants.
  void set_buffers(std::size_t receive_bytes, std::size_t send_bytes) noexcept;
  /// Lets sent datagrams be marked (ECN), and received ones say whether they were. Nothing is marked where the system
  /// refuses.
  void enable_marks() noexcept;
  /// Makes datagrams to a multicast group leave by the interface with this address, and go no further than its network.
  /// Throws std::system_error.
  void send_groups_by(std::uint32_t interface);
  /// Lets the kernel hand over runs of datagrams as one (UDP GRO). Returns false if the kernel cannot.
  [[nodiscard]] bool enable_receive_offload() noexcept;
  /// True if the kernel cuts one large buffer into datagrams (UDP GSO).
  [[nodiscard]] bool supports_segmentation() const noexcept;

 private:
  UdpSocket();

  process::Descriptor descriptor_;
  wire::Endpoint local_;
  bool connected_ = false;
};

/// Binds `count` sockets on consecutive ports from local.port on; port 0: some block of free ports.
[[nodiscard]] std::vector<UdpSocket> bind_consecutive(wire::Endpoint local, std::size_t count);

/// UDP ports that may be bound. `first` 0: any.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

/// Binds `count` sockets on the first free consecutive ports of `range`. Throws std::system_error.
[[nodiscard]] std::vector<UdpSocket> bind_within(std::uint32_t address, PortRange range, std::size_t count);

/// The local address that packets to `remote` leave from. Throws std::system_error if there is no route.
[[nodiscard]] std::uint32_t source_address_towards(wire::Endpoint remote);

/// The name of the interface that has this address, if there is one. Throws std::system_error.
[[nodiscard]] std::optional<std::string> interface_with(std::uint32_t address);

}  // namespace wiresum::transport
