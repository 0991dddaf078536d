// An engine that runs out of memory: in this program every `new`, of any thread, may be made to fail.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "rig.hpp"

namespace {

/// The number of allocations until one fails.
std::atomic<long> left{std::numeric_limits<long>::max()};
std::atomic<bool> all_fail_then{false};

}  // namespace

void* operator new(std::size_t bytes) {
  const long before = left.fetch_sub(1, std::memory_order_relaxed);
  const bool fails = all_fail_then.load(std::memory_order_relaxed) ? before <= 1 : before == 1;
  void* const memory = fails ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace wiresum::engine {
namespace {

using worker::Status;

constexpr std::size_t kWorkers = 2;
constexpr std::size_t kCalls = 6;
constexpr std::size_t kBlocks = 128;
constexpr std::size_t kExactElementsMax = 3000;

/// Tensors that are sparse by blocks, sparse within blocks, dense but for an Inf, summed exactly by gathering, summed
/// exactly in planes, or integers.
std::vector<float> tensor(std::size_t worker, std::size_t call) {
  const auto one = static_cast<float>(worker + 1);
  if (call == 0) return sparse_tensor(worker, kBlocks, 32);
  if (call == 3) return std::vector<float>(100, one);
  if (call == 4) return std::vector<float>(kExactElementsMax, one);
  std::vector<float> values(kBlocks * kLanes, call == 1 ? 0.0F : one);
  if (call == 2) values[7] = std::numeric_limits<float>::infinity();  // its chunk is summed in planes
  for (std::size_t i = worker; call == 1 && i < values.size(); i += 64) values[i] = one;
  return values;
}

/// The outcome of one round of calls.
struct Round {
  std::array<std::array<Status, kCalls>, kWorkers> statuses{};
  std::array<std::array<bool, kCalls>, kWorkers> refused{};
  bool all_ended = true;
  bool all_right = true;  // all successful sums are right
  bool failed = false;
  bool any_no_memory = false;
  EngineStats stats;
};

/// Runs all calls at all workers, where the `nth` allocation fails, or all from it on. A worker whose engine fails
/// aborts the job for the other one, as its membership would.
Round run_round(long nth, bool all_fail) {
  Job job(kWorkers, {At{.threads = 2}}, true, kExactElementsMax);
  std::array<std::vector<std::vector<float>>, kWorkers> data;
  std::array<std::vector<Request>, kWorkers> requests;
  for (std::size_t worker = 0; worker < kWorkers; ++worker) {
    for (std::size_t call = 0; call < kCalls; ++call) data[worker].push_back(tensor(worker, call));
    for (std::size_t call = 0; call < kCalls; ++call) {
      requests[worker].push_back(sparse_request(data[worker][call], static_cast<std::uint16_t>(call)));
    }
  }
  std::array<std::vector<float>, kCalls> sums;
  for (std::size_t call = 0; call < kCalls; ++call) {
    sums[call] = data[0][call];
    for (std::size_t i = 0; i < sums[call].size(); ++i) sums[call][i] += data[1][call][i];
  }
  Round round;
  std::array<std::array<std::shared_ptr<Operation>, kCalls>, kWorkers> operations;

  all_fail_then.store(all_fail);
  left.store(nth);
  for (std::size_t call = 0; call < kCalls; ++call) {
    for (std::size_t worker = 0; worker < kWorkers; ++worker) {
      try {
        operations[worker][call] = job[worker].submit(std::move(requests[worker][call]));
      } catch (const std::bad_alloc&) {
        round.refused[worker][call] = true;
        job[worker].abort();  // like the caller of a failed operation
      }
    }
  }
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (bool all_done = false; !all_done && std::chrono::steady_clock::now() < deadline;) {
    all_done = true;
    for (std::size_t worker = 0; worker < kWorkers; ++worker) {
      if (!job[worker].is_usable()) job[1 - worker].abort();
      for (const auto& operation : operations[worker]) {
        all_done = (operation == nullptr || operation->wait(std::chrono::milliseconds(1))) && all_done;
      }
    }
  }
  left.store(std::numeric_limits<long>::max());

  for (std::size_t worker = 0; worker < kWorkers; ++worker) {
    for (std::size_t call = 0; call < kCalls; ++call) {
      const auto& operation = operations[worker][call];
      round.failed |= operation == nullptr;
      if (operation == nullptr) continue;
      round.all_ended &= operation->done();
      round.statuses[worker][call] = operation->status();
      round.failed |= operation->status() != Status::kOk;
      round.any_no_memory |= operation->status() == Status::kNoMemory;
      if (operation->status() == Status::kOk) round.all_right &= data[worker][call] == sums[call];
    }
  }
  round.stats = job[0].stats();
  return round;
}

class EngineWithoutMemory : public testing::TestWithParam<bool> {};

TEST_P(EngineWithoutMemory, EveryCollectiveIsRightOrFailsWithNoMemoryWhicheverAllocationFails) {
  constexpr long kAllocationsMax = 3000;
  constexpr int kGoodMin = 3;  // successful rounds in a row; rounds differ by a few allocations
  int no_memory = 0;
  int good = 0;
  long nth = 1;
  for (; good < kGoodMin && nth < kAllocationsMax; ++nth) {
    const Round round = run_round(nth, GetParam());
    ASSERT_TRUE(round.all_ended) << "a collective hangs after allocation " << nth;
    ASSERT_TRUE(round.all_right) << "a wrong sum after allocation " << nth;
    no_memory += round.any_no_memory ? 1 : 0;
    good = round.failed ? 0 : good + 1;
    if (good == 0) continue;
    // ... which shows that every kind of sum has met a failed allocation.
    EXPECT_GT(round.stats.sparse.streams, 0U);
    EXPECT_GT(round.stats.sparse.refined, 0U);
    EXPECT_GT(round.stats.sparse.whole + round.stats.sparse.prologues, 2U);
    EXPECT_EQ(round.stats.exact_sums, 2U);
    EXPECT_EQ(round.stats.chunks_exact, 1U);
  }
  EXPECT_LT(nth, kAllocationsMax);
  EXPECT_GT(no_memory, 20) << "of " << nth << " rounds";
}

INSTANTIATE_TEST_SUITE_P(Engine, EngineWithoutMemory, testing::Bool(),
                         [](const auto& all) { return all.param ? "AndAllAfterIt" : "Once"; });

}  // namespace
}  // namespace wiresum::engine
