// The check words of a worker's packets, and what it does with a sum whose check word does not fit. docs/protocol.md,
// section 5, has the rules.
//
// A sum is checked before anything of its packet is used. One that fails is taken for lost: the packet is sent again,
// and the switch answers with the cell's RESULT, which is right if the first was changed on its way here. If that one
// fails too, the cell itself is wrong, or what lies between; nobody can sum the chunk again, since workers whose RESULT
// was right may have written over their source. So the job ends, and the error says of which switch and slot.
//
// Words that are all zero have the check word 0, whatever they are about. A worker that reads an exponent that is too
// large sends such words, and the others' sum would lack what it has. So the exponent, or plane, that a worker reads
// the words by is a part of the packet's `tensor`, which EMPTY has too, and workers that differ have diverged.
#include "worker/worker.hpp"

namespace wiresum::worker {

std::uint32_t Worker::reading_of(std::uint32_t index) const noexcept {  // R5.23
  const Slot& slot = slots_[index];
  if (slot.phase == Phase::kPlane) return 0x100U | exact_[index].plane_code();
  const bool in_blocks = pending_[slot.collective].work.format.scaling == numeric::Scaling::kBlockExponent;
  return slot.phase == Phase::kSum && in_blocks ? slot.exponent_agreed : 0;
}

numeric::CheckSubject Worker::check_subject_of(std::uint32_t index) const noexcept {
  const Subject subject = subject_of(index);
  return {.tensor = subject.tensor,
          .chunk = subject.chunk,
          .round = round_in_flight(slots_[index]),
          .slot = config_.slot_first + index};
}

bool Worker::check_word_fits(std::uint32_t index, std::span<const std::byte> payload) const noexcept {
  return numeric::check_word_fits(check_subject_of(index), payload.data(), config_.element_words());
}

void Worker::refuse(std::uint32_t index) noexcept {
  Slot& slot = slots_[index];
  ++stats_.sums_wrong;
  if (!slot.was_wrong) {
    slot.was_wrong = true;
    resend_at_once(index);                     // R5.24
  } else if (slot.list != Flight::kMissing) {  // it has been sent again: this is no copy of what came first
    stats_.slot_wrong = std::uint64_t{1} + config_.slot_first + index;
    fail_at(slot.collective, Status::kWrongSum);  // R5.25
  }
}

}  // namespace wiresum::worker
