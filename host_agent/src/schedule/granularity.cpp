#include "schedule/granularity.hpp"

#include <algorithm>
#include <bit>

#include "schedule/elements.hpp"
#include "worker/chunks.hpp"

namespace wiresum::schedule {

using worker::quotient_up;

namespace {

/// The least that it takes to send `elements` elements of which the `sizes` smallest sizes have an estimate: at once,
/// or after another step.
Step best_of(const Prices& prices, std::uint64_t elements, std::span<const std::uint64_t> words_by_size,
             std::uint64_t more_words = 0) noexcept {
  Step best{.size = 0, .words = quotient_up(elements, prices.elements_per_word)};
  for (std::size_t i = 0; i < words_by_size.size(); ++i) {
    const std::uint64_t counts = quotient_up(elements >> i, prices.counts_per_word);
    const std::uint64_t words = prices.round_trip_words + more_words + counts + words_by_size[i];
    if (words < best.words) best = {.size = 1U << i, .words = words};
  }
  return best;
}

}  // namespace

Hits count_hits(std::span<const std::uint32_t> runs) noexcept {
  Hits hits{.elements = runs.size() * kRunElements, .blocks = {}};
  hits.blocks.fill(1);
  for (std::uint32_t bits : runs) {
    for (std::size_t i = 0; i < kSizes; ++i) {
      const unsigned size = 1U << i;
      hits.blocks[i] += static_cast<std::uint64_t>(std::popcount(present_blocks(bits, size)));
    }
  }
  return hits;
}

Step cheapest_step(const Prices& prices, const Hits& hits, const Known& known) noexcept {
  // Blocks of the known size, in truth and in the sample; all others are in proportion.
  const bool chunks = known.size == 0;
  const std::size_t finer = chunks ? kSizes : static_cast<std::size_t>(std::countr_zero(known.size));
  const std::uint64_t real = chunks ? known.elements : known.blocks;
  const std::uint64_t sampled = std::max<std::uint64_t>(1, chunks ? hits.elements : hits.blocks[finer]);
  std::array<std::uint64_t, kSizes> words{};
  for (std::size_t i = 0; i < finer; ++i) {
    const std::uint64_t elements = std::min(known.elements, quotient_up(real * hits.blocks[i], sampled) << i);
    words[i] = best_of(prices, elements, std::span(words).first(i)).words;
  }
  return best_of(prices, known.elements, std::span(words).first(finer), chunks ? prices.first_step_words : 0);
}

}  // namespace wiresum::schedule
