#include "schedule/granularity.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace wiresum::schedule {
namespace {

constexpr std::uint64_t kElements = 2'000'000;
/// 8 workers, fp32, packets of 360 words; a round trip costs as much as ten packets.
constexpr Costs kCosts{.words_per_chunk = 360, .elements_per_word = 1, .counts_per_word = 8, .round_trip_words = 3600};

/// A sample in which each element is present with this probability, in blocks of `grain`.
SampledBlocks sample_of(double density, unsigned grain = 1) {
  std::mt19937 random(1);
  std::bernoulli_distribution is_there(density);
  std::vector<std::uint32_t> runs(32);
  for (std::uint32_t& run : runs) {
    for (unsigned i = 0; i < kRunElements; i += grain) {
      if (is_there(random)) run |= (grain == 32 ? ~std::uint32_t{0} : ((std::uint32_t{1} << grain) - 1)) << i;
    }
  }
  return count_sampled_blocks(runs);
}

UnionSize chunks(std::uint64_t elements = kElements) { return {.size = 0, .blocks = 0, .elements = elements}; }

TEST(Granularity, HitsAreTheNonemptyBlocksPlusOne) {
  const std::vector<std::uint32_t> runs = {0x0000'0003, 0x8001'0000, 0};
  const SampledBlocks sample = count_sampled_blocks(runs);
  EXPECT_EQ(sample.elements, 96u);
  EXPECT_EQ(sample.blocks, (std::array<std::uint64_t, kSizes>{1 + 4, 1 + 3, 1 + 3, 1 + 3, 1 + 2, 1 + 2}));
}

TEST(Granularity, ADenseTensorIsNotRefined) {
  const Step step = cheapest_step(kCosts, sample_of(1.0), chunks());
  EXPECT_EQ(step.size, 0u);
  EXPECT_EQ(step.words, kElements);
}

TEST(Granularity, ScatteredElementsAreCountedAndFewOnesInSeveralSteps) {
  for (const double density : {0.1, 0.01, 0.001}) {
    const Step step = cheapest_step(kCosts, sample_of(density), chunks());
    EXPECT_GT(step.size, 0u) << density;
    EXPECT_LT(step.words, kElements / 8 + static_cast<std::uint64_t>(1.5 * density * kElements)) << density;
    EXPECT_TRUE(worth_refining(step.words, kElements));
  }
  EXPECT_LT(cheapest_step(kCosts, sample_of(0.1), chunks()).size,
            cheapest_step(kCosts, sample_of(0.001), chunks()).size)
      << "the fewer there are, the larger the first blocks";
}

TEST(Granularity, DataInBlocksAreCountedInBlocks) {
  EXPECT_EQ(cheapest_step(kCosts, sample_of(0.2, 32), chunks()).size, 32u);
  EXPECT_EQ(cheapest_step(kCosts, sample_of(0.5, 8), chunks()).size, 8u);
}

TEST(Granularity, ARoundTripThatCostsMoreThanItSavesIsLeftOut) {
  Costs costs = kCosts;
  costs.round_trip_words = kElements;
  EXPECT_EQ(cheapest_step(costs, sample_of(0.01), chunks()).size, 0u);
}

TEST(Granularity, AfterAStepTheExactCountDecidesTheRest) {
  const SampledBlocks sample = sample_of(0.01);
  // As many blocks of 8 are present as expected, with about one element in eight.
  const std::uint64_t blocks = kElements / 8 * 8 / 100;
  const Step step = cheapest_step(kCosts, sample, {.size = 8, .blocks = blocks, .elements = 8 * blocks});
  EXPECT_GT(step.size, 0u);
  EXPECT_LT(step.size, 8u);
  EXPECT_LT(step.words, 8 * blocks);
  const Step last = cheapest_step(kCosts, sample, {.size = 1, .blocks = blocks, .elements = blocks});
  EXPECT_EQ(last.size, 0u) << "no finer size is left";
  EXPECT_EQ(last.words, blocks);
}

TEST(Granularity, TheOverheadOfTheFirstStepIsPaidOnce) {
  Costs costs = kCosts;
  costs.first_step_words = kElements;
  const SampledBlocks sample = sample_of(0.01);
  EXPECT_EQ(cheapest_step(costs, sample, chunks()).size, 0u);
  const std::uint64_t blocks = kElements / 100;
  const UnionSize later{.size = 8, .blocks = blocks, .elements = 8 * blocks};
  EXPECT_EQ(cheapest_step(costs, sample, later).size, cheapest_step(kCosts, sample, later).size);
  EXPECT_EQ(cheapest_step(costs, sample, later).words, cheapest_step(kCosts, sample, later).words);
}

TEST(Granularity, AnEmptySampleDoesNotMeanAnEmptyTensor) {
  const std::vector<std::uint32_t> nothing(32);
  const Step step = cheapest_step(kCosts, count_sampled_blocks(nothing), chunks());
  EXPECT_EQ(step.size, 32u);
  EXPECT_GE(step.words, kElements / 1024);
}

TEST(Granularity, TheLargestTensorDoesNotOverflow) {
  const std::uint64_t most = std::uint64_t{UINT32_MAX} * 1440;
  const Step step = cheapest_step(kCosts, sample_of(0.01), {.size = 0, .blocks = 0, .elements = most});
  EXPECT_GT(step.size, 0u);
  EXPECT_LT(step.words, most / 4);
  EXPECT_GT(step.words, most / 100);
}

}  // namespace
}  // namespace wiresum::schedule
