#include "worker/pending.hpp"

#include <gtest/gtest.h>

#include <array>

namespace wiresum::worker {
namespace {

TEST(Pending, FindsTheRegionOfAChunkAndItsTail) {
  std::array<std::byte, 400> memory{};
  // Two regions of 10 and 5 elements with an empty one between them; 4 elements a chunk.
  const std::array<Region, 4> regions{{
      {.source = memory.data(), .destination = {}, .elements = 10, .chunk_first = 0},
      {.source = {}, .destination = {}, .elements = 0, .chunk_first = 3},
      {.source = {}, .destination = memory.data() + 200, .elements = 5, .chunk_first = 3},
      {.source = memory.data(), .destination = {}, .elements = 0, .chunk_first = 5},
  }};
  Pending pending;
  pending.work.format = {numeric::Dtype::kF32, numeric::Scaling::kBlockExponent, 32};
  pending.work.regions = regions;
  pending.work.chunk_begin = 1;
  pending.chunk_elements = 4;
  EXPECT_EQ(pending.view(0).source, memory.data() + 16);
  EXPECT_EQ(pending.view(0).elements, 4u);
  EXPECT_EQ(pending.view(1).elements, 2u) << "the tail of the first region";
  EXPECT_EQ(pending.view(1).destination, nullptr);
  EXPECT_EQ(pending.view(2).destination, memory.data() + 200);
  EXPECT_EQ(pending.view(3).destination, memory.data() + 216);
  EXPECT_EQ(pending.view(3).elements, 1u);
  EXPECT_EQ(pending.view(4).elements, 0u) << "beyond all regions there is nothing";
}

TEST(Pending, OrdersBySubmissionThenRoundThenSlot) {
  Pending pending;
  pending.stride = 4;
  pending.exponent_round = true;
  Slot meta_last;
  meta_last.phase = Phase::kExponent;
  meta_last.chunk = 3;
  Slot data_first;
  data_first.chunk = 0;
  Slot data_largest;
  data_largest.chunk = UINT32_MAX;
  EXPECT_LT(pending.key(meta_last), pending.key(data_first));
  EXPECT_LT(pending.key(data_first), pending.key(data_largest));
  Pending later = pending;
  later.order = 1;
  Slot meta_first;
  meta_first.phase = Phase::kExponent;
  EXPECT_LT(pending.key(data_largest), later.key(meta_first));
}

TEST(Pending, FindsListedChunksAndSkipsAbsentOnes) {
  const std::vector<std::byte> memory(32);
  const std::vector<Region> regions = {{.source = memory.data(), .destination = {}, .elements = 8, .chunk_first = 0}};
  const std::vector<std::uint32_t> listed = {1, 3};
  ChunkPresence presence(4);
  presence.set(1, false);
  presence.set(3, true);
  Pending pending;
  pending.work.regions = regions;
  pending.work.chunks = listed;
  pending.work.presence = &presence;
  pending.chunk_elements = 2;
  EXPECT_EQ(pending.number(0), 1u);
  EXPECT_EQ(pending.view(0).source, nullptr);
  EXPECT_EQ(pending.view(0).elements, 2u);
  ChunkView view = pending.view(0);
  EXPECT_EQ(pending.exponents(0, view).largest, 0);
  view = pending.view(1);
  EXPECT_EQ(view.source, memory.data() + 24);
  EXPECT_EQ(pending.exponents(1, view).largest, 0);
  EXPECT_NE(view.source, nullptr) << "the scan found it present, though memory is zero now";
}

TEST(Pending, AnUnscannedChunkCountsAsPresentUntilItIsRead) {
  std::array<float, 8> memory = {0, 0, 0, 0, 0, 1.5F, 0, 0};
  const auto* const bytes = reinterpret_cast<const std::byte*>(memory.data());
  const std::vector<Region> regions = {{.source = bytes, .destination = {}, .elements = 8, .chunk_first = 0}};
  ChunkPresence looked_at_the_first(2);
  looked_at_the_first.set(0, false);
  Pending pending;
  pending.work.regions = regions;
  pending.chunk_elements = 4;
  for (const bool in_part : {false, true}) {
    pending.work.presence = in_part ? &looked_at_the_first : &kNothingKnown;
    ChunkView view = pending.view(1);
    ASSERT_EQ(view.source, bytes + 16);
    EXPECT_GT(pending.exponents(1, view).largest, 0);
    EXPECT_NE(view.source, nullptr);
  }
  pending.work.presence = &kNothingKnown;
  ChunkView zeros = pending.view(0);
  EXPECT_NE(zeros.source, nullptr);
  EXPECT_EQ(pending.exponents(0, zeros).largest, 0);
  EXPECT_EQ(zeros.source, nullptr) << "reading found zeros, so it is sent EMPTY";
}

TEST(PendingPool, HandsBackInOrderOfCompletionAndReusesEntries) {
  PendingPool pool(2);
  const std::uint32_t a = pool.acquire();
  const std::uint32_t b = pool.acquire();
  EXPECT_EQ(pool.acquire(), kNoCollective);
  EXPECT_EQ(pool.oldest(), a);
  EXPECT_EQ(pool[a].next, b);
  pool.complete(b, Status::kOk);
  EXPECT_EQ(pool.acquire(), kNoCollective) << "an entry is in use until its completion is taken";
  pool.complete(a, Status::kTimedOut);
  EXPECT_EQ(pool.oldest(), kNoCollective);
  EXPECT_EQ(pool.take_complete(), b);
  EXPECT_EQ(pool.take_complete(), a);
  EXPECT_EQ(pool.take_complete(), kNoCollective);
  EXPECT_EQ(pool.acquire(), b);
}

}  // namespace
}  // namespace wiresum::worker
