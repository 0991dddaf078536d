// The scheduler's way through a collective whose blocks are narrowed down.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "rig.hpp"
#include "schedule/scheduler.hpp"
#include "worker/worker.hpp"

namespace wiresum::schedule {
namespace {

using worker::Status;

constexpr std::size_t kLanes = 64;
constexpr std::size_t kChunks = 400;

SchedulerConfig config() {
  return {.threads = 1, .workers = 2, .lanes = kLanes, .sparse_chunks_min = 4, .vote_lag_chunks = 2 * kChunks};
}

/// A tensor that has an element in half of its chunks.
struct Tensor : Fp32Tensor {
  Tensor() : Fp32Tensor(kLanes * kChunks) {
    for (std::size_t i = 0; i < kChunks; ++i) {
      if (7 * i % 10 < 5) values[i * kLanes + i % kLanes] = 1.0F;
    }
  }
};

void run_chores(Scheduler& scheduler) {
  while (const auto chore = scheduler.poll_chore()) {
    while (!chore->run()) continue;
    scheduler.complete(*chore);
  }
}

/// The next share, of which there is one, as if no other worker had anything.
std::optional<Share> step(Scheduler& scheduler, std::uint32_t round_trip_chunks = 0) {
  std::optional<Share> share = scheduler.poll_share();
  if (!share.has_value()) return share;
  EXPECT_FALSE(scheduler.poll_share().has_value());
  scheduler.complete(share->thread, {.token = share->work.token,
                                     .status = Status::kOk,
                                     .vote = share->work.vote,
                                     .round_trip_chunks = round_trip_chunks});
  run_chores(scheduler);
  return share;
}

TEST(RefinedCollective, AsksAgainAboutFinerBlocksAndSendsWhatIsLeftPacked) {
  Scheduler scheduler(config());
  Tensor tensor;
  const std::vector<float> original = tensor.values;
  const Ticket ticket = submit(scheduler, tensor.request());
  std::vector<Share> shares;
  while (auto share = step(scheduler)) shares.push_back(*share);
  ASSERT_GE(shares.size(), 3u) << "a prologue, finer ones, the packed stream";
  EXPECT_EQ(scheduler.stats().refinements, shares.size() - 2);
  std::set<std::uint32_t> tags;
  for (const Share& share : shares) {
    EXPECT_EQ(share.work.tensor & 0xFFFFu, ticket.tensor & 0xFFFFu);
    tags.insert(share.work.tensor);
  }
  EXPECT_EQ(tags.size(), shares.size()) << "none can be taken for another";
  EXPECT_EQ(shares.back().work.tensor, ticket.tensor);
  EXPECT_EQ(shares.back().work.format.dtype, numeric::Dtype::kI32) << "the lanes, as they would have been";
  EXPECT_TRUE(shares.back().work.chunks.empty());
  EXPECT_EQ(shares.back().work.chunk_end, (kChunks / 2 + kLanes - 1) / kLanes);
  const auto finished = scheduler.poll_finished();
  ASSERT_TRUE(finished.has_value());
  EXPECT_EQ(finished->status, Status::kOk);
  EXPECT_EQ(tensor.values, original) << "the sum of what one worker has";
  EXPECT_EQ(scheduler.stats().refined, 1u);
  EXPECT_EQ(scheduler.stats().blocks_skipped, kChunks / 2);
}

TEST(RefinedCollective, LaterOnesWaitUntilThePackedStreamIsDealtAndNoLonger) {
  Scheduler scheduler(config());
  Tensor tensor;
  Tensor other;
  submit(scheduler, tensor.request());
  Request plain = other.request();
  plain.may_be_sparse = false;
  const Ticket later = submit(scheduler, plain);
  std::optional<Share> share;
  while ((share = scheduler.poll_share()).has_value() && share->work.token != later.token) {
    if (scheduler.stats().refined != 0) continue;  // the packed stream: under way
    scheduler.complete(share->thread, {.token = share->work.token, .status = Status::kOk, .vote = 0});
    run_chores(scheduler);
  }
  ASSERT_TRUE(share.has_value());
  EXPECT_EQ(scheduler.stats().refined, 1u);
  EXPECT_FALSE(scheduler.poll_finished().has_value());
}

TEST(RefinedCollective, WhereRoundTripsAreDearThereAreNone) {
  constexpr std::uint32_t kDear = 180;  // chunks: nearly all that finer blocks could save
  Scheduler scheduler(config());
  Tensor tensor;
  Request plain = tensor.request();
  plain.may_be_sparse = false;
  submit(scheduler, plain);
  step(scheduler, kDear);
  static_cast<void>(scheduler.poll_finished());
  submit(scheduler, tensor.request());
  while (step(scheduler, kDear).has_value()) continue;
  EXPECT_EQ(scheduler.stats().prologues, 1u);
  EXPECT_EQ(scheduler.stats().refinements, 0u);
  EXPECT_EQ(scheduler.stats().streams, 1u);
}

TEST(RefinedCollective, AFailureDuringAChoreEndsIt) {
  Scheduler scheduler(config());
  Tensor tensor;
  const Ticket ticket = submit(scheduler, tensor.request());
  const auto prologue = scheduler.poll_share();
  ASSERT_TRUE(prologue.has_value());
  scheduler.complete(0, {.token = ticket.token, .status = Status::kOk, .vote = 0});
  const auto chore = scheduler.poll_chore();
  ASSERT_TRUE(chore.has_value());
  scheduler.fail(Status::kAborted);
  EXPECT_FALSE(scheduler.poll_finished().has_value()) << "its memory is in use";
  while (!chore->run()) continue;
  scheduler.complete(*chore);
  EXPECT_FALSE(scheduler.poll_share().has_value());
  const auto finished = scheduler.poll_finished();
  ASSERT_TRUE(finished.has_value());
  EXPECT_EQ(finished->status, Status::kAborted);
}

TEST(RefinedCollective, AFailureOfFinerCountsEndsItAndWhatWaits) {
  Scheduler scheduler(config());
  Tensor tensor;
  submit(scheduler, tensor.request());
  submit(scheduler, tensor.request());
  static_cast<void>(step(scheduler));
  const auto finer = scheduler.poll_share();
  ASSERT_TRUE(finer.has_value());
  scheduler.complete(0, {.token = finer->work.token, .status = Status::kTimedOut, .vote = 0});
  run_chores(scheduler);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(scheduler.poll_finished()->status, Status::kTimedOut);
  EXPECT_FALSE(scheduler.poll_share().has_value());
}

// ---- In two parts ----

/// A tensor that has every fifth chunk, and a scheduler that has summed one like it.
struct AheadTest : testing::Test {
  AheadTest() {
    for (std::size_t i = 0; i < kLanes * kChunks; ++i) {
      if (i / kLanes % 5 == 0) tensor.values[i] = 2.0F;
    }
    submit(scheduler, tensor.request());
    while (step(scheduler).has_value()) continue;
    EXPECT_EQ(scheduler.poll_finished()->status, Status::kOk);
    EXPECT_EQ(scheduler.stats().ahead, 0u) << "the first tells how much to expect";
    token = submit(scheduler, tensor.request()).token;
  }
  static SchedulerConfig with_lead() {
    SchedulerConfig with = config();
    with.lead_chunks = 10;
    return with;
  }
  Share poll() {
    const std::optional<Share> share = scheduler.poll_share();
    EXPECT_TRUE(share.has_value());
    return share.value_or(Share{});
  }
  void complete(const Share& share, Status status = Status::kOk) {
    scheduler.complete(share.thread, {.token = share.work.token, .status = status, .vote = 0, .round_trip_chunks = 0});
  }
  static std::vector<std::uint32_t> chunks_of(const Share& share) {
    return {share.work.chunks.begin() + share.work.chunk_begin, share.work.chunks.begin() + share.work.chunk_end};
  }

  Scheduler scheduler{with_lead()};
  Fp32Tensor tensor{kLanes * kChunks};
  std::uint64_t token = 0;
};

TEST_F(AheadTest, TheFirstPartIsStreamedBeforeTheSecondHasBeenLookedAt) {
  const Share first_counts = poll();
  EXPECT_EQ(first_counts.work.format.dtype, numeric::Dtype::kI32);
  complete(first_counts);
  const Share lead = poll();
  EXPECT_EQ(chunks_of(lead), (std::vector<std::uint32_t>{0, 5, 10, 15, 20, 25, 30, 35, 40, 45}));
  EXPECT_FALSE(scheduler.poll_share().has_value());

  const auto chore = scheduler.poll_chore();
  ASSERT_TRUE(chore.has_value());
  EXPECT_TRUE(chore->can_wait());
  while (!chore->run()) continue;
  scheduler.complete(*chore);
  const Share second_counts = poll();
  complete(second_counts);
  const Share rest = poll();
  std::vector<std::uint32_t> others;
  for (std::uint32_t chunk = 50; chunk < kChunks; chunk += 5) others.push_back(chunk);
  EXPECT_EQ(chunks_of(rest), others);
  const std::set<std::uint32_t> tags = {first_counts.work.tensor, lead.work.tensor, second_counts.work.tensor,
                                        rest.work.tensor};
  EXPECT_EQ(tags.size(), 4u) << "none can be taken for another";

  complete(rest);
  EXPECT_FALSE(scheduler.poll_finished().has_value()) << "the first part is still under way";
  complete(lead);
  EXPECT_EQ(scheduler.poll_finished()->token, token);
  EXPECT_EQ(scheduler.stats().ahead, 1u);
  EXPECT_EQ(scheduler.stats().blocks_skipped, 2u * (kChunks - kChunks / 5));
}

TEST_F(AheadTest, LaterOnesWaitForBothParts) {
  Request plain = tensor.request();
  plain.may_be_sparse = false;
  const std::uint64_t later = submit(scheduler, plain).token;
  complete(poll());
  const Share lead = poll();
  complete(lead);
  EXPECT_FALSE(scheduler.poll_share().has_value()) << "its place is behind both parts";
  run_chores(scheduler);
  complete(poll());
  EXPECT_NE(poll().work.token, later);
  EXPECT_EQ(poll().work.token, later);
}

TEST_F(AheadTest, AFailureOfTheFirstPartEndsItWhenTheLookIsOver) {
  complete(poll());
  const Share lead = poll();
  const auto chore = scheduler.poll_chore();
  ASSERT_TRUE(chore.has_value());
  complete(lead, Status::kDiverged);
  EXPECT_FALSE(scheduler.poll_finished().has_value()) << "its memory is in use";
  while (!chore->run()) continue;
  scheduler.complete(*chore);
  EXPECT_EQ(scheduler.poll_finished()->status, Status::kDiverged);
  EXPECT_FALSE(scheduler.poll_share().has_value());
}

TEST_F(AheadTest, AFailureOfTheSecondPartEndsItWithTheFirst) {
  complete(poll());
  const Share lead = poll();
  run_chores(scheduler);
  complete(poll(), Status::kTimedOut);
  EXPECT_FALSE(scheduler.poll_finished().has_value());
  complete(lead, Status::kTimedOut);
  EXPECT_EQ(scheduler.poll_finished()->status, Status::kTimedOut);
}

TEST_F(AheadTest, WhereTheSecondPartIsEmptyTheFirstIsAll) {
  std::fill(tensor.values.begin() + kLanes * kChunks / 2, tensor.values.end(), 0.0F);
  complete(poll());
  const Share lead = poll();
  run_chores(scheduler);
  const Share counts = poll();
  auto* const words = reinterpret_cast<std::uint32_t*>(counts.work.regions[0].destination);
  std::fill_n(words, counts.work.regions[0].elements, 0U);
  complete(counts);
  EXPECT_FALSE(scheduler.poll_share().has_value());
  complete(lead);
  EXPECT_EQ(scheduler.poll_finished()->status, Status::kOk);
}

}  // namespace
}  // namespace wiresum::schedule
