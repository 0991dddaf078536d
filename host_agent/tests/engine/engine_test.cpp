// Engines against the real software switch, over loopback.
#include "engine/engine.hpp"

#include <gtest/gtest.h>

#include <cfenv>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "around.hpp"
#include "rig.hpp"

namespace wiresum::engine {
namespace {

using namespace std::chrono_literals;
using worker::Status;

struct Shape {
  const char* name;
  unsigned workers;
  std::vector<At> aggregators;
  bool offload = true;
};

class EngineShapes : public testing::TestWithParam<Shape> {};

TEST_P(EngineShapes, SumsInt32ExactlyWithManyCollectivesInFlight) {
  const auto& [name, workers, aggregators, offload] = GetParam();
  Job job(workers, aggregators, offload);
  // Sizes around a packet's, and one that uses every thread and slot for several rounds.
  const std::vector<std::size_t> sizes = {1, kLanes - 1, kLanes, kLanes + 1, 5000, 300'000, 7};
  std::vector<std::vector<std::vector<std::int32_t>>> data(workers);
  std::vector<std::shared_ptr<Operation>> operations;
  for (unsigned i = 0; i < workers; ++i) {
    for (const std::size_t size : sizes) {
      std::vector<std::int32_t>& values = data[i].emplace_back(size);
      std::iota(values.begin(), values.end(), static_cast<std::int32_t>(i * 1000));
      operations.push_back(job[i].submit(request(kInt32, {region(values.data(), values.data(), size)})));
    }
  }
  for (const auto& operation : operations) ASSERT_EQ(end_of(operation), Status::kOk);
  for (unsigned i = 0; i < workers; ++i) {
    for (const std::vector<std::int32_t>& values : data[i]) {
      for (std::size_t k = 0; k < values.size(); ++k) {
        const auto expected = static_cast<std::int32_t>(workers * k + 1000 * (workers * (workers - 1) / 2));
        ASSERT_EQ(values[k], expected) << "worker " << i << ", element " << k << " of " << values.size();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Engine, EngineShapes,
    testing::Values(
        Shape{"OneWorker", 1, {At{}}}, Shape{"TwoWorkers", 2, {At{}}}, Shape{"TwoThreads", 3, {At{.threads = 2}}},
        Shape{"FourThreads", 4, {At{.threads = 4}}}, Shape{"NoOffload", 2, {At{}}, false},
        Shape{"TwoAggregators", 3, {At{}, At{}}}, Shape{"OneHostOfFour", 4, {At{.ranks = 4}}},
        Shape{"HostsOfTwoAndOne", 3, {At{.ranks = 2}}},
        Shape{"TwoHostsOfThree", 6, {At{.threads = 2, .ranks = 3}}, false},
        Shape{"AlsoAtTwoAggregators", 4, {At{.ranks = 2}, At{.threads = 2, .ranks = 2}}},
        Shape{"ThreeUnequalAggregators", 2, {At{.threads = 2, .slots = 32}, At{}, At{.threads = 1, .slots = 128}}}),
    [](const auto& shape) { return std::string(shape.param.name); });

Request waiting_request(std::vector<float>& values) {
  Request waits = request(kFloat32, {region(values.data(), values.data(), values.size())});
  waits.caller_waits = true;
  return waits;
}

/// Says whether this thread has ever taken datagrams in.
thread_local bool has_received = false;

class Receiving final : public stress::Around {
 public:
  using Around::Around;
  [[nodiscard]] std::size_t receive(std::span<transport::RxDatagram> out) noexcept override {
    has_received = true;
    return Around::receive(out);
  }
};

TEST(Engine, ACallerThatWaitsDrivesASmallSumItselfAndNoOther) {
  Job job(1, {At{}}, true, 0, [](auto inner) { return std::make_unique<Receiving>(std::move(inner)); });
  std::vector<float> small(100, 3);
  std::vector<float> large(200 * kLanes, 3);
  ASSERT_EQ(end_of(job[0].submit(request(kFloat32, {region(small.data(), small.data(), small.size())}))), Status::kOk);
  ASSERT_EQ(end_of(job[0].submit(waiting_request(large))), Status::kOk);
  EXPECT_FALSE(has_received);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!has_received && std::chrono::steady_clock::now() < until) {
    ASSERT_EQ(end_of(job[0].submit(waiting_request(small))), Status::kOk);  // the thread may not have parked yet
  }
  EXPECT_TRUE(has_received);
  EXPECT_EQ(small, std::vector<float>(100, 3));
}

TEST(Engine, ACallerThatWaitsForALateWorkerDoesNotDriveForEver) {
  Job job(2, 1);
  std::vector<float> early(100, 1);
  std::vector<float> late(100, 2);
  for (int i = 0; i < 3; ++i) {
    const auto operation = job[0].submit(waiting_request(early));  // comes back without the sum
    ASSERT_FALSE(operation->done());
    ASSERT_EQ(end_of(job[1].submit(waiting_request(late))), Status::kOk);
    ASSERT_EQ(end_of(operation), Status::kOk);
    ASSERT_EQ(early, late);
  }
}

TEST(Engine, ACallersDrivingLeavesItsFloatingPointEnvironmentAsItWas) {
  Job job(1, 1);
  std::vector<float> values(100, 1);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(end_of(job[0].submit(waiting_request(values))), Status::kOk);
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  ASSERT_EQ(std::fesetround(FE_TONEAREST), 0);
}

TEST(Engine, AnEndWhileACallerDrivesEndsItsSum) {
  for (int i = 0; i < 50; ++i) {
    Job job(2, 1);
    std::vector<float> values(100, 1);
    std::thread closer([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(40 * i));
      job[0].close();
    });
    const auto operation = job[0].submit(waiting_request(values));
    EXPECT_EQ(end_of(operation), Status::kAborted);
    closer.join();
  }
}

TEST(Engine, SumsOfFloatsHaveTheSameBitsAtEveryWorker) {  // R5.19
  Job job(3, 1);
  std::vector<std::vector<float>> data(3, std::vector<float>(10'000));
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t k = 0; k < data[i].size(); ++k) {
      data[i][k] = static_cast<float>(k) * 0.37F + static_cast<float>(i);
    }
  }
  std::vector<std::shared_ptr<Operation>> operations;
  for (std::size_t i = 0; i < 3; ++i) {
    operations.push_back(job[i].submit(request(kFloat32, {region(data[i].data(), data[i].data(), data[i].size())})));
  }
  for (const auto& operation : operations) ASSERT_EQ(end_of(operation), Status::kOk);
  EXPECT_EQ(data[0], data[1]);
  EXPECT_EQ(data[0], data[2]);
  EXPECT_FLOAT_EQ(data[0][5000], 3 * 5000 * 0.37F + 3);
}

TEST_P(EngineShapes, SumsSparseTensorsAmongDenseOnesWithManyInFlight) {
  const auto& [name, workers, aggregators, offload] = GetParam();
  Job job(workers, aggregators, offload);
  constexpr std::size_t kBlocks = 600;
  constexpr std::size_t kEvery = 50;
  constexpr int kRounds = 3;
  std::vector<std::vector<std::vector<float>>> data(workers);
  std::vector<std::shared_ptr<Operation>> operations;
  for (unsigned i = 0; i < workers; ++i) data[i].reserve(2 * kRounds);
  for (int round = 0; round < kRounds; ++round) {
    for (unsigned i = 0; i < workers; ++i) {
      operations.push_back(job[i].submit(sparse_request(data[i].emplace_back(sparse_tensor(i, kBlocks, kEvery)), 1)));
      operations.push_back(job[i].submit(sparse_request(data[i].emplace_back(kBlocks * kLanes, 1.0F), 2)));
    }
  }
  for (const auto& operation : operations) ASSERT_EQ(end_of(operation), Status::kOk);
  std::vector<float> sum(kBlocks * kLanes);
  for (unsigned i = 0; i < workers; ++i) {
    const std::vector<float> mine = sparse_tensor(i, kBlocks, kEvery);
    for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += mine[k];
  }
  for (unsigned i = 0; i < workers; ++i) {
    for (int round = 0; round < kRounds; ++round) {
      ASSERT_EQ(data[i][2 * static_cast<std::size_t>(round)], sum);
      ASSERT_EQ(data[i][2 * static_cast<std::size_t>(round) + 1],
                std::vector<float>(kBlocks * kLanes, static_cast<float>(workers)));
    }
    const schedule::SparseStats stats = job[i].stats().sparse;
    EXPECT_EQ(stats.prologues, static_cast<std::uint64_t>(kRounds + 1)) << "the dense requests asked only once";
    EXPECT_EQ(stats.streams, static_cast<std::uint64_t>(kRounds));
    EXPECT_EQ(stats.whole, static_cast<std::uint64_t>(kRounds - 1));
    EXPECT_EQ(stats.blocks_skipped, kRounds * (kBlocks - workers * (kBlocks / kEvery)));
  }
}

constexpr std::size_t kManyBlocks = 3000;
constexpr std::size_t kEveryEighth = 8;

TEST_P(EngineShapes, SumsTensorsThatTurnDenseWhileManyAreInFlight) {
  const auto& [name, workers, aggregators, offload] = GetParam();
  Job job(workers, aggregators, offload);
  std::vector<std::vector<std::vector<float>>> data(workers);
  std::vector<std::shared_ptr<Operation>> operations;
  for (unsigned i = 0; i < workers; ++i) {
    data[i].push_back(sparse_tensor(i, kManyBlocks, kEveryEighth));
    for (int dense = 0; dense < 3; ++dense) {
      std::vector<float>& values = data[i].emplace_back(kManyBlocks * kLanes, 1.0F);
      for (std::size_t block = 0; block < kManyBlocks; block += 20) {
        std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(block * kLanes), kLanes, 0.0F);
      }
    }
  }
  std::vector<std::vector<float>> sums = data[0];
  for (unsigned i = 1; i < workers; ++i) {
    for (std::size_t call = 0; call < sums.size(); ++call) {
      for (std::size_t k = 0; k < sums[call].size(); ++k) sums[call][k] += data[i][call][k];
    }
  }
  for (std::size_t call = 0; call < sums.size(); ++call) {
    for (unsigned i = 0; i < workers; ++i) operations.push_back(job[i].submit(sparse_request(data[i][call], 1)));
  }
  for (const auto& operation : operations) ASSERT_EQ(end_of(operation), Status::kOk);
  for (unsigned i = 0; i < workers; ++i) {
    for (std::size_t call = 0; call < sums.size(); ++call) EXPECT_EQ(data[i][call], sums[call]) << call;
  }
}

TEST(Engine, CloseEndsASparseCollectiveInEveryStage) {
  for (int delay_us = 0; delay_us <= 4000; delay_us += 200) {
    Job job(2, 2);
    std::vector<std::vector<float>> data;
    std::vector<std::shared_ptr<Operation>> operations;
    for (unsigned round = 0; round < 3; ++round) {
      for (unsigned i = 0; i < 2; ++i) data.push_back(sparse_tensor(i, kManyBlocks, kEveryEighth));
    }
    for (unsigned round = 0; round < 3; ++round) {
      for (unsigned i = 0; i < 2; ++i) operations.push_back(job[i].submit(sparse_request(data[2 * round + i], 1)));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    job[0].close();
    job[1].close();
    for (const auto& operation : operations) {
      ASSERT_TRUE(operation->done());
      EXPECT_TRUE(operation->status() == Status::kOk || operation->status() == Status::kAborted);
    }
  }
}

TEST(Engine, RefusesMoreOperationsThanItsQueuesHold) {
  Job job(2, 1);  // no other worker submits, so none completes
  std::int32_t value = 1;
  for (std::size_t i = 0; i < kOperationsMax; ++i) {
    static_cast<void>(job[0].submit(request(kInt32, {region(&value, &value, 1)})));
  }
  EXPECT_THROW(job[0].submit(request(kInt32, {region(&value, &value, 1)})), std::runtime_error);
  job[0].close();
}

TEST(Engine, CompletedOperationsThatWereNotTakenCountAgainstTheQueues) {
  Job job(1, 1);
  const Request nothing = request(kInt32, {region<std::int32_t>(nullptr, nullptr, 0)});
  for (std::size_t i = 0; i < kOperationsMax; ++i) ASSERT_TRUE(job[0].submit(nothing)->done());
  EXPECT_THROW(job[0].submit(nothing), std::runtime_error);
  EXPECT_EQ(job[0].take_completed(kPatience).size(), kOperationsMax);
  EXPECT_TRUE(job[0].submit(nothing)->done());
}

TEST(Engine, ATimeOutOnOneThreadEndsTheOperationsOfTheOthers) {  // R4.31
  Job job(2, 2);                                                 // no other worker submits
  const auto patient = job[0].submit(request(kFloat32, {}));
  Request late = request(kFloat32, {});
  late.timeout_ns = 100'000'000;
  const auto hasty = job[0].submit(late);  // runs on the other thread
  EXPECT_EQ(end_of(hasty), Status::kTimedOut);
  EXPECT_EQ(end_of(patient), Status::kTimedOut);
}

TEST(Engine, AZeroTimeOutExpiresAtOnce) {
  Job job(2, 1);
  Request late = request(kFloat32, {});
  late.timeout_ns = 0;
  const auto operation = job[0].submit(late);
  EXPECT_EQ(end_of(operation), Status::kTimedOut);
}

TEST(Engine, ADeadlineHoldsForARequestThatWaitsForAPrologue) {
  Job job(2, 1);
  std::vector<float> asking = sparse_tensor(0, 600, 50);
  std::vector<float> waiting(10, 1.0F);
  const auto first = job[0].submit(sparse_request(asking, 1));
  Request late = request(kFloat32, {region(waiting.data(), waiting.data(), waiting.size())});
  late.timeout_ns = 100'000'000;
  const auto second = job[0].submit(late);
  ASSERT_TRUE(second->wait(kPatience)) << "no other worker is there to finish the prologue";
  EXPECT_EQ(second->status(), Status::kTimedOut);
  EXPECT_EQ(end_of(first), Status::kTimedOut);
}

TEST(Engine, CloseEndsARequestThatWaitsForAPrologue) {
  Job job(2, 2);
  std::vector<float> asking = sparse_tensor(0, 600, 50);
  std::vector<float> waiting(10, 1.0F);
  const auto first = job[0].submit(sparse_request(asking, 1));
  const auto second = job[0].submit(request(kFloat32, {region(waiting.data(), waiting.data(), waiting.size())}));
  job[0].close();
  EXPECT_EQ(end_of(first, 0s), Status::kAborted);
  EXPECT_EQ(end_of(second, 0s), Status::kAborted);
}

TEST(Engine, BroadcastsAndGathersThroughRegions) {  // R6.1
  Job job(2, 1);
  std::vector<std::uint8_t> root(2000, 0xA5);
  std::vector<std::uint8_t> copy(2000, 0);
  const numeric::Format raw{.dtype = numeric::Dtype::kRaw, .scaling = numeric::Scaling::kNone, .bits = 8};
  const auto sent = job[0].submit(request(raw, {region<std::uint8_t>(root.data(), nullptr, 2000)}));
  const auto received = job[1].submit(request(raw, {region<std::uint8_t>(nullptr, copy.data(), 2000)}));
  ASSERT_TRUE(sent->wait(kPatience));
  ASSERT_TRUE(received->wait(kPatience));
  EXPECT_EQ(copy, root);
}

TEST(Engine, ABarrierWaitsForTheLastWorker) {  // R6.1
  Job job(2, 2);
  const auto early = job[0].submit(request(kFloat32, {}));
  EXPECT_FALSE(early->wait(50ms));
  EXPECT_EQ(job[0].standing().submitted, early->token());
  EXPECT_EQ(job[0].standing().oldest, early->token());
  EXPECT_EQ(job[1].standing().submitted, 0U);
  const auto late = job[1].submit(request(kFloat32, {}));
  EXPECT_TRUE(early->wait(kPatience));
  EXPECT_TRUE(late->wait(kPatience));
  EXPECT_EQ(early->status(), Status::kOk);
  EXPECT_EQ(job[0].standing().oldest, 0U);
}

TEST(Engine, AnEmptyCollectiveIsCompleteAtOnce) {
  Job job(2, 1);
  std::int32_t nothing = 0;
  const auto operation = job[0].submit(request(kInt32, {region(&nothing, &nothing, 0)}));
  EXPECT_EQ(end_of(operation, 0s), Status::kOk);
}

TEST(Engine, ReturnsEachCompletedOperationOnceIfItWasAskedFor) {
  Job job(1, 1);
  std::vector<std::int32_t> values(10, 1);
  Request quiet = request(kInt32, {region(values.data(), values.data(), 10)});
  quiet.notify = false;
  const auto unasked = job[0].submit(quiet);
  ASSERT_TRUE(unasked->wait(kPatience));
  const auto asked = submit_sum(job[0], values);
  const auto taken = job[0].take_completed(kPatience);
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken.front()->token(), asked->token());
  EXPECT_TRUE(job[0].take_completed(10ms).empty());
  job[0].notify(unasked);
  EXPECT_EQ(job[0].take_completed(kPatience), std::vector{unasked});
}

TEST(Engine, ATimeOutBecauseOfAMissingWorkerIsFinal) {  // R4.30
  Job job(2, 2);
  std::vector<std::int32_t> values(100'000, 1);
  Request late = request(kInt32, {region(values.data(), values.data(), values.size())});
  late.timeout_ns = 200'000'000;
  const auto operation = job[0].submit(late);
  EXPECT_EQ(end_of(operation), Status::kTimedOut);
  const auto next = job[0].submit(request(kFloat32, {}));
  EXPECT_EQ(end_of(next), Status::kTimedOut);
  EXPECT_EQ(job[0].failure().value().tensor, operation->tensor());
  EXPECT_FALSE(job[1].failure().has_value());
  EXPECT_FALSE(job[0].is_usable());
  EXPECT_TRUE(job[1].is_usable());
}

TEST(Engine, DealsLargeCollectivesOverAllAggregatorsAndSmallOnesInTurn) {
  Job job(1, {At{}, At{.threads = 2}});
  std::vector<std::int32_t> large(3 * 40 * kLanes, 1);
  ASSERT_TRUE(submit_sum(job[0], large)->wait(kPatience));
  const EngineStats before = job[0].stats();
  ASSERT_EQ(before.aggregators.size(), 2U);
  EXPECT_EQ(before.aggregators[0].results, 40U);
  EXPECT_EQ(before.aggregators[1].results, 80U) << "40 for each of its two threads";
  EXPECT_EQ(before.results, 120U);
  EXPECT_GT(before.packets_sent, before.aggregators[1].packets_sent);

  std::vector<std::int32_t> small(1, 1);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(submit_sum(job[0], small)->wait(kPatience));
  const EngineStats after = job[0].stats();
  EXPECT_EQ(after.aggregators[0].results, 40U + 2);
  EXPECT_EQ(after.aggregators[1].results, 80U + 4);
}

TEST(Engine, EachAggregatorCountsItsOwnRounds) {
  Job job(1, {At{.threads = 1, .slots = 8}, At{}});
  std::vector<std::int32_t> values(2 * 64 * kLanes, 1);
  ASSERT_TRUE(submit_sum(job[0], values)->wait(kPatience));
  const EngineStats stats = job[0].stats();
  EXPECT_EQ(stats.aggregators[0].round_newest, 0xFFFFFFF0 + 64 / 8 - 1);
  EXPECT_EQ(stats.aggregators[1].round_newest, 0xFFFFFFEF) << "each of 64 slots was used once";
}

TEST(Engine, ADeadAggregatorEndsTheOperationsAtAllAggregators) {
  Job job(2, {At{}, At{}, At{}});
  job.kill(1);
  std::vector<std::vector<std::int32_t>> data(2, std::vector<std::int32_t>(100'000, 1));
  std::vector<std::shared_ptr<Operation>> operations;
  for (std::size_t i = 0; i < 2; ++i) {
    Request sum = request(kInt32, {region(data[i].data(), data[i].data(), data[i].size())});
    sum.timeout_ns = 300'000'000;
    operations.push_back(job[i].submit(sum));
    operations.push_back(job[i].submit(request(kFloat32, {})));
  }
  for (const auto& operation : operations) ASSERT_TRUE(operation->wait(kPatience));
  EXPECT_EQ(operations[0]->status(), Status::kTimedOut);
  EXPECT_EQ(operations[2]->status(), Status::kTimedOut);
  EXPECT_EQ(submit_sum(job[0], data[0])->status(), Status::kTimedOut);
  EXPECT_NE(job[0].stats().aggregators[1].transport_error, 0U);
  EXPECT_EQ(job[0].stats().aggregators[2].transport_error, 0U);
}

TEST(Engine, DetectsWorkersThatCallDifferentCollectives) {  // R4.29
  Job job(2, 1);
  std::vector<std::int32_t> values(100, 1);
  Request sum = request(kInt32, {region(values.data(), values.data(), 100)});
  sum.work.signature = 0x1111;
  Request other = sum;
  other.work.signature = 0x2222;
  std::vector<std::int32_t> elsewhere(100, 1);
  other.work.regions = {region(elsewhere.data(), elsewhere.data(), 100)};
  const auto first = job[0].submit(sum);
  const auto second = job[1].submit(other);
  EXPECT_EQ(end_of(first), Status::kDiverged);
  EXPECT_EQ(end_of(second), Status::kDiverged);
}

TEST(Engine, AbortEndsTheOperationsOfEveryThread) {
  Job job(2, 4);
  std::vector<std::int32_t> values(200'000, 1);
  const auto operation = submit_sum(job[0], values);
  job[0].abort();
  EXPECT_EQ(end_of(operation), Status::kAborted);
}

TEST(Engine, CloseEndsAllQueuedOperationsAndLaterSubmitsFail) {
  for (const int pending : {0, 1000}) {
    Job job(2, 1);
    std::vector<std::int32_t> values(10, 1);
    std::vector<std::shared_ptr<Operation>> operations;
    for (int i = 0; i < pending; ++i) operations.push_back(submit_sum(job[0], values));
    job[0].close();
    job[0].close();
    for (const auto& operation : operations) EXPECT_EQ(end_of(operation, 0s), Status::kAborted);
    const auto late = job[0].submit(request(kFloat32, {}));
    EXPECT_EQ(end_of(late, 0s), Status::kAborted);
  }
}

TEST(Engine, CloseEndsAWaitForCompletedOperations) {
  Job job(1, 1);
  std::thread closer([&job] { job[0].close(); });
  EXPECT_TRUE(job[0].take_completed(std::chrono::hours(1)).empty());
  closer.join();
}

std::vector<std::vector<transport::UdpSocket>> sockets_for(const EngineConfig& config) {
  std::vector<std::vector<transport::UdpSocket>> sockets;
  for (const AggregatorConfig& aggregator : config.aggregators) {
    sockets.push_back(transport::bind_consecutive({.address = kLoopback, .port = 0}, aggregator.threads));
  }
  return sockets;
}

TEST(Engine, RefusesInvalidConfigurations) {
  Job job(1, 1);
  EXPECT_THROW(job[0].submit(request({.dtype = numeric::Dtype::kRaw, .bits = 32}, {})), std::invalid_argument);
  EXPECT_THROW(Engine(EngineConfig{}, {}), std::invalid_argument) << "no aggregator";
  EngineConfig config;
  config.aggregators.resize(1);
  config.aggregators[0].threads = 3;
  config.aggregators[0].worker.slots = 64;
  EXPECT_THROW(Engine(config, sockets_for(config)), std::invalid_argument);
  config.aggregators[0].threads = 2;
  EXPECT_THROW(Engine(config, {}), std::invalid_argument) << "no sockets";
  config.aggregators.push_back(config.aggregators[0]);
  config.aggregators[1].worker.lanes = 256;
  EXPECT_THROW(Engine(config, sockets_for(config)), std::invalid_argument) << "packets of different sizes";
  config.aggregators.resize(wire::kAggregatorsMax + 1, config.aggregators[0]);
  EXPECT_THROW(Engine(config, sockets_for(config)), std::invalid_argument) << "too many aggregators";
}

TEST(Engine, ManyThreadsMaySubmitAndReadStatisticsAtOnce) {
  Job job(1, 2);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&job] {
      std::vector<std::int32_t> values(1000, 5);
      for (int i = 0; i < 50; ++i) {
        const auto operation = submit_sum(job[0], values);
        EXPECT_EQ(end_of(operation), Status::kOk);
        static_cast<void>(job[0].stats());
      }
      EXPECT_EQ(values, std::vector<std::int32_t>(1000, 5));
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_GE(job[0].stats().results, 4U * 50U * 3U);
}

// Expects that no engine starts: over a device there is only one aggregator, which sends to each worker separately.
void expect_refused(const std::vector<AggregatorConfig>& aggregators, const std::string& reason) {
  EngineConfig config;
  config.aggregators = aggregators;
  config.transport.kind = transport::TransportKind::kXdp;
  try {
    const Engine engine(config, sockets_for(config));
    ADD_FAILURE() << "it started";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

TEST(EngineOverADevice, AllowsOneAggregatorWithoutMulticastOnly) {
  AggregatorConfig one;
  one.switch_endpoint = {.address = kLoopback, .port = 1};
  AggregatorConfig multicast = one;
  multicast.results_group = {.address = 0xEFC00001, .port = 1};
  expect_refused({one, one}, "one aggregator");
  expect_refused({multicast}, "multicast");
}

}  // namespace
}  // namespace wiresum::engine
