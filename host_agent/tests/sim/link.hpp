// One direction of a link under virtual time: a queue, a rate, then a delay, loss, duplication and reordering.
//
// Time. A packet of 1,500 bytes takes 15.06 ns at 800 Gbit/s, so a link counts picoseconds; the sum of many packets'
// times has no error that grows. Arrivals are events, which are in whole nanoseconds: rounded up.
//
// Queues. A link either has a queue of its own (a host's), or is a port of a switch whose ports share a buffer. There a
// port may fill what is free times a factor (dynamic thresholds: Choudhury and Hahne, 1998), so that a port that is
// congested leaves room for the others. A packet that finds more than `mark_bytes` waiting at its port is marked (ECN).
//
// Cross traffic is what others send over the link: at a constant rate, or in bursts. It takes part in rate, queue and
// buffer, and does not slow down when packets are lost, as UDP does not. Its packets are no events: a link works out
// what has come since the last packet of a job.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "worker/collective.hpp"

namespace wiresum::sim {

using worker::TimeNs;
using TimePs = std::int64_t;  // 9 million seconds at most

/// What one direction of a link does to packets. All probabilities are independent for each packet.
struct LinkConfig {
  double loss = 0;
  double duplicate = 0;
  double reorder = 0;         // probability that a packet is held back ...
  TimeNs reorder_ns_max = 0;  // ... by up to this long
  TimeNs delay_ns = 50'000;
  TimeNs jitter_ns = 0;           // uniform, on top of the delay
  double rate_bps = 0;            // 0 means that serialisation takes no time
  std::uint32_t burst_bytes = 0;  // may pass at once after a pause, as a token bucket lets them
  std::uint32_t queue_bytes = 1u << 20;
  std::uint32_t mark_bytes = 0;  // 0 means that nothing is marked
};

/// Packets of others on a link, of `rate_bps` while they come: all the time, or in bursts.
struct CrossTraffic {
  double rate_bps = 0;
  std::uint32_t packet_bytes = 1500;  // on the link, all headers counted
  TimeNs begin = 0;
  TimeNs end = 0;     // 0 means never
  TimeNs burst = 0;   // the length of a burst; 0 means that they come all the time
  TimeNs period = 0;  // from the beginning of one burst to that of the next; 0 means that there is one
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

/// The packet memory of a switch, which its ports share.
class SharedBuffer {
 public:
  /// A port may hold `factor` times what is free.
  SharedBuffer(std::uint64_t bytes, double factor) : bytes_(bytes), factor_(factor) {}

  /// Is there room for a packet at a port where `waiting` bytes are?
  [[nodiscard]] bool has_room(TimePs now, double waiting, std::size_t bytes) {
    for (; !leaving_.empty() && leaving_.top().first <= now; leaving_.pop()) held_ -= leaving_.top().second;
    return held_ + bytes <= bytes_ && waiting <= factor_ * static_cast<double>(bytes_ - held_);
  }
  void hold(TimePs until, std::size_t bytes) {
    leaving_.emplace(until, bytes);
    held_ += bytes;
    held_max_ = std::max(held_max_, held_);
  }
  [[nodiscard]] std::uint64_t held_max() const noexcept { return held_max_; }

 private:
  using Leaving = std::pair<TimePs, std::size_t>;  // when a packet leaves, and its bytes

  std::uint64_t bytes_;
  double factor_;
  std::uint64_t held_ = 0;
  std::uint64_t held_max_ = 0;
  std::priority_queue<Leaving, std::vector<Leaving>, std::greater<>> leaving_;
};

struct LinkCounters {
  std::uint64_t packets = 0;
  std::uint64_t lost = 0;      // dropped at random
  std::uint64_t overflow = 0;  // dropped because the queue was full
  std::uint64_t marked = 0;    // found more than mark_bytes waiting
  std::uint64_t cross_packets = 0;
  std::uint64_t cross_overflow = 0;
};

class Link {
 public:
  /// `buffer`: of the switch whose port this is, which outlives it; none if the link has a queue of its own.
  explicit Link(const LinkConfig& config, SharedBuffer* buffer = nullptr)
      : config_(config), buffer_(buffer), ps_per_byte_(config.rate_bps > 0 ? 8e12 / config.rate_bps : 0) {}

  void add(const CrossTraffic& traffic) {
    if (traffic.rate_bps <= 0 || traffic.packet_bytes == 0 || config_.rate_bps <= 0) {
      throw std::invalid_argument("cross traffic has a rate and packets, and so has its link a rate");
    }
    if (traffic.period != 0 && (traffic.burst == 0 || traffic.burst > traffic.period)) {
      throw std::invalid_argument("a burst of cross traffic ends before the next one begins");
    }
    cross_.push_back({traffic, traffic.begin * kPsPerNs});
  }

  /// Calls `arrive(time, marked)` for each copy of a packet of `bytes` UDP payload that reaches the other end.
  template <class Arrive>
  void carry(TimeNs now, std::size_t bytes, Random& random, const Arrive& arrive) {
    // IPv4 and UDP headers and the Ethernet header, as a shaper counts them.
    constexpr std::size_t kOverheadBytes = 42;
    ++counters_.packets;
    TimeNs out = now;
    const std::uint64_t marked_before = counters_.marked;
    if (config_.rate_bps > 0) {
      for (Cross* next = next_cross(now); next != nullptr; next = next_cross(now)) let_pass(*next);
      if (!enqueue(now * kPsPerNs, bytes + kOverheadBytes, &counters_.marked)) {
        ++counters_.overflow;
        return;
      }
      out = std::max(now, (free_at_ + kPsPerNs - 1) / kPsPerNs);
    }
    if (random.happens(config_.loss)) {
      ++counters_.lost;
      return;
    }
    const int copies = random.happens(config_.duplicate) ? 2 : 1;
    for (int copy = 0; copy < copies; ++copy) {
      TimeNs at = out + config_.delay_ns + random.below(config_.jitter_ns);
      if (random.happens(config_.reorder)) at += random.below(config_.reorder_ns_max);
      arrive(at, counters_.marked != marked_before);
    }
  }

  [[nodiscard]] const LinkCounters& counters() const { return counters_; }

 private:
  static constexpr TimePs kPsPerNs = 1000;
  struct Cross {
    CrossTraffic traffic;
    TimePs next = 0;  // its next packet
  };

  /// Puts a packet into the queue, if there is room, and counts it in `marked` if the queue is long.
  bool enqueue(TimePs now, std::size_t bytes, std::uint64_t* marked) {
    const TimePs start = std::max(free_at_, now - time_of(config_.burst_bytes, ps_per_byte_));
    const double waiting = static_cast<double>(std::max(start - now, TimePs{0})) / ps_per_byte_;
    if (buffer_ != nullptr ? !buffer_->has_room(now, waiting, bytes) : waiting > config_.queue_bytes) return false;
    if (config_.mark_bytes > 0 && waiting > config_.mark_bytes) ++*marked;
    free_at_ = start + time_of(bytes, ps_per_byte_);
    if (buffer_ != nullptr) buffer_->hold(free_at_, bytes);
    return true;
  }
  [[nodiscard]] static TimePs time_of(std::size_t bytes, double ps_per_byte) {
    return static_cast<TimePs>(static_cast<double>(bytes) * ps_per_byte + 0.5);
  }

  /// The traffic whose packet is the next to come until `now`; none if none is.
  [[nodiscard]] Cross* next_cross(TimeNs now) {
    Cross* first = nullptr;
    for (Cross& each : cross_) {
      if (each.next <= now * kPsPerNs && (first == nullptr || each.next < first->next)) first = &each;
    }
    return first;
  }
  void let_pass(Cross& cross) {
    const CrossTraffic& traffic = cross.traffic;
    std::uint64_t not_counted = 0;
    ++counters_.cross_packets;
    if (!enqueue(cross.next, traffic.packet_bytes, &not_counted)) ++counters_.cross_overflow;
    cross.next += time_of(traffic.packet_bytes, 8e12 / traffic.rate_bps);
    const TimePs since = cross.next - traffic.begin * kPsPerNs;
    if (traffic.period > 0 && since % (traffic.period * kPsPerNs) >= traffic.burst * kPsPerNs) {
      cross.next += traffic.period * kPsPerNs - since % (traffic.period * kPsPerNs);
    }
    const bool is_over = traffic.period == 0 && traffic.burst > 0 && since >= traffic.burst * kPsPerNs;
    if (is_over || (traffic.end > 0 && cross.next >= traffic.end * kPsPerNs)) cross.next = worker::kNever;
  }

  LinkConfig config_;
  SharedBuffer* buffer_;
  double ps_per_byte_;
  TimePs free_at_ = 0;
  std::vector<Cross> cross_;
  LinkCounters counters_;
};

}  // namespace wiresum::sim
