// The choice of the largest values of a tensor. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace wiresum::numeric {

/// The most elements of a tensor.
inline constexpr std::size_t kLargestElementsMax = INT32_MAX;

/// The bytes of scratch memory for choosing among elements of `element_bytes`.
[[nodiscard]] std::size_t largest_scratch_bytes(std::size_t count, std::size_t wanted,
                                                std::size_t element_bytes) noexcept;

/// Writes the indices of the `wanted` largest magnitudes, ascending; among equals the lower index wins. A NaN counts as
/// larger than all numbers, and the integer -2^31 like 2^31 - 1. wanted <= count <= kLargestElementsMax. `scratch` is
/// aligned like a double and has largest_scratch_bytes; with less memory the choice is the same, and slower.
void largest(const float* source, std::size_t count, std::size_t wanted, std::int64_t* indices,
             std::span<std::byte> scratch) noexcept;
void largest(const double* source, std::size_t count, std::size_t wanted, std::int64_t* indices,
             std::span<std::byte> scratch) noexcept;
void largest(const std::int32_t* source, std::size_t count, std::size_t wanted, std::int64_t* indices,
             std::span<std::byte> scratch) noexcept;

}  // namespace wiresum::numeric
