#include "transport/exchange.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

namespace wiresum::transport {
namespace {

/// Copies of datagrams, in the order of their arrival.
class Copies {
 public:
  explicit Copies(std::size_t datagram_bytes_max) : stride_(datagram_bytes_max), memory_(kPassedMax * stride_) {}

  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] const RxDatagram& operator[](std::size_t index) const noexcept { return copies_[index]; }
  void clear() noexcept { count_ = 0; }

  /// Adds a datagram; false if it does not fit.
  bool add(const RxDatagram& datagram) noexcept {
    if (count_ == kPassedMax || datagram.bytes.size() > stride_) return false;
    std::byte* const to = memory_.data() + count_ * stride_;
    std::memcpy(to, datagram.bytes.data(), datagram.bytes.size());
    copies_[count_] = datagram;
    copies_[count_++].bytes = {to, datagram.bytes.size()};
    return true;
  }

 private:
  std::size_t stride_;
  std::vector<std::byte> memory_;
  std::array<RxDatagram, kPassedMax> copies_{};
  std::size_t count_ = 0;
};

/// Datagrams that other threads have received for this one.
struct Mailbox {
  explicit Mailbox(std::size_t datagram_bytes_max)
      : filling(std::make_unique<Copies>(datagram_bytes_max)), lent(std::make_unique<Copies>(datagram_bytes_max)) {}

  std::mutex mutex;
  std::unique_ptr<Copies> filling;     // the mutex protects it
  std::atomic<std::size_t> filled{0};  // the size of `filling`
  std::atomic<bool> sleeps{false};     // the owner, or it is about to
  std::unique_ptr<Copies> lent;        // the owner's
};

struct Exchange {
  Exchange(std::vector<std::unique_ptr<Transport>> given, std::size_t datagram_bytes_max) : queues(std::move(given)) {
    for (std::size_t i = 0; i != queues.size(); ++i) {
      mailboxes.push_back(std::make_unique<Mailbox>(datagram_bytes_max));
    }
  }

  /// Pairs with ThreadTransport::wait(): either the sleeper sees the datagram, or this thread sees the sleep.
  void pass(std::size_t to, const RxDatagram& datagram) noexcept {
    Mailbox& mailbox = *mailboxes[to];
    {
      const std::lock_guard lock(mailbox.mutex);
      static_cast<void>(mailbox.filling->add(datagram));  // a datagram without room is lost, which timers repair
      mailbox.filled.store(mailbox.filling->size());
    }
    if (mailbox.sleeps.load()) queues[to]->wake();
  }

  std::vector<std::unique_ptr<Transport>> queues;
  std::vector<std::unique_ptr<Mailbox>> mailboxes;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Exchange> exchange, std::size_t index)
      : exchange_(std::move(exchange)),
        index_(index),
        own_(*exchange_->queues[index]),
        mailbox_(*exchange_->mailboxes[index]) {}

  const char* name() const noexcept override { return own_.name(); }

  std::size_t receive(std::span<RxDatagram> out) noexcept override {
    // The two take turns, so that neither starves the other.
    passed_first_ = !passed_first_;
    std::size_t count = passed_first_ ? take_passed(out) : take_own(out);
    count += passed_first_ ? take_own(out.subspan(count)) : take_passed(out.subspan(count));
    received_ += count;
    return count;
  }

  std::span<wire::Packet> buffers(std::size_t wanted) noexcept override { return own_.buffers(wanted); }
  std::size_t train_packets(std::size_t packet_bytes) const noexcept override {
    return own_.train_packets(packet_bytes);
  }
  void send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t port, bool marked) noexcept override {
    own_.send(count, to, static_cast<std::uint8_t>(port * exchange_->queues.size() + index_), marked);
  }

  void wait(std::int64_t timeout_ns) noexcept override {
    mailbox_.sleeps.store(true);
    if (next_ == mailbox_.lent->size() && mailbox_.filled.load() == 0) own_.wait(timeout_ns);
    mailbox_.sleeps.store(false);
  }
  void wake() noexcept override { own_.wake(); }
  int wake_event() const noexcept override { return own_.wake_event(); }
  /// Threads that share a device receive for each other.
  std::int64_t untended_ns_max() const noexcept override {
    return exchange_->queues.size() == 1 ? own_.untended_ns_max() : 0;
  }
  /// Peers of all threads' ports: whichever thread's queue a packet comes by decides whether it is taken.
  bool hear(std::span<const wire::Endpoint> peers, UdpSocket* group) noexcept override {
    return own_.hear(peers, group);
  }

  const TransportStats& stats() const noexcept override {
    stats_ = own_.stats();
    stats_.datagrams_received = received_;
    stats_.datagrams_passed = passed_;
    return stats_;
  }
  int take_error() noexcept override { return own_.take_error(); }

 private:
  [[nodiscard]] RxDatagram numbered(const RxDatagram& datagram) const noexcept {
    RxDatagram own = datagram;
    own.port = static_cast<std::uint8_t>(datagram.port / exchange_->queues.size());
    return own;
  }

  std::size_t take_own(std::span<RxDatagram> out) noexcept {
    if (out.empty()) return 0;
    const std::size_t taken = own_.receive(out);
    std::size_t kept = 0;
    for (const RxDatagram& datagram : out.first(taken)) {
      const std::size_t owner = datagram.port % exchange_->queues.size();
      if (owner == index_) {
        out[kept++] = numbered(datagram);
      } else {
        exchange_->pass(owner, datagram);
        ++passed_;
      }
    }
    return kept;
  }

  std::size_t take_passed(std::span<RxDatagram> out) noexcept {
    if (next_ == mailbox_.lent->size()) {
      if (mailbox_.filled.load() == 0) return 0;
      mailbox_.lent->clear();
      const std::lock_guard lock(mailbox_.mutex);
      std::swap(mailbox_.lent, mailbox_.filling);
      mailbox_.filled.store(0);
      next_ = 0;
    }
    const std::size_t count = std::min(out.size(), mailbox_.lent->size() - next_);
    for (std::size_t i = 0; i != count; ++i) out[i] = numbered((*mailbox_.lent)[next_++]);
    return count;
  }

  std::shared_ptr<Exchange> exchange_;
  std::size_t index_;
  Transport& own_;
  Mailbox& mailbox_;
  std::size_t next_ = 0;  // the first lent datagram that was not handed out
  bool passed_first_ = false;
  std::uint64_t received_ = 0;
  std::uint64_t passed_ = 0;
  mutable TransportStats stats_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> thread_transports(std::vector<std::unique_ptr<Transport>> queues,
                                                          std::size_t datagram_bytes_max) {
  assert(!queues.empty());
  if (queues.size() == 1) return queues;
  const std::size_t count = queues.size();
  const auto exchange = std::make_shared<Exchange>(std::move(queues), datagram_bytes_max);
  std::vector<std::unique_ptr<Transport>> transports;
  for (std::size_t i = 0; i != count; ++i) transports.push_back(std::make_unique<ThreadTransport>(exchange, i));
  return transports;
}

}  // namespace wiresum::transport
