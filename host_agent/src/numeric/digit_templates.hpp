// The inner loops of digit_sums.cpp, in plain C++: the compiler vectorises them for each instruction set. Internal.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "numeric/kernels.hpp"

namespace wiresum::numeric {

namespace {

inline BlockRange block_range(const float* elements) noexcept {
  std::uint32_t largest = 0;
  std::uint32_t smallest = 0xFFFFFFFFU;
  for (std::size_t i = 0; i < kDigitBlock; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(elements[i]) & 0x7FFFFFFFU;
    largest = std::max(largest, magnitude);
    smallest = std::min(smallest, magnitude - 1);
  }
  return {largest, smallest};
}

/// Adds four digits of finite floats; the first begins at bit `low`. Even digits go to the first half of `lanes`, odd
/// ones to the second, one in the low and one in the high 16 bits, as numeric/format.hpp packs. With `kTop` they are
/// the highest digits of all elements, and low >= 24, so that subnormals do not reach them.
template <bool kTop>
inline void add_digits(const float* __restrict elements, std::int32_t low, std::uint32_t digit_bits,
                       std::int32_t* __restrict lanes) noexcept {
  const std::uint32_t half = (1U << 2 * digit_bits) - 1;
  const std::uint32_t gap = 16 - 2 * digit_bits;
  const std::uint32_t digits = ((1U << digit_bits) - 1) * 0x10001U;
  for (std::size_t i = 0; i < kDigitBlock; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(elements[i]);
    const std::int32_t exponent = static_cast<std::int32_t>(bits >> 23 & 0xFF);
    std::uint32_t four;  // more digits may lie above the four
    if constexpr (kTop) {
      // The significand begins at bit exponent - 1, below low + 7. A shift by 31 leaves nothing.
      const std::uint32_t significand = (bits & 0x7FFFFFU) | 0x800000U;
      four = significand << 7 >> std::min(low + 8 - exponent, 31);
    } else {
      const std::int32_t normal = exponent != 0 ? 1 : 0;  // subnormals have exponent 1's scale
      const std::uint32_t significand = (bits & 0x7FFFFFU) | static_cast<std::uint32_t>(normal) << 23;
      const std::int32_t shift = exponent - normal - low;
      // Shifts by 31 leave nothing in the four digits, which are at most 28 bits.
      four = significand << std::clamp(shift, 0, 31) >> std::clamp(-shift, 0, 31);
    }
    const std::uint32_t lower = four & half;
    const std::uint32_t spread = lower | (four ^ lower) << gap;
    const std::int32_t evens = static_cast<std::int32_t>(spread & digits);
    const std::int32_t odds = static_cast<std::int32_t>(spread >> digit_bits & digits);
    const std::int32_t sign = static_cast<std::int32_t>(bits) >> 31;
    lanes[i] += (evens ^ sign) - sign;
    lanes[kDigitBlock + i] += (odds ^ sign) - sign;
  }
}

}  // namespace
}  // namespace wiresum::numeric
