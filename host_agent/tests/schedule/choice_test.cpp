#include "schedule/choice.hpp"

#include <gtest/gtest.h>

#include "schedule/survey.hpp"

namespace wiresum::schedule {
namespace {

constexpr std::uint16_t kSignature = 0x1234;
constexpr std::uint32_t kChunks = 1000;
constexpr std::uint8_t kCheap = 0;  // a round trip costs as much as one chunk

TEST(Cost, IsRoundedUpByLessThanAnEighth) {
  for (std::uint64_t chunks = 1; chunks < 5000; ++chunks) {
    const std::uint64_t decoded = decode_cost(encode_cost(chunks));
    EXPECT_GE(decoded, chunks);
    EXPECT_LE(decoded, chunks + chunks / 8 + 1);
  }
}

TEST(Cost, FitsAVoteHoweverLargeItIs) {
  EXPECT_EQ(encode_cost(0), 0);
  EXPECT_LE(encode_cost(UINT64_MAX), kDensityFull);
  for (unsigned code = 1; code <= kDensityFull; ++code) {
    EXPECT_GE(decode_cost(static_cast<std::uint8_t>(code)), decode_cost(static_cast<std::uint8_t>(code - 1)));
  }
}

TEST(Choice, AsksForANewSignature) {
  const Choice choice;
  EXPECT_TRUE(choice.asks(kSignature, kChunks));
}

TEST(Choice, KeepsAskingWhileItSaves) {
  Choice choice;
  for (int i = 0; i < 5; ++i) choice.on_counts(kSignature, kChunks, 100, kCheap);
  EXPECT_TRUE(choice.asks(kSignature, kChunks));
}

TEST(Choice, StopsAskingForASignatureThatSavesNothing) {
  Choice choice;
  choice.on_counts(kSignature, kChunks, kChunks, kCheap);
  EXPECT_FALSE(choice.asks(kSignature, kChunks));
  EXPECT_TRUE(choice.asks(kSignature, kChunks + 1));
  EXPECT_TRUE(choice.asks(kSignature + 1, kChunks));
}

TEST(Choice, ComparesTheSavingWithTheRoundTrip) {
  Choice choice;
  choice.on_counts(kSignature, kChunks, 600, encode_cost(300));
  EXPECT_TRUE(choice.asks(kSignature, kChunks));
  choice.on_counts(kSignature, kChunks, 600, encode_cost(400));
  EXPECT_FALSE(choice.asks(kSignature, kChunks));
}

TEST(Choice, ASavingMustExceedItsCost) {
  constexpr std::uint32_t kCost = 1 + kChunks / 16;  // the round trip, and the overhead of sparsity
  Choice choice;
  choice.on_counts(kSignature, kChunks, kChunks - kCost - 1, encode_cost(1));
  EXPECT_TRUE(choice.asks(kSignature, kChunks));
  choice.on_counts(kSignature, kChunks, kChunks - kCost, encode_cost(1));
  EXPECT_FALSE(choice.asks(kSignature, kChunks));
}

TEST(Choice, DoesNotAskIfEvenAnEmptyTensorWouldNotSaveEnough) {
  Choice choice;
  choice.on_counts(kSignature, kChunks, 0, encode_cost(300));
  EXPECT_FALSE(choice.asks(kSignature, 300));
  EXPECT_TRUE(choice.asks(kSignature, 400));
}

TEST(Choice, AsksAgainOnceVotesPromiseASaving) {
  Choice choice;
  choice.on_counts(kSignature, kChunks, kChunks, kCheap);
  choice.on_vote(kSignature, kChunks, kDensityFull);
  choice.on_vote(kSignature, kChunks, kDensityFull * 19 / 20);
  EXPECT_FALSE(choice.asks(kSignature, kChunks));
  choice.on_vote(kSignature, kChunks, kDensityFull / 2);
  EXPECT_TRUE(choice.asks(kSignature, kChunks));
}

TEST(Choice, NeedsTwiceAsManyVotesAfterEachFutileQuestion) {
  Choice choice;
  for (int votes = 1; votes <= 64; votes *= 2) {
    choice.on_counts(kSignature, kChunks, kChunks, kCheap);
    for (int i = 0; i < votes; ++i) {
      EXPECT_FALSE(choice.asks(kSignature, kChunks)) << i << " of " << votes;
      choice.on_vote(kSignature, kChunks, 10);
    }
    EXPECT_TRUE(choice.asks(kSignature, kChunks));
  }
  choice.on_counts(kSignature, kChunks, kChunks, kCheap);
  for (int i = 0; i < 64; ++i) choice.on_vote(kSignature, kChunks, 10);
  EXPECT_TRUE(choice.asks(kSignature, kChunks)) << "the wait is bounded";
  choice.on_counts(kSignature, kChunks, 10, kCheap);
  choice.on_counts(kSignature, kChunks, kChunks, kCheap);
  choice.on_vote(kSignature, kChunks, 10);
  EXPECT_TRUE(choice.asks(kSignature, kChunks)) << "a success restores trust";
}

TEST(Choice, ANotFiniteVoteCountsAsDense) {
  Choice choice;
  choice.on_counts(kSignature, kChunks, kChunks, kCheap);
  for (int i = 0; i < 100; ++i) choice.on_vote(kSignature, kChunks, numeric::kExponentNotFinite);
  EXPECT_FALSE(choice.asks(kSignature, kChunks));
}

TEST(Choice, SkipsTwiceAsManyCollectivesAfterEachFutileRefinement) {
  Choice choice;
  for (int skipped = 1; skipped <= 64; skipped *= 2) {
    EXPECT_TRUE(choice.refines(kSignature, kChunks));
    choice.on_refinement(kSignature, kChunks, false);
    for (int i = 0; i < skipped; ++i) EXPECT_FALSE(choice.refines(kSignature, kChunks)) << i << " of " << skipped;
  }
  EXPECT_TRUE(choice.refines(kSignature, kChunks));
  EXPECT_TRUE(choice.refines(kSignature, kChunks + 1)) << "each kind of tensor has its own count";
  choice.on_refinement(kSignature, kChunks, true);
  EXPECT_TRUE(choice.refines(kSignature, kChunks)) << "a success restores trust";
  choice.on_refinement(kSignature, kChunks, false);
  EXPECT_FALSE(choice.refines(kSignature, kChunks));
  EXPECT_TRUE(choice.refines(kSignature, kChunks));
}

TEST(Choice, ForgetsSignaturesInsteadOfGrowingWithoutBound) {
  Choice choice;
  for (std::uint32_t i = 0; i < 5000; ++i) choice.on_counts(kSignature, kChunks + i, kChunks + i, kCheap);
  EXPECT_TRUE(choice.asks(kSignature, kChunks)) << "forgotten";
  EXPECT_FALSE(choice.asks(kSignature, kChunks + 4999));
}

}  // namespace
}  // namespace wiresum::schedule
