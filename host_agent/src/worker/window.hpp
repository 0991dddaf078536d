// The congestion window: how many packets may be in flight.
//
// What it protects: every chunk crosses each link once up and once down, so a worker's own packets are the only
// ones that queue at its port, and a window of W packets never puts more than W into any one queue. Deep queues
// take all slots; shallow ones drop, and then the window must come down.
//
// Why it has a floor: a chunk is complete only when all 2N link crossings succeed, so 1% random loss on
// each direction of 8 links affects 1 - 0.99^16 = 15% of all chunks. A window that halved at each of those, as
// TCP's does, would stay at one packet. The floor (32 packets, 46 kB at 1500 bytes) is what even the
// shallow-buffered switches hold for each port, and is above the bandwidth-delay product of the links it has to
// fill after a loss (1 Gbit/s at 0.3 ms is 26 packets).
//
// Growth is TCP's: one packet for each result in slow start, one for each window of results afterwards, and only
// while the window is what holds the sender back. A loss halves it, at most once in a round trip, since the
// packets lost together are one event.
#pragma once

#include <algorithm>
#include <cstdint>

#include "worker/collective.hpp"

namespace wiresum::worker {

class CongestionWindow {
 public:
  CongestionWindow(std::uint32_t initial, std::uint32_t minimum, std::uint32_t maximum) noexcept
      : minimum_(std::min(minimum, maximum)), maximum_(maximum), size_(std::clamp(initial, minimum_, maximum_)) {}

  /// In packets.
  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

  /// A RESULT came. `limited`: the window was full, so that more would have been sent had it been larger.
  void on_result(bool limited) noexcept {
    if (!limited || size_ >= maximum_) return;
    if (size_ < slow_start_threshold_) {
      ++size_;
    } else if (++results_since_growth_ >= size_) {
      results_since_growth_ = 0;
      ++size_;
    }
  }

  /// A packet's RESULT took the time `rtt`, in which `results` came, itself among them; `least`: an empty path's.
  void on_round_trip(std::uint32_t results, TimeNs rtt, TimeNs least) noexcept {
    // The gain is the smoothed round trip's. Kept in eighths, since a difference below eight would else be nothing.
    path_eighths_ += static_cast<std::uint32_t>(results * least / rtt) - path_eighths_ / 8;
  }

  /// A packet was found lost.
  void on_loss(TimeNs now, TimeNs rtt) noexcept {
    if (reduced_ && now - reduced_at_ < rtt) return;
    const bool doubles = size_ < slow_start_threshold_;
    const std::uint32_t path = path_eighths_ / 8 * (doubles ? 2 : 1) + kQueued;
    if (doubles && size_ <= path) return;
    reduced_ = true;
    reduced_at_ = now;
    results_since_growth_ = 0;
    size_ = std::clamp(std::max(size_ / 2, path), minimum_, size_);
    slow_start_threshold_ = size_;
  }

 private:
  static constexpr std::uint32_t kQueued = 16;
  std::uint32_t minimum_;
  std::uint32_t maximum_;
  std::uint32_t size_;
  std::uint32_t slow_start_threshold_ = UINT32_MAX;
  std::uint32_t results_since_growth_ = 0;
  std::uint32_t path_eighths_ = 0;  // of a packet: how many an empty path holds
  bool reduced_ = false;
  TimeNs reduced_at_ = 0;
};

}  // namespace wiresum::worker
