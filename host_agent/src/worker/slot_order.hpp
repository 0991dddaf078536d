// The slots that have something to do, in the order that all workers of the job agree on: a sorted list.
//
// Keys are 64-bit serial numbers (RFC 1982 arithmetic), so they may wrap; all keys present at one time lie
// within half the number circle. A slot that is added nearly always belongs at the end, since RESULTs come in about the
// order in which packets were sent. One that a loss delayed belongs near the beginning. When slots go on to the next
// collective, each belongs behind the one that was added before it. So the position is searched from both ends and from
// the last one added at the same time: usually one or two steps, at worst half of the slots. (A tournament tree bounds
// the steps by its depth, but took three times as long in the usual case.)
#pragma once

#include <cassert>
#include <cstdint>
#include <vector>

namespace wiresum::worker {

inline constexpr std::uint32_t kNoSlot = UINT32_MAX;

class SlotOrder {
 public:
  explicit SlotOrder(std::uint32_t slots) : nodes_(slots + 1) { clear(); }

  /// The slot with the smallest key; kNoSlot when there is none.
  [[nodiscard]] std::uint32_t first() const noexcept { return empty() ? kNoSlot : nodes_[end()].after; }
  [[nodiscard]] bool empty() const noexcept { return nodes_[end()].after == end(); }

  /// Adds `slot`, or changes its key.
  void set(std::uint32_t slot, std::uint64_t key) noexcept {
    assert(slot < end());
    remove(slot);
    nodes_[slot].key = key;
    const std::uint32_t after = successor(key);
    const std::uint32_t before = nodes_[after].before;
    nodes_[slot].before = before;
    nodes_[slot].after = after;
    nodes_[before].after = nodes_[after].before = slot;
    added_ = slot;
  }

  /// Removes `slot` if the list has it.
  void remove(std::uint32_t slot) noexcept {
    Node& node = nodes_[slot];
    if (added_ == slot) added_ = node.before;
    nodes_[node.before].after = node.after;
    nodes_[node.after].before = node.before;
    node.before = node.after = slot;
  }

  void clear() noexcept {
    for (std::uint32_t slot = 0; slot <= end(); ++slot) nodes_[slot].before = nodes_[slot].after = slot;
    added_ = end();
  }

 private:
  struct Node {
    std::uint32_t before = 0;  // neighbours in the list; the slot itself, outside of it
    std::uint32_t after = 0;
    std::uint64_t key = 0;
  };

  /// Behind the last slot and before the first: the list is a ring.
  [[nodiscard]] std::uint32_t end() const noexcept { return static_cast<std::uint32_t>(nodes_.size() - 1); }

  [[nodiscard]] bool precedes(std::uint32_t slot, std::uint64_t key) const noexcept {
    return static_cast<std::int64_t>(nodes_[slot].key - key) < 0;
  }

  /// The slot (or end()) before which an entry with this key belongs.
  [[nodiscard]] std::uint32_t successor(std::uint64_t key) const noexcept {
    std::uint32_t head = nodes_[end()].after;
    std::uint32_t tail = nodes_[end()].before;
    std::uint32_t near = added_;  // walks towards the position; end(): there is no start for a walk
    while (true) {
      if (tail == end() || precedes(tail, key)) return nodes_[tail].after;
      if (!precedes(head, key)) return head;
      tail = nodes_[tail].before;
      head = nodes_[head].after;
      if (near == end()) continue;
      // The first and the last entry lie on either side of the position, so neither walk leaves the list.
      const bool is_before = precedes(near, key);
      const std::uint32_t next = is_before ? nodes_[near].after : nodes_[near].before;
      if (precedes(next, key) != is_before) return is_before ? next : near;
      near = next;
    }
  }

  std::vector<Node> nodes_;  // of each slot, and the end's
  std::uint32_t added_ = 0;  // the last slot that was added, or the one before it; end(): none
};

}  // namespace wiresum::worker
