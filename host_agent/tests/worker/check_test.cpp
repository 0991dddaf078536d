// A worker sends check words, and takes no sum whose check word does not fit.
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <vector>

#include "numeric/check_word.hpp"
#include "rig.hpp"
#include "wire/bytes.hpp"

namespace wiresum::worker {
namespace {

constexpr TimeNs kAtOnce = 100;
constexpr std::uint32_t kSlotFirst = 16;

/// A packet has four elements. The slots are not the lease's first.
WorkerConfig checking(std::uint32_t slots = 1) {
  WorkerConfig config = small_config(slots);
  config.lanes = 5;
  config.slot_first = kSlotFirst;
  config.check_word = true;
  return config;
}

/// The check word that a packet of four elements must have.
std::int32_t check_word_of(const Sent& sent) {
  std::vector<std::byte> payload(sent.bytes.begin() + wire::kHeaderBytes, sent.bytes.end());
  numeric::write_check_word({.tensor = sent.header.tensor,
                             .chunk = sent.header.chunk,
                             .round = sent.header.round,
                             .slot = sent.header.cell / 2U},
                            payload.data(), 4);
  return static_cast<std::int32_t>(wire::bytes::load32(payload.data(), 4 * wire::kWordBytes));
}

class CheckWords : public ::testing::Test {
 protected:
  /// A sum of `chunks` packets, of which the first slot's are 1, 2, 3, ...
  void submit(std::size_t chunks = 1, std::uint32_t slots = 1) {
    rig.emplace(checking(slots));
    const WorkerConfig elements = small_config();
    job.emplace(iota(elements.lanes * chunks), elements);
    ASSERT_TRUE(rig->worker().submit(job->work));
  }
  Sent only() {
    std::vector<Sent> sent = rig->poll();
    EXPECT_EQ(sent.size(), 1U);
    return sent.empty() ? Sent{} : sent.front();
  }
  /// The RESULT for `sent` as if all others had sent zeros, with one bit of one word flipped.
  void answer_wrong(const Sent& sent, std::size_t word = 2) {
    std::vector<std::int32_t> lanes = lanes_of(sent);
    lanes[word] ^= 1;
    rig->answer(sent, lanes);
  }
  std::optional<Status> ended() {
    const std::optional<Completion> completion = rig->worker().poll_completion();
    return completion.has_value() ? std::optional(completion->status) : std::nullopt;
  }

  std::optional<Rig> rig;
  std::optional<Integers> job;
};

TEST_F(CheckWords, APacketHasOneBehindItsElementsAndItDependsOnTheRound) {  // R5.20
  submit(2);
  const Sent first = only();
  ASSERT_EQ(first.bytes.size(), wire::kHeaderBytes + 5 * wire::kWordBytes);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(first.lane(i), static_cast<std::int32_t>(i + 1));
  rig->echo(first);
  const Sent second = only();
  EXPECT_EQ(second.lane(0), 5) << "the check word takes no element's place";
  EXPECT_NE(first.lane(4), second.lane(4));
  rig->echo(second);
  EXPECT_EQ(ended(), Status::kOk);
  EXPECT_EQ(job->values, iota(8));
}

TEST_F(CheckWords, IsAboutWhatItsHeaderSays) {  // R5.22
  submit(6, 2);
  std::size_t packets = 0;
  for (std::vector<Sent> sent = rig->poll(); !sent.empty(); sent = rig->poll(), packets += 2) {
    ASSERT_EQ(sent.size(), 2U);
    for (const Sent& each : sent) {
      EXPECT_EQ(each.lane(4), check_word_of(each));
      rig->echo(each);
    }
  }
  EXPECT_EQ(packets, 6U);
}

TEST_F(CheckWords, AWrongSumIsNotStoredAndIsAskedForAgainAtOnce) {  // R5.24
  for (std::size_t word = 0; word < 5; ++word) {
    submit();
    const Sent sent = only();
    rig->now = kAtOnce;
    answer_wrong(sent, word);
    EXPECT_EQ(job->values, iota(4));
    EXPECT_EQ(rig->worker().position(0), sent.header.round) << "the RESULT has not come";
    EXPECT_LE(rig->worker().next_timeout(), kAtOnce);
    const Sent again = only();
    EXPECT_EQ(again.header.kind, wire::Kind::kData);
    EXPECT_EQ(lanes_of(again), lanes_of(sent));
    rig->echo(again);
    EXPECT_EQ(ended(), Status::kOk);
    EXPECT_EQ(rig->worker().stats().sums_wrong, 1U);
    EXPECT_EQ(rig->worker().stats().slot_wrong, 0U);
  }
}

TEST_F(CheckWords, ASumThatIsWrongTwiceEndsEverythingAndItsSlotIsKnown) {  // R5.25
  submit(3, 3);
  const std::vector<Sent> sent = rig->poll();
  ASSERT_EQ(sent.size(), 3U);
  answer_wrong(sent[2]);
  const Sent again = only();
  ASSERT_EQ(again.slot, sent[2].slot);
  answer_wrong(again);
  EXPECT_EQ(ended(), Status::kWrongSum);
  EXPECT_EQ(job->values, iota(12)) << "nothing is stored";
  EXPECT_EQ(rig->worker().stats().sums_wrong, 2U);
  EXPECT_EQ(rig->worker().stats().slot_wrong, sent[2].header.cell / 2U + 1) << "of the lease, not of this thread";
}

TEST_F(CheckWords, ACopyOfAWrongSumIsNoSecondOne) {
  submit();
  const Sent sent = only();
  answer_wrong(sent);
  answer_wrong(sent);
  EXPECT_EQ(ended(), std::nullopt);
  rig->echo(only());
  EXPECT_EQ(ended(), Status::kOk);
}

TEST_F(CheckWords, EachRoundOfASlotMayBeWrongOnce) {
  submit(5);
  for (int chunk = 0; chunk < 5; ++chunk) {
    answer_wrong(only());
    rig->echo(only());
  }
  EXPECT_EQ(ended(), Status::kOk);
  EXPECT_EQ(rig->worker().stats().sums_wrong, 5U);
}

TEST_F(CheckWords, ASumThatComesAgainMeasuresNoRoundTrip) {
  submit(2);
  rig->echo(only());  // the slot's first packet waits for peers, and measures nothing anyway
  const Sent sent = only();
  rig->now = kMillisecond;
  answer_wrong(sent);
  rig->now = 2 * kMillisecond;
  rig->echo(only());
  EXPECT_EQ(ended(), Status::kOk);
  EXPECT_EQ(rig->worker().stats().rtt_smoothed_ns, 0U);
}

TEST_F(CheckWords, IfThePacketThatIsSentAgainIsLostItsTimerRunsOn) {
  submit();
  answer_wrong(only());
  static_cast<void>(only());
  const TimeNs next = rig->worker().next_timeout();
  ASSERT_LT(next, kNever);
  const std::vector<Sent> later = rig->poll_at(next);
  ASSERT_EQ(later.size(), 1U);
  EXPECT_EQ(later[0].header.kind, wire::Kind::kQuestion);
  rig->miss(later[0]);
  EXPECT_EQ(only().header.kind, wire::Kind::kData) << "the switch has lost its cells: it needs the words";
}

TEST_F(CheckWords, SumsOfZerosFitAndBarriersHaveNone) {
  submit();
  std::vector<float> zeros(4, 0.0F);
  auto* const bytes = reinterpret_cast<std::byte*>(zeros.data());
  const Region region{.source = bytes, .destination = bytes, .elements = 4};
  Collective work = job->work;
  work.format = kFloat32;
  work.regions = {&region, 1};
  work.tensor = 2;
  ASSERT_TRUE(rig->worker().submit(work));
  work.regions = {};
  work.tensor = 3;
  ASSERT_TRUE(rig->worker().submit(work));
  rig->run();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ended(), Status::kOk);
  EXPECT_EQ(rig->worker().stats().sums_wrong, 0U);
}

TEST_F(CheckWords, WorkersThatReadAChunkByAnotherExponentHaveDiverged) {  // R5.23
  rig.emplace(checking());
  Floats sum({1.0F, 2.0F, 3.0F, 4.0F}, small_config());
  ASSERT_TRUE(rig->worker().submit(sum.work));
  const Sent meta = only();
  rig->answer(meta, {}, meta.header.exponent + 8);  // seemingly another worker's
  const Sent mine = only();
  EXPECT_NE(mine.header.tensor, meta.header.tensor);
  Sent theirs = mine;
  theirs.header.tensor = meta.header.tensor ^ std::uint32_t{meta.header.exponent} << 16;
  rig->answer(theirs, {0, 0, 0, 0, 0});
  EXPECT_EQ(ended(), Status::kDiverged);
}

TEST_F(CheckWords, WorkersThatReadAChunkAsAnotherPlaneHaveDiverged) {  // R5.23
  rig.emplace(checking());
  Floats sum({1.0F, 0x1p-40F, 0x1p60F, 4.0F}, small_config());
  sum.work.exact = true;
  ASSERT_TRUE(rig->worker().submit(sum.work));
  std::set<std::uint32_t> tensors;
  rig->echo(only());  // for the planes
  for (std::vector<Sent> sents = rig->poll(); !sents.empty(); sents = rig->poll()) {
    const Sent& sent = sents.front();
    EXPECT_TRUE(tensors.insert(sent.header.tensor).second) << "two planes of a chunk differ in their tensor";
    EXPECT_EQ((sent.header.tensor ^ sum.work.tensor) >> 24, 1U) << "no exponent is a plane";
    EXPECT_EQ(sent.lane(4), check_word_of(sent));
    rig->echo(sent);
  }
  EXPECT_GT(tensors.size(), 1U);
  EXPECT_EQ(ended(), Status::kOk);
}

TEST_F(CheckWords, WhatAResultSaysOfIntegersChangesNothing) {  // R5.23
  submit(2);
  const Sent first = only();
  rig->answer(first, lanes_of(first), 5);
  EXPECT_EQ(only().header.tensor, first.header.tensor);
}

TEST_F(CheckWords, NoExponentOfABeginningIsThatOfNumbersThatAreNotFinite) {  // R5.27
  rig.emplace(checking());
  Floats sum({1.0F, 2.0F, 3.0F, 4.0F}, small_config());
  ASSERT_TRUE(rig->worker().submit(sum.work));
  rig->answer(only(), {}, numeric::kExponentNotFinite);
  EXPECT_EQ(rig->worker().stats().rejected, 1U);
}

TEST_F(CheckWords, AtAnotherLeaseAWrongRepeatIsAskedForAgainToo) {  // R5.26
  submit(2);
  const Sent first = only();
  rig->echo(first);
  static_cast<void>(only());
  rig->worker().halt();
  const std::vector<std::uint8_t> ahead{static_cast<std::uint8_t>(Role::kAhead)};
  ASSERT_TRUE(rig->worker().move({.job = 9, .key = 0xFEEDFACE, .worker = 4}, ahead));
  const Sent repeat = only();
  ASSERT_EQ(repeat.header.kind, wire::Kind::kEmpty);
  std::vector<std::int32_t> lanes = lanes_of(first);
  ++lanes[1];
  rig->answer(repeat, lanes, first.header.exponent);
  const Sent again = only();
  EXPECT_EQ(again.header.round, repeat.header.round);
  --lanes[1];
  rig->answer(again, lanes, first.header.exponent);
  rig->echo(only());
  EXPECT_EQ(ended(), Status::kOk);
}

TEST_F(CheckWords, AWorkerThatLacksARepeatedSumChecksIt) {
  submit();
  const Sent sent = only();
  rig->worker().halt();
  const std::vector<std::uint8_t> behind{static_cast<std::uint8_t>(Role::kBehind)};
  ASSERT_TRUE(rig->worker().move({.job = 9, .key = 0xFEEDFACE, .worker = 4}, behind));
  const Sent repeat = only();
  std::vector<std::int32_t> lanes = lanes_of(sent);
  ++lanes[1];
  rig->answer(repeat, lanes);
  EXPECT_EQ(job->values, iota(4));
  rig->answer(only(), lanes_of(sent));
  EXPECT_EQ(ended(), Status::kOk);
}

TEST(CheckWordsOfOneWord, HaveNoRoom) {
  WorkerConfig config = small_config();
  config.lanes = 1;
  config.check_word = true;
  EXPECT_THROW(Worker worker(config), std::invalid_argument);
}

}  // namespace
}  // namespace wiresum::worker
