// Admission, eviction, and refused entries. The vectors (vectors_test.cpp) cover most packets.
#include <gtest/gtest.h>

#include <array>
#include <stdexcept>

#include "dataplane.hpp"
#include "two_workers.hpp"

namespace wiresum::dataplane {
namespace {

using wire::Header;
using wire::Kind;

class AdmissionTest : public testing::Test {
 protected:
  AdmissionTest() : harness_(kSizes) {}

  void expect_stray(const Decision& decision, Reason reason, std::uint64_t count) {
    EXPECT_EQ(decision.verdict, Verdict::kDrop);
    EXPECT_EQ(decision.reason, reason);
    EXPECT_EQ(harness_.plane.stray().packets[static_cast<std::size_t>(reason)], count);
  }
  void expect_dropped(const Decision& decision, Reason reason) {
    EXPECT_EQ(decision.verdict, Verdict::kDrop);
    EXPECT_EQ(decision.reason, reason);
  }

  SwitchHarness harness_;
};

TEST_F(AdmissionTest, APacketOfAnUnknownJobIsUnknown) {
  expect_stray(harness_.send(packet(0, 1), kOnes), Reason::kUnknown, 1);
  Header beyond = packet(0, 1);
  beyond.job = kSizes.jobs_max;
  expect_stray(harness_.send(beyond, kOnes), Reason::kUnknown, 2);
  beyond.job = 0xFFFF;
  expect_stray(harness_.send(beyond, kOnes), Reason::kUnknown, 3);
}

TEST_F(AdmissionTest, EachThreadAcceptsOnlyItsOwnSourcePort) {  // R2.2, R3.1
  JobEntry threaded = entry();
  threaded.threads = 2;  // four slots for each thread
  ASSERT_TRUE(harness_.plane.admit(threaded));
  const auto from = [&](std::uint16_t port, std::uint8_t thread) {
    const wire::Endpoint source{.address = endpoint_of(0).address, .port = port};
    return harness_.handle(source, thread, datagram_of(packet(0, 1, 4u * thread), kOnes));
  };
  const std::uint16_t base = endpoint_of(0).port;
  std::uint64_t strays = 0;
  for (std::uint8_t thread = 0; thread < 2; ++thread) {
    for (const int port : {0, 1, base - 1, base + 1 - thread, base + 2, base + 256, 65535}) {
      expect_stray(from(static_cast<std::uint16_t>(port), thread), Reason::kUnknown, ++strays);
    }
    EXPECT_EQ(from(static_cast<std::uint16_t>(base + thread), thread).verdict, Verdict::kHold);
  }
}

TEST_F(AdmissionTest, SourcePortsDoNotWrapAround) {
  JobEntry job = entry();
  job.endpoints[0].port = 65535;
  ASSERT_TRUE(harness_.plane.admit(job));
  const wire::Endpoint wrapped{.address = endpoint_of(0).address, .port = 0};
  expect_stray(harness_.handle(wrapped, 1, datagram_of(packet(0, 1), kOnes)), Reason::kUnknown, 1);
}

TEST_F(AdmissionTest, AJobIsAcceptedOnlyAtItsOwnPortsOfTheSwitch) {  // R2.4
  JobEntry above = entry();
  above.threads = 2;  // four slots for each thread
  above.port_offset = 3;
  ASSERT_TRUE(harness_.plane.admit(above));
  const auto at = [&](std::uint8_t thread, std::uint8_t port) {
    return harness_.handle(source_of(0, thread), port, datagram_of(packet(0, 1, 4u * thread), kOnes));
  };
  std::uint64_t strays = 0;
  for (const auto port : std::to_array<std::uint8_t>({0, 1, 2, 4, 5, 15, 255})) {
    expect_stray(at(0, port), Reason::kUnknown, ++strays);
  }
  for (const auto port : std::to_array<std::uint8_t>({0, 1, 2, 3, 5})) {
    expect_stray(at(1, port), Reason::kUnknown, ++strays);
  }
  EXPECT_EQ(at(0, 3).verdict, Verdict::kHold);
  EXPECT_EQ(at(1, 4).verdict, Verdict::kHold);
}

TEST_F(AdmissionTest, EveryTruncationIsMalformed) {  // R2.15
  ASSERT_TRUE(harness_.plane.admit(entry()));
  const std::vector<std::byte> whole = datagram_of(packet(0, 1), kOnes);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const Decision decision = harness_.handle(endpoint_of(0), 0, std::span(whole).first(bytes));
    expect_dropped(decision, Reason::kMalformed);
  }
  EXPECT_EQ(harness_.handle(endpoint_of(0), 0, whole).reason, Reason::kAdmitted);
}

TEST_F(AdmissionTest, AnEvictedJobIsUnknownAndKeepsItsCounters) {
  ASSERT_TRUE(harness_.plane.admit(entry()));
  ASSERT_NE(harness_.plane.find(kJob), nullptr);
  ASSERT_EQ(harness_.send(packet(0, 1), kOnes).reason, Reason::kAdmitted);
  ASSERT_TRUE(harness_.plane.evict(kJob));
  EXPECT_EQ(harness_.plane.find(kJob), nullptr);
  EXPECT_EQ(harness_.plane.counters(kJob).contributions[0], 1u);
  expect_stray(harness_.send(packet(1, 1), kOnes), Reason::kUnknown, 1);
  EXPECT_FALSE(harness_.plane.evict(kJob));
  EXPECT_FALSE(harness_.plane.evict(kSizes.jobs_max));
}

TEST_F(AdmissionTest, JobsHaveSeparateCells) {
  ASSERT_TRUE(harness_.plane.admit(job_entry(0, 2, 4, 0, 8)));
  ASSERT_TRUE(harness_.plane.admit(job_entry(1, 2, 8, 8, 8)));
  Header a = {.job = 0, .key = 0xC0FFEE00, .cell = 1, .round = 1};
  Header b = {.job = 1, .key = 0xC0FFEE01, .cell = 1, .round = 1};
  ASSERT_EQ(harness_.send(a, Words(4, 1)).verdict, Verdict::kHold);
  ASSERT_EQ(harness_.send(b, Words(8, 2)).verdict, Verdict::kHold);
  a.worker = b.worker = 1;
  const Decision of_a = harness_.send(a, Words(4, 10));
  const Decision of_b = harness_.send(b, Words(8, 20));
  EXPECT_EQ(harness_.result_words(of_a), Words(4, 11));
  EXPECT_EQ(harness_.result_words(of_b), Words(8, 22));
}

TEST_F(AdmissionTest, AnOverlappingLeaseIsRefused) {
  ASSERT_TRUE(harness_.plane.admit(job_entry(0, 2, 4, 4, 8)));
  EXPECT_FALSE(harness_.plane.admit(job_entry(1, 2, 4, 4, 8)));
  EXPECT_FALSE(harness_.plane.admit(job_entry(1, 2, 4, 0, 8)));
  EXPECT_FALSE(harness_.plane.admit(job_entry(1, 2, 4, 11, 1)));
  EXPECT_FALSE(harness_.plane.admit(job_entry(1, 2, 4, 0, 16)));
  EXPECT_TRUE(harness_.plane.admit(job_entry(1, 2, 4, 0, 4)));
  EXPECT_TRUE(harness_.plane.admit(job_entry(2, 2, 4, 12, 4)));
  ASSERT_TRUE(harness_.plane.evict(0));
  EXPECT_TRUE(harness_.plane.admit(job_entry(0, 2, 4, 8, 4)));
}

TEST_F(AdmissionTest, AnInvalidEntryIsRefused) {  // R2.1, R8.3
  const auto refused = [&](auto&& change) {
    JobEntry wrong = entry();
    change(wrong);
    return !harness_.plane.admit(wrong) && harness_.plane.find(kJob) == nullptr;
  };
  EXPECT_TRUE(refused([](JobEntry& e) { e.job = kSizes.jobs_max; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.key = 0; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.workers = 0; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.workers = 33; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.threads = 0; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.threads = 3; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.threads = 32; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.threads = 16; }));  // more threads than slots
  EXPECT_TRUE(refused([](JobEntry& e) { e.port_offset = 16; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.threads = 2, e.port_offset = 15; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.port_offset = 255; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.lanes = 0; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.lanes = 9; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.slots = 0; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.slots = 6; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.slots = 32; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.slot_base = 9; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.slot_base = 0xFFFFFFF8; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.endpoints[1].address = 0; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.endpoints[1].port = 0; }));
  EXPECT_TRUE(refused([](JobEntry& e) { e.threads = 2, e.endpoints[1].port = 65535; }));
  EXPECT_TRUE(harness_.plane.admit(entry()));
  EXPECT_FALSE(harness_.plane.admit(job_entry(kJob, 2, kLanes, 0, 4))) << "the job number is taken";
}

TEST(DataplaneSizes, InvalidSizesThrow) {
  EXPECT_THROW(Dataplane({.slots = 0}), std::invalid_argument);
  EXPECT_THROW(Dataplane({.slots = 1, .lanes_max = 0}), std::invalid_argument);
  EXPECT_THROW(Dataplane({.slots = 1, .lanes_max = wire::kLanesMax + 1}), std::invalid_argument);
  EXPECT_THROW(Dataplane({.slots = 1, .lanes_max = 360, .jobs_max = 0}), std::invalid_argument);
  EXPECT_NO_THROW(Dataplane({.slots = 1, .lanes_max = 360}));
}

}  // namespace
}  // namespace wiresum::dataplane
