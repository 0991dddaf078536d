// Sessions against the real software switch, over loopback.
#include "engine/session.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "server.hpp"

namespace wiresum::engine {
namespace {

using namespace std::chrono_literals;
using worker::Region;
using worker::Status;

constexpr std::uint32_t kLoopback = 0x7F000001;
constexpr std::uint16_t kJob = 3;
constexpr std::uint32_t kKey = 0xC0FFEE;
constexpr std::uint16_t kLanes = 360;
constexpr std::uint32_t kSlots = 64;
constexpr auto kPatience = 30s;

constexpr numeric::Format kInt32{.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone, .lane_bits = 32};
constexpr numeric::Format kFloat32{};

template <typename T>
Region region(const T* source, T* destination, std::size_t elements) {
  return {.source = reinterpret_cast<const std::byte*>(source),
          .destination = reinterpret_cast<std::byte*>(destination),
          .elements = elements};
}

Request request(numeric::Format format, std::vector<Region> regions) {
  Request made;
  made.work.format = format;
  made.work.regions = std::move(regions);
  return made;
}

/// N sessions of one job at one switch, all in this process.
class Job {
 public:
  Job(unsigned workers, unsigned threads, bool offload = true)
      : server_({.local = {.address = kLoopback, .port = 0},
                 .ports = threads,
                 .threads = std::min(threads, 2U),
                 .sizes = {.slots = kSlots, .lanes_max = kLanes, .jobs_max = 8},
                 .offload = offload}) {
    std::vector<std::vector<transport::UdpSocket>> sockets;
    dataplane::JobEntry entry{.job = kJob,
                              .key = kKey,
                              .workers = static_cast<std::uint8_t>(workers),
                              .threads = static_cast<std::uint8_t>(threads),
                              .lanes = kLanes,
                              .slot_base = 0,
                              .slots = kSlots,
                              .round_first = 0xFFFFFFF0,  // rounds wrap around during every test
                              .endpoints = {}};
    for (unsigned i = 0; i < workers; ++i) {
      sockets.push_back(transport::bind_consecutive({.address = kLoopback, .port = 0}, threads));
      entry.endpoints[i] = sockets.back().front().local();
    }
    server_.admit(entry);
    for (unsigned i = 0; i < workers; ++i) {
      SessionConfig config;
      config.worker.job = kJob;
      config.worker.key = kKey;
      config.worker.worker = static_cast<std::uint8_t>(i);
      config.worker.workers = static_cast<std::uint8_t>(workers);
      config.worker.lanes = kLanes;
      config.worker.slots = kSlots;
      config.worker.round_first = entry.round_first;
      config.threads = threads;
      config.switch_endpoint = server_.local();
      config.offload = offload;
      sessions_.push_back(std::make_unique<Session>(config, std::move(sockets[i])));
    }
  }

  Session& operator[](std::size_t worker) { return *sessions_[worker]; }
  soft_switch::SwitchServer& server() { return server_; }

 private:
  soft_switch::SwitchServer server_;
  std::vector<std::unique_ptr<Session>> sessions_;
};

struct Shape {
  unsigned workers;
  unsigned threads;
  bool offload;
};

class SessionShapes : public testing::TestWithParam<Shape> {};

TEST_P(SessionShapes, SumsInt32ExactlyWithManyCollectivesInFlight) {
  const auto [workers, threads, offload] = GetParam();
  Job job(workers, threads, offload);
  // Sizes around the packet's, and one that takes every thread and slot several rounds.
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
  for (const auto& operation : operations) {
    ASSERT_TRUE(operation->wait(kPatience));
    ASSERT_EQ(operation->status(), Status::kOk);
  }
  for (unsigned i = 0; i < workers; ++i) {
    for (const std::vector<std::int32_t>& values : data[i]) {
      for (std::size_t k = 0; k < values.size(); ++k) {
        const auto expected = static_cast<std::int32_t>(workers * k + 1000 * (workers * (workers - 1) / 2));
        ASSERT_EQ(values[k], expected) << "worker " << i << ", element " << k << " of " << values.size();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Session, SessionShapes,
                         testing::Values(Shape{1, 1, true}, Shape{2, 1, true}, Shape{3, 2, true}, Shape{4, 4, true},
                                         Shape{2, 1, false}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.workers) + "Workers" +
                                  std::to_string(shape.param.threads) + "Threads" +
                                  (shape.param.offload ? "" : "NoOffload");
                         });

TEST(Session, SumsFloatsAlikeAtEveryWorker) {
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
  for (const auto& operation : operations) {
    ASSERT_TRUE(operation->wait(kPatience));
    ASSERT_EQ(operation->status(), Status::kOk);
  }
  EXPECT_EQ(data[0], data[1]);
  EXPECT_EQ(data[0], data[2]);
  EXPECT_FLOAT_EQ(data[0][5000], 3 * 5000 * 0.37F + 3);
}

/// A tensor of many blocks, some of them with this worker's number in every element.
std::vector<float> sparse_tensor(std::size_t worker, std::size_t blocks, std::size_t every) {
  std::vector<float> values(blocks * kLanes);
  for (std::size_t block = worker; block < blocks; block += every) {
    std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(block * kLanes), kLanes, static_cast<float>(worker + 1));
  }
  return values;
}

Request sparse_request(std::vector<float>& values, std::uint16_t signature) {
  Request made = request(kFloat32, {region(values.data(), values.data(), values.size())});
  made.work.may_be_sparse = true;
  made.work.signature = signature;
  return made;
}

TEST_P(SessionShapes, SumsSparseTensorsAmongDenseOnesWithManyInFlight) {
  const auto [workers, threads, offload] = GetParam();
  Job job(workers, threads, offload);
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
  for (const auto& operation : operations) {
    ASSERT_TRUE(operation->wait(kPatience));
    ASSERT_EQ(operation->status(), Status::kOk);
  }
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
    EXPECT_EQ(stats.prologues, static_cast<std::uint64_t>(kRounds + 1)) << "the dense ones asked once";
    EXPECT_EQ(stats.streams, static_cast<std::uint64_t>(kRounds));
    EXPECT_EQ(stats.whole, static_cast<std::uint64_t>(kRounds - 1));
    EXPECT_EQ(stats.blocks_skipped, kRounds * (kBlocks - workers * (kBlocks / kEvery)));
  }
}

TEST(Session, ARequestThatWaitsForAPrologueHasItsDeadlineToo) {
  Job job(2, 1);
  std::vector<float> asking = sparse_tensor(0, 600, 50);
  std::vector<float> waiting(10, 1.0F);
  const auto first = job[0].submit(sparse_request(asking, 1));
  Request late = request(kFloat32, {region(waiting.data(), waiting.data(), waiting.size())});
  late.timeout_ns = 100'000'000;
  const auto second = job[0].submit(late);
  ASSERT_TRUE(second->wait(kPatience)) << "nobody else is there to finish the prologue";
  EXPECT_EQ(second->status(), Status::kTimedOut);
  ASSERT_TRUE(first->wait(kPatience));
  EXPECT_EQ(first->status(), Status::kTimedOut);
}

TEST(Session, CloseEndsWhatWaitsForAPrologue) {
  Job job(2, 2);
  std::vector<float> asking = sparse_tensor(0, 600, 50);
  std::vector<float> waiting(10, 1.0F);
  const auto first = job[0].submit(sparse_request(asking, 1));
  const auto second = job[0].submit(request(kFloat32, {region(waiting.data(), waiting.data(), waiting.size())}));
  job[0].close();
  ASSERT_TRUE(first->done());
  ASSERT_TRUE(second->done());
  EXPECT_EQ(first->status(), Status::kAborted);
  EXPECT_EQ(second->status(), Status::kAborted);
}

TEST(Session, BroadcastsAndGathersThroughRegions) {
  Job job(2, 1);
  std::vector<std::uint8_t> root(2000, 0xA5);
  std::vector<std::uint8_t> copy(2000, 0);
  const numeric::Format raw{.dtype = numeric::Dtype::kRaw, .scaling = numeric::Scaling::kNone, .lane_bits = 8};
  const auto sent = job[0].submit(request(raw, {region<std::uint8_t>(root.data(), nullptr, 2000)}));
  const auto received = job[1].submit(request(raw, {region<std::uint8_t>(nullptr, copy.data(), 2000)}));
  ASSERT_TRUE(sent->wait(kPatience));
  ASSERT_TRUE(received->wait(kPatience));
  EXPECT_EQ(copy, root);
}

TEST(Session, ABarrierWaitsForTheLastWorker) {
  Job job(2, 2);
  const auto early = job[0].submit(request(kFloat32, {}));
  EXPECT_FALSE(early->wait(50ms));
  const auto late = job[1].submit(request(kFloat32, {}));
  EXPECT_TRUE(early->wait(kPatience));
  EXPECT_TRUE(late->wait(kPatience));
  EXPECT_EQ(early->status(), Status::kOk);
}

TEST(Session, AnEmptyCollectiveIsCompleteAtOnce) {
  Job job(2, 1);
  std::int32_t nothing = 0;
  const auto operation = job[0].submit(request(kInt32, {region(&nothing, &nothing, 0)}));
  EXPECT_TRUE(operation->done());
  EXPECT_EQ(operation->status(), Status::kOk);
}

TEST(Session, HandsOutEachCompletedOperationOnceToWhoAskedForIt) {
  Job job(1, 1);
  std::vector<std::int32_t> values(10, 1);
  Request quiet = request(kInt32, {region(values.data(), values.data(), 10)});
  quiet.notify = false;
  const auto unasked = job[0].submit(quiet);
  ASSERT_TRUE(unasked->wait(kPatience));
  const auto asked = job[0].submit(request(kInt32, {region(values.data(), values.data(), 10)}));
  const auto taken = job[0].take_completed(kPatience);
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken.front()->token(), asked->token());
  EXPECT_TRUE(job[0].take_completed(10ms).empty());
}

TEST(Session, AMissingWorkerEndsInATimeOutAndThatIsFinal) {
  Job job(2, 2);
  std::vector<std::int32_t> values(100'000, 1);
  Request late = request(kInt32, {region(values.data(), values.data(), values.size())});
  late.timeout_ns = 200'000'000;
  const auto operation = job[0].submit(late);
  ASSERT_TRUE(operation->wait(kPatience));
  EXPECT_EQ(operation->status(), Status::kTimedOut);
  const auto next = job[0].submit(request(kFloat32, {}));
  ASSERT_TRUE(next->wait(kPatience));
  EXPECT_EQ(next->status(), Status::kTimedOut);
}

TEST(Session, WorkersThatCallDifferentCollectivesFindOut) {
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
  ASSERT_TRUE(first->wait(kPatience));
  ASSERT_TRUE(second->wait(kPatience));
  EXPECT_EQ(first->status(), Status::kDiverged);
  EXPECT_EQ(second->status(), Status::kDiverged);
}

TEST(Session, AbortEndsWhatIsPendingOnEveryThread) {
  Job job(2, 4);
  std::vector<std::int32_t> values(200'000, 1);
  const auto operation = job[0].submit(request(kInt32, {region(values.data(), values.data(), values.size())}));
  job[0].abort();
  ASSERT_TRUE(operation->wait(kPatience));
  EXPECT_EQ(operation->status(), Status::kAborted);
}

TEST(Session, CloseEndsMoreThanTheStateMachineHoldsAndLaterSubmitsFail) {
  Job job(2, 1);
  std::vector<std::int32_t> values(10, 1);
  std::vector<std::shared_ptr<Operation>> operations;
  for (int i = 0; i < 1000; ++i) {
    operations.push_back(job[0].submit(request(kInt32, {region(values.data(), values.data(), 10)})));
  }
  job[0].close();
  for (const auto& operation : operations) {
    ASSERT_TRUE(operation->done());
    EXPECT_EQ(operation->status(), Status::kAborted);
  }
  const auto late = job[0].submit(request(kFloat32, {}));
  EXPECT_TRUE(late->done());
  EXPECT_EQ(late->status(), Status::kAborted);
}

TEST(Session, RefusesWhatMakesNoSense) {
  Job job(1, 1);
  EXPECT_THROW(job[0].submit(request({.dtype = numeric::Dtype::kRaw, .lane_bits = 32}, {})), std::invalid_argument);
  SessionConfig config;
  config.threads = 3;
  config.worker.slots = 64;
  EXPECT_THROW(Session(config, {}), std::invalid_argument);
}

TEST(Session, ManyThreadsMaySubmitAndAskForStatisticsAtOnce) {
  Job job(1, 2);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&job] {
      std::vector<std::int32_t> values(1000, 5);
      for (int i = 0; i < 50; ++i) {
        const auto operation = job[0].submit(request(kInt32, {region(values.data(), values.data(), values.size())}));
        ASSERT_TRUE(operation->wait(kPatience));
        ASSERT_EQ(operation->status(), Status::kOk);
        static_cast<void>(job[0].stats());
      }
      EXPECT_EQ(values, std::vector<std::int32_t>(1000, 5));
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  EXPECT_GE(job[0].stats().worker.results, 4U * 50U * 3U);
}

}  // namespace
}  // namespace wiresum::engine
