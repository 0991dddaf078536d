// The worker's timers. worker.hpp says what they are for and why every loss is repaired.
//
// Whose packet was it? A packet that has no RESULT although later ones have met one of four fates. It was lost, or its
// RESULT was: then this worker must send it again. A peer's packet for the same cell was lost, or a peer is a round
// behind in this slot, since it lost the RESULT of the round before: then sending again is for nothing, and with N
// workers these are N - 1 times as likely. The switch tells only when a cell is complete, never who is missing. So
// before a packet with payload is sent again, two things keep the others' payload off the wire:
//
//   A question. A META of the round before, whose RESULT this worker has, is a duplicate that changes nothing and has
//   no payload. The switch answers it as long as that copy of the slot holds that round, which is until somebody has
//   sent the round after this one; and that takes the RESULT of this one. No answer thus means that the cell is
//   complete and its RESULT was lost (or the question was): the packet is sent again at once.
//
//   Turns. An answer means that a contribution is missing, perhaps this worker's. The workers send again one after the
//   other, in an order that rotates from round to round, and stop when the RESULT comes: after half of them, on the
//   average. The first turn is late enough for a peer that is a round behind to have caught up.
//
// What is a header anyway (EMPTY, META) is sent again at once, before those with payload. So is everything in a
// collective that is sent whole: it keeps the links full, round trips are long behind its own packets, and waiting for
// turns would cost more goodput than the payload that it saves.
#include <algorithm>

#include "worker/worker.hpp"

namespace wiresum::worker {
namespace {

// In halves of a round trip. Shorter turns would begin before the RESULT of the turn before is there; longer ones save
// little more and cost goodput.
constexpr int kAnswerHalves = 4;
constexpr int kTurnFirstHalves = 3;

}  // namespace

TimeNs Worker::expiry(const Slot& slot) const noexcept {
  if (slot.list >= Flight::kAsked && slot.list < Flight::kTurn + Flight::kTurns) {
    const int half_round_trips =
        slot.list == Flight::kAsked ? kAnswerHalves : kTurnFirstHalves + slot.list - Flight::kTurn;
    const TimeNs round_trip = rtt_.smoothed() == 0 ? rtt_.rto() : rtt_.smoothed();
    return slot.sent_at + half_round_trips * round_trip / 2;
  }
  return std::max(slot.sent_at + rtt_.rto(slot.expiries), resumed_at_ + rtt_.rto());
}

TimeNs Worker::probe_expiry(const Slot& slot) const noexcept {
  if (slot.list != Flight::kFresh && slot.expiries == 0) return expiry(slot);  // asked about
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
  for (std::uint8_t list = 0; list < Flight::kLists; ++list) {
    const std::uint32_t head = flight_.head(list);
    if (head == kNoSlot) continue;
    // Without a retransmission the order of sending is the order of send_number: the head is known lost, or nobody
    // is. What was retransmitted was known lost, or the probe, and goes on.
    if (list == Flight::kFresh && !known_lost(slots_[head])) continue;
    if (const TimeNs at = expiry(slots_[head]); at <= silent_from()) consider(head, at);
  }
  return first;
}

TimeNs Worker::next_timeout() const noexcept {
  if (failure_.has_value() || pending_.oldest() == kNoCollective) return kNever;
  if (may_send()) return now_;
  return std::min(deadline_, first_timer().at);
}

bool Worker::may_ask(const Slot& slot) const noexcept {
  return slot.list == Flight::kFresh && slot.bytes > wire::kHeaderBytes && slot.previous.valid && config_.workers > 1 &&
         !pending_[slot.collective].work.chunks.empty();
}

std::uint32_t Worker::turn_of(const Slot& slot) const noexcept {
  const std::uint32_t place = (config_.worker + slot.round + slot.chunk) % config_.workers;
  return place * Flight::kTurns / std::max<std::uint32_t>(config_.workers, Flight::kTurns);
}

Transmit Worker::ask(std::uint32_t index) noexcept {
  Slot& slot = slots_[index];
  const std::uint32_t round = slot.round - 1;
  const wire::Header header{.kind = wire::Kind::kMeta,
                            .flags = wire::kFlagRetransmission,
                            .job = config_.job,
                            .key = config_.key,
                            .worker = config_.worker,
                            .exponent = slot.previous.exponent,
                            .cell = wire::cell_of(config_.slot_first + index, round),
                            .round = round,
                            .tensor = slot.previous.tensor,
                            .chunk = slot.previous.chunk};
  const std::uint32_t spare = config_.slots + spare_used_++;
  wire::encode(header, std::span<std::byte, wire::kHeaderBytes>(frame(spare), wire::kHeaderBytes));
  flight_.remove(index);
  slot.sent_at = now_;
  flight_.append(index, Flight::kAsked);
  ++stats_.questions;
  ++stats_.packets_sent;
  stats_.bytes_sent += wire::kHeaderBytes;
  return {.frame = spare, .bytes = wire::kHeaderBytes};
}

void Worker::hear_duplicate(const wire::Header& header, std::size_t payload_bytes) noexcept {
  ++stats_.duplicates;
  const std::uint32_t index = header.cell / 2U - config_.slot_first;
  Slot& slot = slots_[index];
  const bool is_answer = slot.state == SlotState::kInFlight && slot.list == Flight::kAsked && payload_bytes == 0 &&
                         header.round + 1 == slot.round;
  if (!is_answer) return;
  flight_.remove(index);
  slot.sent_at = now_;
  flight_.append(index, static_cast<std::uint8_t>(Flight::kTurn + turn_of(slot)));
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
  flight_.append(index, static_cast<std::uint8_t>(Flight::kRetransmitted + slot.expiries));
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
