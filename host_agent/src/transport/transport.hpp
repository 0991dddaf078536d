// The burst interface between a state machine and the wire.
//
// A transport owns *frame memory*: `frames` fixed-size frames that it can send from without a copy (plain
// memory for UDP, UMEM for AF_XDP, mbuf data rooms for DPDK). The protocol core writes its packets right into
// them and keeps owning them: sending does not give a frame away, since a worker retransmits from it and a
// switch sends one frame to all workers of a job. Received datagrams are lent until the next receive().
// Setup (constructors) is apart from the datapath (receive, send, wait).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/packet.hpp"

namespace wiresum::transport {

struct RxDatagram {
  std::span<const std::byte> bytes;  // UDP payload; valid until the next receive()
  wire::Endpoint source;
  std::uint8_t port = 0;  // which of the transport's ports it came in on: 0, 1, ... in the order they were given
};

struct TxFrame {
  std::uint32_t frame = 0;  // index into frame memory
  std::uint32_t bytes = 0;
};

struct TransportStats {
  std::uint64_t datagrams_received = 0;
  std::uint64_t messages_received = 0;  // what they came in: trains of datagrams, where the system keeps them together
  std::uint64_t datagrams_sent = 0;
  std::uint64_t receive_calls = 0;
  std::uint64_t send_calls = 0;
  std::uint64_t send_failures = 0;  // datagrams that the system would not take: lost, repaired by timers
};

/// The most frames, up to `frames_max`, that are whole trains; `frames_max` if that is less than one.
inline std::size_t whole_trains(std::size_t frames_max, std::size_t train_frames) noexcept {
  return train_frames < frames_max ? frames_max - frames_max % train_frames : frames_max;
}

class Transport {
 public:
  virtual ~Transport() = default;
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// Frame i is frame_memory() + i * frame_stride().
  [[nodiscard]] virtual std::byte* frame_memory() noexcept = 0;
  [[nodiscard]] virtual std::size_t frame_stride() const noexcept = 0;

  /// How many frames of this length go out as one: a burst of whole trains costs least for each frame.
  [[nodiscard]] virtual std::size_t train_frames(std::size_t frame_bytes) const noexcept = 0;

  /// Takes what has arrived, at most out.size() datagrams, without blocking. Returns how many.
  [[nodiscard]] virtual std::size_t receive(std::span<RxDatagram> out) noexcept = 0;

  /// Sends each frame to each endpoint (a connected transport has but one), from the transport's port number `port`;
  /// the frames of one endpoint stay in order. The frames may change once this returns. Never blocks for long: what the
  /// system refuses is lost and counted.
  virtual void send(std::span<const TxFrame> frames, std::span<const wire::Endpoint> to,
                    std::uint8_t port) noexcept = 0;

  /// Sleeps until a datagram is there, wake() was called, or `timeout_ns` has passed (negative: no timeout).
  virtual void wait(std::int64_t timeout_ns) noexcept = 0;

  /// Ends a wait() from any thread.
  virtual void wake() noexcept = 0;

  [[nodiscard]] virtual const TransportStats& stats() const noexcept = 0;

  /// The last error that the system reported for a datagram, an errno (ECONNREFUSED: nobody listens at the peer's port;
  /// EMSGSIZE: larger than the path's MTU), 0 if none; reading clears it. Any thread may ask.
  [[nodiscard]] virtual int take_error() noexcept = 0;
};

}  // namespace wiresum::transport
