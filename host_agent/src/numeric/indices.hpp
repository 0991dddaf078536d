// Ascending indices of a sparse tensor: their code on the wire, their union, and their positions among others. Pure.
//
// The code is Elias and Fano's (1974). It has l = floor(log2(u / n)) low bits of each of n indices below u; the upper
// bits are a bitmap of n + u / 2^l bits, in which index number j sets bit j + (index >> l). The bitmap comes first,
// then the low bits, each in whole bytes whose lowest bit is the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace wiresum::numeric {

/// The largest tensor whose indices may be encoded.
inline constexpr std::size_t kIndexedElementsMax = INT32_MAX;

/// The bytes of the code of `count` indices below `size`; count <= size <= kIndexedElementsMax.
[[nodiscard]] std::size_t index_code_bytes(std::size_t count, std::size_t size) noexcept;

/// Encodes into `code`, of index_code_bytes. False, with an undefined code, unless indices ascend and are below `size`.
[[nodiscard]] bool encode_indices(std::span<const std::int64_t> indices, std::size_t size,
                                  std::span<std::uint8_t> code) noexcept;

/// Decodes a code from elsewhere: false, with undefined indices, unless it is the code of so many ascending indices
/// below `size`.
[[nodiscard]] bool decode_indices(std::span<const std::uint8_t> code, std::size_t size,
                                  std::span<std::int64_t> indices) noexcept;

/// Marks indices below `size`, of one of several tensors, in a bitmap of (size + 63) / 64 words, zeros at first.
void mark_indices(std::span<const std::int64_t> indices, std::span<std::uint64_t> bitmap) noexcept;

/// Writes the indices of the set bits, ascending, into `indices`, which is long enough; returns their number.
std::size_t marked_indices(std::span<const std::uint64_t> bitmap, std::int64_t* indices) noexcept;

/// Writes into places[i] the position of indices[i] among `others`, or -1. Both lists are ascending.
void find_places(std::span<const std::int64_t> indices, std::span<const std::int64_t> others,
                 std::int64_t* places) noexcept;

}  // namespace wiresum::numeric
