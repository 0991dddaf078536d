// The worker's timers. worker.hpp says what they are for and why every loss is repaired.
#include <algorithm>

#include "worker/worker.hpp"

namespace wiresum::worker {

TimeNs Worker::expiry(const Slot& slot) const noexcept {
  return std::max(slot.sent_at + rtt_.rto(slot.expiries), resumed_at_ + rtt_.rto());
}

TimeNs Worker::probe_expiry(const Slot& slot) const noexcept {
  // Up to a quarter earlier, once probes repeat: eight random bits of it.
  const TimeNs timeout = rtt_.rto(probes_);
  const TimeNs earlier = probes_ == 0 ? 0 : timeout / 4 * (probe_random_ >> 24) / 256;
  return std::max(slot.sent_at + timeout - earlier, resumed_at_ + rtt_.rto());
}

TimeNs Worker::silent_from() const noexcept { return result_at_ + kSilenceTimeouts * rtt_.rto(); }

bool Worker::known_lost(const Slot& slot) const noexcept { return slot.send_number < send_number_complete_; }

std::uint32_t Worker::probe() const noexcept {
  const std::uint32_t first = current_.first();
  return first != kNoSlot && slots_[first].state == SlotState::kInFlight ? first : kNoSlot;
}

Worker::Timer Worker::first_timer() const noexcept {
  Timer first;
  const auto consider = [&first](std::uint32_t slot, TimeNs at) {
    if (at < first.at) first = {.slot = slot, .at = at};
  };
  if (const std::uint32_t slot = probe(); slot != kNoSlot) consider(slot, probe_expiry(slots_[slot]));
  if (now_ >= silent_from()) return first;
  for (std::uint8_t expiries = 0; expiries <= Flight::kExpiriesMax; ++expiries) {
    const std::uint32_t head = flight_.head(expiries);
    if (head == kNoSlot) continue;
    // Without a retransmission the order of sending is the order of send_number: the head is known lost, or nobody
    // is. What was retransmitted was known lost, or the probe, and goes on.
    if (expiries == 0 && !known_lost(slots_[head])) continue;
    if (const TimeNs at = expiry(slots_[head]); at <= silent_from()) consider(head, at);
  }
  return first;
}

TimeNs Worker::next_timeout() const noexcept {
  if (failure_.has_value() || pending_.oldest() == kNoCollective) return kNever;
  if (may_send()) return now_;
  return std::min(deadline_, first_timer().at);
}

Transmit Worker::retransmit(std::uint32_t index) noexcept {
  Slot& slot = slots_[index];
  if (index == probe()) {
    probes_ = std::min<unsigned>(probes_ + 1, Flight::kExpiriesMax);
    probe_random_ = probe_random_ * 1664525U + 1013904223U;  // a linear congruential generator, high bits used
  }
  // A probe says nothing about the network: it may be a peer that is late.
  if (known_lost(slot)) window_.on_loss(now_, rtt_.smoothed());
  flight_.remove(index);
  slot.expiries = std::min<std::uint8_t>(slot.expiries + 1, Flight::kExpiriesMax);
  slot.sent_at = now_;
  flight_.append(index);
  frame(index)[1] |= std::byte{wire::kFlagRetransmission};
  ++stats_.retransmissions;
  count_sent(slot);
  return {.frame = index, .bytes = slot.bytes};
}

void Worker::check_deadlines() noexcept {
  if (now_ < deadline_) return;
  deadline_ = kNever;
  for (std::uint32_t index = pending_.oldest(); index != kNoCollective; index = pending_[index].next) {
    if (pending_[index].work.deadline <= now_) {
      fail(Status::kTimedOut);
      return;
    }
    deadline_ = std::min(deadline_, pending_[index].work.deadline);
  }
}

}  // namespace wiresum::worker
