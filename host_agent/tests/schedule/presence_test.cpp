#include "schedule/presence.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "wire/packet.hpp"

namespace wiresum::schedule {
namespace {

TEST(PresenceCounts, AWordHoldsAsManyCountsAsFitIt) {
  EXPECT_EQ(counts_per_word(1), 32u);
  EXPECT_EQ(counts_per_word(2), 16u);
  EXPECT_EQ(counts_per_word(3), 16u);
  EXPECT_EQ(counts_per_word(8), 8u);
  EXPECT_EQ(counts_per_word(15), 8u);
  EXPECT_EQ(counts_per_word(16), 6u);
  EXPECT_EQ(counts_per_word(32), 5u);
}

TEST(PresenceCounts, NoCountOverflowsIfAllWorkersHaveEverything) {
  for (unsigned workers = 1; workers <= wire::kSwitchWorkersMax; ++workers) {
    PresenceCounts counts;
    counts.reset(100, workers);
    PresenceCounts one = counts;
    for (std::uint64_t i = 0; i < 100; i += 2) one.add(i);
    for (unsigned worker = 0; worker < workers; ++worker) {
      for (std::size_t i = 0; i < counts.words().size(); ++i) counts.words()[i] += one.words()[i];
    }
    EXPECT_TRUE(counts.collect());
    for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(counts.present(i, 1), i % 2 == 0) << workers << " workers, " << i;
  }
}

TEST(PresenceCounts, TheSumOfCountsIsTheUnion) {
  std::mt19937 random(7);
  for (unsigned workers = 1; workers <= wire::kSwitchWorkersMax; ++workers) {
    constexpr std::uint64_t kBlocks = 1000;
    PresenceCounts sum;
    sum.reset(kBlocks, workers);
    std::vector<bool> expected(kBlocks);
    for (unsigned worker = 0; worker < workers; ++worker) {
      PresenceCounts mine;
      mine.reset(kBlocks, workers);
      for (std::uint64_t i = 0; i < kBlocks; ++i) {
        if (random() % (3 * workers) != 0) continue;
        mine.add(i);
        expected[i] = true;
      }
      for (std::size_t i = 0; i < sum.words().size(); ++i) sum.words()[i] += mine.words()[i];
    }
    EXPECT_TRUE(sum.collect());
    for (std::uint64_t first = 0; first < kBlocks; first += 61) {
      const auto count = static_cast<unsigned>(std::min<std::uint64_t>(64, kBlocks - first));
      std::uint64_t bits = 0;
      for (unsigned i = 0; i < count; ++i) bits |= std::uint64_t{expected[first + i]} << i;
      EXPECT_EQ(sum.present(first, count), bits) << workers << " workers, from " << first;
    }
  }
}

TEST(PresenceCounts, ASumWithOneBitMoreThanTheWorkersCanMakeIsRefused) {
  for (const unsigned workers : {1U, 2U, 3U, 7U, 8U, 15U, 16U, 31U, 32U, 100U, 4096U}) {
    const auto bits = static_cast<unsigned>(std::bit_width(workers));
    const unsigned per_word = counts_per_word(workers);
    for (std::uint64_t blocks = 1; blocks < 200; ++blocks) {
      PresenceCounts all;  // the largest count of each block
      all.reset(blocks, workers);
      for (std::uint64_t i = 0; i < blocks; ++i) all.words()[i / per_word] += workers << i % per_word * bits;
      EXPECT_TRUE(PresenceCounts(all).collect());
      for (std::size_t word = 0; word < all.words().size(); ++word) {
        for (unsigned bit = 0; bit < 32; ++bit) {
          const bool has_field = bit / bits < per_word && word * per_word + bit / bits < blocks;
          PresenceCounts hostile;
          hostile.reset(blocks, workers);
          hostile.words()[word] = 1U << bit;
          EXPECT_EQ(hostile.collect(), has_field && 1U << bit % bits <= workers)
              << workers << " workers, " << blocks << " blocks, bit " << bit << " of word " << word;
        }
      }
    }
  }
}

TEST(PresenceCounts, ASumWithoutABlockThatThisWorkerHasIsRefused) {
  for (const std::uint64_t block : {0U, 63U, 64U, 99U}) {
    PresenceCounts counts;
    counts.reset(100, 3);
    counts.add(block);
    PresenceCounts with_others = counts;
    for (std::uint32_t& word : with_others.words()) word |= 0x55555555;
    with_others.words().back() &= 0xFF;  // four blocks of sixteen
    EXPECT_TRUE(with_others.collect());
    for (std::uint32_t& word : counts.words()) word = 0;
    EXPECT_FALSE(counts.collect()) << block;
  }
}

TEST(PresenceCounts, NoBlocksTakeNoWords) {
  PresenceCounts counts;
  counts.reset(0, 8);
  EXPECT_TRUE(counts.words().empty());
  EXPECT_TRUE(counts.collect());
  EXPECT_EQ(counts.present(0, 0), 0u);
}

}  // namespace
}  // namespace wiresum::schedule
