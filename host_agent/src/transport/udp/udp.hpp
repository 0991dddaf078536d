// Bursts over UDP sockets: sendmmsg / recvmmsg, UDP GSO and GRO where the kernel has them.
#pragma once

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "process/descriptor.hpp"
#include "transport/transport.hpp"
#include "transport/udp/socket.hpp"

namespace wiresum::transport {

struct UdpConfig {
  std::size_t datagram_bytes_max = 1464;
  std::size_t receive_buffer_bytes = wire::kSocketBufferBytes;
  std::size_t send_buffer_bytes = wire::kSocketBufferBytes;
  bool offload = true;  // use GSO and GRO if the kernel has them
};

/// Control data of a message: the length of its datagrams, and their mark.
struct ControlBuffer {
  alignas(cmsghdr) std::array<char, 2 * CMSG_SPACE(sizeof(int))> bytes{};
};

/// Received messages that wait to be cut into datagrams.
class ReceiveQueue {
 public:
  ReceiveQueue();
  [[nodiscard]] bool empty() const noexcept { return next_ == filled_; }
  /// Takes messages from the socket. Returns how many there were.
  std::size_t fill(int descriptor, std::uint8_t port) noexcept;
  /// Cuts waiting messages into `out`. Returns how many datagrams there were.
  std::size_t drain(std::span<RxDatagram> out) noexcept;

 private:
  static constexpr std::size_t kBatch = 4;  // messages of 64 KiB each: more would not stay in the cache
  static constexpr std::size_t kBufferBytes = 64u << 10;

  std::vector<std::byte> memory_;
  std::array<iovec, kBatch> vectors_{};
  std::array<sockaddr_in, kBatch> sources_{};
  std::array<ControlBuffer, kBatch> controls_{};
  std::array<mmsghdr, kBatch> messages_{};
  std::size_t next_ = 0;    // message being cut
  std::size_t offset_ = 0;  // the next byte in that message
  std::size_t filled_ = 0;
  std::uint8_t port_ = 0;
};

class UdpTransport final : public Transport {
 public:
  /// Serves all of `sockets` (one for a worker's thread; several ports for a switch's).
  /// Throws std::system_error if the system refuses memory or an event queue.
  UdpTransport(const UdpConfig& config, std::vector<UdpSocket> sockets);

  const char* name() const noexcept override { return "udp"; }
  std::size_t receive(std::span<RxDatagram> out) noexcept override;
  std::span<wire::Packet> buffers(std::size_t wanted) noexcept override;
  std::size_t train_packets(std::size_t packet_bytes) const noexcept override;
  void send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t port, bool marked) noexcept override;
  /// Changes the peers of one socket, or of one and a group's.
  bool hear(std::span<const wire::Endpoint> peers, UdpSocket* group) noexcept override;
  void wait(std::int64_t timeout_ns) noexcept override;
  void wake() noexcept override;
  [[nodiscard]] int wake_event() const noexcept override { return wake_event_.get(); }
  const TransportStats& stats() const noexcept override { return stats_; }
  int take_error() noexcept override { return error_.exchange(0, std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kSendBatch = 64;    // messages in one sendmmsg
  static constexpr std::size_t kSegmentsMax = 64;  // UDP_MAX_SEGMENTS of every kernel that has GSO
  static constexpr std::size_t kBuffersMax = kSegmentsMax;
  /// How often in a row a busy socket is read before the others are checked.
  static constexpr int kRecentMax = 4;

  /// Prepares a socket. Returns false, with errno, if the socket cannot be watched.
  [[nodiscard]] bool prepare(std::size_t index) noexcept;
  /// Fills the receive queue from a socket with data. Returns false if no socket has any.
  bool fill() noexcept;
  bool fill_from(std::size_t index) noexcept;
  /// How many packets from the front of `burst` one message can carry.
  [[nodiscard]] std::size_t run_length(std::span<const wire::Packet> burst) const noexcept;
  /// Makes the iovecs of a run and one message for each endpoint; flushes whenever the batch is full.
  void queue_run(std::span<const wire::Packet> run, std::span<const wire::Endpoint> to, int descriptor,
                 bool marked) noexcept;
  void flush(int descriptor) noexcept;
  /// After a failed sendmmsg: true to try the same message again, false to give it up.
  bool handle_refusal(int descriptor, std::size_t index, int& retries) noexcept;
  /// Sends the datagrams of a message one by one. Each lies in one vector, since vectors are made of whole packets.
  void send_singly(int descriptor, std::size_t index) noexcept;

  UdpConfig config_;
  std::vector<UdpSocket> sockets_;
  bool gso_ = false;
  bool connected_ = false;  // the socket knows its peer, and has looked up the route
  process::Descriptor epoll_;
  process::Descriptor wake_event_;
  TransportStats stats_;
  std::atomic<int> error_{0};

  ReceiveQueue queue_;
  std::array<epoll_event, wire::kThreadsMax> ready_{};
  std::size_t ready_next_ = 0;
  std::size_t ready_count_ = 0;
  std::size_t recent_ = 0;  // the last socket with data
  int recent_asked_ = kRecentMax;

  // The packets that are being made. They lie side by side: full-size neighbours form one run of memory, which the
  // kernel copies 20% faster than one piece for each packet.
  std::size_t stride_;
  std::vector<std::byte> memory_;
  std::array<wire::Packet, kBuffersMax> packets_{};

  std::array<mmsghdr, kSendBatch> messages_{};
  std::array<sockaddr_in, kSendBatch> addresses_{};
  std::array<std::size_t, kSendBatch> datagrams_{};  // number of datagrams in each message
  std::array<ControlBuffer, kSendBatch> controls_{};
  std::array<iovec, kSendBatch * kSegmentsMax> vectors_{};
  std::size_t messages_used_ = 0;
  std::size_t vectors_used_ = 0;
  int waits_left_ = 0;  // waits that one send() may still make
};

}  // namespace wiresum::transport
