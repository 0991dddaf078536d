// The slots that have something to do, in the order that all workers of the job agree on: a sorted list.
//
// Keys are 64-bit serial numbers (RFC 1982 arithmetic), so they may wrap; all keys present at one time lie
// within half the number circle. What is added nearly always comes last, since RESULTs come in about the order in which
// packets were sent; what a loss delayed comes soon after the first. So a place is looked for from both ends at once:
// a step or two, and half of the slots at the worst. (A tournament tree bounds that by its depth, but took three times
// as long for what nearly always happens.)
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace wiresum::worker {

inline constexpr std::uint32_t kNoSlot = UINT32_MAX;

class SlotOrder {
 public:
  explicit SlotOrder(std::uint32_t slots) : entries_(slots + 1) { clear(); }

  /// The slot with the smallest key; kNoSlot when there is none.
  [[nodiscard]] std::uint32_t first() const noexcept { return empty() ? kNoSlot : entries_[end()].after; }
  [[nodiscard]] bool empty() const noexcept { return entries_[end()].after == end(); }

  /// Adds `slot`, or changes its key.
  void set(std::uint32_t slot, std::uint64_t key) noexcept {
    assert(slot < end());
    remove(slot);
    entries_[slot].key = key;
    const std::uint32_t after = successor(key);
    const std::uint32_t before = entries_[after].before;
    entries_[slot].before = before;
    entries_[slot].after = after;
    entries_[before].after = entries_[after].before = slot;
  }

  /// Nothing happens if it is not there.
  void remove(std::uint32_t slot) noexcept {
    Entry& entry = entries_[slot];
    entries_[entry.before].after = entry.after;
    entries_[entry.after].before = entry.before;
    entry.before = entry.after = slot;
  }

  void clear() noexcept {
    for (std::uint32_t slot = 0; slot <= end(); ++slot) entries_[slot].before = entries_[slot].after = slot;
  }

 private:
  struct Entry {
    std::uint32_t before = 0;  // neighbours in the list; itself, when it is not there
    std::uint32_t after = 0;
    std::uint64_t key = 0;
  };

  /// Behind the last slot and before the first: the list is a ring.
  [[nodiscard]] std::uint32_t end() const noexcept { return static_cast<std::uint32_t>(entries_.size() - 1); }

  [[nodiscard]] bool precedes(std::uint32_t slot, std::uint64_t key) const noexcept {
    return static_cast<std::int64_t>(entries_[slot].key - key) < 0;
  }

  /// Before which slot (or end()) something with this key belongs.
  [[nodiscard]] std::uint32_t successor(std::uint64_t key) const noexcept {
    std::uint32_t head = entries_[end()].after;
    std::uint32_t tail = entries_[end()].before;
    while (true) {
      if (tail == end() || precedes(tail, key)) return entries_[tail].after;
      if (!precedes(head, key)) return head;
      tail = entries_[tail].before;
      head = entries_[head].after;
    }
  }

  std::vector<Entry> entries_;  // of each slot, and the end's
};

}  // namespace wiresum::worker
