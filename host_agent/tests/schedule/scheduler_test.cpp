#include "schedule/scheduler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "rig.hpp"
#include "worker/worker.hpp"

namespace wiresum::schedule {
namespace {

using worker::Status;

constexpr std::size_t kLanes = 4;
constexpr unsigned kWorkers = 32;  // 5 counts fit a word

SchedulerConfig small_config(unsigned threads = 1) {
  return {.threads = threads,
          .workers = kWorkers,
          .lanes = kLanes,
          .chunks_per_thread_min = 2,
          .sparse_chunks_min = 4,
          .vote_lag_chunks = 40};
}

/// A tensor of `blocks` blocks.
struct Tensor : Fp32Tensor {
  Tensor(std::size_t blocks, bool present) : Fp32Tensor(kLanes * blocks, present ? 1.0F : 0.0F) {}
  void put(std::size_t block) { values[kLanes * block] = 1.0F; }
};

std::vector<Share> shares_of(Scheduler& scheduler) {
  std::vector<Share> shares;
  while (const auto share = scheduler.poll_share()) shares.push_back(*share);
  return shares;
}

void complete(Scheduler& scheduler, const Share& share, std::uint8_t vote = 0, Status status = Status::kOk) {
  scheduler.complete(share.thread, {.token = share.work.token, .status = status, .vote = vote, .round_trip_chunks = 0});
}

std::uint32_t* words_of(const Share& share) {
  return reinterpret_cast<std::uint32_t*>(share.work.regions[0].destination.first());
}

/// Adds another worker's blocks to a prologue's counts, as the network does.
void add_counts(const Share& share, const std::vector<std::size_t>& blocks) {
  PresenceCounts others;
  others.reset(share.work.regions[0].elements * counts_per_word(kWorkers), kWorkers);
  for (const std::size_t block : blocks) others.add(block);
  for (std::size_t i = 0; i < others.words().size(); ++i) words_of(share)[i] += others.words()[i];
}

/// The blocks, out of `blocks`, that a prologue reports as present.
std::vector<std::size_t> counted(const Share& share, std::size_t blocks) {
  PresenceCounts counts;
  counts.reset(blocks, kWorkers);
  std::copy_n(words_of(share), counts.words().size(), counts.words().begin());
  EXPECT_TRUE(counts.collect());
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < blocks; ++i) {
    if (counts.present(i, 1) != 0) found.push_back(i);
  }
  return found;
}

bool is_prologue(const Share& share) { return share.work.format.dtype == numeric::Dtype::kI32; }

// ---- Exact sums ----

SchedulerConfig exact_config(std::uint64_t elements_max) {
  SchedulerConfig config = small_config();
  config.exact_elements_max = elements_max;
  return config;
}

TEST(Scheduler, AShortSumOfFloatsIsOneCollectiveOfIntegers) {  // R5.2
  Scheduler scheduler(exact_config(100));
  Fp32Tensor tensor(1, 1.5F);
  submit(scheduler, tensor.request(), kLanes);
  const std::vector<Share> shares = shares_of(scheduler);
  ASSERT_EQ(shares.size(), 1U);
  EXPECT_EQ(shares[0].work.chunk_end, kWorkers / kLanes);  // one word from each worker
  EXPECT_EQ(shares[0].work.format.dtype, numeric::Dtype::kI32);
  for (const Share& share : shares) complete(scheduler, share);
  run_tasks(scheduler);
  EXPECT_EQ(scheduler.poll_finished()->status, Status::kOk);
  EXPECT_EQ(tensor.values[0], 1.5F);
  EXPECT_EQ(scheduler.exact_sums(), 1U);
}

TEST(Scheduler, AShortSumTakesAtMost16Packets) {  // R5.2
  for (const auto& [workers, dtype] : {std::pair{16U, numeric::Dtype::kI32}, {17U, numeric::Dtype::kF32}}) {
    SchedulerConfig config = exact_config(100);
    config.workers = workers;
    Scheduler scheduler(config);
    Fp32Tensor tensor(4, 1.5F);
    submit(scheduler, tensor.request(), kLanes);
    EXPECT_EQ(shares_of(scheduler).at(0).work.format.dtype, dtype) << "4 words from each of " << workers;
  }
}

TEST(Scheduler, ALongerSumOfFloatsIsSummedExactlyByTheThreads) {
  Scheduler scheduler(exact_config(100));
  Fp32Tensor tensor(20, 1.5F);
  submit(scheduler, tensor.request(), kLanes);
  const std::vector<Share> shares = shares_of(scheduler);
  ASSERT_FALSE(shares.empty());
  for (const Share& share : shares) {
    EXPECT_TRUE(share.work.exact);
    EXPECT_EQ(share.work.format.dtype, numeric::Dtype::kF32);
    complete(scheduler, share);
  }
  EXPECT_EQ(scheduler.poll_finished()->status, Status::kOk);
  EXPECT_EQ(scheduler.exact_sums(), 1U);
}

TEST(Scheduler, Fp8IsSummedExactlyWhateverItsLength) {  // R5.29
  Scheduler scheduler(exact_config(0));
  std::vector<std::byte> elements(1000, std::byte{0x38});
  Request request;
  request.format = {.dtype = numeric::Dtype::kE4M3, .scaling = numeric::Scaling::kNone};
  request.may_be_sparse = true;
  for (const std::uint64_t count : {1U, 1000U}) {
    request.regions = {{.source = elements.data(), .destination = elements.data(), .elements = count}};
    submit(scheduler, request, kLanes);
    for (const Share& share : shares_of(scheduler)) {
      EXPECT_EQ(share.work.exact, count > 1) << "one element is gathered";
      EXPECT_EQ(share.work.format.dtype, count > 1 ? numeric::Dtype::kE4M3 : numeric::Dtype::kI32);
      complete(scheduler, share);
    }
    EXPECT_EQ(scheduler.poll_finished()->status, Status::kOk);
  }
  EXPECT_EQ(scheduler.exact_sums(), 2U);
  request.divisor = 1.5F;
  EXPECT_THROW((void)scheduler.survey(request, 0), std::invalid_argument);
  request.divisor = 1.0F;
  request.format.scaling = numeric::Scaling::kBlockExponent;
  EXPECT_THROW((void)scheduler.survey(request, 0), std::invalid_argument);
}

TEST(Scheduler, ExactAndBlockSumsHaveDifferentTags) {  // R5.1
  for (const std::size_t elements : {1U, 100U}) {
    Scheduler exact(exact_config(100));
    Scheduler rounded(exact_config(0));
    Fp32Tensor tensor(elements, 1.0F);
    Request request = tensor.dense_request();
    submit(exact, request, kLanes);
    submit(rounded, request, kLanes);
    EXPECT_EQ(exact.poll_share()->work.tensor, rounded.poll_share()->work.tensor ^ 0x3C3C0000U);
  }
}

TEST(Scheduler, AnExactSumSurvivesAFailureIfItsSharesComplete) {
  for (const std::size_t elements : {1U, 20U}) {
    Scheduler scheduler(exact_config(100));
    Fp32Tensor tensor(elements, 1.5F);
    submit(scheduler, tensor.request(), kLanes);
    const std::vector<Share> shares = shares_of(scheduler);
    scheduler.fail(Status::kAborted);
    for (const Share& share : shares) complete(scheduler, share);
    EXPECT_EQ(scheduler.poll_finished()->status, Status::kOk);
    EXPECT_EQ(tensor.values.back(), 1.5F);
  }
}

// ---- Dense requests ----

TEST(Scheduler, SplitsRequestsIntoEqualSharesAndThreadsTakeTurns) {  // R4.1
  Scheduler scheduler(small_config(4));
  Tensor tensor(10, true);
  submit(scheduler, tensor.dense_request(), kLanes);
  Tensor small(3, true);
  submit(scheduler, small.dense_request(), kLanes);
  const auto shares = shares_of(scheduler);
  ASSERT_EQ(shares.size(), 6u);
  const std::vector<std::array<std::uint32_t, 3>> expected = {{0, 0, 3},  {1, 3, 6}, {2, 6, 9},
                                                              {3, 9, 10}, {1, 0, 2}, {2, 2, 3}};
  for (std::size_t i = 0; i < shares.size(); ++i) {
    EXPECT_EQ(shares[i].thread, expected[i][0]);
    EXPECT_EQ(shares[i].work.chunk_begin, expected[i][1]);
    EXPECT_EQ(shares[i].work.chunk_end, expected[i][2]);
  }
}

TEST(Scheduler, AShareHasAtLeast16ChunksIfThereAreSoMany) {  // R4.1
  Scheduler scheduler({.threads = 4, .workers = kWorkers, .lanes = kLanes});
  Tensor tensor(17, true);
  submit(scheduler, tensor.dense_request(), kLanes);
  const auto shares = shares_of(scheduler);
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0].work.chunk_end, 16u);
  EXPECT_EQ(shares[1].work.chunk_end, 17u);
}

TEST(Scheduler, FinishesARequestWithItsLastShare) {
  Scheduler scheduler(small_config(2));
  Tensor tensor(4, true);
  const Ticket ticket = submit(scheduler, tensor.dense_request(), kLanes);
  const auto shares = shares_of(scheduler);
  ASSERT_EQ(shares.size(), 2u);
  complete(scheduler, shares[1]);
  EXPECT_FALSE(scheduler.poll_finished().has_value());
  complete(scheduler, shares[0]);
  const auto finished = scheduler.poll_finished();
  ASSERT_TRUE(finished.has_value());
  EXPECT_EQ(finished->token, ticket.token);
  EXPECT_EQ(finished->status, Status::kOk);
}

TEST(Scheduler, AnEmptyRequestIsFinishedAtOnce) {
  Scheduler scheduler(small_config());
  Tensor tensor(0, true);
  submit(scheduler, tensor.request(), kLanes);
  EXPECT_TRUE(scheduler.poll_finished().has_value());
  EXPECT_FALSE(scheduler.poll_share().has_value());
}

TEST(Scheduler, RefusesAFormatThatDoesNotExistAndASparseRequestWithoutASource) {
  Scheduler scheduler(small_config());
  Tensor tensor(8, true);
  Request wrong = tensor.request();
  wrong.format.bits = 7;
  EXPECT_THROW(submit(scheduler, wrong, kLanes), std::invalid_argument);
  Request sourceless = tensor.request();
  sourceless.regions[0].source = {};
  EXPECT_THROW(submit(scheduler, sourceless, kLanes), std::invalid_argument);
}

TEST(Scheduler, RefusesANullPointerWhereARegionHasElementsAndIsUsed) {
  std::byte* const null = nullptr;
  Tensor tensor(2, true);
  auto* const there = reinterpret_cast<std::byte*>(tensor.values.data());
  for (const bool may_be_sparse : {false, true}) {
    for (const worker::Region& region : std::initializer_list<worker::Region>{
             {.source = null, .destination = null, .elements = 1},
             {.source = null, .destination = there, .elements = 1},
             {.source = there, .destination = null, .elements = 1},
             {.source = null, .destination = {}, .elements = 1},
             {.source = {}, .destination = null, .elements = 1},
         }) {
      Scheduler scheduler(small_config());
      Request request = tensor.request();
      request.may_be_sparse = may_be_sparse;
      request.regions.push_back(region);
      EXPECT_THROW(submit(scheduler, request, kLanes), std::invalid_argument);
      EXPECT_EQ(scheduler.submitted(), 0u);
      request.regions.back().elements = 0;
      EXPECT_NO_THROW(submit(scheduler, request, kLanes)) << "an empty region needs no memory";
      EXPECT_EQ(scheduler.submitted(), 1u);
    }
  }
}

TEST(Scheduler, NarrowLanesLimitTheNumberOfWorkersForFloats) {  // R8.14
  SchedulerConfig config = small_config();
  for (const unsigned workers : {64U, 65U}) {
    config.workers = workers;
    Scheduler scheduler(config);
    Tensor tensor(8, true);
    Request narrow = tensor.request();
    narrow.format.bits = 16;
    EXPECT_NO_THROW(submit(scheduler, narrow, 4 * kLanes));
    narrow.format.bits = 8;
    if (workers == 64) {
      EXPECT_NO_THROW(submit(scheduler, narrow, 4 * kLanes));
    } else {
      EXPECT_THROW(submit(scheduler, narrow, 4 * kLanes), std::invalid_argument);
    }
    narrow.format = {.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone, .bits = 8};
    EXPECT_NO_THROW(submit(scheduler, narrow, 4 * kLanes)) << "integers are their owner's business";
  }
}

TEST(Scheduler, ATagConsistsOfSignatureAndRequestNumber) {  // R2.20
  Scheduler scheduler(small_config());
  Tensor tensor(2, true);
  EXPECT_EQ(submit(scheduler, tensor.request(0xABCD), kLanes).tensor, 0xABCD0001u);
  EXPECT_EQ(submit(scheduler, tensor.request(0x1234), kLanes).tensor, 0x12340002u);
}

// ---- Sparse requests ----

TEST(Scheduler, CountsPresenceInAPrologueAndThenStreamsTheUnion) {  // R6.4, R6.5
  Scheduler scheduler(small_config(2));
  Tensor tensor(60, false);
  tensor.put(3);
  tensor.put(20);
  const Ticket ticket = submit(scheduler, tensor.request(), kLanes);
  auto shares = shares_of(scheduler);
  ASSERT_EQ(shares.size(), 2u) << "60 counts, 20 to a packet of 4 words, in shares of at least 2";
  EXPECT_TRUE(is_prologue(shares[0]));
  EXPECT_EQ(shares[0].work.format.bits, 32);
  EXPECT_EQ(shares[0].work.tensor, ticket.tensor ^ 0x5A5A0000u);
  EXPECT_EQ(counted(shares[0], 60), (std::vector<std::size_t>{3, 20}));

  add_counts(shares[0], {20, 33});
  complete(scheduler, shares[0]);
  EXPECT_FALSE(scheduler.poll_share().has_value());
  complete(scheduler, shares[1]);
  shares = shares_of(scheduler);
  ASSERT_EQ(shares.size(), 2u);
  const worker::Collective& stream = shares[0].work;
  EXPECT_EQ(std::vector<std::uint32_t>(stream.chunks.begin(), stream.chunks.end()),
            (std::vector<std::uint32_t>{3, 20, 33}));
  EXPECT_EQ(stream.presence->of(3), worker::Presence::kPresent);
  EXPECT_EQ(stream.presence->of(33), worker::Presence::kAbsent);
  EXPECT_EQ(stream.tensor, ticket.tensor);
  EXPECT_FALSE(scheduler.poll_finished().has_value());
  for (const Share& share : shares) complete(scheduler, share);
  EXPECT_TRUE(scheduler.poll_finished().has_value());
  EXPECT_EQ(scheduler.stats().streams, 1u);
  EXPECT_EQ(scheduler.stats().blocks_skipped, 57u);
  EXPECT_EQ(scheduler.stats().blocks_empty, 1u);
  EXPECT_EQ(scheduler.stats().bytes_saved, 57 * (24 + 16) + 1 * 16 - 3 * (24 + 16));
}

TEST(Scheduler, AnEmptyUnionIsFinishedWithThePrologue) {
  Scheduler scheduler(small_config());
  Tensor tensor(16, false);
  submit(scheduler, tensor.request(), kLanes);
  for (const Share& share : shares_of(scheduler)) complete(scheduler, share);
  EXPECT_TRUE(scheduler.poll_finished().has_value());
  EXPECT_FALSE(scheduler.poll_share().has_value());
}

TEST(Scheduler, ATensorWithADenseSampleIsNotScannedAndCountsAsPresent) {
  Scheduler scheduler(small_config());
  Tensor tensor(64, true);
  tensor.values[kLanes * 5] = 0.0F;
  submit(scheduler, tensor.request(), kLanes);
  auto shares = shares_of(scheduler);
  EXPECT_EQ(counted(shares[0], 64).size(), 64u);
  for (const Share& share : shares) complete(scheduler, share);
  shares = shares_of(scheduler);
  ASSERT_FALSE(shares.empty());
  EXPECT_TRUE(shares[0].work.chunks.empty()) << "empty means all chunks";
  EXPECT_FALSE(shares[0].work.presence->scanned()) << "each chunk is scanned when its turn comes";
}

TEST(Scheduler, LaterRequestsWaitUntilTheStreamIsIssued) {
  Scheduler scheduler(small_config());
  Tensor sparse(16, false);
  sparse.put(1);
  Tensor next(4, true);
  Request plain = next.dense_request();
  const Ticket first = submit(scheduler, sparse.request(), kLanes);
  const auto prologue = shares_of(scheduler);
  plain.deadline = 1234;
  const Ticket second = submit(scheduler, plain, kLanes);
  EXPECT_FALSE(scheduler.poll_share().has_value());
  scheduler.check_deadlines(1233);
  EXPECT_FALSE(scheduler.failure().has_value());
  for (const Share& share : prologue) complete(scheduler, share);
  const auto shares = shares_of(scheduler);
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0].work.token, first.token);
  EXPECT_EQ(shares[1].work.token, second.token);
  scheduler.check_deadlines(1234);
  EXPECT_FALSE(scheduler.failure().has_value()) << "the threads watch it now";
}

TEST(Scheduler, TheFirstDeadlineOfWaitingRequestsThatPassesIsTheFailure) {
  Scheduler scheduler(small_config());
  Tensor sparse(16, false);
  sparse.put(1);
  Tensor next(4, true);
  submit(scheduler, sparse.request(), kLanes);
  std::vector<Ticket> waiting;
  for (const worker::TimeNs deadline : {300, 100, 200, 100}) {
    Request plain = next.dense_request();
    plain.deadline = deadline;
    waiting.push_back(submit(scheduler, plain, kLanes));
  }
  scheduler.check_deadlines(99);
  EXPECT_FALSE(scheduler.failure().has_value());
  scheduler.check_deadlines(1000);
  EXPECT_EQ(scheduler.failure().value().status, Status::kTimedOut);
  EXPECT_EQ(scheduler.failure().value().tensor, waiting.at(1).tensor);
}

TEST(Scheduler, ATaskWithoutMemoryFailsItsRequestAndAllOthers) {
  Scheduler scheduler(small_config());
  Tensor sparse(16, false);
  sparse.put(1);
  Request unseen = sparse.request();
  Survey survey = scheduler.survey(unseen, 0);
  const Ticket first = scheduler.submit(std::move(unseen), std::move(survey));
  const Ticket second = submit(scheduler, sparse.request(), kLanes);
  const std::optional<Task> scan = scheduler.poll_task();
  ASSERT_TRUE(scan.has_value());
  scheduler.complete(*scan, worker::Status::kNoMemory);
  for (const Ticket& ticket : {second, first}) {
    const std::optional<Finished> finished = scheduler.poll_finished();
    ASSERT_TRUE(finished.has_value());
    EXPECT_EQ(finished->token, ticket.token);
    EXPECT_EQ(finished->status, worker::Status::kNoMemory);
  }
  EXPECT_EQ(scheduler.failure().value().status, worker::Status::kNoMemory);
  EXPECT_EQ(scheduler.failure().value().tensor, first.tensor) << "though the second ended first";
  EXPECT_EQ(scheduler.unfinished(), 0U);
}

TEST(Scheduler, ADenseTensorAsksOnceAndThenVotes) {  // R6.6
  Scheduler scheduler(small_config());
  Tensor tensor(40, true);
  for (int i = 0; i < 5; ++i) {
    submit(scheduler, tensor.request(), kLanes);
    for (auto shares = shares_of(scheduler); !shares.empty(); shares = shares_of(scheduler)) {
      for (const Share& share : shares) {
        EXPECT_TRUE(!is_prologue(share) || i == 0);
        EXPECT_TRUE(i == 0 || share.work.vote == kDensityFull);
        complete(scheduler, share, share.work.vote);
      }
    }
  }
  EXPECT_EQ(scheduler.stats().prologues, 1u);
  EXPECT_EQ(scheduler.stats().whole, 4u);
}

TEST(Scheduler, AVoteCountsFromAFixedCollectiveOnWheneverItArrived) {
  Scheduler scheduler(small_config());
  Tensor dense(40, true);
  Tensor sparse(40, false);
  submit(scheduler, dense.request(), kLanes);  // number 0 asks, and the answer is that all is dense
  for (auto shares = shares_of(scheduler); !shares.empty(); shares = shares_of(scheduler)) {
    for (const Share& share : shares) complete(scheduler, share);
  }
  submit(scheduler, sparse.request(), kLanes);  // number 1 votes, and its vote counts from number 3 on
  const auto first = shares_of(scheduler);
  for (const Share& share : first) complete(scheduler, share, share.work.vote);
  submit(scheduler, sparse.request(), kLanes);  // number 2
  const auto second = shares_of(scheduler);
  ASSERT_FALSE(second.empty());
  EXPECT_FALSE(is_prologue(second[0])) << "the vote is in, but another worker may not have it yet";
  submit(scheduler, sparse.request(), kLanes);  // number 3
  EXPECT_FALSE(scheduler.poll_share().has_value()) << "it was not scanned, since it was submitted before the vote";
  run_tasks(scheduler);
  const auto third = shares_of(scheduler);
  ASSERT_FALSE(third.empty());
  EXPECT_TRUE(is_prologue(third[0]));
}

TEST(Scheduler, ACollectiveWaitsForTheVoteThatItDependsOn) {
  Scheduler scheduler(small_config());
  Tensor dense(40, true);
  submit(scheduler, dense.request(), kLanes);
  for (auto shares = shares_of(scheduler); !shares.empty(); shares = shares_of(scheduler)) {
    for (const Share& share : shares) complete(scheduler, share);
  }
  submit(scheduler, dense.request(), kLanes);
  submit(scheduler, dense.request(), kLanes);
  const auto in_flight = shares_of(scheduler);
  ASSERT_EQ(in_flight.size(), 2u);
  submit(scheduler, dense.request(), kLanes);
  EXPECT_FALSE(scheduler.poll_share().has_value());
  complete(scheduler, in_flight[0], kDensityFull);
  EXPECT_TRUE(scheduler.poll_share().has_value());
}

TEST(Scheduler, SendsItsEstimateOfARoundTripToTheOthers) {
  Scheduler scheduler(small_config(2));
  Tensor plain(8, true);
  submit(scheduler, plain.dense_request(), kLanes);
  for (const Share& share : shares_of(scheduler)) {
    scheduler.complete(
        share.thread,
        {.token = share.work.token, .status = Status::kOk, .vote = 0, .round_trip_chunks = 10 + share.thread});
  }
  Tensor sparse(40, false);
  submit(scheduler, sparse.request(), kLanes);
  const auto shares = shares_of(scheduler);
  ASSERT_FALSE(shares.empty());
  EXPECT_EQ(decode_cost(shares[0].work.vote), decode_cost(encode_cost(21)));
}

TEST(Scheduler, AStreamTakesAsManySlotsAsTwoRoundTripsHold) {  // R4.3
  for (const auto& [round_trip, slots] : {std::pair{0U, 32U}, {20U, 40U}, {1000U, 64U}}) {
    Scheduler scheduler(small_config());
    Tensor tensor(2000, false);
    tensor.put(8);
    submit(scheduler, tensor.request(), kLanes);
    const Share prologue = shares_of(scheduler).at(0);
    EXPECT_EQ(prologue.work.slots_spread_max, worker::kSlotsSpreadMax);
    complete(scheduler, prologue, encode_cost(round_trip));
    EXPECT_EQ(shares_of(scheduler).at(0).work.slots_spread_max, slots) << round_trip;
  }
}

TEST(Scheduler, TheLargestVoteOfAllSharesCountsInAnyOrderOfCompletion) {  // R6.6
  for (const std::size_t last : {0U, 1U}) {
    Scheduler scheduler(small_config(2));
    Tensor dense(40, true);
    submit(scheduler, dense.request(), kLanes);  // asks, and the answer is that all is dense
    for (auto shares = shares_of(scheduler); !shares.empty(); shares = shares_of(scheduler)) {
      for (const Share& share : shares) complete(scheduler, share);
    }
    for (int i = 0; i < 2; ++i) {  // the vote of the first of these counts for the next request
      submit(scheduler, dense.request(), kLanes);
      const auto shares = shares_of(scheduler);
      ASSERT_EQ(shares.size(), 2u);
      complete(scheduler, shares[1 - last], shares[1 - last].thread == 0 ? numeric::kExponentNotFinite : 10);
      complete(scheduler, shares[last], shares[last].thread == 0 ? numeric::kExponentNotFinite : 10);
    }
    submit(scheduler, dense.request(), kLanes);
    EXPECT_EQ(scheduler.stats().prologues, 1u) << "else the workers' choice would depend on the order of their threads";
  }
}

// ---- Failures ----

TEST(Scheduler, ARequestEndsWithTheFailureOfAnyOfItsShares) {
  for (const std::size_t failed : {0U, 1U}) {
    Scheduler scheduler(small_config(2));
    Tensor tensor(4, true);
    submit(scheduler, tensor.dense_request(), kLanes);
    const auto shares = shares_of(scheduler);
    ASSERT_EQ(shares.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      complete(scheduler, shares[i], 0, i == failed ? Status::kDiverged : Status::kOk);
    }
    EXPECT_EQ(scheduler.poll_finished().value().status, Status::kDiverged);
  }
}

TEST(Scheduler, ARequestSurvivesAFailureIfItsSharesComplete) {
  Scheduler scheduler(small_config());
  Tensor tensor(4, true);
  submit(scheduler, tensor.dense_request(), kLanes);
  const Share share = shares_of(scheduler).at(0);
  scheduler.fail(Status::kTimedOut);
  EXPECT_FALSE(scheduler.poll_finished().has_value()) << "its memory is in use";
  complete(scheduler, share);
  EXPECT_EQ(scheduler.poll_finished().value().status, Status::kOk);
}

TEST(Scheduler, TheFirstFailureStays) {
  Scheduler scheduler(small_config());
  Tensor sparse(16, false);
  submit(scheduler, sparse.request(), kLanes);
  const Share prologue = shares_of(scheduler).at(0);
  scheduler.fail(Status::kTimedOut);
  scheduler.fail(Status::kAborted);
  complete(scheduler, prologue);
  EXPECT_EQ(scheduler.poll_finished().value().status, Status::kTimedOut);
  submit(scheduler, sparse.request(), kLanes);
  EXPECT_EQ(scheduler.poll_finished().value().status, Status::kTimedOut);
}

TEST(Scheduler, TheDeadlineOfAScannedRequestIsWatchedUntilTheThreadsHaveIt) {
  Scheduler scheduler(small_config());
  Tensor sparse(16, false);
  Request request = sparse.request();
  request.deadline = 1234;
  Survey survey = scheduler.survey(request, 0);
  const Ticket ticket = scheduler.submit(std::move(request), std::move(survey));
  ASSERT_TRUE(scheduler.has_task());
  scheduler.check_deadlines(1233);
  run_tasks(scheduler);
  const Share prologue = shares_of(scheduler).at(0);
  EXPECT_EQ(prologue.work.deadline, 1234);
  scheduler.check_deadlines(1234);
  EXPECT_FALSE(scheduler.failure().has_value()) << "the threads watch it now";
  complete(scheduler, prologue, 0, Status::kTimedOut);
  EXPECT_EQ(scheduler.poll_finished().value().status, Status::kTimedOut);
  EXPECT_EQ(scheduler.failure().value().tensor, ticket.tensor);
}

TEST(Scheduler, AFailureEndsWaitingAndLaterRequests) {
  Scheduler scheduler(small_config());
  Tensor sparse(16, false);
  const Ticket asking = submit(scheduler, sparse.request(), kLanes);
  const auto prologue = shares_of(scheduler);
  const Ticket waiting = submit(scheduler, sparse.request(), kLanes);
  complete(scheduler, prologue[0], 0, Status::kTimedOut);
  for (std::size_t i = 1; i < prologue.size(); ++i) complete(scheduler, prologue[i], 0, Status::kAborted);
  const Ticket late = submit(scheduler, sparse.request(), kLanes);
  EXPECT_FALSE(scheduler.poll_share().has_value());
  std::vector<std::uint64_t> tokens;
  while (const auto finished = scheduler.poll_finished()) {
    EXPECT_EQ(finished->status, Status::kTimedOut);
    tokens.push_back(finished->token);
  }
  EXPECT_EQ(tokens, (std::vector<std::uint64_t>{waiting.token, asking.token, late.token}));
}

}  // namespace
}  // namespace wiresum::schedule
