// When a packet is sent again, or asked for: the timers. worker.hpp says why every loss is repaired.
//
// Questions. If a packet has no RESULT although later ones have, there are four possible causes. The packet or its
// RESULT was lost: then this worker must act. Or a peer's packet for the same cell was lost, or a peer is a round
// behind in this slot because it lost the RESULT of the round before: then sending again does not help, and with N
// workers these two are N - 1 times as likely. So when the timer of a packet with payload expires, a question is sent
// instead, which is only a header. The switch answers with the RESULT if the cell is complete, with MISSING if it lacks
// this worker's packet, and not at all if it lacks a peer's. On MISSING the payload is sent again at once.
//
// Packets that consist of a header only (EMPTY, META) are sent again themselves, in place of the question.
//
// A burst that is lost, at the end of what has been sent, is overtaken by nothing. The probe asks about its first
// packet. If the answer is MISSING, or a RESULT that the switch sends for this question (it says whose packet it is
// for), then there was a loss, and all that was sent before that question is asked about, too.
//
// How soon. A question costs little, and the wait holds up a slot at every worker. So no timer waits for the RTO, whose
// floor is many round trips on a fast path. An overtaken packet is asked about soon after a round trip, the probe after
// twice that time; the former again after twice that time too, which then doubles, the latter after half of the silence
// so far. The RTO only tells a silence from a pause.
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
  // In step with the silence, and not twice the last timeout: so a probe that is lost costs half as much again, also if
  // the silence before was a peer's.
  const TimeNs silence = slot.sent_at - std::max(slot.first_sent_at, result_at_);
  const TimeNs timeout = std::min(std::max(rtt_.later(), silence / 2), rtt_.rto_max());  // R4.18
  // Up to a quarter earlier, once probes repeat: eight random bits of it.
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
    // Packets whose timer has not expired yet are in order of send_number: if the head cannot be lost, none can.
    // Those whose timer has expired before could be, or were the probe; they continue.
    if (list == Flight::kFresh && !may_be_lost(slots_[head])) continue;
    if (const TimeNs at = expiry(slots_[head]); at <= silent_from()) consider(head, at);
  }
  return first;
}

TimeNs Worker::next_timeout() const noexcept {
  if (failure_.has_value() || current_.empty()) return kNever;
  if (halted_) return deadline_;
  if (may_send()) return now_;
  // The window opens when the oldest packet on its way is too old.
  const std::uint32_t oldest = ready_.empty() || rtt_.smoothed() == 0 ? kNoSlot : flight_.oldest_on_the_way();
  const TimeNs opens = oldest == kNoSlot ? kNever : slots_[oldest].sent_at + rtt_.rto() + 1;
  return std::min({deadline_, opens, first_timer().at});
}

void Worker::expire(std::uint32_t index, wire::Packet& packet) noexcept {
  Slot& slot = slots_[index];
  const bool missing = slot.list == Flight::kMissing;
  if (!missing) {
    // A linear congruential generator, of which the high bits are used.
    if (index == probe()) probe_random_ = probe_random_ * 1664525U + 1013904223U;
    // A probe says nothing about the network: it may be a peer that is late. Nor does a question that is asked again.
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
  slot.expiries = std::max<std::uint8_t>(slot.expiries, 1);  // what comes now measures no round trip
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
