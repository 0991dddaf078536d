// The last RESULT of each slot. Another worker may lack it when the switch is lost; then it is given again (move.cpp).
//
// The caller's copy cannot replace a RESULT: a sum's memory is the caller's once the collective is complete, and
// rounding has lost bits. A RESULT that stays where it is (transport::RxDatagram) is not copied before a move.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "wire/packet.hpp"

namespace wiresum::worker {

class KeptResults {
 public:
  /// `lanes` is the number of words in a RESULT with a payload.
  KeptResults(std::uint32_t slots, std::size_t lanes)
      : entries_(slots),
        lines_((lanes * wire::kWordBytes + sizeof(Line) - 1) / sizeof(Line)),
        words_(std::make_unique_for_overwrite<Line[]>(slots * lines_)) {}

  struct Entry {
    std::uint32_t tensor = 0;
    std::uint32_t chunk = 0;
    std::uint32_t bytes = 0;              // the payload's size; 0 for a META round
    const std::byte* stays_at = nullptr;  // not copied yet
    std::uint8_t exponent = 0;
    bool is_there = false;  // the slot has had a RESULT
  };
  [[nodiscard]] const Entry& operator[](std::uint32_t slot) const noexcept { return entries_[slot]; }
  [[nodiscard]] std::span<const std::byte> payload(std::uint32_t slot) const noexcept {
    const Entry& entry = entries_[slot];
    return {entry.stays_at != nullptr ? entry.stays_at : words_[slot * lines_].bytes.data(), entry.bytes};
  }

  // R9.6, R9.14
  void keep(std::uint32_t slot, const wire::Header& header, std::span<const std::byte> payload, bool stays) noexcept {
    entries_[slot] = {.tensor = header.tensor,
                      .chunk = header.chunk,
                      .bytes = static_cast<std::uint32_t>(payload.size()),
                      .stays_at = stays ? payload.data() : nullptr,
                      .exponent = header.exponent,
                      .is_there = true};
    if (!stays) copy(slot, payload);
  }

  /// Copies RESULTs that stay in place, before their memory goes.
  void copy_all() noexcept {
    for (std::uint32_t slot = 0; slot < entries_.size(); ++slot) {
      if (entries_[slot].stays_at == nullptr) continue;
      copy(slot, payload(slot));
      entries_[slot].stays_at = nullptr;
    }
  }

  /// True if a RESULT says the same as the slot's last one.
  [[nodiscard]] bool is_same(std::uint32_t slot, const wire::Header& header,
                             std::span<const std::byte> payload) const noexcept {
    const Entry& entry = entries_[slot];
    return header.tensor == entry.tensor && header.chunk == entry.chunk && header.exponent == entry.exponent &&
           payload.size() == entry.bytes && std::ranges::equal(payload, this->payload(slot));
  }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };

  void copy(std::uint32_t slot, std::span<const std::byte> payload) noexcept {
    if (!payload.empty()) std::memcpy(words_[slot * lines_].bytes.data(), payload.data(), payload.size());
  }

  std::vector<Entry> entries_;
  std::size_t lines_;              // cache lines that a slot's words take
  std::unique_ptr<Line[]> words_;  // no page is in memory before its first use
};

}  // namespace wiresum::worker
