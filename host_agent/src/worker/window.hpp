// The congestion window: how many packets may be in flight.
//
// What it protects: every chunk crosses each link once up and once down, so a worker's own packets are the only
// ones that queue at its port, and a window of W packets never puts more than W into any one queue. Deep queues
// take all slots; shallow ones drop, and then the window must come down.
//
// How far: to what the path holds, and a short queue. A chunk is complete only when all 2N link crossings succeed, so
// 1% random loss on each direction of 8 links affects 1 - 0.99^16 = 15% of all chunks. A window that halved at each of
// those, as TCP's does, would stay at one packet. The path holds as many packets as RESULTs came during a round trip,
// less what was queued: times the least round trip over this one (TCP Westwood has the same product). The window keeps
// so many and 16 more, for the slots that wait for a peer's loss; a longer queue would make every timer longer. It
// always keeps 32 packets (46 kB at 1500 bytes), which even the shallow-buffered switches hold for each port.
//
// Growth is TCP's: one packet for each result in slow start, one for each window of results afterwards, and only
// while the window is what holds the sender back. A loss halves it, at most once in a round trip, since the
// packets lost together are one event. In slow start the window is twice what it was a round trip ago: if the path
// delivered all that and nothing queued, then a loss is no sign that it is full, and slow start goes on.
//
// Long paths. Where a round trip is little longer than the shortest one, nothing queues, and few losses are random: the
// window ignores them, up to one of kRandomPart packets (BBR version 2 has such a threshold). It also grows by one for
// kProbePart results, since one for a window would need minutes to fill a path of thousands of packets. On a short path
// the packets of a window queue behind each other, so neither applies.
//
// Packets that wait for a peer. A packet is no longer on its way when the RTO is over, or when it has been asked about
// four times: it has arrived and waits for a peer, or it was lost. The window does not count it. If it did, workers
// whose windows are full with packets of different chunks would wait for each other, and go on by one chunk in each
// round trip. (If packets did not count once they have been asked about, recovery would fill others' queues.)
//
// Marks (ECN) tell of a queue before it overflows: one that several jobs share, or that others' traffic fills. The last
// packet of a round to reach the switch is the one that waited in the longest queue, and the switch makes it the
// RESULT: so its mark reaches all workers, and all slow down alike. The answer is DCTCP's (RFC 8257): the window
// shrinks by half the share of marked RESULTs, smoothed, once for each window of them; the first mark ends slow start.
// Marks do not stand for losses (RFC 8257, section 3.5): another queue on the way may drop and never mark. A loss among
// marks is answered as any other. When its window ends, the marks are answered as though there had been no loss, and
// the smaller of the two sizes stays: a loss after which the window keeps all, since the path holds it, hides no marks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "worker/collective.hpp"

namespace wiresum::worker {

class CongestionWindow {
 public:
  CongestionWindow(std::uint32_t initial, std::uint32_t minimum, std::uint32_t maximum) noexcept
      : minimum_(std::min(minimum, maximum)), maximum_(maximum), size_(std::clamp(initial, minimum_, maximum_)) {}

  /// The window in packets.
  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

  /// Call when a RESULT comes. `limited`: a larger window would have let more packets go. `marked`: the RESULT, or the
  /// packet that completed it, met a long queue.
  void on_result(bool limited, bool marked) noexcept {
    if (marked) slow_start_threshold_ = std::min(slow_start_threshold_, size_);  // R4.13
    marks_ += marked ? 1 : 0;
    if (++results_ >= size_) on_window();
    if (!limited || size_ >= maximum_) return;
    if (size_ < slow_start_threshold_) {  // R4.9
      ++size_;
    } else if (++results_since_growth_ >= (queued_ ? size_ : std::min(size_, kProbePart))) {
      results_since_growth_ = 0;
      ++size_;
    }
  }

  /// Call when a round trip was measured, in which so many RESULTs came. `least` is the shortest round trip so far.
  void on_round_trip(std::uint64_t results, TimeNs rtt, TimeNs least) noexcept {
    const std::uint64_t path = results * static_cast<std::uint64_t>(least) / static_cast<std::uint64_t>(rtt);
    path_eighths_ += static_cast<std::uint32_t>(path) - path_eighths_ / 8;
    queued_ = rtt - least > least / kQueuedPart;
  }

  /// Call when a packet was found lost.
  void on_loss(TimeNs now, TimeNs rtt) noexcept {
    if (reduced_ && now - reduced_at_ < rtt) return;               // R4.10
    if (!queued_ && ++losses_ <= 1 + size_ / kRandomPart) return;  // R4.32
    const bool doubles = size_ < slow_start_threshold_;
    const std::uint32_t kept = std::max(path_eighths_ / 8 * (doubles ? 2 : 1) + minimum_ / 2, minimum_);
    if (doubles && size_ <= kept) return;  // R4.11
    reduced_ = true;
    reduced_at_ = now;
    if (lost_from_ == 0) lost_from_ = size_;
    results_since_growth_ = 0;
    size_ = std::min(size_, std::max(size_ / 2, kept));
    slow_start_threshold_ = size_;
  }

 private:
  /// Call when as many RESULTs as the window holds have come.
  void on_window() noexcept {
    const auto share = static_cast<std::int32_t>(kWholeShare * marks_ / results_);
    marked_share_ += (share - marked_share_) / kShareGain;  // R4.14
    if (marks_ != 0) {
      const std::uint32_t from = std::max(lost_from_, size_);
      const std::uint64_t less = std::uint64_t{from} * static_cast<std::uint32_t>(marked_share_) / (2ULL * kWholeShare);
      size_ = std::min(size_, std::max(from - static_cast<std::uint32_t>(less), minimum_));
      slow_start_threshold_ = size_;
      results_since_growth_ = 0;
    }
    results_ = marks_ = losses_ = 0;
    lost_from_ = 0;
  }

  static constexpr std::uint32_t kWholeShare = 1U << 16;
  static constexpr std::int32_t kShareGain = 16;
  static constexpr TimeNs kQueuedPart = 8;  // a queue longer than this part of the shortest round trip counts
  static constexpr std::uint32_t kProbePart = 64;
  static constexpr std::uint32_t kRandomPart = 50;

  std::uint32_t minimum_;
  std::uint32_t maximum_;
  std::uint32_t size_;
  std::uint32_t slow_start_threshold_ = UINT32_MAX;
  std::uint32_t results_since_growth_ = 0;
  std::uint32_t path_eighths_ = 0;           // the path's capacity, smoothed as round trips are, in eighths of a packet
  std::uint32_t results_ = 0;                // RESULTs in this window
  std::uint32_t marks_ = 0;                  // marked RESULTs in this window
  std::uint32_t losses_ = 0;                 // losses in this window without a queue
  bool queued_ = true;                       // the last round trip measured was longer than an empty path's
  std::int32_t marked_share_ = kWholeShare;  // the share of marked RESULTs, smoothed
  bool reduced_ = false;
  std::uint32_t lost_from_ = 0;  // the window's size before its first loss
  TimeNs reduced_at_ = 0;
};

}  // namespace wiresum::worker
