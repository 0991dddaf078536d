// Sets of elements as bits, 64 at a time, and moving the elements of a set. Pure.
//
// Bit i of a 64-bit number stands for element i of a run of 64. Blocks of `size` elements, a power of two up to 64, are
// aligned in the run; a block is named by its first bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/format.hpp"

namespace wiresum::schedule {

inline constexpr unsigned kRowElements = 64;

/// A number whose lowest `size` bits are ones.
[[nodiscard]] constexpr std::uint64_t low_bits(unsigned size) noexcept {
  return size >= kRowElements ? ~std::uint64_t{0} : (std::uint64_t{1} << size) - 1;
}

/// The first bits of all blocks.
[[nodiscard]] constexpr std::uint64_t block_starts(unsigned size) noexcept {
  return ~std::uint64_t{0} / low_bits(size);
}

/// The first bits of the blocks in which any bit is set.
[[nodiscard]] constexpr std::uint64_t present_blocks(std::uint64_t bits, unsigned size) noexcept {
  for (unsigned step = 1; step < size; step *= 2) bits |= bits >> step;
  return bits & block_starts(size);
}

/// All bits of the blocks that `starts` names. Blocks do not overlap, so the product is their union.
[[nodiscard]] constexpr std::uint64_t whole_blocks(std::uint64_t starts, unsigned size) noexcept {
  return starts * low_bits(size);
}

/// The bits of `set` at whose place, counted among the ones of `set` from the lowest, `chosen` has a one.
[[nodiscard]] std::uint64_t choose_bits(std::uint64_t set, std::uint64_t chosen) noexcept;

/// A bit for each of up to 64 elements that is not zero. -0.0 is zero, since it adds nothing.
[[nodiscard]] std::uint64_t present_elements(numeric::Dtype dtype, const std::byte* source, std::size_t count) noexcept;

/// Copies the elements of `set` from the run at `source` to `packed`, one after the other. Returns their number.
std::size_t gather_elements(std::size_t element_bytes, const std::byte* source, std::uint64_t set,
                            std::byte* packed) noexcept;

/// The inverse of gather_elements(). Other elements stay as they are.
std::size_t scatter_elements(std::size_t element_bytes, const std::byte* packed, std::uint64_t set,
                             std::byte* destination) noexcept;

}  // namespace wiresum::schedule
