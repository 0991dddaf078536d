#include "worker/pending.hpp"

#include "worker/chunks.hpp"

namespace wiresum::worker {

ChunkView Pending::view(std::uint32_t chunk) const noexcept {
  const std::uint32_t at = number(chunk);  // R6.5
  ChunkView view = chunk_at(work.regions, at, chunk_elements, work.format.dtype);
  if (!work.presence->may_hold(at)) view.source = nullptr;  // R6.3
  return view;
}

numeric::Exponents Pending::exponents(std::uint32_t chunk, ChunkView& view) const noexcept {
  if (view.source == nullptr) return {};
  const numeric::Exponents exponents = numeric::exponents_of(work.format.dtype, view.source, view.elements);
  // The exponent alone does not tell zeros from subnormal numbers. Both are rare, and in the cache by now.
  if (exponents.largest == numeric::kExponentZero && !exponents.not_finite &&
      work.presence->of(number(chunk)) == Presence::kUnknown &&
      !numeric::scan_block(work.format.dtype, view.source, view.elements).present) {
    view.source = nullptr;  // R6.3
  }
  return exponents;
}

std::uint64_t Pending::key(const Slot& slot) const noexcept {
  // The rounds of an exact sum have their chunk's place: a slot sends one after the other.
  const std::uint64_t position = slot.phase == Phase::kExponent ? slot.chunk : std::uint64_t{slot.chunk} + stride;
  return order_key(order, position);
}

PendingPool::PendingPool(std::uint32_t capacity) : entries_(capacity) {
  for (std::uint32_t index = 0; index < capacity; ++index) append(free_, index);
}

std::uint32_t PendingPool::acquire() noexcept {
  const std::uint32_t index = free_.head;
  if (index == kNoCollective) return index;
  unlink(free_, index);
  entries_[index] = Pending{};
  append(active_, index);
  return index;
}

void PendingPool::complete(std::uint32_t index, Status status) noexcept {
  unlink(active_, index);
  entries_[index].status = status;
  append(complete_, index);
}

std::uint32_t PendingPool::take_complete() noexcept {
  const std::uint32_t index = complete_.head;
  if (index == kNoCollective) return index;
  unlink(complete_, index);
  append(free_, index);
  return index;
}

void PendingPool::append(List& list, std::uint32_t index) noexcept {
  Pending& entry = entries_[index];
  entry.previous = list.tail;
  entry.next = kNoCollective;
  (list.tail == kNoCollective ? list.head : entries_[list.tail].next) = index;
  list.tail = index;
}

void PendingPool::unlink(List& list, std::uint32_t index) noexcept {
  const Pending& entry = entries_[index];
  (entry.previous == kNoCollective ? list.head : entries_[entry.previous].next) = entry.next;
  (entry.next == kNoCollective ? list.tail : entries_[entry.next].previous) = entry.previous;
}

}  // namespace wiresum::worker
