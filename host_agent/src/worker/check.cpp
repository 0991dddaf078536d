// The check words of a worker's packets, and the handling of a sum whose check word does not fit. docs/protocol.md,
// section 5, has the rules.
//
// A sum is checked before anything of its packet is used. A wrong sum counts as lost: the worker sends its packet
// again, and the switch answers with the cell's RESULT, which is right if the first RESULT was changed on its way here.
// If the second RESULT is wrong too, the cell or the way to it is at fault. The chunk cannot be summed again, since
// workers with a right RESULT may have written over their source. The job ends with an error that names switch and
// slot.
//
// Zeros have the check word 0 for every subject. A worker that reads too large an exponent sends zeros, and the others'
// sum would lack its elements. Therefore the exponent, or plane, by which a worker reads the words is a part of the
// packet's `tensor`, which EMPTY has too, and workers with different exponents have diverged.
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
  } else if (slot.list != Flight::kMissing) {  // the packet was sent again: this is no copy of the first RESULT
    stats_.slot_wrong = std::uint64_t{1} + config_.slot_first + index;
    fail_at(slot.collective, Status::kWrongSum);  // R5.25
  }
}

}  // namespace wiresum::worker
