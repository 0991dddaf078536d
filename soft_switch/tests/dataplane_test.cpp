// Section 3 of docs/protocol.md, row by row: what becomes of a contribution to an admitted job.
#include "dataplane.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "switch_harness.hpp"

namespace wiresum::dataplane {
namespace {

using wire::Header;
using wire::Kind;

constexpr std::uint16_t kJob = 3;
constexpr std::uint16_t kLanes = 4;
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

  Decision data(std::uint8_t worker, std::uint32_t round, const Words& words, std::uint32_t slot = 0) {
    return harness_.send(header(Kind::kData, worker, round, slot), words);
  }
  Decision empty(std::uint8_t worker, std::uint32_t round) {
    return harness_.send(header(Kind::kEmpty, worker, round));
  }
  Decision meta(std::uint8_t worker, std::uint32_t round, std::uint8_t exponent = 0) {
    Header packet = header(Kind::kMeta, worker, round);
    packet.exponent = exponent;
    return harness_.send(packet);
  }

  void expect(const Decision& decision, Verdict verdict, Reason reason) const {
    EXPECT_EQ(decision.verdict, verdict);
    EXPECT_EQ(decision.reason, reason);
    if (reason != Reason::kUnknown && reason != Reason::kMalformed) {
      EXPECT_EQ(decision.job, kJob);
    }
  }
  void expect_result(const Decision& decision, const Words& words) const {
    expect(decision, Verdict::kMulticast, Reason::kAdmitted);
    EXPECT_EQ(written(decision).size(), wire::kHeaderBytes + words.size() * wire::kWordBytes);
    EXPECT_EQ(harness_.result_words(decision), words);
  }
  void expect_resent(const Decision& decision, const Words& words) const {
    expect(decision, Verdict::kResend, Reason::kResent);
    EXPECT_EQ(written(decision).size(), wire::kHeaderBytes + words.size() * wire::kWordBytes);
    EXPECT_EQ(harness_.result_words(decision), words);
  }
  std::uint64_t packets(Reason reason) const {
    return harness_.plane.counters(kJob).packets[static_cast<std::size_t>(reason)];
  }

  SwitchHarness harness_;
};

TEST_F(DataplaneTest, FirstContributionsAreHeldAndTheLastOneMulticastsTheSum) {
  admit(3);
  expect(data(0, 1, {1, 2, 3, 4}), Verdict::kHold, Reason::kAdmitted);
  expect(data(2, 1, {10, 20, 30, 40}), Verdict::kHold, Reason::kAdmitted);
  expect_result(data(1, 1, {100, 200, 300, 400}), {111, 222, 333, 444});
}

TEST_F(DataplaneTest, ResultEchoesTheCompletingPacket) {
  admit(2);
  Header first = header(Kind::kData, 0, 1, 2);
  first.exponent = 130;
  first.tensor = 71;
  ASSERT_EQ(harness_.send(first, {1, 1, 1, 1}).verdict, Verdict::kHold);
  Header completing = header(Kind::kData, 1, 1, 2);
  completing.exponent = 127;
  completing.flags = wire::kFlagRetransmission;
  completing.tensor = 71;
  completing.chunk = 81;
  const Decision decision = harness_.send(completing, {1, 1, 1, 1});
  Header expected = completing;
  expected.kind = Kind::kResult;
  expected.flags = 0;
  expected.exponent = 130;
  EXPECT_EQ(harness_.result_header(decision), expected);
  EXPECT_EQ(decision.worker, 1);
}

TEST_F(DataplaneTest, EveryoneLearnsThatContributionsNameDifferentTensors) {
  admit(2);
  Header first = header(Kind::kData, 0, 1, 2);
  Header other = header(Kind::kData, 1, 1, 2);
  other.tensor = first.tensor + 1;
  ASSERT_EQ(harness_.send(first, {1, 1, 1, 1}).verdict, Verdict::kHold);
  EXPECT_EQ(harness_.result_header(harness_.send(other, {1, 1, 1, 1})).flags, wire::kFlagDiverged);
  EXPECT_EQ(harness_.result_header(harness_.send(first, {1, 1, 1, 1})).flags, wire::kFlagDiverged);  // resent
  // The mark belongs to the round, not to the cell.
  ASSERT_EQ(data(0, 3, {1, 1, 1, 1}, 2).verdict, Verdict::kHold);
  EXPECT_EQ(harness_.result_header(data(1, 3, {1, 1, 1, 1}, 2)).flags, std::uint8_t{0});
}

TEST_F(DataplaneTest, DuplicateBeforeCompletionIsDroppedAndNotAddedTwice) {
  admit(2);
  ASSERT_EQ(data(0, 1, {1, 2, 3, 4}).verdict, Verdict::kHold);
  expect(data(0, 1, {1, 2, 3, 4}), Verdict::kDrop, Reason::kDuplicate);
  expect_result(data(1, 1, {5, 5, 5, 5}), {6, 7, 8, 9});
}

TEST_F(DataplaneTest, DuplicateAfterCompletionResendsTheSumToItsSender) {
  admit(2);
  ASSERT_EQ(data(0, 1, {1, 2, 3, 4}).verdict, Verdict::kHold);
  ASSERT_EQ(data(1, 1, {5, 5, 5, 5}).verdict, Verdict::kMulticast);
  for (const std::uint8_t worker : std::initializer_list<std::uint8_t>{0, 1, 0}) {
    const Decision decision = data(worker, 1, {1, 2, 3, 4});
    expect(decision, Verdict::kResend, Reason::kResent);
    EXPECT_EQ(decision.worker, worker);
    EXPECT_EQ(harness_.result_words(decision), (Words{6, 7, 8, 9}));
    EXPECT_EQ(harness_.result_header(decision).kind, Kind::kResult);
    EXPECT_EQ(harness_.result_header(decision).worker, worker);
  }
  EXPECT_EQ(harness_.plane.counters(kJob).results, 1u);
}

TEST_F(DataplaneTest, PreviousRoundIsStillResentWhileTheNextOneIsSummed) {
  admit(2);
  ASSERT_EQ(data(0, 1, {1, 1, 1, 1}).verdict, Verdict::kHold);
  ASSERT_EQ(data(1, 1, {2, 2, 2, 2}).verdict, Verdict::kMulticast);
  ASSERT_EQ(data(0, 2, {7, 7, 7, 7}).verdict, Verdict::kHold);
  const Decision again = data(1, 1, {2, 2, 2, 2});
  expect(again, Verdict::kResend, Reason::kResent);
  EXPECT_EQ(harness_.result_words(again), (Words{3, 3, 3, 3}));
  expect_result(data(1, 2, {1, 1, 1, 1}), {8, 8, 8, 8});
}

TEST_F(DataplaneTest, StaleRoundIsDroppedAndLeavesTheSumAlone) {
  admit(2);
  for (std::uint32_t round = 1; round <= 3; ++round) {
    ASSERT_EQ(data(0, round, {round, 0, 0, 0}).verdict, Verdict::kHold);
    if (round < 3) {
      ASSERT_EQ(data(1, round, {round, 0, 0, 0}).verdict, Verdict::kMulticast);
    }
  }
  expect(data(1, 1, {99, 99, 99, 99}), Verdict::kDrop, Reason::kStale);
  expect_result(data(1, 3, {3, 0, 0, 0}), {6, 0, 0, 0});
}

TEST_F(DataplaneTest, NewerRoundReplacesAnUnfinishedOne) {
  admit(2);
  ASSERT_EQ(data(0, 1, {50, 50, 50, 50}).verdict, Verdict::kHold);
  ASSERT_EQ(data(0, 3, {1, 1, 1, 1}).verdict, Verdict::kHold);
  expect(data(1, 1, {50, 50, 50, 50}), Verdict::kDrop, Reason::kStale);
  expect_result(data(1, 3, {2, 2, 2, 2}), {3, 3, 3, 3});
}

TEST_F(DataplaneTest, RoundBeyondTheNextIsStale) {
  admit(2);
  ASSERT_EQ(data(0, 1, {1, 1, 1, 1}).verdict, Verdict::kHold);
  for (const std::uint32_t round : {5u, 7u, 0x101u, 0x7FFFFFFFu, 0x80000001u, 0x80000003u, 0xFFFFFFFFu}) {
    expect(data(1, round, {9, 9, 9, 9}), Verdict::kDrop, Reason::kStale);
    expect(harness_.send(header(Kind::kQuestion, 1, round)), Verdict::kDrop, Reason::kStale);
  }
  expect_result(data(1, 1, {2, 2, 2, 2}), {3, 3, 3, 3});
}

TEST_F(DataplaneTest, FirstRoundOfACellMayBeAny) {
  admit(2);
  std::uint32_t slot = 0;
  for (const std::uint32_t round : {0u, 0x80000000u, 0x7FFFFFFFu, 0xFFFFFFFEu}) {
    ASSERT_EQ(data(0, round, {1, 1, 1, 1}, slot).verdict, Verdict::kHold);
    expect(data(0, round, {1, 1, 1, 1}, slot), Verdict::kDrop, Reason::kDuplicate);
    expect_result(data(1, round, {2, 2, 2, 2}, slot), {3, 3, 3, 3});
    ++slot;
  }
}

TEST_F(DataplaneTest, EmptyFirstMiddleOrLastAddsNothing) {
  for (std::uint8_t empty_worker = 0; empty_worker < 3; ++empty_worker) {
    SwitchHarness fresh({.slots = 16, .lanes_max = 8, .jobs_max = 8});
    ASSERT_TRUE(fresh.plane.admit(job_entry(kJob, 3, kLanes, kSlotBase, kSlots)));
    Decision decision;
    for (std::uint8_t worker = 0; worker < 3; ++worker) {
      decision = worker == empty_worker ? fresh.send(header(Kind::kEmpty, worker, 1))
                                        : fresh.send(header(Kind::kData, worker, 1), {1, 2, 3, 0xFFFFFFFF});
      EXPECT_EQ(decision.verdict, worker == 2 ? Verdict::kMulticast : Verdict::kHold);
    }
    EXPECT_EQ(fresh.result_words(decision), (Words{2, 4, 6, 0xFFFFFFFE})) << "EMPTY at place " << int{empty_worker};
  }
}

TEST_F(DataplaneTest, RoundOfEmptyAloneGivesZeros) {
  admit(2);
  ASSERT_EQ(data(0, 1, {9, 9, 9, 9}).verdict, Verdict::kHold);
  ASSERT_EQ(data(1, 1, {9, 9, 9, 9}).verdict, Verdict::kMulticast);
  ASSERT_EQ(empty(1, 3).verdict, Verdict::kHold);
  expect_result(empty(0, 3), {0, 0, 0, 0});
  const Decision again = empty(1, 3);
  expect(again, Verdict::kResend, Reason::kResent);
  EXPECT_EQ(harness_.result_words(again), (Words{0, 0, 0, 0}));
}

TEST_F(DataplaneTest, MetaRoundGivesTheLargestExponentAndNoPayload) {
  admit(3);
  ASSERT_EQ(meta(0, 1, 126).verdict, Verdict::kHold);
  ASSERT_EQ(meta(1, 1, 131).verdict, Verdict::kHold);
  const Decision decision = meta(2, 1, 90);
  expect_result(decision, {});
  EXPECT_EQ(harness_.result_header(decision).exponent, 131);
}

TEST_F(DataplaneTest, MetaRoundIsResentWithoutPayload) {
  admit(2);
  ASSERT_EQ(meta(0, 1, 7).verdict, Verdict::kHold);
  ASSERT_EQ(meta(1, 1, 5).verdict, Verdict::kMulticast);
  const Decision decision = meta(1, 1, 5);
  expect(decision, Verdict::kResend, Reason::kResent);
  EXPECT_EQ(written(decision).size(), wire::kHeaderBytes);
  EXPECT_EQ(harness_.result_header(decision).exponent, 7);
}

TEST_F(DataplaneTest, PacketThatTriggersTheResultDecidesAboutItsPayload) {
  admit(2);
  ASSERT_EQ(data(0, 1, {1, 2, 3, 4}).verdict, Verdict::kHold);
  expect_result(meta(1, 1), {});
  expect_resent(empty(1, 1), {1, 2, 3, 4});
  expect_resent(meta(0, 1), {});
  expect_resent(data(0, 1, {1, 2, 3, 4}), {1, 2, 3, 4});
}

TEST_F(DataplaneTest, RoundWithoutDataNeverShowsTheWordsOfAnotherRound) {
  admit(2);
  ASSERT_EQ(data(0, 1, {9, 9, 9, 9}).verdict, Verdict::kHold);
  ASSERT_EQ(data(1, 1, {9, 9, 9, 9}).verdict, Verdict::kMulticast);
  ASSERT_EQ(meta(0, 3).verdict, Verdict::kHold);
  expect_result(meta(1, 3), {});
  expect_resent(empty(0, 3), {0, 0, 0, 0});
}

TEST_F(DataplaneTest, FirstDataWritesItsWordsThoughItsSenderIsCounted) {
  admit(3);
  ASSERT_EQ(data(0, 1, {9, 9, 9, 9}).verdict, Verdict::kHold);  // of the round before in this cell
  ASSERT_EQ(empty(0, 3).verdict, Verdict::kHold);
  expect(data(0, 3, {1, 2, 3, 4}), Verdict::kDrop, Reason::kDuplicate);
  ASSERT_EQ(data(1, 3, {10, 20, 30, 40}).verdict, Verdict::kHold);
  expect(data(1, 3, {10, 20, 30, 40}), Verdict::kDrop, Reason::kDuplicate);
  expect_result(empty(2, 3), {11, 22, 33, 44});
}

TEST_F(DataplaneTest, LaterDataOfACountedWorkerIsReadOnly) {
  admit(3);
  ASSERT_EQ(empty(0, 1).verdict, Verdict::kHold);
  ASSERT_EQ(data(1, 1, {10, 20, 30, 40}).verdict, Verdict::kHold);
  expect(data(0, 1, {1, 2, 3, 4}), Verdict::kDrop, Reason::kDuplicate);
  expect_result(empty(2, 1), {10, 20, 30, 40});
  expect_resent(data(2, 1, {1, 2, 3, 4}), {10, 20, 30, 40});
}

TEST_F(DataplaneTest, FirstDataAfterCompletionWritesItsWords) {
  admit(1);
  expect_result(empty(0, 1), {0, 0, 0, 0});
  expect_resent(data(0, 1, {1, 2, 3, 4}), {1, 2, 3, 4});
  expect_resent(data(0, 1, {5, 6, 7, 8}), {1, 2, 3, 4});
}

TEST_F(DataplaneTest, MetaLeavesTheLanesOfAMixedRoundAlone) {
  admit(3);
  ASSERT_EQ(meta(0, 1).verdict, Verdict::kHold);
  ASSERT_EQ(data(1, 1, {1, 2, 3, 4}).verdict, Verdict::kHold);
  expect_result(empty(2, 1), {1, 2, 3, 4});
}

TEST_F(DataplaneTest, LaterMetaRoundDoesNotShowLanesOfTheDataRoundBefore) {
  admit(1);
  expect_result(data(0, 1, {1, 2, 3, 4}), {1, 2, 3, 4});
  expect_result(meta(0, 3), {});
  expect_result(empty(0, 5), {0, 0, 0, 0});
}

TEST_F(DataplaneTest, ExponentsZeroAnd255PassThrough) {
  admit(2);
  ASSERT_EQ(meta(0, 1, 0).verdict, Verdict::kHold);
  EXPECT_EQ(harness_.result_header(meta(1, 1, 0)).exponent, 0);
  ASSERT_EQ(meta(0, 2, 255).verdict, Verdict::kHold);
  EXPECT_EQ(harness_.result_header(meta(1, 2, 0)).exponent, 255);
}

TEST_F(DataplaneTest, ExponentOfADuplicateCountsAsInHardware) {
  admit(2);
  ASSERT_EQ(meta(0, 1, 3).verdict, Verdict::kHold);
  ASSERT_EQ(meta(0, 1, 9).reason, Reason::kDuplicate);
  EXPECT_EQ(harness_.result_header(meta(1, 1, 5)).exponent, 9);
}

TEST_F(DataplaneTest, NewerRoundForgetsTheExponentOfTheOldOne) {
  admit(1);
  EXPECT_EQ(harness_.result_header(meta(0, 1, 200)).exponent, 200);
  EXPECT_EQ(harness_.result_header(meta(0, 3, 17)).exponent, 17);
}

TEST_F(DataplaneTest, OneWorkerGetsItsOwnContributionBackAtOnce) {
  admit(1);
  expect_result(data(0, 1, {4, 3, 2, 1}), {4, 3, 2, 1});
  expect(data(0, 1, {4, 3, 2, 1}), Verdict::kResend, Reason::kResent);
  expect_result(data(0, 2, {8, 8, 8, 8}), {8, 8, 8, 8});
}

TEST_F(DataplaneTest, ThirtyTwoWorkersCompleteACell) {
  admit(32);
  for (std::uint8_t worker = 0; worker < 31; ++worker) {
    ASSERT_EQ(data(worker, 1, {1, worker, 0x10000000, 0xFFFFFFFF}).verdict, Verdict::kHold);
  }
  expect_result(data(31, 1, {1, 31, 0x10000000, 0xFFFFFFFF}), {32, 496, 0, 0xFFFFFFE0});
}

TEST_F(DataplaneTest, SumsWrap) {
  admit(2);
  ASSERT_EQ(data(0, 1, {0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 1}).verdict, Verdict::kHold);
  expect_result(data(1, 1, {1, 0x80000000, 1, 0xFFFFFFFE}), {0, 0, 0x80000000, 0xFFFFFFFF});
}

TEST_F(DataplaneTest, RoundNumbersWrapAround) {
  constexpr std::uint32_t kFirst = 0xFFFFFFFD;
  admit(2);
  for (std::uint32_t i = 0; i < 8; ++i) {
    const std::uint32_t round = kFirst + i;
    ASSERT_EQ(data(0, round, {i, 0, 0, 0}).verdict, Verdict::kHold);
    expect_result(data(1, round, {i, 0, 0, 0}), {2 * i, 0, 0, 0});
    if (i >= 2) expect(data(0, round - 2, {9, 9, 9, 9}), Verdict::kDrop, Reason::kStale);
  }
}

TEST_F(DataplaneTest, SlotsOfALeaseAreIndependent) {
  admit(2);
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    ASSERT_EQ(data(0, 1, {slot, slot, slot, slot}, slot).verdict, Verdict::kHold);
  }
  for (std::uint32_t slot = kSlots; slot-- > 0;) {
    expect_result(data(1, 1, {1, 1, 1, 1}, slot), {slot + 1, slot + 1, slot + 1, slot + 1});
  }
}

// Whatever a packet says, asking for its memory beforehand touches none that is not the switch's.
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
  expect_result(data(0, 1, {1, 2, 3, 4}), {1, 2, 3, 4});
}

TEST_F(DataplaneTest, CountersTellEachReasonAndEachWorker) {
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
  EXPECT_EQ(meta(0, 0xFFFFFFF1).reason, Reason::kStale);
  EXPECT_EQ(harness_.send(header(Kind::kMeta, 0, 1, kSlots)).reason, Reason::kOutOfLease);
  EXPECT_EQ(harness_.send(header(Kind::kData, 0, 1), {1}).reason, Reason::kMalformed);

  EXPECT_EQ(packets(Reason::kAdmitted), 2u);
  EXPECT_EQ(packets(Reason::kDuplicate), 1u);
  EXPECT_EQ(packets(Reason::kResent), 2u);
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

// The signature above a collective's number says nothing about the order.
TEST_F(DataplaneTest, TheLatestCollectiveOfAWorkerIsTheOneWithTheLatestNumber) {
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

// Two honest workers over a network that duplicates and delays without limit: no result may ever differ from the sum.
TEST_F(DataplaneTest, RandomDuplicatesAndReorderingNeverChangeASum) {
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

TEST_F(DataplaneTest, AQuestionAboutWhatIsNotInIsAnsweredToItsSenderWithAHeader) {
  admit(2);
  ASSERT_EQ(data(1, 1, {1, 1, 1, 1}).verdict, Verdict::kHold);
  Header question = header(Kind::kQuestion, 0, 1);
  question.flags = wire::kFlagRetransmission;
  question.exponent = 130;
  const Decision decision = harness_.send(question);
  expect(decision, Verdict::kResend, Reason::kResent);
  EXPECT_EQ(written(decision).size(), wire::kHeaderBytes);
  EXPECT_EQ(decision.worker, 0);
  Header missing = question;
  missing.kind = Kind::kMissing;
  missing.flags = missing.exponent = 0;
  EXPECT_EQ(harness_.result_header(decision), missing);
}

TEST_F(DataplaneTest, AQuestionChangesNothing) {
  admit(2);
  Header question = header(Kind::kQuestion, 0, 1);
  question.exponent = 200;
  question.tensor = 71;
  expect(harness_.send(question), Verdict::kResend, Reason::kResent);  // the round has not begun, and does not now
  ASSERT_EQ(data(0, 1, {1, 2, 3, 4}).verdict, Verdict::kHold);
  expect(harness_.send(question), Verdict::kDrop, Reason::kDuplicate);  // it is in, and somebody else's is not
  question.worker = 1;
  expect(harness_.send(question), Verdict::kResend, Reason::kResent);
  expect_result(data(1, 1, {10, 20, 30, 40}), {11, 22, 33, 44});
  const Decision again = data(1, 1, {10, 20, 30, 40});
  EXPECT_EQ(harness_.result_header(again).exponent, 0);
  EXPECT_EQ(harness_.result_header(again).flags, 0);
  EXPECT_EQ(harness_.plane.counters(kJob).contributions[0], 1u);
  EXPECT_EQ(harness_.plane.counters(kJob).tensor_last[1], 70u);
}

TEST_F(DataplaneTest, AQuestionAboutACompleteCellGetsItsResult) {
  admit(2);
  Header first = header(Kind::kData, 0, 1);
  first.exponent = 140;
  ASSERT_EQ(harness_.send(first, {1, 2, 3, 4}).verdict, Verdict::kHold);
  ASSERT_EQ(data(1, 1, {10, 20, 30, 40}).verdict, Verdict::kMulticast);
  const Decision decision = harness_.send(header(Kind::kQuestion, 1, 1));
  expect_resent(decision, {11, 22, 33, 44});
  EXPECT_EQ(harness_.result_header(decision).exponent, 140);
  EXPECT_EQ(harness_.result_header(decision).kind, Kind::kResult);
}

TEST_F(DataplaneTest, AQuestionAboutARoundOfZerosGetsZeros) {
  admit(1);
  ASSERT_EQ(data(0, 1, {9, 9, 9, 9}).verdict, Verdict::kMulticast);
  ASSERT_EQ(empty(0, 3).verdict, Verdict::kMulticast);
  expect_resent(harness_.send(header(Kind::kQuestion, 0, 3)), {0, 0, 0, 0});
  expect(harness_.send(header(Kind::kQuestion, 0, 1)), Verdict::kDrop, Reason::kStale);
}

TEST_F(DataplaneTest, AQuestionAboutANewRoundLeavesTheOldResultToWhoeverLostIt) {
  admit(2);
  ASSERT_EQ(data(0, 1, {1, 2, 3, 4}).verdict, Verdict::kHold);
  ASSERT_EQ(data(1, 1, {10, 20, 30, 40}).verdict, Verdict::kMulticast);
  expect(harness_.send(header(Kind::kQuestion, 0, 3)), Verdict::kResend, Reason::kResent);
  expect_resent(data(1, 1, {10, 20, 30, 40}), {11, 22, 33, 44});
}

TEST_F(DataplaneTest, OnlyTheSwitchSaysMissing) {
  admit(1);
  expect(harness_.send(header(Kind::kMissing, 0, 1)), Verdict::kDrop, Reason::kMalformed);
}

}  // namespace
}  // namespace wiresum::dataplane
