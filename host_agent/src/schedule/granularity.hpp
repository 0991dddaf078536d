// How fine the blocks of a sparse collective are. Pure; integers throughout, so that workers with the same knowledge
// choose alike.
//
// Theory of operation
//
// A tensor whose few elements are scattered has something in nearly every chunk. Its union can be narrowed down: the
// elements of the union so far are cut into blocks of a *size* (32, 16, ... 1 elements), the workers count who has
// which block, and only blocks that some worker has remain. That may be repeated with smaller blocks. What remains is
// packed together and sent. Each step costs a round trip and the packets of its counts, and leaves less to send.
//
// Which steps are cheapest depends on how many blocks of each size there are in the union. A *sample* estimates that:
// runs of 32 elements in chunks of the union, at positions that are the same at all workers. One worker's sample gives
// a lower bound of the cost (for a vote). Summed over the workers, presence by presence, it estimates the union itself.
// After each step one of these numbers is known exactly, and the sample gives the next sizes in proportion to it.
//
// Costs are counted in words of 32 bits on the wire; the round trip comes as the number that choice.hpp agrees on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace wiresum::schedule {

/// Elements in a sampled run, and in the largest block. A run is the bits of a 32-bit number.
inline constexpr unsigned kRunElements = 32;
inline constexpr std::size_t kSizes = 6;  // 1, 2, ... 32 elements: 2^i for i < kSizes

/// The number of aligned blocks of 2^i elements that hold anything, in a sample of `elements` elements.
struct SampledBlocks {
  std::uint64_t elements = 0;
  std::array<std::uint64_t, kSizes> blocks{};
};

/// Counts one present element more than was found, alone in its block: the sample may just have missed it.
[[nodiscard]] SampledBlocks count_sampled_blocks(std::span<const std::uint32_t> runs) noexcept;

struct Costs {
  std::uint64_t words_per_chunk = 1;
  std::uint64_t elements_per_word = 1;
  std::uint64_t counts_per_word = 1;
  std::uint64_t round_trip_words = 0;
  std::uint64_t first_step_words = 0;  // words that are sent with the first step alone
};

/// The known bound of the union: `blocks` blocks of `size` elements, in all `elements` elements at most. Size 0:
/// chunks, as many as hold so many elements.
struct UnionSize {
  unsigned size = 0;
  std::uint64_t blocks = 0;
  std::uint64_t elements = 0;
};

/// The next step, and the cost of everything from now on.
struct Step {
  unsigned size = 0;  // count blocks of that many elements; 0: send the union
  std::uint64_t words = 0;
};

[[nodiscard]] Step cheapest_step(const Costs& costs, const SampledBlocks& sample, const UnionSize& union_size) noexcept;

/// True if refining saves enough: packing, unpacking and counting cost time, too, so at least this part of the words
/// sent without them must be saved.
[[nodiscard]] constexpr bool worth_refining(std::uint64_t words, std::uint64_t words_without) noexcept {
  constexpr std::uint64_t kSavingDivisor = 8;
  return words + words_without / kSavingDivisor < words_without;
}

}  // namespace wiresum::schedule
