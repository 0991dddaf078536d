// Theory of operation
//
// Receiving. One recvmmsg takes up to four messages into buffers of 64 KiB. With GRO a message is a run of
// equally long datagrams of one sender, and a control message gives their length; receive() cuts the runs apart. If
// the caller's burst is full, the rest of a run waits in its buffer for the next call, so nothing is copied.
//
// Sending. The kernel has copied a packet when sendmmsg() returns, so all buffers are free again at once, and in the
// cache. A burst is cut into *runs*: consecutive packets of one length, since GSO cuts a buffer into equal pieces. Each
// contiguous stretch of a run's memory is one iovec, and the iovecs serve every endpoint: a multicast to N workers
// costs N messages in one sendmmsg, and no copy here. Without GSO a run is one packet. The longest run is a *train*, 64
// kB. All messages cost nearly the same, so callers make bursts of whole trains: 44 packets of an MTU of 1500, since 64
// would leave as 44 and 20.
//
// Several ports. A switch's thread serves many ports, most of them idle, and a worker's thread also a multicast group:
// epoll finds ports with datagrams, and each call drains one of them, in turn.
//
// Waiting. ppoll() sleeps as precisely as timers need, on every kernel and under every filter of system calls
// (epoll_pwait2 came with Linux 5.11, and some containers forbid it). The thread waits for the wake-up event, and for
// the one socket or the epoll of several.
#include "transport/udp/udp.hpp"

#include <netinet/udp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <system_error>

#include "transport/udp/address.hpp"

namespace wiresum::transport {
namespace {

constexpr std::size_t kRunBytesMax = wire::kUdpPayloadBytesMax;
constexpr std::size_t kPacketAlignmentBytes = 8;
/// The number of waits in one send() for a full socket buffer, and the time of each, before the rest of the burst is
/// given up as lost. Together they are less than the least timeout of a packet, since all jobs of the thread wait.
constexpr int kSendWaitsMax = 2;
constexpr int kSendWaitMs = 2;
/// The number of times that a message is sent again after sendmmsg has reported an answer to an earlier one instead.
constexpr int kSendRetriesMax = 8;

const std::byte* end_of(const iovec& vector) noexcept {
  return static_cast<const std::byte*>(vector.iov_base) + vector.iov_len;
}

std::size_t round_up(std::size_t value, std::size_t unit) noexcept { return (value + unit - 1) / unit * unit; }

/// The system's facts of a received message.
struct Train {
  std::size_t datagram_bytes = 0;  // each datagram's that GRO put together; else the message's
  bool marked = false;             // GRO keeps marked datagrams apart from others
};

Train train_of(msghdr& message, std::size_t whole) noexcept {
  Train train{.datagram_bytes = whole};
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr; control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level == IPPROTO_UDP && control->cmsg_type == UDP_GRO) {
      int size = 0;
      std::memcpy(&size, CMSG_DATA(control), sizeof size);
      if (size > 0) train.datagram_bytes = static_cast<std::size_t>(size);
    } else if (control->cmsg_level == IPPROTO_IP && control->cmsg_type == IP_TOS) {
      std::uint8_t tos = 0;
      std::memcpy(&tos, CMSG_DATA(control), sizeof tos);
      train.marked = wire::is_marked(tos);
    }
  }
  return train;
}

/// Adds a control message to a message that is to be sent.
template <class Value>
void add_control(msghdr& message, ControlBuffer& buffer, int level, int type, Value value) noexcept {
  auto* const control = reinterpret_cast<cmsghdr*>(buffer.bytes.data() + message.msg_controllen);
  control->cmsg_level = level;
  control->cmsg_type = type;
  control->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(control), &value, sizeof value);
  message.msg_control = buffer.bytes.data();
  message.msg_controllen += CMSG_SPACE(sizeof value);
}

}  // namespace

// ---- Receiving ----

ReceiveQueue::ReceiveQueue() : memory_(kBatch * kBufferBytes) {
  for (std::size_t i = 0; i < kBatch; ++i) {
    vectors_[i] = {.iov_base = memory_.data() + i * kBufferBytes, .iov_len = kBufferBytes};
  }
}

std::size_t ReceiveQueue::fill(int descriptor, std::uint8_t port) noexcept {
  assert(empty());  // lent datagrams must not change
  for (std::size_t i = 0; i < kBatch; ++i) {
    msghdr& message = messages_[i].msg_hdr;
    message = {};
    message.msg_name = &sources_[i];
    message.msg_namelen = sizeof sources_[i];
    message.msg_iov = &vectors_[i];
    message.msg_iovlen = 1;
    message.msg_control = controls_[i].bytes.data();
    message.msg_controllen = controls_[i].bytes.size();
  }
  const int count = recvmmsg(descriptor, messages_.data(), kBatch, MSG_DONTWAIT, nullptr);
  next_ = 0;
  offset_ = 0;
  port_ = port;
  filled_ = count > 0 ? static_cast<std::size_t>(count) : 0;
  return filled_;
}

std::size_t ReceiveQueue::drain(std::span<RxDatagram> out) noexcept {
  std::size_t count = 0;
  while (next_ != filled_ && count != out.size()) {
    mmsghdr& received = messages_[next_];
    const std::size_t whole = received.msg_len;
    const bool cut_off = (received.msg_hdr.msg_flags & MSG_TRUNC) != 0;
    const Train train = train_of(received.msg_hdr, whole);
    const std::size_t length = std::min(train.datagram_bytes, whole - offset_);
    if (!cut_off) {
      const auto* base = static_cast<const std::byte*>(vectors_[next_].iov_base) + offset_;
      out[count++] = {
          .bytes = {base, length}, .source = from_sockaddr(sources_[next_]), .port = port_, .marked = train.marked};
    }
    offset_ += length;
    if (offset_ >= whole || cut_off) {
      ++next_;
      offset_ = 0;
    }
  }
  return count;
}

UdpTransport::UdpTransport(const UdpConfig& config, std::vector<UdpSocket> sockets)
    : config_(config),
      sockets_(std::move(sockets)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      stride_(round_up(config.datagram_bytes_max, kPacketAlignmentBytes)),
      memory_(kBuffersMax * stride_) {
  if (sockets_.empty() || sockets_.size() > wire::kThreadsMax) {
    throw std::invalid_argument("a UDP transport serves 1 to 16 sockets");
  }
  if (!epoll_.valid() || !wake_event_.valid()) {
    throw std::system_error(errno, std::generic_category(), "cannot create an event queue");
  }
  gso_ = config.offload && sockets_.front().supports_segmentation();
  connected_ = sockets_.front().connected();
  for (std::size_t i = 0; i < kBuffersMax; ++i) packets_[i].data = memory_.data() + i * stride_;
  for (std::size_t i = 0; i < sockets_.size(); ++i) {
    if (!prepare(i)) throw std::system_error(errno, std::generic_category(), "cannot watch a socket");
  }
  sockets_.reserve(sockets_.size() + 1);  // for a group's socket
}

bool UdpTransport::prepare(std::size_t index) noexcept {
  UdpSocket& socket = sockets_[index];
  socket.set_buffers(config_.receive_buffer_bytes, config_.send_buffer_bytes);
  socket.enable_marks();
  // Without GRO every message is one datagram; nothing else changes.
  if (config_.offload) static_cast<void>(socket.enable_receive_offload());
  epoll_event event{.events = EPOLLIN, .data = {.u64 = index}};
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.descriptor(), &event) == 0;
}

bool UdpTransport::hear(std::span<const wire::Endpoint> peers, UdpSocket* group) noexcept {
  if (peers.size() != 1 || !connected_) return false;
  try {
    sockets_.front().connect(peers.front());
  } catch (const std::system_error& error) {
    error_.store(error.code().value(), std::memory_order_relaxed);
    return false;
  }
  // A copy in a forked child would keep a socket's watch after it is closed here.
  for (std::size_t i = 1; i < sockets_.size(); ++i) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, sockets_[i].descriptor(), nullptr);
  }
  sockets_.erase(sockets_.begin() + 1, sockets_.end());
  ready_next_ = ready_count_ = 0;
  recent_ = 0;
  if (group == nullptr) return true;
  sockets_.push_back(std::move(*group));
  if (prepare(1)) return true;
  error_.store(errno, std::memory_order_relaxed);
  return false;
}

std::size_t UdpTransport::receive(std::span<RxDatagram> out) noexcept {
  std::size_t count = 0;
  // The queue's buffers were lent to the caller until this call, and are refilled before anything is lent.
  if (!queue_.empty() || fill()) count = queue_.drain(out);
  stats_.datagrams_received += count;
  return count;
}

bool UdpTransport::fill() noexcept {
  if (sockets_.size() == 1) {
    return fill_from(0);
  }
  // Usually one socket is busy for a while. Reading it costs less than epoll, but the others must not wait for long.
  if (recent_asked_ != kRecentMax) {
    ++recent_asked_;
    if (fill_from(recent_)) {
      return true;
    }
    recent_asked_ = kRecentMax;
  }
  if (ready_next_ == ready_count_) {
    const int count = epoll_wait(epoll_.get(), ready_.data(), static_cast<int>(ready_.size()), 0);
    ready_next_ = 0;
    ready_count_ = count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  while (ready_next_ != ready_count_) {
    const std::uint64_t index = ready_[ready_next_++].data.u64;
    if (fill_from(index)) {
      recent_ = index;
      recent_asked_ = 0;
      return true;
    }
  }
  return false;
}

bool UdpTransport::fill_from(std::size_t index) noexcept {
  ++stats_.receive_calls;
  const std::size_t taken = queue_.fill(sockets_[index].descriptor(), static_cast<std::uint8_t>(index));
  stats_.messages_received += taken;
  if (taken != 0) {
    return true;
  }
  if (errno != EAGAIN && errno != EINTR) {
    error_.store(errno, std::memory_order_relaxed);  // an answer to an earlier datagram, like ECONNREFUSED
  }
  return false;
}

// ---- Sending ----

std::span<wire::Packet> UdpTransport::buffers(std::size_t wanted) noexcept {
  return std::span(packets_).first(std::min(wanted, kBuffersMax));
}

std::size_t UdpTransport::train_packets(std::size_t packet_bytes) const noexcept {
  return gso_ ? std::clamp<std::size_t>(kRunBytesMax / std::max<std::size_t>(packet_bytes, 1), 1, kSegmentsMax) : 1;
}

void UdpTransport::send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t port,
                        bool marked) noexcept {
  assert(port < sockets_.size() && count <= kBuffersMax);
  const int descriptor = sockets_[port].descriptor();
  waits_left_ = kSendWaitsMax;
  for (std::span<const wire::Packet> packets = std::span(packets_).first(count); !packets.empty();) {
    const std::size_t length = run_length(packets);
    queue_run(packets.first(length), to, descriptor, marked);
    packets = packets.subspan(length);
  }
  flush(descriptor);
}

std::size_t UdpTransport::run_length(std::span<const wire::Packet> burst) const noexcept {
  const std::size_t limit = std::min(burst.size(), train_packets(burst.front().bytes));
  std::size_t length = 1;
  while (length < limit && burst[length].bytes == burst.front().bytes) {
    ++length;
  }
  return length;
}

void UdpTransport::queue_run(std::span<const wire::Packet> run, std::span<const wire::Endpoint> to, int descriptor,
                             bool marked) noexcept {
  assert(!run.empty() && run.size() <= kSegmentsMax);
  assert(!connected_ || to.size() == 1);
  // Messages in the batch refer to iovecs, so both are reset together.
  if (vectors_used_ + run.size() > vectors_.size()) {
    flush(descriptor);
  }
  std::size_t first = vectors_used_;
  const auto gather = [&] {
    first = vectors_used_;
    for (const wire::Packet& packet : run) {
      assert(packet.bytes <= stride_);
      if (vectors_used_ != first && end_of(vectors_[vectors_used_ - 1]) == packet.data) {
        vectors_[vectors_used_ - 1].iov_len += packet.bytes;
      } else {
        vectors_[vectors_used_++] = {.iov_base = packet.data, .iov_len = packet.bytes};
      }
    }
  };
  gather();
  for (const wire::Endpoint& endpoint : to) {
    if (messages_used_ == kSendBatch) {
      flush(descriptor);
      gather();
    }
    msghdr& message = messages_[messages_used_].msg_hdr;
    message = {};
    if (!connected_) {
      addresses_[messages_used_] = to_sockaddr(endpoint);
      message.msg_name = &addresses_[messages_used_];
      message.msg_namelen = sizeof addresses_[messages_used_];
    }
    message.msg_iov = &vectors_[first];
    message.msg_iovlen = vectors_used_ - first;
    datagrams_[messages_used_] = run.size();
    ControlBuffer& control = controls_[messages_used_];
    if (run.size() > 1) {
      add_control(message, control, IPPROTO_UDP, UDP_SEGMENT, static_cast<std::uint16_t>(run.front().bytes));
    }
    if (marked) add_control(message, control, IPPROTO_IP, IP_TOS, int{wire::kEcnMarked});  // R3.22
    ++messages_used_;
  }
}

void UdpTransport::flush(int descriptor) noexcept {
  std::size_t sent = 0;
  int retries = 0;
  while (sent != messages_used_) {
    ++stats_.send_calls;
    const int count =
        sendmmsg(descriptor, &messages_[sent], static_cast<unsigned>(messages_used_ - sent), MSG_DONTWAIT);
    if (count > 0) {
      for (int i = 0; i < count; ++i) {
        stats_.datagrams_sent += datagrams_[sent++];
      }
      continue;
    }
    if (!handle_refusal(descriptor, sent, retries)) {
      stats_.send_failures += datagrams_[sent++];
      retries = 0;
    }
  }
  assert(sent == messages_used_);
  messages_used_ = 0;
  vectors_used_ = 0;
}

bool UdpTransport::handle_refusal(int descriptor, std::size_t index, int& retries) noexcept {
  const int error = errno;
  if (error == EINTR) {
    return true;
  }
  if (++retries > kSendRetriesMax) {
    return false;
  }
  if (error == EAGAIN || error == ENOBUFS) {
    if (waits_left_ == 0) {
      return false;
    }
    --waits_left_;
    pollfd writable{.fd = descriptor, .events = POLLOUT, .revents = 0};
    static_cast<void>(poll(&writable, 1, kSendWaitMs));
    return true;
  }
  error_.store(error, std::memory_order_relaxed);
  if ((error == EIO || error == EINVAL) && datagrams_[index] > 1) {
    // The device cannot checksum GSO's pieces, or does not support GSO: packets go without GSO from now on.
    gso_ = false;
    send_singly(descriptor, index);
    return false;
  }
  // An answer to an earlier datagram is reported once, and this datagram is not sent.
  return error == ECONNREFUSED || error == EHOSTUNREACH || error == ENETUNREACH;
}

void UdpTransport::send_singly(int descriptor, std::size_t index) noexcept {
  msghdr single = messages_[index].msg_hdr;
  const std::span<const iovec> stretches(single.msg_iov, single.msg_iovlen);
  std::size_t bytes = 0;
  for (const iovec& stretch : stretches) {
    bytes += stretch.iov_len;
  }
  bytes /= datagrams_[index];
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

// ---- Waiting ----

void UdpTransport::wait(std::int64_t timeout_ns) noexcept {
  if (!queue_.empty() || ready_next_ != ready_count_) return;
  const timespec timeout{.tv_sec = timeout_ns / 1'000'000'000, .tv_nsec = timeout_ns % 1'000'000'000};
  const int arrivals = sockets_.size() == 1 ? sockets_.front().descriptor() : epoll_.get();
  std::array<pollfd, 2> events{
      {{.fd = wake_event_.get(), .events = POLLIN, .revents = 0}, {.fd = arrivals, .events = POLLIN, .revents = 0}}};
  if (ppoll(events.data(), events.size(), timeout_ns < 0 ? nullptr : &timeout, nullptr) <= 0) return;
  if (events.front().revents == 0) return;
  std::uint64_t count = 0;
  static_cast<void>(!read(wake_event_.get(), &count, sizeof count));
}

void UdpTransport::wake() noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!write(wake_event_.get(), &one, sizeof one));
}

}  // namespace wiresum::transport
