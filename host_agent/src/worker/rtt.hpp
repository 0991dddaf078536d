// Smoothed round-trip time, its variation, and the retransmission timeout: RFC 6298.
//
// RFC 6298's gains (1/8 and 1/4) assume one sample for each round trip; here each packet gives one, so the estimator
// remembers only the last packets. RFC 7323, appendix G, divides the gains by the number of packets in flight. In the
// simulation (128 slots, 100 Mbit/s) that makes little difference at 1% loss and is better at 5%, but
// without loss it lags behind while the window opens and retransmits unnecessarily: 2% of the packets with 8 workers,
// 4% with 32. Loss is rare, so the plain gains stay. Dividing them on the way down alone does not combine the two:
// a few samples that measure a peer's timer then hold the timeout up, and 32 workers at 1% loss run ten times slower.
//
// The variation counts as rto_min at least (RFC 6298's G): behind a full queue of constant length the measured
// variation goes to zero, and a timeout of just one round trip would fire at the first jitter, retransmit, make the
// queue longer, and fire again. soon() and later() have no such floor: they are for packets that are only a header.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "worker/collective.hpp"

namespace wiresum::worker {

class RttEstimator {
 public:
  RttEstimator(TimeNs rto_initial, TimeNs rto_min, TimeNs rto_max) noexcept
      : rto_(rto_initial), rto_doubted_(rto_initial), rto_min_(rto_min), rto_max_(rto_max) {}

  /// Takes one measured round trip. The caller keeps Karn's rule (RFC 6298, section 3): no sample from a packet that
  /// was retransmitted, unless its RESULT came too soon to answer the second transmission. A sample is capped at
  /// rto_max, so that one long pause of a peer is forgotten as fast as a short one.
  void sample(TimeNs rtt) noexcept {
    rtt = std::clamp<TimeNs>(rtt, 1, rto_max_);
    least_ = least_ == 0 ? rtt : std::min(least_, rtt);
    if (smoothed_ == 0 || rtt < smoothed_ / 8) {  // R4.21
      smoothed_ = rtt;
      variation_ = rtt / 2;
    } else {
      variation_ += (std::abs(rtt - smoothed_) - variation_) / 4;
      smoothed_ += (rtt - smoothed_) / 8;
    }
    rto_ = std::clamp(smoothed_ + std::max(4 * variation_, rto_min_), rto_min_, rto_max_);
    rto_doubted_ = rto_;
    doubted_ = 0;
  }

  /// Notes that a packet's timer expired, and that its RESULT, `elapsed` after the packet, gives no sample. The round
  /// trip may have grown beyond the timer and the RTO, and without longer ones no packet would ever give a sample. They
  /// become twice as long as this packet took, since a queue that grows holds up the next packet even longer. That time
  /// may include a peer's timer, so timer and RTO at most double.
  void doubt(TimeNs elapsed) noexcept {  // R4.20
    doubted_ = std::max(doubted_, 2 * std::min(later(), elapsed));
    rto_doubted_ = std::max(rto_, std::min(doubted_, rto_max_));
  }

  /// Zero until the first sample.
  [[nodiscard]] TimeNs smoothed() const noexcept { return smoothed_; }

  /// The shortest round trip so far, about that of an empty path. Zero until the first sample.
  [[nodiscard]] TimeNs least() const noexcept { return least_; }

  [[nodiscard]] TimeNs rto() const noexcept { return rto_doubted_; }
  [[nodiscard]] TimeNs rto_max() const noexcept { return rto_max_; }

  /// The time within which a packet's RESULT most probably comes if nothing was lost: a round trip and two variations,
  /// which count as a quarter of a round trip at least. At most the RTO, and equal to it before the first sample.
  [[nodiscard]] TimeNs soon() const noexcept {
    return smoothed_ == 0 ? rto_ : std::min(rto_, smoothed_ + std::max(2 * variation_, smoothed_ / 4));  // R4.17, R4.19
  }
  /// Twice soon(), and longer after doubt(); at most the RTO, which doubt() makes longer, too.
  [[nodiscard]] TimeNs later() const noexcept { return std::min(rto(), std::max(2 * soon(), doubted_)); }

 private:
  TimeNs smoothed_ = 0;
  TimeNs variation_ = 0;
  TimeNs least_ = 0;
  TimeNs doubted_ = 0;
  TimeNs rto_;          // by what was measured
  TimeNs rto_doubted_;  // the same, or longer after doubt()
  TimeNs rto_min_;
  TimeNs rto_max_;
};

}  // namespace wiresum::worker
