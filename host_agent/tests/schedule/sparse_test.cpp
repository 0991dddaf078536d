// The scheduler takes a sparse collective through the refinement of its blocks.
#include <gtest/gtest.h>

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

/// A tensor that has one element in half of its chunks.
struct Tensor : Fp32Tensor {
  Tensor() : Fp32Tensor(kLanes * kChunks) {
    for (std::size_t i = 0; i < kChunks; ++i) {
      if (7 * i % 10 < 5) values[i * kLanes + i % kLanes] = 1.0F;
    }
  }
};

/// The next and only share, answered as if no other worker had any data.
std::optional<Share> step(Scheduler& scheduler, std::uint32_t round_trip_chunks = 0) {
  std::optional<Share> share = scheduler.poll_share();
  if (!share.has_value()) return share;
  EXPECT_FALSE(scheduler.poll_share().has_value());
  scheduler.complete(share->thread, {.token = share->work.token,
                                     .status = Status::kOk,
                                     .vote = share->work.vote,
                                     .round_trip_chunks = round_trip_chunks});
  run_tasks(scheduler);
  return share;
}

TEST(RefinedCollective, CountsFinerBlocksAndSendsTheRestPacked) {
  Scheduler scheduler(config());
  Tensor tensor;
  const std::vector<float> original = tensor.values;
  constexpr worker::TimeNs kDeadline = 1234;
  Request request = tensor.request();
  request.deadline = kDeadline;
  const Ticket ticket = submit(scheduler, std::move(request), kLanes);
  std::vector<Share> shares;
  while (auto share = step(scheduler)) shares.push_back(*share);
  ASSERT_GE(shares.size(), 3u) << "a prologue, finer ones, the packed stream";
  EXPECT_EQ(scheduler.stats().refinements, shares.size() - 2);
  std::set<std::uint32_t> tags;
  for (const Share& share : shares) {
    EXPECT_EQ(share.work.tensor & 0xFFFFu, ticket.tensor & 0xFFFFu);
    tags.insert(share.work.tensor);
    EXPECT_EQ(share.work.deadline, kDeadline) << "the threads watch it";
  }
  EXPECT_EQ(tags.size(), shares.size()) << "tags are distinct";
  EXPECT_EQ(shares.back().work.tensor, ticket.tensor);
  EXPECT_EQ(shares.back().work.format.dtype, numeric::Dtype::kI32) << "the same lanes as without refinement";
  EXPECT_TRUE(shares.back().work.chunks.empty());
  EXPECT_EQ(shares.back().work.chunk_end, (kChunks / 2 + kLanes - 1) / kLanes);
  EXPECT_EQ(scheduler.poll_finished().value().status, Status::kOk);
  EXPECT_EQ(tensor.values, original) << "the sum is one worker's values";
  EXPECT_EQ(scheduler.stats().refined, 1u);
  EXPECT_EQ(scheduler.stats().blocks_skipped, kChunks / 2);
}

TEST(RefinedCollective, LaterRequestsWaitOnlyUntilThePackedStreamIsIssued) {
  Scheduler scheduler(config());
  Tensor tensor;
  Tensor other;
  submit(scheduler, tensor.request(), kLanes);
  const Ticket later = submit(scheduler, other.dense_request(), kLanes);
  std::optional<Share> share;
  while ((share = scheduler.poll_share()).has_value() && share->work.token != later.token) {
    if (scheduler.stats().refined != 0) continue;  // the packed stream is under way
    scheduler.complete(share->thread, {.token = share->work.token, .status = Status::kOk, .vote = 0});
    run_tasks(scheduler);
  }
  ASSERT_TRUE(share.has_value());
  EXPECT_EQ(scheduler.stats().refined, 1u);
  EXPECT_FALSE(scheduler.poll_finished().has_value());
}

TEST(RefinedCollective, DoesNotRefineIfRoundTripsAreExpensive) {
  constexpr std::uint32_t kDear = 180;  // in chunks: nearly as much as finer blocks could save
  Scheduler scheduler(config());
  Tensor tensor;
  submit(scheduler, tensor.dense_request(), kLanes);
  step(scheduler, kDear);
  static_cast<void>(scheduler.poll_finished());
  submit(scheduler, tensor.request(), kLanes);
  while (step(scheduler, kDear).has_value()) continue;
  EXPECT_EQ(scheduler.stats().prologues, 1u);
  EXPECT_EQ(scheduler.stats().refinements, 0u);
  EXPECT_EQ(scheduler.stats().streams, 1u);
}

TEST(RefinedCollective, AFailureDuringATaskEndsTheRequest) {
  Scheduler scheduler(config());
  Tensor tensor;
  const Ticket ticket = submit(scheduler, tensor.request(), kLanes);
  const auto prologue = scheduler.poll_share();
  ASSERT_TRUE(prologue.has_value());
  scheduler.complete(0, {.token = ticket.token, .status = Status::kOk, .vote = 0});
  const auto task = scheduler.poll_task();
  ASSERT_TRUE(task.has_value());
  scheduler.fail(Status::kAborted);
  EXPECT_FALSE(scheduler.poll_finished().has_value()) << "its memory is in use";
  task->run();
  scheduler.complete(*task);
  EXPECT_FALSE(scheduler.poll_share().has_value());
  EXPECT_EQ(scheduler.poll_finished().value().status, Status::kAborted);
}

TEST(RefinedCollective, ASumThatIsBeingScatteredSurvivesAnotherFailure) {
  Scheduler scheduler(config());
  Tensor tensor;
  const std::vector<float> original = tensor.values;
  submit(scheduler, tensor.request(), kLanes);
  while (scheduler.stats().refined == 0) ASSERT_TRUE(step(scheduler).has_value());
  const auto packed = scheduler.poll_share();
  ASSERT_TRUE(packed.has_value());
  scheduler.complete(0, {.token = packed->work.token, .status = Status::kOk, .vote = 0});
  const auto scattering = scheduler.poll_task();
  ASSERT_TRUE(scattering.has_value());
  scheduler.fail(Status::kTimedOut);
  EXPECT_FALSE(scheduler.poll_finished().has_value());
  scattering->run();
  scheduler.complete(*scattering);
  EXPECT_EQ(scheduler.poll_finished().value().status, Status::kOk);
  EXPECT_EQ(tensor.values, original);
}

TEST(RefinedCollective, AFailureOfFinerCountsEndsItAndWaitingRequests) {
  Scheduler scheduler(config());
  Tensor tensor;
  submit(scheduler, tensor.request(), kLanes);
  submit(scheduler, tensor.request(), kLanes);
  static_cast<void>(step(scheduler));
  const auto finer = scheduler.poll_share();
  ASSERT_TRUE(finer.has_value());
  scheduler.complete(0, {.token = finer->work.token, .status = Status::kTimedOut, .vote = 0});
  run_tasks(scheduler);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(scheduler.poll_finished()->status, Status::kTimedOut);
  EXPECT_FALSE(scheduler.poll_share().has_value());
}

}  // namespace
}  // namespace wiresum::schedule
