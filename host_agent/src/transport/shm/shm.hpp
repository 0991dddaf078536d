// A rank's transport to one thread of its host's leaf, through memory that both share: channel.hpp.
//
// It has one peer, whatever endpoints its caller names. Nothing is lost on the way to the leaf: where the ring is full,
// buffers() offers less, and wait() sleeps until there is room.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "process/descriptor.hpp"
#include "transport/shm/channel.hpp"
#include "transport/shm/memory.hpp"
#include "transport/transport.hpp"

namespace wiresum::transport::shm {

/// A rank's link to its leaf thread. The descriptors are given from process to process.
struct Link {
  Memory channel;             // memory of shape.channel_bytes()
  Memory results;             // read-only
  process::Descriptor event;  // the event of the rank's thread
  process::Descriptor leaf;   // the event of the leaf thread
};

/// Makes an eventfd. Throws std::system_error.
[[nodiscard]] process::Descriptor make_event();
/// Sleeps until `event` was written to, or for `timeout_ns` (negative: no time-out), and resets the event.
void await_event(int event, std::int64_t timeout_ns) noexcept;
void write_event(int event) noexcept;

class ShmTransport final : public Transport {
 public:
  /// Throws std::invalid_argument if the memory is too small.
  ShmTransport(Link link, std::size_t packet_bytes_max);

  [[nodiscard]] const char* name() const noexcept override { return "shared memory"; }
  [[nodiscard]] std::size_t receive(std::span<RxDatagram> out) noexcept override;
  [[nodiscard]] std::span<wire::Packet> buffers(std::size_t wanted) noexcept override;
  [[nodiscard]] std::size_t train_packets(std::size_t /*packet_bytes*/) const noexcept override { return 1; }
  void send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t port, bool marked) noexcept override;
  /// Succeeds and does nothing: the leaf hears the switch, and the group.
  [[nodiscard]] bool hear(std::span<const wire::Endpoint> peers, UdpSocket* group) noexcept override;
  void wait(std::int64_t timeout_ns) noexcept override;
  void wake() noexcept override { write_event(link_.event.get()); }
  [[nodiscard]] int wake_event() const noexcept override { return link_.event.get(); }
  /// True if a datagram waits for receive().
  [[nodiscard]] bool has_datagram() const noexcept { return end_.has_answer(); }
  /// True if buffers() offered none, and still would not.
  [[nodiscard]] bool lacks_room() const noexcept { return lacked_room_ && !end_.has_room(); }
  /// True if wait() would not wait.
  [[nodiscard]] bool is_ready() const noexcept { return has_datagram() || (lacked_room_ && end_.has_room()); }
  [[nodiscard]] const TransportStats& stats() const noexcept override { return stats_; }
  [[nodiscard]] int take_error() noexcept override { return 0; }

 private:
  static constexpr std::size_t kBurst = 64;

  const Link link_;
  RankEnd end_;
  std::array<Lent, 256> lent_{};
  std::array<wire::Packet, kBurst> packets_{};
  std::size_t offered_ = 0;   // number of packets_ offered since the last send
  bool lacked_room_ = false;  // the last call of buffers() found no room
  TransportStats stats_;
};

}  // namespace wiresum::transport::shm
