// Bursts over AF_XDP: packets between the memory of this process and a network interface, past the kernel's stack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "process/home.hpp"
#include "transport/device_config.hpp"
#include "transport/transport.hpp"

namespace wiresum::transport {

class XdpTransport final : public Transport {
 public:
  /// Takes the interface `config.device` for `config.threads` transports, each with a part of its queues. From now on
  /// datagrams to config's address and ports come to them, by whichever queue they arrive and whatever sockets are
  /// bound to the ports; all others go to the kernel. If there is a peer, it waits, for a second at most, until the
  /// kernel knows the way there. Throws std::system_error, std::runtime_error or std::invalid_argument that says what
  /// is missing.
  [[nodiscard]] static std::vector<std::unique_ptr<Transport>> open(const DeviceConfig& config);
  ~XdpTransport() override;

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
  explicit XdpTransport(process::Owned<Impl> impl);

  process::Owned<Impl> impl_;
};

}  // namespace wiresum::transport
