// A switch that has a parent: what goes up, and what becomes of the parent's answers.
#include <gtest/gtest.h>

#include "dataplane.hpp"
#include "switch_harness.hpp"

namespace wiresum::dataplane {
namespace {

using wire::Header;
using wire::Kind;

constexpr std::uint16_t kJob = 3;
constexpr std::uint16_t kLanes = 4;
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
  void expect_raised(const Decision& decision, Reason reason, Kind kind, const Words& words, std::uint8_t exponent) {
    expect(decision, Verdict::kRaise, reason);
    const Header sent = SwitchHarness::result_header(decision);
    EXPECT_EQ(sent.kind, kind);
    EXPECT_EQ(sent.worker, kOwnNumber);
    EXPECT_EQ(sent.exponent, exponent);
    EXPECT_EQ(sent.tensor, 70u);
    EXPECT_EQ(sent.chunk, 80u);
    EXPECT_EQ(SwitchHarness::result_words(decision), words);
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
    expect_raised(data(1, round, {10, 20, 30, 40}, 5), Reason::kAdmitted, Kind::kData, {11, 22, 33, 44}, 7);
  }

  JobEntry entry_;
  SwitchHarness harness_;
};

TEST_F(TreeTest, TheSumOfAllWorkersGoesUpAndTheParentsComesDownToAll) {
  gather(1);
  expect_told(result(1, {100, 200, 300, 400}, 9), Verdict::kMulticast, Reason::kAdmitted, {100, 200, 300, 400}, 9);
  for (const std::uint8_t worker : {std::uint8_t{0}, std::uint8_t{1}}) {
    expect_told(data(worker, 1, {1, 2, 3, 4}, 7), Verdict::kResend, Reason::kResent, {100, 200, 300, 400}, 9);
    expect_told(of(Kind::kQuestion, worker, 1), Verdict::kResend, Reason::kResent, {100, 200, 300, 400}, 9);
  }
  EXPECT_EQ(harness_.plane.counters(kJob).results, 1u);
}

TEST_F(TreeTest, WhoAsksWhileTheSumIsOnItsWayAsksTheParent) {
  gather(1);
  expect_raised(data(0, 1, {1, 2, 3, 4}, 7), Reason::kResent, Kind::kQuestion, {}, 0);
  expect_raised(of(Kind::kQuestion, 1, 1, 5), Reason::kResent, Kind::kQuestion, {}, 0);
  expect_raised(from_parent(header(Kind::kMissing, kOwnNumber, 1)), Reason::kResent, Kind::kData, {11, 22, 33, 44}, 7);
  expect_told(result(1, {9, 9, 9, 9}), Verdict::kMulticast, Reason::kAdmitted, {9, 9, 9, 9}, 7);
}

TEST_F(TreeTest, QuestionsInAnUngatheredCellStayHere) {
  expect(data(0, 1, {1, 2, 3, 4}), Verdict::kHold, Reason::kAdmitted);
  expect(of(Kind::kQuestion, 0, 1), Verdict::kDrop, Reason::kDuplicate);
  expect(data(0, 1, {1, 2, 3, 4}), Verdict::kDrop, Reason::kDuplicate);
  const Decision missing = of(Kind::kQuestion, 1, 1);
  expect(missing, Verdict::kResend, Reason::kResent);
  EXPECT_EQ(SwitchHarness::result_header(missing).kind, Kind::kMissing);
}

TEST_F(TreeTest, WhatTheParentSaysOfAnUngatheredCellIsStale) {
  expect(result(1, {9, 9, 9, 9}), Verdict::kDrop, Reason::kStale);
  expect(data(0, 1, {1, 2, 3, 4}), Verdict::kHold, Reason::kAdmitted);
  expect(result(1, {9, 9, 9, 9}), Verdict::kDrop, Reason::kStale);
  expect(from_parent(header(Kind::kMissing, kOwnNumber, 1)), Verdict::kDrop, Reason::kStale);
  expect_raised(data(1, 1, {1, 1, 1, 1}), Reason::kAdmitted, Kind::kData, {2, 3, 4, 5}, 0);
}

TEST_F(TreeTest, TheParentsLateAnswersChangeNothing) {
  gather(1);
  (void)result(1, {9, 9, 9, 9});
  expect(result(1, {8, 8, 8, 8}), Verdict::kDrop, Reason::kDuplicate);
  expect(from_parent(header(Kind::kMissing, kOwnNumber, 1)), Verdict::kDrop, Reason::kDuplicate);
  expect_told(of(Kind::kQuestion, 0, 1), Verdict::kResend, Reason::kResent, {9, 9, 9, 9}, 7);
  gather(3);
  expect(result(1, {8, 8, 8, 8}), Verdict::kDrop, Reason::kStale);
  expect(result(5, {8, 8, 8, 8}), Verdict::kDrop, Reason::kStale);
  expect_told(result(3, {7, 7, 7, 7}), Verdict::kMulticast, Reason::kAdmitted, {7, 7, 7, 7}, 7);
}

TEST_F(TreeTest, RoundsWithoutDataGoUpAsWhatTheyAreAndAgain) {
  expect(of(Kind::kMeta, 0, 1, 3), Verdict::kHold, Reason::kAdmitted);
  expect_raised(of(Kind::kMeta, 1, 1, 4), Reason::kAdmitted, Kind::kMeta, {}, 4);
  expect_raised(of(Kind::kMeta, 0, 1, 3), Reason::kResent, Kind::kMeta, {}, 4);
  expect_told(result(1, {}, 6), Verdict::kMulticast, Reason::kAdmitted, {}, 6);
  expect_told(of(Kind::kMeta, 1, 1, 4), Verdict::kResend, Reason::kResent, {}, 6);

  expect(of(Kind::kEmpty, 0, 2), Verdict::kHold, Reason::kAdmitted);
  expect_raised(of(Kind::kEmpty, 1, 2), Reason::kAdmitted, Kind::kEmpty, {}, 0);
  expect_raised(of(Kind::kEmpty, 1, 2), Reason::kResent, Kind::kEmpty, {}, 0);
  expect_told(result(2, {1, 0, 2, 0}), Verdict::kMulticast, Reason::kAdmitted, {1, 0, 2, 0}, 0);
  expect_told(of(Kind::kEmpty, 0, 2), Verdict::kResend, Reason::kResent, {1, 0, 2, 0}, 0);
}

TEST_F(TreeTest, AnEmptyContributionBesideDataAsksForBoth) {
  expect(data(0, 1, {1, 2, 3, 4}), Verdict::kHold, Reason::kAdmitted);
  expect_raised(of(Kind::kEmpty, 1, 1), Reason::kAdmitted, Kind::kData, {1, 2, 3, 4}, 0);
  expect_raised(of(Kind::kEmpty, 1, 1), Reason::kResent, Kind::kQuestion, {}, 0);
}

TEST_F(TreeTest, WorkersThatDivergedAreKnownAboveAndBelow) {
  (void)data(0, 1, {1, 2, 3, 4});
  Header other = header(Kind::kData, 1, 1);
  other.tensor = 71;
  EXPECT_EQ(SwitchHarness::result_header(harness_.send(other, {1, 1, 1, 1})).flags, wire::kFlagDiverged);

  gather(2);
  EXPECT_EQ(SwitchHarness::result_header(result(2, {1, 1, 1, 1})).flags, 0);
  gather(3);
  Header flagged = header(Kind::kResult, 5, 3);
  flagged.flags = wire::kFlagDiverged;
  EXPECT_EQ(SwitchHarness::result_header(from_parent(flagged, {1, 1, 1, 1})).flags, wire::kFlagDiverged);
  gather(4);
  Header foreign = header(Kind::kResult, 5, 4);
  foreign.tensor = 71;
  EXPECT_EQ(SwitchHarness::result_header(from_parent(foreign, {1, 1, 1, 1})).flags, wire::kFlagDiverged);
}

TEST_F(TreeTest, AWorkersFlagIsASwitchesOwn) {
  JobEntry root = job_entry(4, 2, kLanes, 12, 4);
  ASSERT_TRUE(harness_.plane.admit(root));
  Header from_switch = header(Kind::kData, 0, 1);
  from_switch.job = 4;
  from_switch.key = root.key;
  from_switch.flags = wire::kFlagDiverged;
  (void)harness_.send(from_switch, {1, 1, 1, 1});
  from_switch.flags = 0;
  from_switch.worker = 1;
  EXPECT_EQ(SwitchHarness::result_header(harness_.send(from_switch, {1, 1, 1, 1})).flags, wire::kFlagDiverged);
}

TEST_F(TreeTest, NobodyElseSpeaksForTheParent) {
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

TEST_F(TreeTest, ASwitchWithAParentHasAWorkerLess) {
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
