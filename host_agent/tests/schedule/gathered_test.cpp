// Reductions, and small copies: what travels, and what becomes of it. Exact sums are in scheduler_test.cpp.
#include "schedule/gathered.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "rig.hpp"

namespace wiresum::schedule {
namespace {

using worker::Status;

constexpr std::size_t kLanes = 4;

/// The only share.
Share share_of(Scheduler& scheduler) {
  const Share share = scheduler.poll_share().value();
  EXPECT_FALSE(scheduler.poll_share().has_value());
  return share;
}

std::byte* packed(const Share& share) { return share.work.regions[0].destination.first(); }

void finish(Scheduler& scheduler, const Share& share) {
  scheduler.complete(share.thread, {.token = share.work.token, .status = Status::kOk});
  EXPECT_EQ(scheduler.poll_finished().value().status, Status::kOk);
}

SchedulerConfig config_of(unsigned workers) { return {.rank = 1, .workers = workers, .lanes = kLanes}; }

constexpr numeric::Format kBytes{.dtype = numeric::Dtype::kRaw, .scaling = numeric::Scaling::kNone, .bits = 8};

constexpr std::byte kGuard{0x77};  // behind the memory of each region

/// Bytes of which the job's workers have a region each, for this worker of rank 1.
struct Copies {
  explicit Copies(std::vector<std::size_t> sizes) : regions(std::move(sizes)) {
    for (const std::size_t size : regions) memory.emplace_back(size + 1, kGuard);
    if (regions.size() > 1) mine.assign(regions[1], std::byte{9});
  }
  Request request() {
    Request made;
    made.format = kBytes;
    for (std::size_t i = 0; i < regions.size(); ++i) {
      made.regions.push_back({.source = i == 1 ? worker::Source(mine.data()) : worker::Source(),
                              .destination = memory[i].data(),
                              .elements = regions[i]});
    }
    return made;
  }
  std::vector<std::size_t> regions;
  std::vector<std::byte> mine;
  std::vector<std::vector<std::byte>> memory;
};

TEST(Gathered, CopiesThatShareAPacketAreOneSumOfWords) {  // R6.8
  Scheduler scheduler(config_of(4));
  Copies copies({5, 5, 0, 3});  // two words, two words, none, one word
  submit(scheduler, copies.request(), kLanes);
  const Share share = share_of(scheduler);
  EXPECT_EQ(share.work.format.dtype, numeric::Dtype::kI32);
  EXPECT_EQ(share.work.chunk_end, 2U);
  auto* const words = packed(share);
  EXPECT_EQ(words[4 * 2 + 4], std::byte{9});
  EXPECT_EQ(words[0], std::byte{0});
  words[4] = std::byte{1};          // the last byte of region 0
  words[4 * 4] = std::byte{2};      // the first of region 3
  words[4 * 4 + 3] = std::byte{3};  // beyond its end
  finish(scheduler, share);
  EXPECT_EQ(copies.memory[0],
            (std::vector{std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0}, std::byte{1}, kGuard}));
  copies.mine.push_back(kGuard);
  EXPECT_EQ(copies.memory[1], copies.mine);
  EXPECT_EQ(copies.memory[3], (std::vector{std::byte{2}, std::byte{0}, std::byte{0}, kGuard}));
}

TEST(Gathered, CopiesThatSaveNoPacketTravelByThemselves) {  // R6.8
  const std::vector<std::size_t> seventeen_packets(65, 1);
  for (const std::vector<std::size_t>& sizes :
       {std::vector<std::size_t>{16, 16}, {5}, {400, 400, 1}, seventeen_packets}) {
    Scheduler scheduler(config_of(4));
    Copies copies(sizes);
    submit(scheduler, copies.request(), kLanes);
    EXPECT_EQ(share_of(scheduler).work.format.dtype, numeric::Dtype::kRaw) << sizes.size();
  }
}

TEST(Gathered, AReductionTakesTheElementsOfAllWorkersHoweverMany) {  // R6.2
  Scheduler scheduler(config_of(3));
  std::vector<std::int64_t> values(40, -5);  // 60 packets
  auto* const memory = reinterpret_cast<std::byte*>(values.data());
  Request request;
  request.format = kBytes;
  request.regions = {{.source = memory, .destination = memory, .elements = 8 * values.size()}};
  request.reduction = {.element = numeric::Element::kI64, .op = numeric::Operator::kMax};
  submit(scheduler, request, kLanes);
  const Share share = share_of(scheduler);
  EXPECT_EQ(share.work.chunk_end, 60U);
  auto* const words = reinterpret_cast<std::int64_t*>(packed(share));
  EXPECT_EQ(words[0], 0);
  EXPECT_EQ(words[values.size()], -5);
  std::fill_n(words, values.size(), -7);
  std::fill_n(words + 2 * values.size(), values.size(), -6);
  words[3] = 4;
  finish(scheduler, share);
  EXPECT_EQ(scheduler.exact_sums(), 0U);
  EXPECT_EQ(values[3], 4);
  EXPECT_EQ(std::count(values.begin(), values.end(), -5), 39);
}

TEST(Gathered, ASenselessReductionIsRefused) {
  const Scheduler scheduler(config_of(4));
  std::vector<std::byte> memory(16);
  Request sound;
  sound.format = kBytes;
  sound.regions = {{.source = memory.data(), .destination = memory.data(), .elements = 16}};
  sound.reduction = {.element = numeric::Element::kF64, .op = numeric::Operator::kMax};
  EXPECT_NO_THROW((void)scheduler.survey(sound, 0));
  const auto refuses = [&](auto change) {
    Request request = sound;
    change(request);
    EXPECT_THROW((void)scheduler.survey(request, 0), std::invalid_argument);
  };
  refuses([](Request& request) { request.reduction->op = numeric::Operator::kAnd; });
  refuses([](Request& request) { request.regions[0].elements = 15; });
  refuses([](Request& request) { request.regions[0].source = worker::Source(); });
  refuses([](Request& request) {
    request.format = {.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone, .bits = 32};
  });
}

}  // namespace
}  // namespace wiresum::schedule
