#include "schedule/granularity.hpp"

#include <algorithm>
#include <bit>

#include "schedule/elements.hpp"
#include "worker/chunks.hpp"

namespace wiresum::schedule {

using worker::quotient_up;

namespace {

/// The least cost of sending `elements` elements, at once or after another step, if the `sizes` smallest sizes have an
/// estimate.
Step best_of(const Costs& costs, std::uint64_t elements, std::span<const std::uint64_t> words_by_size,
             std::uint64_t more_words = 0) noexcept {
  Step best{.size = 0, .words = quotient_up(elements, costs.elements_per_word)};
  for (std::size_t i = 0; i < words_by_size.size(); ++i) {
    const std::uint64_t counts = quotient_up(elements >> i, costs.counts_per_word);
    const std::uint64_t words = costs.round_trip_words + more_words + counts + words_by_size[i];
    if (words < best.words) best = {.size = 1U << i, .words = words};
  }
  return best;
}

}  // namespace

SampledBlocks count_sampled_blocks(std::span<const std::uint32_t> runs) noexcept {
  SampledBlocks sample{.elements = runs.size() * kRunElements, .blocks = {}};
  sample.blocks.fill(1);
  for (std::uint32_t bits : runs) {
    for (std::size_t i = 0; i < kSizes; ++i) {
      const unsigned size = 1U << i;
      sample.blocks[i] += static_cast<std::uint64_t>(std::popcount(present_blocks(bits, size)));
    }
  }
  return sample;
}

Step cheapest_step(const Costs& costs, const SampledBlocks& sample, const UnionSize& union_size) noexcept {
  // Blocks of the known size in the union and in the sample; other sizes are in proportion.
  const bool chunks = union_size.size == 0;
  const std::size_t finer = chunks ? kSizes : static_cast<std::size_t>(std::countr_zero(union_size.size));
  const std::uint64_t real = chunks ? union_size.elements : union_size.blocks;
  const std::uint64_t sampled = std::max<std::uint64_t>(1, chunks ? sample.elements : sample.blocks[finer]);
  std::array<std::uint64_t, kSizes> words{};
  for (std::size_t i = 0; i < finer; ++i) {
    const std::uint64_t elements = std::min(union_size.elements, quotient_up(real * sample.blocks[i], sampled) << i);
    words[i] = best_of(costs, elements, std::span(words).first(i)).words;
  }
  return best_of(costs, union_size.elements, std::span(words).first(finer), chunks ? costs.first_step_words : 0);
}

}  // namespace wiresum::schedule
