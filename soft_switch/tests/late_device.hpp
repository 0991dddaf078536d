// A transport over a device with few buffers that reads packets late and in any order; the test makes its datagrams.
// The data thread uses it, and the test may be another thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "transport/transport.hpp"

namespace wiresum::soft_switch {

class LateDevice final : public transport::Transport {
 public:
  struct Sent {
    std::vector<std::byte> bytes;  // at the time when the device read them
    std::vector<wire::Endpoint> to;
    std::uint8_t port = 0;     // the port that it leaves by
    bool marked = false;       // (ECN)
    bool was_changed = false;  // between send() and the read
  };

  LateDevice(std::size_t packets, std::size_t packet_bytes) : memory_(packets, std::vector<std::byte>(packet_bytes)) {
    for (std::vector<std::byte>& place : memory_) free_.push_back(place);
  }

  // For the test
  void arrive(wire::Endpoint source, std::vector<std::byte> datagram, std::uint8_t port = 0, bool marked = false) {
    const std::lock_guard lock(mutex_);
    arrived_.push_back({source, std::move(datagram), port, marked});
    event_.notify_all();
  }
  [[nodiscard]] std::size_t unread() {
    const std::lock_guard lock(mutex_);
    return unread_.size();
  }
  /// The number of calls of send().
  [[nodiscard]] std::size_t sends() {
    const std::lock_guard lock(mutex_);
    return sends_;
  }
  /// Lets the device read the latest packet that it was given.
  std::optional<Sent> read() {
    const std::lock_guard lock(mutex_);
    if (unread_.empty()) return std::nullopt;
    auto [place, as_sent, to, port, marked] = std::move(unread_.back());
    unread_.pop_back();
    Sent sent{.bytes = {place.begin(), place.begin() + static_cast<std::ptrdiff_t>(as_sent.size())},
              .to = std::move(to),
              .port = port,
              .marked = marked};
    sent.was_changed = sent.bytes != as_sent;
    std::ranges::fill(place, kPoison);
    free_.push_back(place);
    return sent;
  }

  // For the data thread
  [[nodiscard]] const char* name() const noexcept override { return "late"; }
  [[nodiscard]] std::size_t train_packets(std::size_t /*packet_bytes*/) const noexcept override { return 1; }

  std::size_t receive(std::span<transport::RxDatagram> out) noexcept override {
    const std::lock_guard lock(mutex_);
    lent_ = std::exchange(arrived_, {});
    const std::size_t count = std::min(lent_.size(), out.size());
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = {.bytes = lent_[i].bytes, .source = lent_[i].source, .port = lent_[i].port, .marked = lent_[i].marked};
    }
    return count;
  }

  std::span<wire::Packet> buffers(std::size_t wanted) noexcept override {
    const std::lock_guard lock(mutex_);
    offered_.clear();
    for (std::size_t i = 0; i < std::min(wanted, free_.size()); ++i) offered_.push_back({free_[i].data(), 0});
    return offered_;
  }

  void send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t port, bool marked) noexcept override {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < count; ++i) {
      const std::span<std::byte> place = free_[i];
      unread_.push_back(
          {place, {place.begin(), place.begin() + offered_[i].bytes}, {to.begin(), to.end()}, port, marked});
    }
    free_.erase(free_.begin(), free_.begin() + static_cast<std::ptrdiff_t>(count));
    offered_.clear();
    ++sends_;
  }

  void wait(std::int64_t timeout_ns) noexcept override {
    std::unique_lock lock(mutex_);
    event_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [this] { return woken_ || !arrived_.empty(); });
    woken_ = false;
  }
  void wake() noexcept override {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    event_.notify_all();
  }
  [[nodiscard]] const transport::TransportStats& stats() const noexcept override { return stats_; }
  int take_error() noexcept override { return 0; }

 private:
  static constexpr std::byte kPoison{0xDD};
  struct Unread {
    std::span<std::byte> place;
    std::vector<std::byte> as_sent;
    std::vector<wire::Endpoint> to;
    std::uint8_t port = 0;
    bool marked = false;
  };
  struct Arrived {
    wire::Endpoint source;
    std::vector<std::byte> bytes;
    std::uint8_t port = 0;
    bool marked = false;
  };

  std::mutex mutex_;
  std::condition_variable event_;
  bool woken_ = false;
  std::size_t sends_ = 0;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::span<std::byte>> free_;
  std::vector<wire::Packet> offered_;
  std::vector<Unread> unread_;
  std::vector<Arrived> arrived_;
  std::vector<Arrived> lent_;
  transport::TransportStats stats_;
};

}  // namespace wiresum::soft_switch
