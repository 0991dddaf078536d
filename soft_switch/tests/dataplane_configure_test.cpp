// Jobs that are installed entry by entry, as by the tables of a P4 switch.
#include <gtest/gtest.h>

#include "dataplane.hpp"
#include "two_workers.hpp"

namespace wiresum::dataplane {
namespace {

using wire::Header;
using wire::Kind;

Admission everybody() {
  Admission admission;
  admission.contributors[0] = 0b11;
  admission.sources[0] = endpoint_of(0);
  admission.sources[1] = endpoint_of(1);
  admission.receivers = 0b11;
  return admission;
}

std::uint64_t admitted(const Dataplane& plane) {
  return plane.counters(kJob).packets[static_cast<std::size_t>(Reason::kAdmitted)];
}

class ConfigureTest : public testing::Test {
 protected:
  ConfigureTest() : harness_(kSizes) {}
  SwitchHarness harness_;
};

TEST_F(ConfigureTest, AReinstalledJobFindsItsCellsUnchanged) {
  ASSERT_TRUE(harness_.plane.configure(entry(), everybody()));
  EXPECT_EQ(harness_.send(packet(0, 7), kOnes).verdict, Verdict::kHold);
  EXPECT_EQ(harness_.send(packet(1, 7), kOnes).verdict, Verdict::kMulticast);
  ASSERT_TRUE(harness_.plane.evict(kJob));
  ASSERT_TRUE(harness_.plane.configure(entry(), everybody()));
  EXPECT_EQ(harness_.send(packet(0, 5), kOnes).reason, Reason::kStale);
  const Decision again = harness_.send(packet(0, 7), kOnes);
  ASSERT_EQ(again.verdict, Verdict::kResend);
  EXPECT_EQ(harness_.result_words(again), (Words{2, 2, 2, 2}));
  EXPECT_EQ(harness_.send(packet(0, 9), kOnes).verdict, Verdict::kHold);
}

TEST_F(ConfigureTest, CellsOfAnotherJobAcceptAnyRound) {  // R3.6, R9.8
  ASSERT_TRUE(harness_.plane.configure(entry(), everybody()));
  EXPECT_EQ(harness_.send(packet(0, 7), kOnes).verdict, Verdict::kHold);
  EXPECT_EQ(harness_.send(packet(1, 7), kOnes).verdict, Verdict::kMulticast);
  EXPECT_EQ(harness_.send(packet(0, 0x80000000u), kOnes).verdict, Verdict::kHold);
  ASSERT_TRUE(harness_.plane.evict(kJob));
  JobEntry next = entry();
  next.key ^= 1;
  ASSERT_TRUE(harness_.plane.configure(next, everybody()));
  for (const std::uint32_t round : {7u, 0u}) {
    Header first = packet(0, round);
    first.key = next.key;
    EXPECT_EQ(harness_.send(first, kOnes).verdict, Verdict::kHold) << round;
  }
}

TEST_F(ConfigureTest, WorkersAreAdmittedForEachThreadSeparately) {
  JobEntry two_threads = entry();
  two_threads.threads = 2;
  Admission some = everybody();
  some.contributors = {0b01, 0b10};
  ASSERT_TRUE(harness_.plane.configure(two_threads, some));
  EXPECT_EQ(harness_.send(packet(0, 1)).reason, Reason::kMalformed) << "admitted, with another length";
  EXPECT_EQ(harness_.send(packet(1, 1), kOnes).reason, Reason::kUnknown);
  const auto of_second_thread = [&](std::uint8_t worker) {
    return harness_.handle(source_of(worker, 1), 1, datagram_of(packet(worker, 1, 4), kOnes)).reason;
  };
  EXPECT_EQ(of_second_thread(0), Reason::kUnknown);
  EXPECT_EQ(of_second_thread(1), Reason::kAdmitted);
}

TEST_F(ConfigureTest, AdmissionMayChangeWhileTheJobRuns) {
  Admission one = everybody();
  one.contributors[0] = 0b01;
  ASSERT_TRUE(harness_.plane.configure(entry(), one));
  EXPECT_EQ(harness_.send(packet(0, 1), kOnes).verdict, Verdict::kHold);
  EXPECT_EQ(harness_.send(packet(1, 1), kOnes).reason, Reason::kUnknown);
  ASSERT_TRUE(harness_.plane.configure(entry(), everybody()));
  EXPECT_EQ(harness_.send(packet(1, 1), kOnes).verdict, Verdict::kMulticast);
  EXPECT_EQ(admitted(harness_.plane), 2u) << "the same job: it goes on counting";
  ASSERT_TRUE(harness_.plane.evict(kJob));
  ASSERT_TRUE(harness_.plane.configure(entry(), everybody()));
  EXPECT_EQ(admitted(harness_.plane), 0u) << "a new one";
}

TEST_F(ConfigureTest, ARoundIsCompleteWithoutAWorkerThatWasRemoved) {
  Admission three_workers = everybody();
  three_workers.contributors[0] = three_workers.receivers = 0b111;
  three_workers.sources[2] = endpoint_of(2);
  ASSERT_TRUE(harness_.plane.configure(job_entry(kJob, 3, kLanes, 4, 8), three_workers));
  EXPECT_EQ(harness_.send(packet(2, 1), kOnes).verdict, Verdict::kHold);
  EXPECT_EQ(harness_.send(packet(0, 1), kOnes).verdict, Verdict::kHold);
  ASSERT_TRUE(harness_.plane.configure(entry(), everybody()));
  EXPECT_EQ(harness_.send(packet(1, 1), kOnes).verdict, Verdict::kMulticast);
  EXPECT_EQ(harness_.send(packet(0, 1), kOnes).verdict, Verdict::kResend);
  Header question = packet(1, 1);
  question.kind = Kind::kQuestion;
  EXPECT_EQ(harness_.send(question).verdict, Verdict::kResend);
}

TEST_F(ConfigureTest, AWorkersSourceMayDifferFromItsReceivingEndpoint) {
  Admission admission = everybody();
  admission.sources[0] = endpoint_of(5);
  admission.sources[1].port = 1;
  ASSERT_TRUE(harness_.plane.configure(entry(), admission));
  const auto from = [&](std::uint8_t worker, wire::Endpoint source) {
    return harness_.handle(source, 0, datagram_of(packet(worker, 1), kOnes)).reason;
  };
  EXPECT_EQ(from(0, endpoint_of(0)), Reason::kUnknown);
  EXPECT_EQ(from(0, endpoint_of(5)), Reason::kAdmitted);
  EXPECT_EQ(from(1, endpoint_of(1)), Reason::kUnknown);
  EXPECT_EQ(from(1, {.address = endpoint_of(1).address, .port = 1}), Reason::kAdmitted);
}

TEST_F(ConfigureTest, AnInvalidConfigurationIsRefusedAndChangesNothing) {
  const auto refused = [&](auto&& change) {
    JobEntry job = entry();
    Admission admission = everybody();
    change(job, admission);
    return harness_.plane.objection(job, admission) != nullptr && !harness_.plane.configure(job, admission);
  };
  EXPECT_TRUE(refused([](JobEntry&, Admission& a) { a.contributors[0] = 0b100; }));
  EXPECT_TRUE(refused([](JobEntry&, Admission& a) { a.contributors[1] = 0b1; }));
  EXPECT_TRUE(refused([](JobEntry&, Admission& a) { a.receivers = 0b100; }));
  EXPECT_TRUE(refused([](JobEntry& e, Admission&) { e.endpoints[1].port = 0; })) << "a receiver without a port";
  EXPECT_TRUE(refused([](JobEntry& e, Admission&) { e.endpoints[1].address = 0; }));
  EXPECT_TRUE(refused([](JobEntry& e, Admission&) { e.threads = 2, e.endpoints[1].port = 65535; }));
  EXPECT_TRUE(refused([](JobEntry& e, Admission&) { e.slots = 3; }));
  EXPECT_TRUE(refused([](JobEntry& e, Admission&) { e.key = 0; }));
  EXPECT_EQ(harness_.plane.find(kJob), nullptr);
  ASSERT_TRUE(harness_.plane.configure(entry(), everybody()));
  EXPECT_TRUE(refused([](JobEntry& e, Admission&) { e.slot_base = 8; })) << "an installed job keeps its lease";
  EXPECT_TRUE(refused([](JobEntry& e, Admission&) { e.threads = 2; }));
  EXPECT_TRUE(refused([](JobEntry& e, Admission&) { e.lanes = 8; })) << "a cell may hold half a sum of the old size";
  EXPECT_TRUE(refused([](JobEntry& e, Admission&) { e.job = 4; })) << "the lease is another's";
  EXPECT_EQ(harness_.plane.find(kJob)->slot_base, entry().slot_base);
}

TEST_F(ConfigureTest, AWorkerWithoutAPortIsNoReceiver) {
  JobEntry job = entry();
  job.endpoints[1] = {};
  Admission admission = everybody();
  admission.receivers = 0b01;
  ASSERT_TRUE(harness_.plane.configure(job, admission));
  EXPECT_EQ(harness_.plane.receivers(kJob), 0b01u);
  EXPECT_EQ(harness_.plane.receivers(kJob + 1), 0u);
}

TEST_F(ConfigureTest, ResetForgetsJobsAndRounds) {  // R3.30
  ASSERT_TRUE(harness_.plane.configure(entry(), everybody()));
  EXPECT_EQ(harness_.send(packet(0, 9), kOnes).verdict, Verdict::kHold);
  harness_.plane.reset();
  EXPECT_EQ(harness_.send(packet(0, 9), kOnes).reason, Reason::kUnknown);
  ASSERT_TRUE(harness_.plane.configure(entry(), everybody()));
  EXPECT_EQ(harness_.send(packet(0, 1), kOnes).verdict, Verdict::kHold);
}

TEST_F(ConfigureTest, AnotherPlaneContinuesWithTheCellsThatItTakesOver) {
  ASSERT_TRUE(harness_.plane.configure(entry(), everybody()));
  EXPECT_EQ(harness_.send(packet(0, 7), kOnes).verdict, Verdict::kHold);
  EXPECT_EQ(harness_.send(packet(0, 8, 1), kOnes).verdict, Verdict::kHold);
  SwitchHarness other(kSizes);
  other.plane.take_cells(harness_.plane, entry().slot_base, 1);
  ASSERT_TRUE(other.plane.configure(entry(), everybody()));
  const Decision complete = other.send(packet(1, 7), kOnes);
  ASSERT_EQ(complete.verdict, Verdict::kMulticast);
  EXPECT_EQ(other.result_words(complete), (Words{2, 2, 2, 2}));
  EXPECT_EQ(other.send(packet(1, 8, 1), kOnes).verdict, Verdict::kHold) << "not of the slots that it took";
}

}  // namespace
}  // namespace wiresum::dataplane
