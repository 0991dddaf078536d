// A seeded network of point-to-point links under virtual time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <random>

#include "worker/collective.hpp"

namespace wiresum::sim {

using worker::TimeNs;

/// What one direction of a worker's link does to packets. All probabilities are independent for each packet.
struct LinkConfig {
  double loss = 0;
  double duplicate = 0;
  double reorder = 0;         // probability that a packet is held back ...
  TimeNs reorder_ns_max = 0;  // ... by up to this long
  TimeNs delay_ns = 50'000;
  TimeNs jitter_ns = 0;  // uniform, on top of the delay
  double rate_bps = 0;   // 0 means that serialisation takes no time
  std::uint32_t queue_bytes = 1u << 20;
};

/// Gives the same numbers on every machine: the standard fixes the output of mt19937_64, but not of its distributions.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  bool happens(double probability) { return probability > 0 && uniform() < probability; }
  TimeNs below(TimeNs bound) { return bound <= 0 ? 0 : static_cast<TimeNs>(uniform() * static_cast<double>(bound)); }

 private:
  std::mt19937_64 engine_;
};

struct LinkCounters {
  std::uint64_t packets = 0;
  std::uint64_t lost = 0;      // dropped at random
  std::uint64_t overflow = 0;  // dropped because the queue was full
};

/// One direction of a link: a finite queue, a rate, then a delay, loss, duplication and reordering.
class Link {
 public:
  explicit Link(const LinkConfig& config) : config_(config) {}

  /// Calls `arrive(time)` for each copy of a packet of `bytes` UDP payload that reaches the other end.
  template <class Arrive>
  void carry(TimeNs now, std::size_t bytes, Random& random, const Arrive& arrive) {
    // IPv4 and UDP headers and the Ethernet header, as a shaper counts them.
    constexpr std::size_t kOverheadBytes = 42;
    ++counters_.packets;
    TimeNs out = now;
    if (config_.rate_bps > 0) {
      const double ns_per_byte = 8e9 / config_.rate_bps;
      const TimeNs start = free_at_ > now ? free_at_ : now;
      if (static_cast<double>(start - now) > ns_per_byte * config_.queue_bytes) {
        ++counters_.overflow;
        return;
      }
      free_at_ = start + static_cast<TimeNs>(ns_per_byte * static_cast<double>(bytes + kOverheadBytes));
      out = free_at_;
    }
    if (random.happens(config_.loss)) {
      ++counters_.lost;
      return;
    }
    const int copies = random.happens(config_.duplicate) ? 2 : 1;
    for (int copy = 0; copy < copies; ++copy) {
      TimeNs at = out + config_.delay_ns + random.below(config_.jitter_ns);
      if (random.happens(config_.reorder)) at += random.below(config_.reorder_ns_max);
      arrive(at);
    }
  }

  [[nodiscard]] const LinkCounters& counters() const { return counters_; }

 private:
  LinkConfig config_;
  TimeNs free_at_ = 0;
  LinkCounters counters_;
};

/// Events in order of time; those of the same time in the order in which they were scheduled.
class Agenda {
 public:
  using Action = std::function<void()>;
  void at(TimeNs time, Action action) { events_.push({time, number_++, std::move(action)}); }
  [[nodiscard]] bool empty() const { return events_.empty(); }
  [[nodiscard]] TimeNs next() const { return events_.top().time; }
  /// Runs the next event.
  void step() {
    const Action action = std::move(const_cast<Event&>(events_.top()).action);
    events_.pop();
    action();
  }

 private:
  struct Event {
    TimeNs time;
    std::uint64_t number;
    Action action;
    bool operator<(const Event& other) const { return time != other.time ? time > other.time : number > other.number; }
  };
  std::priority_queue<Event> events_;
  std::uint64_t number_ = 0;
};

}  // namespace wiresum::sim
