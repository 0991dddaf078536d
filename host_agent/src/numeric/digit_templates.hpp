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

/// Adds four digits of finite floats, of which the first begins at bit `low`: the even ones to the first half of
/// `lanes`, the odd ones to the second, there one in the low and one in the high 16 bits, as numeric/format.hpp packs.
inline void add_digits(const float* __restrict elements, std::int32_t low, std::uint32_t digit_bits,
                       std::int32_t* __restrict lanes) noexcept {
  const std::uint32_t digit = (1U << digit_bits) - 1;
  const std::uint32_t gap = 16 - 2 * digit_bits;
  const std::uint32_t high_digit = digit << 2 * digit_bits;
  for (std::size_t i = 0; i < kDigitBlock; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(elements[i]);
    const std::int32_t exponent = static_cast<std::int32_t>(bits >> 23 & 0xFF);
    const std::int32_t normal = exponent != 0 ? 1 : 0;  // subnormals have exponent 1's scale
    const std::uint32_t significand = (bits & 0x7FFFFFU) | static_cast<std::uint32_t>(normal) << 23;
    const std::int32_t shift = exponent - normal - low;
    // Shifts by 31 leave nothing in the four digits, which are at most 28 bits.
    const std::uint32_t left = static_cast<std::uint32_t>(std::clamp(shift, 0, 31));
    const std::uint32_t right = static_cast<std::uint32_t>(std::clamp(-shift, 0, 31));
    const std::uint32_t even = significand << left >> right;
    const std::uint32_t odd = even >> digit_bits;
    const std::int32_t evens = static_cast<std::int32_t>((even & digit) | (even & high_digit) << gap);
    const std::int32_t odds = static_cast<std::int32_t>((odd & digit) | (odd & high_digit) << gap);
    const std::int32_t sign = static_cast<std::int32_t>(bits) >> 31;
    lanes[i] += (evens ^ sign) - sign;
    lanes[kDigitBlock + i] += (odds ^ sign) - sign;
  }
}

}  // namespace
}  // namespace wiresum::numeric
