// The slots in flight, by how often their packet has been retransmitted, each list in order of sending.
//
// Within a list all timers run equally long, so the head's is the first to expire: finding the next timer is a
// look at one head for each list in use, and no timer is ever stored, so a new RTO holds for all at once.
#pragma once

#include <array>
#include <cstdint>

#include "worker/slot.hpp"

namespace wiresum::worker {

class Flight {
 public:
  /// The last list takes all packets that were retransmitted this often or more; the RTO has reached its cap by then.
  static constexpr std::uint8_t kExpiriesMax = 15;

  /// `slots`: all of the worker's, which this one links.
  explicit Flight(Slot* slots) noexcept : slots_(slots) { clear(); }

  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
  /// The slot that was sent first among those retransmitted `expiries` times.
  [[nodiscard]] std::uint32_t head(std::uint8_t expiries) const noexcept { return heads_[expiries]; }

  /// `slot` was sent just now; goes to the end of the list that its `expiries` say.
  void append(std::uint32_t slot) noexcept {
    Slot& entry = slots_[slot];
    entry.older = tails_[entry.expiries];
    entry.newer = kNoSlot;
    (entry.older == kNoSlot ? heads_[entry.expiries] : slots_[entry.older].newer) = slot;
    tails_[entry.expiries] = slot;
    ++size_;
  }

  void remove(std::uint32_t slot) noexcept {
    const Slot& entry = slots_[slot];
    (entry.older == kNoSlot ? heads_[entry.expiries] : slots_[entry.older].newer) = entry.newer;
    (entry.newer == kNoSlot ? tails_[entry.expiries] : slots_[entry.newer].older) = entry.older;
    --size_;
  }

  void clear() noexcept {
    heads_.fill(kNoSlot);
    tails_.fill(kNoSlot);
    size_ = 0;
  }

 private:
  Slot* slots_;
  std::array<std::uint32_t, kExpiriesMax + 1> heads_{};
  std::array<std::uint32_t, kExpiriesMax + 1> tails_{};
  std::uint32_t size_ = 0;
};

}  // namespace wiresum::worker
