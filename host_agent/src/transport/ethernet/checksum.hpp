// The Internet checksum (RFC 1071): a sum of 16-bit words in ones' complement.
//
// Pure: no socket, no clock, no allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace wiresum::transport::ethernet {

/// An unfinished sum of some of a packet's words, to be added to others'. An odd last byte counts as if a zero
/// followed, so only the last part of a packet may be odd.
struct PartialSum {
  std::uint64_t words = 0;

  friend PartialSum operator+(PartialSum a, PartialSum b) noexcept { return {.words = a.words + b.words}; }
};

/// Adds up any number of bytes below 4 GiB.
[[nodiscard]] PartialSum sum(std::span<const std::byte> bytes) noexcept;

/// The sum of two bytes that are the 16-bit value `word`.
[[nodiscard]] PartialSum sum(std::uint16_t word) noexcept;

/// The 16 bits of a sum, not complemented, for a header's field to which a device adds the rest.
[[nodiscard]] std::uint16_t fold(PartialSum sum) noexcept;

/// The checksum itself, which makes the sum of everything, itself included, 0xFFFF.
[[nodiscard]] inline std::uint16_t checksum(PartialSum sum) noexcept {
  return static_cast<std::uint16_t>(~fold(sum) & 0xFFFF);
}

}  // namespace wiresum::transport::ethernet
