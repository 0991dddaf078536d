// A switch with a parent. The vectors (vectors_test.cpp) cover the rest.
#include <gtest/gtest.h>

#include "dataplane.hpp"
#include "two_workers.hpp"

namespace wiresum::dataplane {
namespace {

using wire::Header;
using wire::Kind;

constexpr wire::Endpoint kParent{.address = 0x0A000101, .port = wire::kSwitchPort};
constexpr std::uint8_t kOwnNumber = 30;

class TreeTest : public testing::Test {
 protected:
  TreeTest() : harness_({.slots = 16, .lanes_max = 8, .jobs_max = 8}) {
    entry_ = job_entry(kJob, 2, kLanes, 8, 4);
    entry_.uplink = {.parent = kParent, .worker = kOwnNumber};
    EXPECT_TRUE(harness_.plane.admit(entry_));
  }

  static Header header(Kind kind, std::uint8_t worker, std::uint32_t round, std::uint8_t exponent = 0) {
    return {.kind = kind,
            .job = kJob,
            .key = 0xC0FFEE00u + kJob,
            .worker = worker,
            .exponent = exponent,
            .cell = wire::cell_of(0, round),
            .round = round,
            .tensor = 70,
            .chunk = 80};
  }

  Decision data(std::uint8_t worker, std::uint32_t round, const Words& words, std::uint8_t exponent = 0) {
    return harness_.send(header(Kind::kData, worker, round, exponent), words);
  }
  Decision of(Kind kind, std::uint8_t worker, std::uint32_t round, std::uint8_t exponent = 0) {
    return harness_.send(header(kind, worker, round, exponent));
  }
  Decision from_parent(const Header& header, const Words& words = {}) {
    return harness_.handle(kParent, 0, datagram_of(header, words));
  }
  Decision result(std::uint32_t round, const Words& words, std::uint8_t exponent = 0) {
    return from_parent(header(Kind::kResult, 5, round, exponent), words);
  }

  static void expect(const Decision& decision, Verdict verdict, Reason reason) {
    EXPECT_EQ(decision.verdict, verdict);
    EXPECT_EQ(decision.reason, reason);
  }
  static void expect_told(const Decision& decision, Verdict verdict, Reason reason, const Words& words,
                          std::uint8_t exponent) {
    expect(decision, verdict, reason);
    const Header sent = SwitchHarness::result_header(decision);
    EXPECT_EQ(sent.kind, Kind::kResult);
    EXPECT_EQ(sent.exponent, exponent);
    EXPECT_EQ(SwitchHarness::result_words(decision), words);
  }

  void gather(std::uint32_t round) {
    expect(data(0, round, {1, 2, 3, 4}, 7), Verdict::kHold, Reason::kAdmitted);
    expect(data(1, round, {10, 20, 30, 40}, 5), Verdict::kRaise, Reason::kAdmitted);
  }

  JobEntry entry_;
  SwitchHarness harness_;
};

TEST_F(TreeTest, TheSumGoesUpAndTheParentsResultComesDownToAllWorkers) {
  gather(1);
  expect_told(result(1, {100, 200, 300, 400}, 9), Verdict::kMulticast, Reason::kAdmitted, {100, 200, 300, 400}, 9);
  for (const std::uint8_t worker : {std::uint8_t{0}, std::uint8_t{1}}) {
    expect_told(data(worker, 1, {1, 2, 3, 4}, 7), Verdict::kResend, Reason::kResent, {100, 200, 300, 400}, 9);
    expect_told(of(Kind::kQuestion, worker, 1), Verdict::kResend, Reason::kResent, {100, 200, 300, 400}, 9);
  }
  EXPECT_EQ(harness_.plane.counters(kJob).results, 1u);
}

TEST_F(TreeTest, OnlyTheParentItselfIsAcceptedAsParent) {  // R8.8
  gather(1);
  const Header answer = header(Kind::kResult, 5, 1);
  const auto datagram = datagram_of(answer, {9, 9, 9, 9});
  for (const wire::Endpoint source :
       {endpoint_of(0), wire::Endpoint{kParent.address, 9000}, wire::Endpoint{kParent.address + 1, kParent.port}}) {
    expect(harness_.handle(source, 0, datagram), Verdict::kDrop, Reason::kMalformed);
  }
  expect(harness_.handle({kParent.address, kParent.port + 1}, 1, datagram), Verdict::kDrop, Reason::kMalformed);
  Header wrong_key = answer;
  wrong_key.key ^= 1;
  expect(from_parent(wrong_key, {9, 9, 9, 9}), Verdict::kDrop, Reason::kMalformed);
  Header wrong_job = answer;
  wrong_job.job = 700;
  expect(from_parent(wrong_job, {9, 9, 9, 9}), Verdict::kDrop, Reason::kMalformed);
  expect(from_parent(answer, {9, 9, 9}), Verdict::kDrop, Reason::kMalformed);
  expect(from_parent(header(Kind::kData, 0, 1), {9, 9, 9, 9}), Verdict::kDrop, Reason::kUnknown);
  EXPECT_TRUE(harness_.plane.evict(kJob));
  expect(from_parent(answer, {9, 9, 9, 9}), Verdict::kDrop, Reason::kMalformed);
}

TEST_F(TreeTest, ASwitchWithAParentHasOneWorkerFewer) {  // R8.3
  JobEntry entry = job_entry(4, 32, kLanes, 0, 4);
  EXPECT_EQ(harness_.plane.objection(entry), nullptr);
  entry.uplink = entry_.uplink;
  EXPECT_NE(harness_.plane.objection(entry), nullptr);
  entry.workers = 31;
  EXPECT_EQ(harness_.plane.objection(entry), nullptr);
  entry.uplink.worker = 32;
  EXPECT_NE(harness_.plane.objection(entry), nullptr);
  entry.uplink = {.parent = {.address = 0, .port = 1}};
  EXPECT_NE(harness_.plane.objection(entry), nullptr);
}

}  // namespace
}  // namespace wiresum::dataplane
