// The burst interface between a state machine and the wire.
//
// Who owns a packet's memory, at each moment. Packets are written right into memory that the device sends from (plain
// memory for UDP, UMEM for AF_XDP, mbuf data rooms for DPDK), so nothing is copied on the way:
//
//   the transport's   until buffers() offers it
//   the caller's      from buffers() to the next call of send() or buffers()
//   the device's      from send() until the device has read it, early or late, in whatever order; then the transport's
//
// The caller never sees memory again that it has sent. To send a packet again it writes it again: a worker from its
// tensor, a switch from the cell. So a packet that a device still reads is never written to, and no transport needs to
// report when the device has finished.
//
// Received datagrams are lent until the next receive(). Setup (constructors) is apart from the datapath (receive,
// buffers, send, wait). Of one transport only wake(), take_error() and a copy of stats() that somebody else made may be
// used by other threads than the one that drives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/packet.hpp"

namespace wiresum::transport {

struct RxDatagram {
  std::span<const std::byte> bytes;  // UDP payload; valid until the next receive()
  wire::Endpoint source;
  std::uint8_t port = 0;  // number of the transport's port that it came in on: 0, 1, ... in the order they were given
  bool marked = false;    // "congestion experienced" (ECN, RFC 3168): a queue on its way was long
  bool stays = false;     // a RESULT that stays in place while another worker may lack it, until the job moves
};

struct TransportStats {
  std::uint64_t datagrams_received = 0;
  std::uint64_t messages_received = 0;  // messages of these datagrams, some of them trains
  std::uint64_t datagrams_passed = 0;   // datagrams passed on to their own threads: exchange.hpp
  std::uint64_t datagrams_sent = 0;
  std::uint64_t receive_calls = 0;
  std::uint64_t send_calls = 0;
  std::uint64_t send_failures = 0;  // datagrams that the system refused: lost, repaired by timers
};

/// The most packets, up to `packets_max`, in whole trains; `packets_max` if that is less than one train.
inline std::size_t whole_trains(std::size_t packets_max, std::size_t train_packets) noexcept {
  return train_packets < packets_max ? packets_max - packets_max % train_packets : packets_max;
}

class UdpSocket;

/// A job's lease, for a transport that sums for others (leaf/).
struct JobAt {
  std::uint16_t job = 0;
  std::uint32_t key = 0;
  std::uint8_t host = 0;    // this host's number at its switch
  wire::Endpoint parent{};  // the switch's base port: thread t talks to port + t
};

/// A device answers ARP in time if it is served every few milliseconds.
inline constexpr std::int64_t kDeviceUntendedNsMax = 5'000'000;

class Transport {
 public:
  virtual ~Transport() = default;
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// A name for statistics: "udp", "xdp (native, zero copy)".
  [[nodiscard]] virtual const char* name() const noexcept = 0;

  /// Takes datagrams that have arrived, at most out.size(), without blocking. Returns how many.
  [[nodiscard]] virtual std::size_t receive(std::span<RxDatagram> out) noexcept = 0;

  /// Buffers for the next packets, at most `wanted`: fewer, or none, while the device still reads the others, so nobody
  /// may wait for a certain number. Each holds the transport's longest datagram, aligned to 8 bytes. Unsent buffers are
  /// offered again.
  [[nodiscard]] virtual std::span<wire::Packet> buffers(std::size_t wanted) noexcept = 0;

  /// How many of buffers()'s packets, all of this length, are best sent together: bursts of whole trains cost least for
  /// each packet. 1 where each is sent on its own.
  [[nodiscard]] virtual std::size_t train_packets(std::size_t packet_bytes) const noexcept = 0;

  /// Sends the first `count` packets that buffers() offered, each to each endpoint (a connected transport has but one),
  /// from the transport's port number `port`; the packets of one endpoint stay in order. Gives all buffers away: none
  /// of buffers()'s packets may be looked at any more. Never blocks for long: packets that the system refuses are lost
  /// and counted. All leave able to be marked (ECN), or, with `marked`, marked already, as the packets that they answer
  /// were.
  virtual void send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t port, bool marked) noexcept = 0;

  /// Changes the peers that are heard, by port. `group`, unless it is null, is taken over: a socket in the multicast
  /// group that they send to as well, which replaces any such socket. Returns false if the transport is not a worker's,
  /// or at an error, which take_error() returns.
  [[nodiscard]] virtual bool hear(std::span<const wire::Endpoint> /*peers*/, UdpSocket* /*group*/) noexcept {
    return false;
  }

  /// Changes the job's lease. Returns false, and changes nothing, if the transport cannot.
  [[nodiscard]] virtual bool serve(const JobAt& /*lease*/) noexcept { return true; }

  /// How long nobody may call receive() while this process waits for nothing, as others may need it. 0: never.
  [[nodiscard]] virtual std::int64_t untended_ns_max() const noexcept { return 1'000'000'000; }

  /// Sleeps until a datagram is there, wake() was called, or `timeout_ns` has passed (negative: no timeout).
  virtual void wait(std::int64_t timeout_ns) noexcept = 0;

  /// Ends a wait() from any thread.
  virtual void wake() noexcept = 0;

  /// An eventfd that wake() writes to, for other processes that may end a wait(); -1 without one.
  [[nodiscard]] virtual int wake_event() const noexcept { return -1; }

  [[nodiscard]] virtual const TransportStats& stats() const noexcept = 0;

  /// The last error that the system reported for a datagram, an errno (ECONNREFUSED: nobody listens at the peer's port;
  /// EMSGSIZE: larger than the path's MTU), 0 without one; reading clears it. Any thread may ask.
  [[nodiscard]] virtual int take_error() noexcept = 0;
};

}  // namespace wiresum::transport
