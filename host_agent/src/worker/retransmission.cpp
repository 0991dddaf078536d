// The timers, after which a packet is sent again or asked about. worker.hpp says why every loss is repaired.
//
// Questions. A packet may have no RESULT although later packets have, for four causes. The packet or its RESULT was
// lost: then this worker must act. A peer's packet for the same cell was lost, or a peer that lost the previous RESULT
// is a round behind in this slot: then sending again does not help, and with N workers these two causes are N - 1 times
// as likely. Therefore, when the timer of a packet with payload expires, a question is sent instead, which is only a
// header. The switch answers with the RESULT if the cell is complete, with MISSING if the cell lacks this worker's
// packet, and not at all if it lacks a peer's. On MISSING the payload is sent again at once. Packets that consist of a
// header only (EMPTY, META) are themselves sent again in place of a question.
//
// No packet overtakes a lost burst at the end of all sent packets. The probe asks about the burst's first packet. After
// MISSING, or a RESULT that the switch sends for this question (with this worker's number), there was a loss, and all
// packets before the question are asked about, too.
//
// Delays. A question costs little, and the wait holds up a slot at every worker, so no timer waits for the RTO, whose
// floor is many round trips on a fast path. A question about an overtaken packet comes soon after a round trip, and
// again after twice that delay, which then doubles. A probe comes after twice that delay, and again after half of the
// silence so far. The RTO only tells a silence from a pause.
#include <algorithm>

#include "worker/worker.hpp"

namespace wiresum::worker {

TimeNs Worker::expiry(const Slot& slot) const noexcept {
  if (slot.list == Flight::kMissing) return slot.sent_at;
  if (slot.list == Flight::kFresh) return not_before(slot, rtt_.soon());  // R4.17
  return not_before(slot, std::min(rtt_.later() << (slot.expiries - 1), rtt_.rto_max()));
}

TimeNs Worker::not_before(const Slot& slot, TimeNs timeout) const noexcept {
  return std::max(slot.sent_at + timeout, resumed_at_ + rtt_.later());
}

TimeNs Worker::probe_expiry(const Slot& slot) const noexcept {
  if (slot.list == Flight::kMissing) return expiry(slot);
  // The timeout follows the silence, and does not double: a lost probe then costs half of the silence, even after a
  // peer's long silence.
  const TimeNs silence = slot.sent_at - std::max(slot.first_sent_at, result_at_);
  const TimeNs timeout = std::min(std::max(rtt_.later(), silence / 2), rtt_.rto_max());  // R4.18
  // Repeated probes come up to a quarter earlier, by eight random bits.
  const TimeNs earlier = silence <= 0 ? 0 : timeout / 4 * (probe_random_ >> 24) / 256;
  return not_before(slot, timeout - earlier);
}

TimeNs Worker::silent_from() const noexcept { return result_at_ + kSilenceTimeouts * rtt_.rto(); }  // R4.25

bool Worker::overtaken(const Slot& slot) const noexcept { return slot.send_number < send_number_complete_; }

bool Worker::may_be_lost(const Slot& slot) const noexcept {
  return overtaken(slot) || slot.send_number <= send_number_lost_;  // R4.15
}

std::uint32_t Worker::probe() const noexcept {
  const std::uint32_t first = current_.first();
  return first != kNoSlot && slots_[first].state == SlotState::kInFlight ? first : kNoSlot;
}

Worker::Timer Worker::first_timer() const noexcept {
  Timer first;
  const auto consider = [&first](std::uint32_t slot, TimeNs at) {
    if (at < first.at) first = {.slot = slot, .at = at};
  };
  if (const std::uint32_t slot = probe(); slot != kNoSlot) consider(slot, probe_expiry(slots_[slot]));  // R4.16
  if (now_ >= silent_from()) return first;
  for (std::uint8_t list = 0; list < Flight::kLists; ++list) {
    const std::uint32_t head = flight_.head(list);
    if (head == kNoSlot) continue;
    // Packets whose timer has not expired yet are in order of send_number: if the head cannot be lost, none can be.
    // Packets whose timer has expired could be lost, or were the probe; their timers continue.
    if (list == Flight::kFresh && !may_be_lost(slots_[head])) continue;
    if (const TimeNs at = expiry(slots_[head]); at <= silent_from()) consider(head, at);
  }
  return first;
}

TimeNs Worker::next_timeout() const noexcept {
  if (failure_.has_value() || current_.empty()) return kNever;
  if (halted_) return deadline_;
  if (may_send()) return now_;
  // The window opens when the oldest packet in flight is too old.
  const std::uint32_t oldest = ready_.empty() || rtt_.smoothed() == 0 ? kNoSlot : flight_.oldest_on_the_way();
  const TimeNs opens = oldest == kNoSlot ? kNever : slots_[oldest].sent_at + rtt_.rto() + 1;
  return std::min({deadline_, opens, first_timer().at});
}

void Worker::expire(std::uint32_t index, wire::Packet& packet) noexcept {
  Slot& slot = slots_[index];
  const bool missing = slot.list == Flight::kMissing;
  if (!missing) {
    // The generator is linear congruential, and its high bits are used.
    if (index == probe()) probe_random_ = probe_random_ * 1664525U + 1013904223U;
    // Neither a probe nor a repeated question shows a loss: a peer may be late.
    if (may_be_lost(slot) && slot.expiries == 0) window_.on_loss(now_, rtt_.smoothed());
    slot.expiries = std::min<std::uint8_t>(slot.expiries + 1, Flight::kExpiriesMax);
  }
  flight_.remove(index);
  slot.sent_at = now_;
  flight_.append(index, slot.expiries);
  if (slot.kind == wire::Kind::kData && !missing) {  // R4.23
    ask(slot, packet);
  } else {
    retransmit(slot, packet);
  }
}

void Worker::ask(Slot& slot, wire::Packet& packet) noexcept {
  slot.asked = true;
  slot.asked_after = send_number_;
  ++stats_.questions;
  write(slot, wire::Kind::kQuestion, wire::kFlagRetransmission, packet);
}

void Worker::retransmit(Slot& slot, wire::Packet& packet) noexcept {
  slot.asked = false;
  ++stats_.retransmissions;
  write(slot, slot.kind, wire::kFlagRetransmission, packet);  // R4.22
}

void Worker::hear_missing(std::uint32_t index) noexcept {
  send_number_lost_ = std::max(send_number_lost_, slots_[index].asked_after);
  resend_at_once(index);
}

void Worker::resend_at_once(std::uint32_t index) noexcept {
  Slot& slot = slots_[index];
  flight_.remove(index);
  slot.sent_at = now_;
  slot.was_missing = true;
  slot.expiries = std::max<std::uint8_t>(slot.expiries, 1);  // the next answer measures no round trip
  flight_.append(index, Flight::kMissing);                   // R4.24
}

void Worker::check_deadlines() noexcept {
  if (now_ < deadline_) return;
  deadline_ = kNever;
  for (std::uint32_t index = pending_.oldest(); index != kNoCollective; index = pending_[index].next) {
    if (pending_[index].work.deadline <= now_) {
      fail_at(index, Status::kTimedOut);  // R4.30
      return;
    }
    deadline_ = std::min(deadline_, pending_[index].work.deadline);
  }
}

}  // namespace wiresum::worker
