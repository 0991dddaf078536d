// Counters and random traffic, which the vectors (vectors_test.cpp) do not cover.
#include "dataplane.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "two_workers.hpp"

namespace wiresum::dataplane {
namespace {

using wire::Header;
using wire::Kind;

constexpr std::uint32_t kSlotBase = 8;
constexpr std::uint32_t kSlots = 4;

class DataplaneTest : public testing::Test {
 protected:
  DataplaneTest() : harness_({.slots = 16, .lanes_max = 8, .jobs_max = 8}) {}

  void admit(std::uint8_t workers) {
    ASSERT_TRUE(harness_.plane.admit(job_entry(kJob, workers, kLanes, kSlotBase, kSlots)));
  }

  static Header header(Kind kind, std::uint8_t worker, std::uint32_t round, std::uint32_t slot = 0) {
    return {.kind = kind,
            .job = kJob,
            .key = 0xC0FFEE00u + kJob,
            .worker = worker,
            .cell = wire::cell_of(slot, round),
            .round = round,
            .tensor = 70,
            .chunk = 80};
  }

  void expect_result(const Decision& decision, const Words& words) const {
    EXPECT_EQ(decision.verdict, Verdict::kMulticast);
    EXPECT_EQ(harness_.result_words(decision), words);
  }
  std::uint64_t packets(Reason reason) const {
    return harness_.plane.counters(kJob).packets[static_cast<std::size_t>(reason)];
  }

  SwitchHarness harness_;
};

// Prefetching must stay within the switch's memory, whatever a packet contains.
TEST_F(DataplaneTest, PrefetchingChangesNothing) {
  admit(1);
  for (const std::uint32_t slot : {0U, kSlots - 1, kSlots, 32767U}) {
    for (const std::uint16_t job : {kJob, std::uint16_t{9999}}) {
      Header packet = header(Kind::kData, 0, 1, slot);
      packet.job = job;
      harness_.plane.prefetch(read(source_of(0, 0), 0, datagram_of(packet, {1, 2, 3, 4})));
    }
  }
  harness_.plane.prefetch(read(source_of(0, 0), 0, {}));
  expect_result(harness_.send(header(Kind::kData, 0, 1), {1, 2, 3, 4}), {1, 2, 3, 4});
}

TEST_F(DataplaneTest, PacketsAreCountedByReasonAndWorker) {
  admit(2);
  Header packet = header(Kind::kMeta, 0, 1);
  packet.tensor = 5;
  EXPECT_EQ(harness_.send(packet).reason, Reason::kAdmitted);
  EXPECT_EQ(harness_.send(packet).reason, Reason::kDuplicate);
  packet.worker = 1;
  packet.tensor = 6;
  EXPECT_EQ(harness_.send(packet).reason, Reason::kAdmitted);
  EXPECT_EQ(harness_.send(packet).reason, Reason::kResent);
  EXPECT_EQ(harness_.send(packet).reason, Reason::kResent);
  EXPECT_EQ(harness_.send(header(Kind::kMeta, 0, 0xFFFFFFF1)).reason, Reason::kStale);
  EXPECT_EQ(harness_.send(header(Kind::kQuestion, 0, 1)).reason, Reason::kResent);
  EXPECT_EQ(harness_.send(header(Kind::kMeta, 0, 1, kSlots)).reason, Reason::kOutOfLease);
  EXPECT_EQ(harness_.send(header(Kind::kData, 0, 1), {1}).reason, Reason::kMalformed);

  EXPECT_EQ(packets(Reason::kAdmitted), 2u);
  EXPECT_EQ(packets(Reason::kDuplicate), 1u);
  EXPECT_EQ(packets(Reason::kResent), 3u);
  EXPECT_EQ(packets(Reason::kStale), 1u);
  EXPECT_EQ(packets(Reason::kOutOfLease), 1u);
  EXPECT_EQ(packets(Reason::kMalformed), 1u);
  const JobCounters& counters = harness_.plane.counters(kJob);
  EXPECT_EQ(counters.results, 1u);
  EXPECT_EQ(counters.contributions[0], 1u);
  EXPECT_EQ(counters.contributions[1], 1u);
  EXPECT_EQ(counters.tensor_last[0], 5u);
  EXPECT_EQ(counters.tensor_last[1], 6u);
}

// A collective's number has a signature in its upper bits, which has no order.
TEST_F(DataplaneTest, TheLatestCollectiveIsFoundWithoutItsSignature) {  // R2.21
  admit(2);
  std::uint32_t slot = 0;
  const auto latest_after = [&](std::uint32_t tensor) {
    Header packet = header(Kind::kMeta, 0, 1, slot++);
    packet.tensor = tensor;
    EXPECT_EQ(harness_.send(packet).reason, Reason::kAdmitted);
    return harness_.plane.counters(kJob).tensor_last[0];
  };
  EXPECT_EQ(latest_after(0x9000FFFE), 0x9000FFFEu) << "of the first whatever it is";
  EXPECT_EQ(latest_after(0x1000FFFF), 0x1000FFFFu);
  EXPECT_EQ(latest_after(0x7000FFFE), 0x1000FFFFu) << "it was overtaken";
  EXPECT_EQ(latest_after(0x00010000), 0x00010000u) << "the numbers wrap around";
  EXPECT_EQ(harness_.plane.counters(kJob).contributions[0], 4u);
  EXPECT_EQ(harness_.plane.counters(kJob).contributions[1], 0u);
}

// Workers follow the protocol, and the network duplicates and delays without limit.
TEST_F(DataplaneTest, RandomDuplicatesAndReorderingNeverChangeASum) {  // R3.17, R3.21
  constexpr std::uint8_t kWorkers = 5;
  admit(kWorkers);
  std::mt19937 random(7);
  std::vector<std::pair<Header, Words>> past;
  for (std::uint32_t i = 0; i < 500; ++i) {
    const std::uint32_t round = 0xFFFFFFF0 + i;
    std::vector<std::uint8_t> order(kWorkers);
    std::iota(order.begin(), order.end(), std::uint8_t{0});
    std::shuffle(order.begin(), order.end(), random);
    Words sum(kLanes, 0);
    for (const std::uint8_t worker : order) {
      const Header packet = header(Kind::kData, worker, round);
      Words words(kLanes);
      for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
        words[lane] = static_cast<std::uint32_t>(random());
        sum[lane] += words[lane];
      }
      const Decision decision = harness_.send(packet, words);
      past.emplace_back(packet, words);
      if (worker == order.back()) {
        expect_result(decision, sum);
      } else {
        ASSERT_EQ(decision.verdict, Verdict::kHold);
      }
      const auto& [late, late_words] = past[random() % past.size()];
      ASSERT_NE(harness_.send(late, late_words).reason, Reason::kAdmitted);
    }
  }
}

}  // namespace
}  // namespace wiresum::dataplane
