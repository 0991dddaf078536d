// The scheduler takes a sparse collective through the refinement of its blocks.
#include <gtest/gtest.h>

#include <limits>
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

TEST(RefinedCollective, CountsFinerBlocksAndSendsTheRestPacked) {  // R6.4
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
  for (const Share& share : shares) EXPECT_EQ(share.work.deadline, kDeadline) << "the threads watch it";
  for (std::uint32_t level = 0; level + 1 < shares.size(); ++level) {
    EXPECT_EQ(shares[level].work.tensor, ticket.tensor ^ 0x5A5A0000u ^ level << 16);
  }
  EXPECT_EQ(shares.back().work.tensor, ticket.tensor);
  EXPECT_EQ(shares.back().work.format.dtype, numeric::Dtype::kI32) << "the same lanes as without refinement";
  EXPECT_TRUE(shares.back().work.chunks.empty());
  EXPECT_EQ(shares.back().work.chunk_end, (kChunks / 2 + kLanes - 1) / kLanes);
  EXPECT_EQ(scheduler.poll_finished().value().status, Status::kOk);
  EXPECT_EQ(tensor.values, original) << "the sum is one worker's values";
  EXPECT_EQ(scheduler.stats().refined, 1u);
  EXPECT_EQ(scheduler.stats().blocks_skipped, kChunks / 2);
}

TEST(RefinedCollective, WhatBlocksCannotCarryFollowsInAStreamOfItsOwn) {  // R6.7
  Scheduler scheduler(config());
  Tensor tensor;
  tensor.values[0] = std::numeric_limits<float>::infinity();
  const Ticket ticket = submit(scheduler, tensor.request(), kLanes);
  std::vector<Share> shares;
  while (auto share = step(scheduler)) shares.push_back(*share);
  ASSERT_GE(shares.size(), 4u) << "a prologue, finer ones, the packed stream, the other one";
  EXPECT_EQ(shares[shares.size() - 2].work.tensor, ticket.tensor);
  EXPECT_EQ(shares.back().work.tensor, ticket.tensor ^ 0x96960000u);
  EXPECT_EQ(shares.back().work.chunk_end, 1u) << "the chunk with an Inf";
}

std::uint32_t* words_of(const Share& share) {
  return reinterpret_cast<std::uint32_t*>(share.work.regions[0].destination.first());
}

void complete(Scheduler& scheduler, const Share& share, std::uint8_t vote) {
  scheduler.complete(share.thread, {.token = share.work.token, .status = Status::kOk, .vote = vote});
  run_tasks(scheduler);
}

void expect_impossible(Scheduler& scheduler, const Ticket& ticket) {
  EXPECT_EQ(scheduler.failure().value().status, Status::kImpossible);
  EXPECT_EQ(scheduler.failure().value().tensor, ticket.tensor);
  EXPECT_FALSE(scheduler.poll_share().has_value());
  while (const auto finished = scheduler.poll_finished()) EXPECT_EQ(finished->status, Status::kImpossible);
  EXPECT_EQ(scheduler.unfinished(), 0u);
}

TEST(RefinedCollective, CountsThatTheWorkersCannotHaveMadeEndEverything) {
  for (int level = 0; level < 2; ++level) {
    for (const bool is_less : {false, true}) {
      Scheduler scheduler(config());
      Tensor tensor;
      Tensor later;
      const Ticket ticket = submit(scheduler, tensor.request(), kLanes);
      submit(scheduler, later.request(), kLanes);
      for (int i = 0; i < level; ++i) static_cast<void>(step(scheduler));
      const std::optional<Share> counts = scheduler.poll_share();
      ASSERT_TRUE(counts.has_value());
      ASSERT_EQ(counts->work.token, ticket.token);
      std::uint32_t& word = words_of(*counts)[0];
      word = is_less ? 0 : word | 3;  // two workers have no third block, and this one has some of these
      complete(scheduler, *counts, counts->work.vote);
      expect_impossible(scheduler, ticket);
    }
  }
}

TEST(RefinedCollective, ExponentsThatTheWorkersCannotHaveSaidEndEverything) {
  Scheduler scheduler(config());
  Tensor tensor;
  const Ticket ticket = submit(scheduler, tensor.request(), kLanes);
  static_cast<void>(step(scheduler));
  const std::optional<Share> counts = scheduler.poll_share();
  ASSERT_TRUE(counts.has_value());
  words_of(*counts)[counts->work.regions[0].elements - 1] |= 1U << 16;  // a third worker's count
  complete(scheduler, *counts, counts->work.vote);
  expect_impossible(scheduler, ticket);
}

TEST(RefinedCollective, ARoundTripThatNoWorkerSaysEndsEverything) {
  Scheduler scheduler(config());
  Tensor tensor;
  const Ticket ticket = submit(scheduler, tensor.request(), kLanes);
  complete(scheduler, scheduler.poll_share().value(), 255);
  expect_impossible(scheduler, ticket);
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
  constexpr std::uint32_t kDear = 180;  // chunks, nearly the saving of finer blocks
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
  scheduler.complete(*task, task->run());
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
  scheduler.complete(*scattering, scattering->run());
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
