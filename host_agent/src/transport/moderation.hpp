// Wake-up moderation: when a thread that has run out of work should keep sleeping although datagrams come.
//
// A thread that sleeps until the next datagram wakes for each one of a paced stream: at 100 Mbit/s 8,000 times a
// second, which is all that eight workers and a switch on two cores then do. As network cards do (interrupt
// moderation), under a steady stream it waits a moment ("nap") and takes many datagrams at once.
//
// A nap must not slow down an exchange in which everybody waits for this thread; in such a nap nothing comes. So after
// each nap the datagrams that came are compared with what the rate predicted. If too few came, naps are forbidden for a
// while, twice as long each time: a latency-bound exchange pays for less than one nap in a hundred milliseconds.
//
// Under a slow stream a nap may be longer, until 32 datagrams have come. Under a fast one it may not: where the cores
// are the bottleneck, longer naps at all threads lower the rate, and a lower rate makes naps longer still.
//
// Where the kernel hands over trains of datagrams (GRO), each wake-up brings many anyway. Such streams saturate the
// CPU, and napping there costs more than it saves.
//
// Pure: the caller gives the time and does the sleeping.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace wiresum::transport {

class WakeModerator {
 public:
  /// `slow_nap_ns_max` applies under a stream so slow that fewer than 32 datagrams come in `nap_ns_max`.
  WakeModerator(std::int64_t nap_ns_max, std::int64_t slow_nap_ns_max) noexcept
      : nap_ns_max_(nap_ns_max),
        slow_nap_ns_max_(slow_nap_ns_max),
        rate_period_ns_(std::max(kRatePeriodNsMin, 2 * slow_nap_ns_max)) {}

  /// Call when datagrams were taken in; `messages` counts the messages of all datagrams so far.
  void on_datagrams(std::int64_t now_ns, std::size_t count, std::uint64_t messages) noexcept {
    since_nap_ += count;
    counted_ += count;
    const std::int64_t elapsed_ns = now_ns - counted_since_ns_;
    if (elapsed_ns >= rate_period_ns_) {
      const bool paused = elapsed_ns >= 2 * rate_period_ns_;  // datagrams from before the pause no longer count
      gap_ns_ = paused ? elapsed_ns : std::max<std::int64_t>(1, elapsed_ns / static_cast<std::int64_t>(counted_));
      in_trains_ = counted_ > kTrainMax * (messages - messages_);
      counted_since_ns_ = now_ns;
      counted_ = 0;
      messages_ = messages;
    }
  }

  /// Call when there is nothing left to do. Returns how long to sleep even if datagrams come; 0: until a datagram
  /// comes. `worth` is how many datagrams the caller would like to have at once.
  [[nodiscard]] std::int64_t nap_ns(std::int64_t now_ns, std::size_t worth) noexcept {
    judge(now_ns);
    const bool steady = gap_ns_ <= nap_ns_max_ / static_cast<std::int64_t>(kWorthMin);
    if (!steady || in_trains_ || worth < kWorthMin || now_ns < forbidden_until_ns_) {
      return 0;
    }
    const std::int64_t bound_ns = std::clamp(gap_ns_ * kSlowNapWorth, nap_ns_max_, slow_nap_ns_max_);
    const std::int64_t nap_ns = std::min(bound_ns, gap_ns_ * static_cast<std::int64_t>(worth));
    expected_ = static_cast<std::size_t>(nap_ns / gap_ns_);
    since_nap_ = 0;
    return nap_ns;
  }

 private:
  static constexpr std::int64_t kRatePeriodNsMin = 1'000'000;
  static constexpr std::size_t kWorthMin = 4;  // fewer datagrams are not worth a nap
  static constexpr std::int64_t kSlowNapWorth = 32;
  static constexpr std::size_t kTrainMax = 4;  // more datagrams in a message, on average, are a train
  static constexpr std::int64_t kForbidNsMin = 2'000'000;
  static constexpr std::int64_t kForbidNsMax = 128'000'000;

  /// Judges whether the last nap, if there was one, brought as many datagrams as expected.
  void judge(std::int64_t now_ns) noexcept {
    if (expected_ == 0) {
      return;
    }
    if (since_nap_ < (expected_ + 1) / 2) {
      forbidden_until_ns_ = now_ns + forbid_ns_;
      forbid_ns_ = std::min(2 * forbid_ns_, kForbidNsMax);
    } else {
      forbid_ns_ = kForbidNsMin;
    }
    expected_ = 0;
  }

  std::int64_t nap_ns_max_;
  std::int64_t slow_nap_ns_max_;
  std::int64_t rate_period_ns_;      // longer than other threads' naps, so that a stream with such gaps looks steady
  std::int64_t gap_ns_ = INT64_MAX;  // mean time between datagrams, over the last period
  std::int64_t counted_since_ns_ = 0;
  std::size_t counted_ = 0;
  std::uint64_t messages_ = 0;  // messages counted at counted_since_ns_
  bool in_trains_ = false;
  std::size_t expected_ = 0;  // datagrams expected of the nap that is to be judged; 0: there is none
  std::size_t since_nap_ = 0;
  std::int64_t forbidden_until_ns_ = 0;
  std::int64_t forbid_ns_ = kForbidNsMin;
};

}  // namespace wiresum::transport
