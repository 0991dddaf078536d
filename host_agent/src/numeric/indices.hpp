// Ascending indices of a sparse tensor: their code on the wire, their union, and their positions in another list. Pure.
//
// The code is Elias and Fano's (1974). Of n indices below u it has l = floor(log2(u / n)) low bits each; what is above
// them is a bitmap of n + u / 2^l bits, in which index number j sets bit j + (index >> l). The bitmap comes first, then
// the low bits, each in whole bytes whose lowest bit is the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace wiresum::numeric {

/// The largest tensor whose indices may be encoded.
inline constexpr std::size_t kIndexedElementsMax = INT32_MAX;

/// Bytes of the code of `count` indices below `size`; count <= size <= kIndexedElementsMax.
[[nodiscard]] std::size_t index_code_bytes(std::size_t count, std::size_t size) noexcept;

/// Indices are ascending and below `size`; `code` has index_code_bytes. False, and an undefined code, if they are not.
[[nodiscard]] bool encode_indices(std::span<const std::int64_t> indices, std::size_t size,
                                  std::span<std::uint8_t> code) noexcept;

/// The inverse, for codes that come from elsewhere: false, and undefined indices, if it is not the code of so many
/// ascending indices below `size`.
[[nodiscard]] bool decode_indices(std::span<const std::uint8_t> code, std::size_t size,
                                  std::span<std::int64_t> indices) noexcept;

/// Collects indices below `size` of several tensors in a bitmap of (size + 63) / 64 words, zeros at first.
void mark_indices(std::span<const std::int64_t> indices, std::span<std::uint64_t> bitmap) noexcept;

/// Writes which bits are set, ascending; returns how many. `indices` is long enough for them.
std::size_t marked_indices(std::span<const std::uint64_t> bitmap, std::int64_t* indices) noexcept;

/// places[i] is where indices[i] is among `others`, -1 if it is not there. Both are ascending.
void find_places(std::span<const std::int64_t> indices, std::span<const std::int64_t> others,
                 std::int64_t* places) noexcept;

}  // namespace wiresum::numeric
