// Wraps a transport for tests; every call that a subclass does not override is passed through.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "patience.hpp"
#include "transport/transport.hpp"

namespace wiresum::stress {

/// How often a thread slept until the test's time limit because no wake-up came.
inline std::atomic<int> overslept{0};

class Around : public transport::Transport {
 public:
  explicit Around(std::unique_ptr<transport::Transport> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] const char* name() const noexcept override { return inner_->name(); }
  [[nodiscard]] std::size_t receive(std::span<transport::RxDatagram> out) noexcept override {
    return inner_->receive(out);
  }
  [[nodiscard]] std::span<wire::Packet> buffers(std::size_t wanted) noexcept override {
    return inner_->buffers(wanted);
  }
  [[nodiscard]] std::size_t train_packets(std::size_t packet_bytes) const noexcept override {
    return inner_->train_packets(packet_bytes);
  }
  void send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t port, bool marked) noexcept override {
    inner_->send(count, to, port, marked);
  }
  [[nodiscard]] bool hear(std::span<const wire::Endpoint> peers, transport::UdpSocket* group) noexcept override {
    return inner_->hear(peers, group);
  }
  [[nodiscard]] bool serve(const transport::JobAt& lease) noexcept override { return inner_->serve(lease); }
  [[nodiscard]] std::int64_t untended_ns_max() const noexcept override { return inner_->untended_ns_max(); }
  [[nodiscard]] int wake_event() const noexcept override { return inner_->wake_event(); }
  void wait(std::int64_t timeout_ns) noexcept override { inner_->wait(timeout_ns); }
  void wake() noexcept override { inner_->wake(); }
  [[nodiscard]] const transport::TransportStats& stats() const noexcept override { return inner_->stats(); }
  [[nodiscard]] int take_error() noexcept override { return inner_->take_error(); }

 protected:
  /// Like wait(), but if no timer is due, only a datagram or wake() ends it. Threads otherwise wake up every second by
  /// themselves, which would hide a lost wake-up. The wait is bounded, so that a test fails instead of hanging.
  void wait_without_looking_around(std::int64_t timeout_ns) noexcept {
    using Clock = std::chrono::steady_clock;
    constexpr std::int64_t kLooksAroundNs = 900'000'000;  // below the second after which threads wake up by themselves
    if (timeout_ns < kLooksAroundNs) {
      inner_->wait(timeout_ns);
      return;
    }
    const Clock::time_point begun = Clock::now();
    inner_->wait(std::chrono::nanoseconds(kPatience).count());
    if (Clock::now() - begun >= kPatience) ++overslept;
  }

 private:
  std::unique_ptr<transport::Transport> inner_;
};

}  // namespace wiresum::stress
