// Theory of operation
//
// Receiving. One recvmmsg takes up to kReceiveBatch messages into buffers of 64 KiB. With GRO a message is a run of
// equally long datagrams of one sender, and a control message gives their length; receive() cuts the runs apart. If
// the caller's burst is full, the rest of a run waits in its buffer for the next call, so nothing is copied.
//
// Sending. The kernel has copied a packet when sendmmsg() returns, so all buffers are free again at once, and in the
// cache. A burst is cut into *runs*: consecutive packets of one length, since GSO cuts a buffer into equal pieces. Each
// contiguous stretch of a run's memory is one iovec, and the iovecs serve every endpoint: a multicast to N workers
// costs N messages in one sendmmsg, and no copy here. Without GSO a run is one packet. The longest run is a *train*, 64
// kB. A message costs much the same whatever its length, so callers make bursts of whole trains: 44 packets of an MTU
// of 1500 rather than 64, which would leave as 44 and 20.
//
// Several ports. A switch's thread serves many ports, most of them idle, and a worker's also a multicast group: epoll
// tells which have something, and each call drains one of them, in turn.
//
// Waiting. ppoll() sleeps as precisely as timers need it, on every kernel and under every filter of system calls
// (epoll_pwait2 came with Linux 5.11, and some containers forbid it). It waits for the wake-up event, and for the one
// socket or the epoll of several.
#include "transport/udp/udp.hpp"

#include <netinet/udp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <system_error>

#include "transport/udp/address.hpp"

namespace wiresum::transport {
namespace {

constexpr std::size_t kReceiveBatch = 4;  // of 64 KiB each: more would not stay in the cache
constexpr std::size_t kReceiveBufferBytes = 64u << 10;
constexpr std::size_t kSendBatch = 64;    // messages in one sendmmsg
constexpr std::size_t kSegmentsMax = 64;  // UDP_MAX_SEGMENTS of every kernel that has GSO
constexpr std::size_t kBuffersMax = kSegmentsMax;
constexpr std::size_t kRunBytesMax = wire::kUdpPayloadBytesMax;
constexpr std::size_t kPacketAlignmentBytes = 8;
/// How often in one send() a full socket buffer is waited for, and how long each time, before the rest of the burst is
/// given up as lost. Together less than the least timeout of a packet, since all jobs of the thread wait meanwhile.
constexpr int kSendWaitsMax = 2;
constexpr int kSendWaitMs = 2;
/// How often a message is tried again when sendmmsg reported an answer to an earlier one instead of sending it.
constexpr int kSendRetriesMax = 8;
/// How often in a row a busy socket is read before the others are checked.
constexpr int kRecentMax = 4;

const std::byte* end_of(const iovec& vector) noexcept {
  return static_cast<const std::byte*>(vector.iov_base) + vector.iov_len;
}

struct ControlBuffer {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> bytes{};
};

std::size_t round_up(std::size_t value, std::size_t unit) noexcept { return (value + unit - 1) / unit * unit; }

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

/// The packets that are being made. They lie side by side: full-size neighbours form one run of memory, which the
/// kernel copies 20% faster than one piece for each packet.
class SendBuffers {
 public:
  explicit SendBuffers(std::size_t packet_bytes)
      : stride_(round_up(packet_bytes, kPacketAlignmentBytes)), memory_(kBuffersMax * stride_), packets_(kBuffersMax) {
    for (std::size_t i = 0; i < kBuffersMax; ++i) packets_[i].data = memory_.data() + i * stride_;
  }

  [[nodiscard]] std::span<wire::Packet> packets() noexcept { return packets_; }
  [[nodiscard]] std::size_t packet_bytes_max() const noexcept { return stride_; }

 private:
  std::size_t stride_;
  std::vector<std::byte> memory_;
  std::vector<wire::Packet> packets_;
};

/// Length of the datagrams that GRO put together, or `whole` where it did not.
std::size_t segment_bytes(msghdr& message, std::size_t whole) noexcept {
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr; control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level == IPPROTO_UDP && control->cmsg_type == UDP_GRO) {
      int size = 0;
      std::memcpy(&size, CMSG_DATA(control), sizeof size);
      return size > 0 ? static_cast<std::size_t>(size) : whole;
    }
  }
  return whole;
}

void request_segmentation(msghdr& message, ControlBuffer& buffer, std::size_t bytes) noexcept {
  message.msg_control = buffer.bytes.data();
  message.msg_controllen = CMSG_SPACE(sizeof(std::uint16_t));
  cmsghdr* control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = IPPROTO_UDP;
  control->cmsg_type = UDP_SEGMENT;
  control->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
  const auto size = static_cast<std::uint16_t>(bytes);
  std::memcpy(CMSG_DATA(control), &size, sizeof size);
}

/// Received messages that wait to be cut into datagrams.
class ReceiveQueue {
 public:
  ReceiveQueue() : memory_(kReceiveBatch * kReceiveBufferBytes) {
    for (std::size_t i = 0; i < kReceiveBatch; ++i) {
      vectors_[i] = {.iov_base = memory_.data() + i * kReceiveBufferBytes, .iov_len = kReceiveBufferBytes};
    }
  }

  [[nodiscard]] bool empty() const noexcept { return next_ == filled_; }

  /// Takes messages from the socket. Returns how many there were.
  std::size_t fill(int descriptor, std::uint8_t port) noexcept {
    assert(empty());  // what is lent to the caller must not change
    for (std::size_t i = 0; i < kReceiveBatch; ++i) {
      msghdr& message = messages_[i].msg_hdr;
      message = {};
      message.msg_name = &sources_[i];
      message.msg_namelen = sizeof sources_[i];
      message.msg_iov = &vectors_[i];
      message.msg_iovlen = 1;
      message.msg_control = controls_[i].bytes.data();
      message.msg_controllen = controls_[i].bytes.size();
    }
    const int count = recvmmsg(descriptor, messages_.data(), kReceiveBatch, MSG_DONTWAIT, nullptr);
    next_ = 0;
    offset_ = 0;
    port_ = port;
    filled_ = count > 0 ? static_cast<std::size_t>(count) : 0;
    return filled_;
  }

  /// Cuts waiting messages into `out`. Returns how many datagrams there were.
  std::size_t drain(std::span<RxDatagram> out) noexcept {
    std::size_t count = 0;
    while (next_ != filled_ && count != out.size()) {
      mmsghdr& received = messages_[next_];
      const std::size_t whole = received.msg_len;
      const bool cut_off = (received.msg_hdr.msg_flags & MSG_TRUNC) != 0;
      const std::size_t segment = segment_bytes(received.msg_hdr, whole);
      const std::size_t length = std::min(segment, whole - offset_);
      if (!cut_off) {
        const auto* base = static_cast<const std::byte*>(vectors_[next_].iov_base) + offset_;
        out[count++] = {.bytes = {base, length}, .source = from_sockaddr(sources_[next_]), .port = port_};
      }
      offset_ += length;
      if (offset_ >= whole || cut_off) {
        ++next_;
        offset_ = 0;
      }
    }
    return count;
  }

 private:
  std::vector<std::byte> memory_;
  std::array<iovec, kReceiveBatch> vectors_{};
  std::array<sockaddr_in, kReceiveBatch> sources_{};
  std::array<ControlBuffer, kReceiveBatch> controls_{};
  std::array<mmsghdr, kReceiveBatch> messages_{};
  std::size_t next_ = 0;    // message being cut
  std::size_t offset_ = 0;  // where in it
  std::size_t filled_ = 0;
  std::uint8_t port_ = 0;
};

}  // namespace

struct UdpTransport::Impl {
  Impl(const UdpConfig& settings, std::vector<UdpSocket> given)
      : sockets(std::move(given)), buffers(settings.datagram_bytes_max) {
    if (sockets.empty() || sockets.size() > wire::kThreadsMax) {
      throw std::invalid_argument("a UDP transport serves 1 to 16 sockets");
    }
    gso = settings.offload && sockets.front().supports_segmentation();
    connected = sockets.front().connected();
    epoll = epoll_create1(EPOLL_CLOEXEC);
    wake_event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (epoll < 0 || wake_event < 0) {
      fail("cannot create an event queue");
    }
    for (std::size_t i = 0; i < sockets.size(); ++i) {
      sockets[i].set_buffers(settings.receive_buffer_bytes, settings.send_buffer_bytes);
      if (settings.offload) {
        // Where there is no GRO, every message is one datagram; nothing else changes.
        static_cast<void>(sockets[i].enable_receive_offload());
      }
      if (sockets.size() > 1) watch(sockets[i].descriptor(), i);
    }
  }
  ~Impl() {
    close(epoll);
    close(wake_event);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void watch(int descriptor, std::uint64_t index) const {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = index}};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) != 0) {
      fail("cannot watch a socket");
    }
  }

  void note_error(int error) noexcept { last_error.store(error, std::memory_order_relaxed); }

  /// Fills the receive queue from a socket that has something. False if none has.
  bool fill() noexcept {
    if (sockets.size() == 1) {
      return fill_from(0);
    }
    // Usually one socket is busy for a while. Reading it costs less than epoll, but the others must not wait for long.
    if (recent_asked != kRecentMax) {
      ++recent_asked;
      if (fill_from(recent)) {
        return true;
      }
      recent_asked = kRecentMax;
    }
    if (ready_next == ready_count) {
      const int count = epoll_wait(epoll, ready.data(), static_cast<int>(ready.size()), 0);
      ready_next = 0;
      ready_count = count > 0 ? static_cast<std::size_t>(count) : 0;
    }
    while (ready_next != ready_count) {
      const std::uint64_t index = ready[ready_next++].data.u64;
      if (fill_from(index)) {
        recent = index;
        recent_asked = 0;
        return true;
      }
    }
    return false;
  }

  bool fill_from(std::size_t index) noexcept {
    ++statistics.receive_calls;
    const std::size_t taken = queue.fill(sockets[index].descriptor(), static_cast<std::uint8_t>(index));
    statistics.messages_received += taken;
    if (taken != 0) {
      return true;
    }
    if (errno != EAGAIN && errno != EINTR) {
      note_error(errno);  // ECONNREFUSED and the like: an answer to an earlier datagram
    }
    return false;
  }

  void wait(const timespec* timeout) const noexcept {
    const int arrivals = sockets.size() == 1 ? sockets.front().descriptor() : epoll;
    std::array<pollfd, 2> events{
        {{.fd = wake_event, .events = POLLIN, .revents = 0}, {.fd = arrivals, .events = POLLIN, .revents = 0}}};
    if (ppoll(events.data(), events.size(), timeout, nullptr) <= 0 || events.front().revents == 0) return;
    std::uint64_t count = 0;
    static_cast<void>(!read(wake_event, &count, sizeof count));
  }

  /// How many packets of this length one message can carry.
  [[nodiscard]] std::size_t train_packets(std::size_t packet_bytes) const noexcept {
    return gso ? std::clamp<std::size_t>(kRunBytesMax / std::max<std::size_t>(packet_bytes, 1), 1, kSegmentsMax) : 1;
  }

  /// How many packets from the front of `burst` one message can carry.
  [[nodiscard]] std::size_t run_length(std::span<const wire::Packet> burst) const noexcept {
    const std::size_t limit = std::min(burst.size(), train_packets(burst.front().bytes));
    std::size_t length = 1;
    while (length < limit && burst[length].bytes == burst.front().bytes) {
      ++length;
    }
    return length;
  }

  /// Makes the iovecs of a run and one message for each endpoint; flushes whenever the batch is full.
  void queue_run(std::span<const wire::Packet> run, std::span<const wire::Endpoint> to, int descriptor) noexcept {
    assert(!run.empty() && run.size() <= kSegmentsMax);
    assert(!connected || to.size() == 1);
    // Messages in the batch refer to iovecs, so both are reset together.
    if (vectors_used + run.size() > vectors.size()) {
      flush(descriptor);
    }
    std::size_t first = vectors_used;
    const auto gather = [&] {
      first = vectors_used;
      for (const wire::Packet& packet : run) {
        assert(packet.bytes <= buffers.packet_bytes_max());
        if (vectors_used != first && end_of(vectors[vectors_used - 1]) == packet.data) {
          vectors[vectors_used - 1].iov_len += packet.bytes;
        } else {
          vectors[vectors_used++] = {.iov_base = packet.data, .iov_len = packet.bytes};
        }
      }
    };
    gather();
    for (const wire::Endpoint& endpoint : to) {
      if (messages_used == kSendBatch) {
        flush(descriptor);
        gather();
      }
      msghdr& message = messages[messages_used].msg_hdr;
      message = {};
      if (!connected) {
        addresses[messages_used] = to_sockaddr(endpoint);
        message.msg_name = &addresses[messages_used];
        message.msg_namelen = sizeof addresses[messages_used];
      }
      message.msg_iov = &vectors[first];
      message.msg_iovlen = vectors_used - first;
      datagrams[messages_used] = run.size();
      if (run.size() > 1) {
        request_segmentation(message, controls[messages_used], run.front().bytes);
      }
      ++messages_used;
    }
  }

  void flush(int descriptor) noexcept {
    std::size_t sent = 0;
    int retries = 0;
    while (sent != messages_used) {
      ++statistics.send_calls;
      const int count =
          sendmmsg(descriptor, &messages[sent], static_cast<unsigned>(messages_used - sent), MSG_DONTWAIT);
      if (count > 0) {
        for (int i = 0; i < count; ++i) {
          statistics.datagrams_sent += datagrams[sent++];
        }
        continue;
      }
      if (!handle_refusal(descriptor, sent, retries)) {
        statistics.send_failures += datagrams[sent++];
        retries = 0;
      }
    }
    assert(sent == messages_used);
    messages_used = 0;
    vectors_used = 0;
  }

  /// After a failed sendmmsg: true to try the same message again, false to give it up.
  bool handle_refusal(int descriptor, std::size_t index, int& retries) noexcept {
    const int error = errno;
    if (error == EINTR) {
      return true;
    }
    if (++retries > kSendRetriesMax) {
      return false;
    }
    if (error == EAGAIN || error == ENOBUFS) {
      if (waits_left == 0) {
        return false;
      }
      --waits_left;
      pollfd writable{.fd = descriptor, .events = POLLOUT, .revents = 0};
      static_cast<void>(poll(&writable, 1, kSendWaitMs));
      return true;
    }
    note_error(error);
    if ((error == EIO || error == EINVAL) && datagrams[index] > 1) {
      // The device cannot checksum the pieces that GSO would make, or does not support GSO: do without from now on.
      gso = false;
      send_singly(descriptor, index);
      return false;
    }
    // An answer to an earlier datagram is reported once, in place of sending this one.
    return error == ECONNREFUSED || error == EHOSTUNREACH || error == ENETUNREACH;
  }

  /// Sends the datagrams of a message one by one. Each lies in one vector, since vectors are made of whole packets.
  void send_singly(int descriptor, std::size_t index) noexcept {
    msghdr single = messages[index].msg_hdr;
    const std::span<const iovec> stretches(single.msg_iov, single.msg_iovlen);
    std::size_t bytes = 0;
    for (const iovec& stretch : stretches) {
      bytes += stretch.iov_len;
    }
    bytes /= datagrams[index];
    single.msg_control = nullptr;
    single.msg_controllen = 0;
    for (const iovec& stretch : stretches) {
      for (std::size_t offset = 0; offset < stretch.iov_len; offset += bytes) {
        iovec piece{.iov_base = static_cast<std::byte*>(stretch.iov_base) + offset, .iov_len = bytes};
        single.msg_iov = &piece;
        single.msg_iovlen = 1;
        static_cast<void>(sendmsg(descriptor, &single, MSG_DONTWAIT));
      }
    }
  }

  std::vector<UdpSocket> sockets;
  SendBuffers buffers;
  ReceiveQueue queue;
  TransportStats statistics;
  std::atomic<int> last_error{0};
  bool gso = false;
  bool connected = false;  // a connected socket knows its peer, and has looked up the route
  int epoll = -1;
  int wake_event = -1;

  std::array<epoll_event, wire::kThreadsMax> ready{};
  std::size_t ready_next = 0;
  std::size_t ready_count = 0;
  std::size_t recent = 0;  // the socket that had something last
  int recent_asked = kRecentMax;

  std::array<mmsghdr, kSendBatch> messages{};
  std::array<sockaddr_in, kSendBatch> addresses{};
  std::array<std::size_t, kSendBatch> datagrams{};  // in each message
  std::array<ControlBuffer, kSendBatch> controls{};
  std::array<iovec, kSendBatch * kSegmentsMax> vectors{};
  std::size_t messages_used = 0;
  std::size_t vectors_used = 0;
  int waits_left = 0;  // of one send()
};

UdpTransport::UdpTransport(const UdpConfig& config, std::vector<UdpSocket> sockets)
    : impl_(std::make_unique<Impl>(config, std::move(sockets))) {}

UdpTransport::~UdpTransport() = default;

int UdpTransport::take_error() noexcept { return impl_->last_error.exchange(0, std::memory_order_relaxed); }

const char* UdpTransport::name() const noexcept { return "udp"; }

std::span<wire::Packet> UdpTransport::buffers(std::size_t wanted) noexcept {
  return impl_->buffers.packets().first(std::min(wanted, kBuffersMax));
}

std::size_t UdpTransport::train_packets(std::size_t packet_bytes) const noexcept {
  return impl_->train_packets(packet_bytes);
}

std::size_t UdpTransport::receive(std::span<RxDatagram> out) noexcept {
  std::size_t count = 0;
  // The queue's buffers are lent to the caller until this call, so they are refilled here, before anything is lent.
  if (!impl_->queue.empty() || impl_->fill()) {
    count = impl_->queue.drain(out);
  }
  impl_->statistics.datagrams_received += count;
  return count;
}

void UdpTransport::send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t port) noexcept {
  assert(port < impl_->sockets.size() && count <= kBuffersMax);
  const int descriptor = impl_->sockets[port].descriptor();
  impl_->waits_left = kSendWaitsMax;
  for (std::span<const wire::Packet> packets = impl_->buffers.packets().first(count); !packets.empty();) {
    const std::size_t length = impl_->run_length(packets);
    impl_->queue_run(packets.first(length), to, descriptor);
    packets = packets.subspan(length);
  }
  impl_->flush(descriptor);
}

void UdpTransport::wait(std::int64_t timeout_ns) noexcept {
  if (!impl_->queue.empty() || impl_->ready_next != impl_->ready_count) {
    return;
  }
  const timespec timeout{.tv_sec = timeout_ns / 1'000'000'000, .tv_nsec = timeout_ns % 1'000'000'000};
  impl_->wait(timeout_ns < 0 ? nullptr : &timeout);
}

void UdpTransport::wake() noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!write(impl_->wake_event, &one, sizeof one));
}

const TransportStats& UdpTransport::stats() const noexcept { return impl_->statistics; }

}  // namespace wiresum::transport
