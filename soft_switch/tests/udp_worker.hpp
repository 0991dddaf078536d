// A worker that is a plain socket, and may send anything.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "switch_harness.hpp"
#include "transport/udp/address.hpp"
#include "transport/udp/socket.hpp"

namespace wiresum::soft_switch {

struct Received {
  wire::Header header;
  dataplane::Words words;
  wire::Endpoint source;
};

class UdpWorker {
 public:
  static constexpr std::uint32_t kLoopback = 0x7F000001;

  explicit UdpWorker(std::size_t threads = 1) : sockets_(transport::bind_consecutive({kLoopback, 0}, threads)) {
    for (transport::UdpSocket& socket : sockets_) socket.set_buffers(8u << 20, 8u << 20);
  }

  [[nodiscard]] wire::Endpoint endpoint() const { return sockets_.front().local(); }

  void send(wire::Endpoint to, const std::vector<std::byte>& datagram, std::size_t thread = 0) const {
    const sockaddr_in address = transport::to_sockaddr(to);
    static_cast<void>(sendto(sockets_[thread].descriptor(), datagram.data(), datagram.size(), 0,
                             reinterpret_cast<const sockaddr*>(&address), sizeof address));
  }

  /// The next datagram, or nothing if none arrives within `timeout_ms`.
  [[nodiscard]] std::optional<Received> receive(int timeout_ms, std::size_t thread = 0) const {
    return receive_from(sockets_[thread], timeout_ms);
  }

  [[nodiscard]] static std::optional<Received> receive_from(const transport::UdpSocket& socket, int timeout_ms) {
    pollfd readable{.fd = socket.descriptor(), .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, timeout_ms) <= 0) return std::nullopt;
    std::vector<std::byte> bytes(64u << 10);
    sockaddr_in from{};
    socklen_t from_bytes = sizeof from;
    const ssize_t size =
        recvfrom(readable.fd, bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&from), &from_bytes);
    Received received;
    if (size < 0) return std::nullopt;
    bytes.resize(static_cast<std::size_t>(size));
    if (wire::decode(bytes, received.header) != wire::ParseError::kNone) return std::nullopt;
    received.words = dataplane::load_words(std::span<const std::byte>(bytes).subspan(wire::kHeaderBytes));
    received.source = transport::from_sockaddr(from);
    return received;
  }

 private:
  std::vector<transport::UdpSocket> sockets_;
};

}  // namespace wiresum::soft_switch
