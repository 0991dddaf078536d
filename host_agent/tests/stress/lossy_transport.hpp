// Simulates a bad network in front of a transport: received datagrams are lost, duplicated, or reordered. Its owner
// sleeps until it is woken, see Around.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "around.hpp"

namespace wiresum::stress {

/// Probabilities for each datagram.
struct Mishaps {
  double loss = 0;
  double duplicate = 0;
  double held_back = 0;
};

class LossyTransport final : public Around {
 public:
  LossyTransport(std::unique_ptr<transport::Transport> inner, Mishaps mishaps, std::uint64_t seed)
      : Around(std::move(inner)), mishaps_(mishaps), random_(seed) {}

  [[nodiscard]] std::size_t receive(std::span<transport::RxDatagram> out) noexcept override {
    lent_.clear();
    for (Held& held : held_) --held.receives_left;
    std::size_t count = 0;
    for (; count < out.size() && !held_.empty() && held_.front().receives_left <= 0; held_.pop_front()) {
      lent_.push_back(std::move(held_.front()));
      out[count++] = {.bytes = lent_.back().bytes, .source = lent_.back().source, .port = lent_.back().port};
    }
    const std::span<transport::RxDatagram> fresh = out.subspan(count);
    if (fresh.empty()) return count;
    const std::size_t came = Around::receive(fresh);
    for (std::size_t i = 0; i < came; ++i) {
      const transport::RxDatagram datagram = fresh[i];
      if (happens(mishaps_.loss)) continue;
      const bool late = happens(mishaps_.held_back);
      if (late || happens(mishaps_.duplicate)) hold(datagram);
      if (!late) out[count++] = datagram;
    }
    return count;
  }

  void wait(std::int64_t timeout_ns) noexcept override {
    if (held_.empty()) wait_without_looking_around(timeout_ns);
  }

 private:
  static constexpr std::uint64_t kReceivesMax = 6;  // for which a datagram is held back
  struct Held {
    std::vector<std::byte> bytes;
    wire::Endpoint source;
    std::uint8_t port = 0;
    std::int64_t receives_left = 0;
  };

  bool happens(double probability) { return static_cast<double>(random_() >> 11) * 0x1p-53 < probability; }
  void hold(const transport::RxDatagram& datagram) {
    held_.push_back({.bytes = {datagram.bytes.begin(), datagram.bytes.end()},
                     .source = datagram.source,
                     .port = datagram.port,
                     .receives_left = static_cast<std::int64_t>(1 + random_() % kReceivesMax)});
  }

  Mishaps mishaps_;
  std::mt19937_64 random_;
  std::deque<Held> held_;
  std::deque<Held> lent_;
};

}  // namespace wiresum::stress
