// Bursts over UDP sockets: sendmmsg / recvmmsg, UDP GSO and GRO where the kernel has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/transport.hpp"
#include "transport/udp/socket.hpp"

namespace wiresum::transport {

struct UdpConfig {
  std::size_t datagram_bytes_max = 1464;
  std::size_t receive_buffer_bytes = 8u << 20;
  std::size_t send_buffer_bytes = 8u << 20;
  bool offload = true;  // use GSO and GRO if the kernel has them
};

class UdpTransport final : public Transport {
 public:
  /// Serves all of `sockets` (one for a worker's thread; several ports for a switch's).
  /// Throws std::system_error if the system refuses memory or an event queue.
  UdpTransport(const UdpConfig& config, std::vector<UdpSocket> sockets);
  ~UdpTransport() override;

  const char* name() const noexcept override;
  std::size_t receive(std::span<RxDatagram> out) noexcept override;
  std::span<wire::Packet> buffers(std::size_t wanted) noexcept override;
  std::size_t train_packets(std::size_t packet_bytes) const noexcept override;
  void send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t port) noexcept override;
  void wait(std::int64_t timeout_ns) noexcept override;
  void wake() noexcept override;
  const TransportStats& stats() const noexcept override;
  int take_error() noexcept override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace wiresum::transport
