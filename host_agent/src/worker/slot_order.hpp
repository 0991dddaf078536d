// The slots that have something to do, in the order that all workers of the job agree on: a tournament tree.
//
// Keys are 64-bit serial numbers (RFC 1982 arithmetic), so they may wrap; all keys present at one time lie
// within half the number circle. Reading the first slot is free, a change costs at most log2(slots) comparisons,
// and mostly one, since what is added comes last.
#pragma once

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace wiresum::worker {

inline constexpr std::uint32_t kNoSlot = UINT32_MAX;

class SlotOrder {
 public:
  explicit SlotOrder(std::uint32_t slots)
      : leaves_(std::bit_ceil(slots)), winners_(2 * std::size_t{leaves_}, kNoSlot), keys_(slots, 0) {}

  /// The slot with the smallest key; kNoSlot when there is none.
  [[nodiscard]] std::uint32_t first() const noexcept { return winners_[1]; }
  [[nodiscard]] bool empty() const noexcept { return first() == kNoSlot; }

  /// Adds `slot`, or changes its key.
  void set(std::uint32_t slot, std::uint64_t key) noexcept {
    assert(slot < keys_.size());
    keys_[slot] = key;
    place(slot, slot);
  }

  void remove(std::uint32_t slot) noexcept { place(slot, kNoSlot); }

  void clear() noexcept {
    for (std::uint32_t& winner : winners_) winner = kNoSlot;
  }

 private:
  void place(std::uint32_t slot, std::uint32_t entry) noexcept {
    // With a single leaf the leaf is the root.
    std::size_t node = leaves_ + slot;
    winners_[node] = entry;
    for (node /= 2; node >= 1; node /= 2) {
      const std::uint32_t before = std::exchange(winners_[node], winner(winners_[2 * node], winners_[2 * node + 1]));
      // A match that this slot neither won nor wins has the same winner as before, and so has all above it.
      if (before != slot && winners_[node] != slot) break;
    }
  }

  [[nodiscard]] std::uint32_t winner(std::uint32_t a, std::uint32_t b) const noexcept {
    if (a == kNoSlot) return b;
    if (b == kNoSlot) return a;
    return static_cast<std::int64_t>(keys_[a] - keys_[b]) < 0 ? a : b;
  }

  std::size_t leaves_;
  std::vector<std::uint32_t> winners_;  // node 1 is the root, the leaf of slot s is leaves_ + s
  std::vector<std::uint64_t> keys_;
};

}  // namespace wiresum::worker
