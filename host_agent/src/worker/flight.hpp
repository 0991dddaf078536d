// The slots in flight, in lists by what their timers wait for, each in the order in which the timers were started.
//
// Within a list all timers run equally long, so the head's expires first: the next timer is found by comparing the
// heads of the lists in use. No expiry time is stored, so a new RTO applies to all timers at once.
#pragma once

#include <array>
#include <cstdint>

#include "worker/slot.hpp"

namespace wiresum::worker {

class Flight {
 public:
  // The lists are numbered by how often a packet's timer has expired, up to the last one. retransmission.cpp says what
  // they are for.
  static constexpr std::uint8_t kFresh = 0;
  /// A packet in this list or a later one was asked about without a RESULT, so it waits for a peer.
  static constexpr std::uint8_t kAskedOften = 4;
  /// The number of expiries from which on the timeout no longer doubles.
  static constexpr std::uint8_t kExpiriesMax = 15;
  static constexpr std::uint8_t kMissing = kExpiriesMax + 1;  // the list of packets that the switch has asked for
  static constexpr std::uint8_t kLists = kMissing + 1;

  /// `slots` are all slots of the worker, which this object links.
  explicit Flight(Slot* slots) noexcept : slots_(slots) { clear(); }

  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
  /// The number of packets that may still be on their way: those in lists before kAskedOften and in kMissing, without
  /// fresh ones that `age` found too old.
  [[nodiscard]] std::uint32_t on_the_way() const noexcept { return on_the_way_; }
  /// The slot of the oldest fresh packet on its way; kNoSlot without one.
  [[nodiscard]] std::uint32_t oldest_on_the_way() const noexcept { return oldest_; }
  /// Notes that fresh packets sent before `sent_before` have arrived, or are lost.
  void age(TimeNs sent_before) noexcept {
    for (; oldest_ != kNoSlot && slots_[oldest_].sent_at < sent_before; oldest_ = slots_[oldest_].newer) {
      slots_[oldest_].on_the_way = false;
      --on_the_way_;
    }
  }
  /// The slot in `list` whose timer was started first.
  [[nodiscard]] std::uint32_t head(std::uint8_t list) const noexcept { return heads_[list]; }

  /// Starts the timer of `slot` and puts the slot at the end of `list`.
  void append(std::uint32_t slot, std::uint8_t list) noexcept {
    Slot& entry = slots_[slot];
    entry.list = list;
    entry.older = tails_[list];
    entry.newer = kNoSlot;
    (entry.older == kNoSlot ? heads_[list] : slots_[entry.older].newer) = slot;
    tails_[list] = slot;
    ++size_;
    entry.on_the_way = list == kFresh || (entry.on_the_way && (list < kAskedOften || list == kMissing));
    if (!entry.on_the_way) return;
    ++on_the_way_;
    if (list == kFresh && oldest_ == kNoSlot) oldest_ = slot;
  }

  void remove(std::uint32_t slot) noexcept {
    const Slot& entry = slots_[slot];
    (entry.older == kNoSlot ? heads_[entry.list] : slots_[entry.older].newer) = entry.newer;
    (entry.newer == kNoSlot ? tails_[entry.list] : slots_[entry.newer].older) = entry.older;
    --size_;
    on_the_way_ -= entry.on_the_way ? 1 : 0;
    if (entry.list == kFresh && oldest_ == slot) oldest_ = entry.newer;
  }

  void clear() noexcept {
    heads_.fill(kNoSlot);
    tails_.fill(kNoSlot);
    size_ = on_the_way_ = 0;
    oldest_ = kNoSlot;
  }

 private:
  Slot* slots_;
  std::array<std::uint32_t, kLists> heads_{};
  std::array<std::uint32_t, kLists> tails_{};
  std::uint32_t size_ = 0;
  std::uint32_t on_the_way_ = 0;
  std::uint32_t oldest_ = kNoSlot;  // the oldest fresh packet on its way
};

}  // namespace wiresum::worker
