// Engines whose switch is lost, and which go on at another one.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "rig.hpp"

namespace wiresum::engine {
namespace {

using namespace std::chrono_literals;
using worker::Status;

struct MovingJob {
  const char* name;
  unsigned workers;
  std::vector<At> aggregators;
};

class EngineMoves : public testing::TestWithParam<MovingJob> {};

/// Submits in-place sums of integers at all workers, so many elements each, and expects the right sums.
class Sums {
 public:
  Sums(Job& job, std::size_t calls, std::size_t elements) : workers_(job.workers()) {
    for (std::size_t call = 0; call < calls; ++call) {
      for (std::size_t i = 0; i < workers_; ++i) {
        std::vector<std::int32_t>& values = memory_.emplace_back(elements);
        std::iota(values.begin(), values.end(), static_cast<std::int32_t>(1000 * i + call));
      }
    }
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      operations_.push_back(submit_sum(job[i % workers_], memory_[i]));
    }
  }
  [[nodiscard]] bool any_ended() const {
    return std::ranges::any_of(operations_, [](const auto& operation) { return operation->done(); });
  }
  void expect_right() {
    for (const auto& operation : operations_) ASSERT_EQ(end_of(operation), Status::kOk);
    const auto n = static_cast<std::int32_t>(workers_);
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const auto call = static_cast<std::int32_t>(i / workers_);
      for (std::size_t k = 0; k < memory_[i].size(); ++k) {
        ASSERT_EQ(memory_[i][k], n * (static_cast<std::int32_t>(k) + call) + 1000 * n * (n - 1) / 2);
      }
    }
  }

 private:
  std::size_t workers_;
  std::vector<std::vector<std::int32_t>> memory_;  // by call, then worker
  std::vector<std::shared_ptr<Operation>> operations_;
};

TEST_P(EngineMoves, EveryCollectiveEndsRightAtOtherSwitches) {  // R9.2
  const auto& [name, workers, aggregators] = GetParam();
  Job job(workers, aggregators);
  for (int move = 0; move < 5; ++move) {
    Sums sums(job, 8, 100'000);
    while (move % 2 == 0 && !sums.any_ended()) std::this_thread::yield();
    const std::size_t aggregator = static_cast<std::size_t>(move) % aggregators.size();
    job.kill(aggregator);
    job.move(aggregator, job.halt(aggregator));
    sums.expect_right();
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, EngineMoves,
                         testing::Values(MovingJob{"OneThread", 3, {At{}}},
                                         MovingJob{"FourThreads", 3, {At{.threads = 4}}},
                                         MovingJob{"TwoHosts", 5, {At{.threads = 2, .ranks = 3}}},
                                         MovingJob{"TwoAggregators", 2, {At{.threads = 2, .slots = 32}, At{}}}),
                         [](const auto& job) { return std::string(job.param.name); });

TEST(EngineMove, TheOtherAggregatorsGoOnWhileOneHasHalted) {
  Job job(2, {At{}, At{}});
  const auto positions = job.halt(0);
  EXPECT_EQ(job[0].halt(0), positions[0]) << "halting is idempotent";
  // A collective of one chunk goes to one thread, and the next one to the other.
  Sums one(job, 1, 1);
  Sums other(job, 1, 1);
  while (!one.any_ended() && !other.any_ended()) std::this_thread::sleep_for(1ms);
  EXPECT_NE(one.any_ended(), other.any_ended());
  job.move(0, positions);
  one.expect_right();
  other.expect_right();
}

TEST(EngineMove, AHaltedEngineHoldsItsDeadlinesAndCanBeAborted) {  // R9.1
  for (const bool aborts : {false, true}) {
    Job job(2, 2);
    static_cast<void>(job.halt(0));
    std::vector<std::int32_t> values(5000, 1);
    Request sum = request(kInt32, {region(values.data(), values.data(), values.size())});
    if (!aborts) sum.timeout_ns = 50'000'000;
    const auto operation = job[0].submit(std::move(sum));
    if (aborts) job[0].abort();
    EXPECT_EQ(end_of(operation), aborts ? Status::kAborted : Status::kTimedOut);
  }
}

TEST(EngineMove, WhatCannotBeIsRefused) {
  Job job(1, 2);
  const AggregatorConfig here = job[0].config().aggregators.front();
  const std::vector<std::uint8_t> none(here.worker.slots);
  EXPECT_THROW(static_cast<void>(job[0].halt(1)), std::invalid_argument);
  EXPECT_THROW(job[0].move(0, here, none), std::runtime_error) << "it has not halted";
  static_cast<void>(job[0].halt(0));
  for (auto change : std::vector<void (*)(AggregatorConfig&)>{
           [](AggregatorConfig& to) { to.worker.slots /= 2; }, [](AggregatorConfig& to) { to.threads = 1; },
           [](AggregatorConfig& to) { --to.worker.lanes; }, [](AggregatorConfig& to) { ++to.worker.workers; }}) {
    AggregatorConfig to = here;
    change(to);
    EXPECT_THROW(job[0].move(0, to, none), std::invalid_argument);
  }
  EXPECT_THROW(job[0].move(0, here, std::vector<std::uint8_t>(1)), std::invalid_argument);
  EXPECT_THROW(job[0].move(0, here, std::vector<std::uint8_t>(none.size(), 1)), std::runtime_error)
      << "nothing is in flight that it could lack";
  job[0].move(0, here, none);
  job[0].close();
  EXPECT_THROW(static_cast<void>(job[0].halt(0)), std::runtime_error);
}

}  // namespace
}  // namespace wiresum::engine
