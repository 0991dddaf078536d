// Halting, positions, and repeats at another lease.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "rig.hpp"

namespace wiresum::worker {
namespace {

constexpr Lease kElsewhere{.job = 9, .key = 0xFEEDFACE, .worker = 4};
constexpr auto kNone = static_cast<std::uint8_t>(Role::kNone);
constexpr auto kBehind = static_cast<std::uint8_t>(Role::kBehind);
constexpr auto kAhead = static_cast<std::uint8_t>(Role::kAhead);
constexpr auto kRepeats = static_cast<std::uint8_t>(Role::kRepeats);

using Roles = std::vector<std::uint8_t>;

WorkerConfig one_slot() { return small_config(1); }

/// Halts the worker, and sends it elsewhere.
bool move(Rig& rig, const Roles& roles) {
  rig.worker().halt();
  return rig.worker().move(kElsewhere, roles);
}

/// The only packet that the worker sends now.
Sent only(Rig& rig) {
  std::vector<Sent> sent = rig.poll();
  EXPECT_EQ(sent.size(), 1U);
  return sent.empty() ? Sent{} : sent.front();
}

std::optional<Status> ended(Rig& rig) {
  const std::optional<Completion> completion = rig.worker().poll_completion();
  return completion.has_value() ? std::optional(completion->status) : std::nullopt;
}

TEST(Move, AHaltedWorkerNeitherSendsNorAccepts) {  // R9.1
  Rig rig(one_slot());
  Integers sum(iota(8));
  ASSERT_TRUE(rig.worker().submit(sum.work));
  const Sent first = only(rig);
  rig.worker().halt();
  EXPECT_EQ(rig.worker().position(0), first.header.round);
  rig.answer(first, {2, 4, 6, 8});
  EXPECT_EQ(rig.worker().position(0), first.header.round);
  EXPECT_EQ(sum.values, iota(8));
  EXPECT_TRUE(rig.poll_at(1'000 * kMillisecond).empty());
  EXPECT_EQ(rig.worker().next_timeout(), kNever);
}

TEST(Move, DeadlinesHoldWhileHalted) {  // R9.1
  Rig rig(one_slot());
  Integers sum(iota(4));
  sum.work.deadline = 50 * kMillisecond;
  ASSERT_TRUE(rig.worker().submit(sum.work));
  only(rig);
  rig.worker().halt();
  EXPECT_EQ(rig.worker().next_timeout(), 50 * kMillisecond);
  EXPECT_TRUE(rig.poll_at(50 * kMillisecond).empty());
  EXPECT_EQ(ended(rig), Status::kTimedOut);
  EXPECT_TRUE(rig.worker().move(kElsewhere, Roles{kNone})) << "it moves, and nothing comes of it";
  EXPECT_TRUE(rig.poll().empty());
}

TEST(Move, WhereNobodyHasTheResultTheRoundBeginsAnewAtTheOtherLease) {  // R9.3, R9.8, R9.11
  Rig rig(one_slot());
  Integers sum(iota(4));
  ASSERT_TRUE(rig.worker().submit(sum.work));
  const Sent before = only(rig);
  ASSERT_TRUE(move(rig, {kNone}));
  const Sent after = only(rig);
  wire::Header expected = before.header;
  expected.job = kElsewhere.job;
  expected.key = kElsewhere.key;
  expected.worker = kElsewhere.worker;
  EXPECT_EQ(after.header, expected);
  EXPECT_EQ(lanes_of(after), iota(4));
  rig.answer(before, {9, 9, 9, 9});
  EXPECT_EQ(rig.worker().stats().rejected, 1U) << "it has the old key";
  EXPECT_FALSE(ended(rig).has_value());
  rig.answer(after, {2, 4, 6, 8});
  EXPECT_EQ(ended(rig), Status::kOk);
  EXPECT_EQ(sum.values, (std::vector<std::int32_t>{2, 4, 6, 8}));
}

TEST(Move, WhoIsBehindSendsNothingAndTakesTheResult) {  // R9.4
  Rig rig(one_slot());
  Integers sum(iota(4));
  ASSERT_TRUE(rig.worker().submit(sum.work));
  const std::uint32_t round = only(rig).header.round;
  ASSERT_TRUE(move(rig, {kBehind}));
  const Sent repeat = only(rig);
  EXPECT_EQ(repeat.header.kind, wire::Kind::kEmpty);
  EXPECT_EQ(repeat.header.exponent, 0);
  EXPECT_EQ(repeat.header.round, round);
  rig.answer(repeat, {2, 4, 6, 8});
  EXPECT_EQ(ended(rig), Status::kOk);
  EXPECT_EQ(sum.values, (std::vector<std::int32_t>{2, 4, 6, 8}));
  EXPECT_EQ(rig.worker().position(0), round + 1);
}

TEST(Move, WhoRepeatsGivesTheResultAgainThoughTheCallerHasItsMemory) {  // R9.4, R9.6, R9.14
  Rig rig(one_slot());
  Floats sum({1.0F, 2.0F, 3.0F, 4.0F});
  ASSERT_TRUE(rig.worker().submit(sum.work));
  const Sent meta = only(rig);
  rig.answer(meta, {}, 130);
  const Sent data = only(rig);
  rig.answer(data, {5, 6, 7, 8}, 17);
  ASSERT_EQ(ended(rig), Status::kOk);
  std::ranges::fill(sum.values, 0.0F);
  ASSERT_TRUE(move(rig, {kRepeats}));
  EXPECT_LE(rig.worker().next_timeout(), rig.now);
  const Sent repeat = only(rig);
  wire::Header expected = data.header;
  expected.job = kElsewhere.job;
  expected.key = kElsewhere.key;
  expected.worker = kElsewhere.worker;
  expected.exponent = 17;
  EXPECT_EQ(repeat.header, expected);
  EXPECT_EQ(lanes_of(repeat), (std::vector<std::int32_t>{5, 6, 7, 8}));
  rig.answer(repeat, {5, 6, 7, 8});
  EXPECT_EQ(sum.values, std::vector<float>(4));
  EXPECT_EQ(rig.worker().position(0), data.header.round + 1);
  EXPECT_TRUE(rig.poll().empty());
  EXPECT_EQ(rig.worker().next_timeout(), kNever);
}

/// The RESULT of the first of two chunks, in memory that stays until the worker is halted.
std::vector<std::byte> result_that_stays(Rig& rig, Integers& sum) {
  EXPECT_TRUE(rig.worker().submit(sum.work));
  std::vector<std::byte> result = Rig::result(only(rig), {5, 6, 7, 8});
  rig.worker().handle_datagram(rig.now, result, false, true);
  return result;
}

TEST(Move, AResultThatStaysIsRepeatedFromWhereItIs) {
  Rig rig(one_slot());
  Integers sum(iota(8));
  std::vector<std::byte> result = result_that_stays(rig, sum);
  result.back() = std::byte{9};
  ASSERT_TRUE(move(rig, {kRepeats}));
  EXPECT_EQ(lanes_of(only(rig)), (std::vector<std::int32_t>{5, 6, 7, 9})) << "it was copied before it had to be";
}

TEST(Move, AResultThatStaysIsCopiedWhenTheWorkerIsHalted) {
  Rig rig(one_slot());
  Integers sum(iota(8));
  std::vector<std::byte> result = result_that_stays(rig, sum);
  rig.worker().halt();
  result.back() = std::byte{9};
  rig.worker().halt();
  ASSERT_TRUE(rig.worker().move(kElsewhere, Roles{kRepeats}));
  const Sent repeat = only(rig);
  EXPECT_EQ(lanes_of(repeat), (std::vector<std::int32_t>{5, 6, 7, 8}));
  rig.answer(repeat, {5, 6, 7, 9});
  EXPECT_EQ(ended(rig), Status::kDiverged);
}

TEST(Move, AMetaRoundIsRepeatedAsOne) {  // R9.5
  for (const std::uint8_t role : {kRepeats, kAhead}) {
    Rig rig(one_slot());
    Floats sum({1.0F, 2.0F, 3.0F, 4.0F});
    ASSERT_TRUE(rig.worker().submit(sum.work));
    rig.answer(only(rig), {}, 130);
    ASSERT_TRUE(move(rig, {role}));
    const Sent repeat = only(rig);
    EXPECT_EQ(repeat.header.kind, wire::Kind::kMeta);
    EXPECT_EQ(repeat.header.exponent, role == kRepeats ? 130 : 0);
    rig.answer(repeat, {}, 130);
    EXPECT_EQ(only(rig).header.kind, wire::Kind::kData);
  }
  Rig rig(one_slot());
  Floats sum({1.0F, 2.0F, 3.0F, 4.0F});
  ASSERT_TRUE(rig.worker().submit(sum.work));
  only(rig);
  ASSERT_TRUE(move(rig, {kBehind}));
  EXPECT_EQ(only(rig).header.kind, wire::Kind::kMeta);
}

TEST(Move, WhoIsAheadSendsNothingAndGoesOnWithItsNextChunk) {  // R9.4, R9.13
  Rig rig(one_slot());
  Integers sum(iota(8));
  ASSERT_TRUE(rig.worker().submit(sum.work));
  const Sent first = only(rig);
  rig.answer(first, {2, 4, 6, 8});
  const Sent second = only(rig);
  ASSERT_TRUE(move(rig, {kAhead}));
  const Sent repeat = only(rig);
  EXPECT_EQ(repeat.header.kind, wire::Kind::kEmpty);
  EXPECT_EQ(repeat.header.round, first.header.round);
  EXPECT_EQ(repeat.header.chunk, first.header.chunk);
  EXPECT_EQ(rig.worker().position(0), second.header.round);
  rig.answer(repeat, {2, 4, 6, 8});
  const Sent again = only(rig);
  EXPECT_EQ(again.header.round, second.header.round);
  EXPECT_EQ(lanes_of(again), lanes_of(second));
  rig.answer(again, {10, 12, 14, 16});
  EXPECT_EQ(ended(rig), Status::kOk);
  EXPECT_EQ(sum.values, (std::vector<std::int32_t>{2, 4, 6, 8, 10, 12, 14, 16}));
}

TEST(Move, ARepeatedResultThatIsAnotherEndsTheJob) {  // R9.7
  for (const std::uint8_t role : {kRepeats, kAhead}) {
    Rig rig(one_slot());
    Integers sum(iota(8));
    ASSERT_TRUE(rig.worker().submit(sum.work));
    rig.answer(only(rig), {2, 4, 6, 8});
    ASSERT_TRUE(move(rig, {role}));
    rig.answer(only(rig), {4, 8, 12, 16});
    EXPECT_EQ(ended(rig), Status::kDiverged);
  }
}

TEST(Move, ALostRepeatIsAskedAboutAndSentAgain) {
  Rig rig(one_slot());
  Integers sum(iota(4));
  ASSERT_TRUE(rig.worker().submit(sum.work));
  rig.answer(only(rig), {2, 4, 6, 8});
  ASSERT_TRUE(move(rig, {kRepeats}));
  const Sent repeat = only(rig);
  rig.now = rig.worker().next_timeout();
  const Sent question = only(rig);
  EXPECT_EQ(question.header.kind, wire::Kind::kQuestion);
  EXPECT_EQ(question.header.round, repeat.header.round);
  rig.miss(question);
  EXPECT_EQ(lanes_of(only(rig)), (std::vector<std::int32_t>{2, 4, 6, 8}));
}

TEST(Move, RepeatsComeBeforeAllElseInOrderOfTheSlots) {  // R9.9
  Rig rig;
  Integers first(iota(16));
  ASSERT_TRUE(rig.worker().submit(first.work));
  for (const Sent& sent : rig.poll()) rig.answer(sent, iota(4));
  Integers second(iota(16));
  ASSERT_TRUE(rig.worker().submit(second.work));
  ASSERT_EQ(rig.poll().size(), 4U);
  ASSERT_TRUE(move(rig, {kNone, kRepeats, kAhead, kRepeats}));
  std::vector<std::uint32_t> slots;
  for (std::vector<Sent> sent = rig.poll(); !sent.empty(); sent = rig.poll()) {
    for (const Sent& packet : sent) {
      slots.push_back(packet.slot);
      rig.answer(packet, iota(4));
    }
  }
  EXPECT_EQ(slots, (std::vector<std::uint32_t>{1, 2, 3, 0, 1, 2, 3}));
}

TEST(Move, ARepeatComesBeforeTheFirstPacketOfAnEarlierSlot) {  // R9.9
  Rig rig;
  Integers first(iota(16));
  ASSERT_TRUE(rig.worker().submit(first.work));
  for (const Sent& sent : rig.poll()) rig.answer(sent, iota(4));
  Floats second(std::vector<float>(16, 1.0F));
  ASSERT_TRUE(rig.worker().submit(second.work));
  ASSERT_EQ(rig.poll().size(), 4U);
  ASSERT_TRUE(move(rig, {kNone, kRepeats, kAhead, kRepeats}));
  std::vector<std::uint32_t> slots;
  for (const Sent& packet : rig.poll()) slots.push_back(packet.slot);
  EXPECT_EQ(slots, (std::vector<std::uint32_t>{1, 2, 3, 0}));
}

TEST(Move, WhatIsSubmittedDuringARepeatFollowsIt) {
  Rig rig(one_slot());
  Integers first(iota(4));
  ASSERT_TRUE(rig.worker().submit(first.work));
  rig.answer(only(rig), {2, 4, 6, 8});
  ASSERT_EQ(ended(rig), Status::kOk);
  ASSERT_TRUE(move(rig, {kAhead}));
  Integers second(iota(4));
  Integers third(iota(4));
  for (Integers* sum : {&second, &third}) ASSERT_TRUE(rig.worker().submit(sum->work));
  rig.answer(only(rig), {2, 4, 6, 8});
  for (int i = 0; i < 2; ++i) {
    rig.answer(only(rig), {3, 3, 3, 3});
    EXPECT_EQ(ended(rig), Status::kOk);
  }
  EXPECT_EQ(second.values, std::vector<std::int32_t>(4, 3));
  EXPECT_EQ(third.values, std::vector<std::int32_t>(4, 3));
}

TEST(Move, PositionsInASecondMoveAreWhatEachHas) {  // R9.12
  Rig rig(one_slot());
  Integers sum(iota(8));
  ASSERT_TRUE(rig.worker().submit(sum.work));
  const Sent first = only(rig);
  ASSERT_TRUE(move(rig, {kBehind}));
  only(rig);
  rig.worker().halt();
  EXPECT_EQ(rig.worker().position(0), first.header.round) << "it still lacks the RESULT";
  ASSERT_TRUE(rig.worker().move({.job = 1, .key = 2, .worker = 3}, Roles{kBehind}));
  const Sent repeat = only(rig);
  EXPECT_EQ(repeat.header.kind, wire::Kind::kEmpty);
  rig.answer(repeat, {2, 4, 6, 8});
  const Sent second = only(rig);
  ASSERT_TRUE(move(rig, {kRepeats}));
  EXPECT_EQ(lanes_of(only(rig)), (std::vector<std::int32_t>{2, 4, 6, 8})) << "of the repeat, as of any other round";
  rig.worker().halt();
  EXPECT_EQ(rig.worker().position(0), second.header.round) << "it has the RESULT that it repeats";
  ASSERT_TRUE(rig.worker().move({.job = 1, .key = 2, .worker = 3}, Roles{kNone}));
  EXPECT_EQ(only(rig).header.round, second.header.round);
}

TEST(Move, RolesThatCannotBeChangeNothing) {
  Rig rig(small_config(2));
  Integers sum(iota(4));
  ASSERT_TRUE(rig.worker().submit(sum.work));
  const Sent sent = only(rig);
  EXPECT_FALSE(rig.worker().move(kElsewhere, Roles{kNone, kNone})) << "it is not halted";
  rig.worker().halt();
  const std::vector<Roles> impossible{
      {}, {kNone}, {kNone, kNone, kNone}, {kRepeats, kNone}, {kAhead, kNone}, {kNone, kBehind}, {kBehind, 4}};
  for (const Roles& roles : impossible) EXPECT_FALSE(rig.worker().move(kElsewhere, roles));
  EXPECT_TRUE(rig.worker().is_halted());
  EXPECT_TRUE(rig.poll().empty());
  ASSERT_TRUE(rig.worker().move(kElsewhere, Roles{kBehind, kNone}));
  EXPECT_EQ(only(rig).header.round, sent.header.round);
}

TEST(Move, RoundTripsAreMeasuredAnewAndNotByThePacketsThatWaitForPeers) {  // R9.10
  Rig rig(one_slot());
  Integers sum(iota(16));
  ASSERT_TRUE(rig.worker().submit(sum.work));
  rig.echo(only(rig));
  const Sent second = only(rig);
  rig.now += 100'000;
  rig.echo(second);
  ASSERT_EQ(rig.worker().stats().rtt_smoothed_ns, 100'000U);
  only(rig);
  ASSERT_TRUE(move(rig, {kNone}));
  EXPECT_EQ(rig.worker().stats().rtt_smoothed_ns, 0U);
  const Sent again = only(rig);
  rig.now += 10 * kMillisecond;  // until all have moved
  rig.echo(again);
  EXPECT_EQ(rig.worker().stats().rtt_smoothed_ns, 0U);
  const Sent last = only(rig);
  rig.now += 40'000;
  rig.echo(last);
  EXPECT_EQ(rig.worker().stats().rtt_smoothed_ns, 40'000U);
}

TEST(Move, WindowAndTimersBeginAnew) {  // R9.10
  WorkerConfig config = small_config(8);
  config.window_initial = config.window_min = 2;
  Rig rig(config);
  Integers sum(iota(64));
  ASSERT_TRUE(rig.worker().submit(sum.work));
  for (int i = 0; i < 3; ++i) {
    for (const Sent& sent : rig.poll()) rig.echo(sent);
  }
  const WorkerStats before = rig.worker().stats();
  ASSERT_GT(before.window, 2U);
  ASSERT_LT(before.rto_ns, static_cast<std::uint64_t>(config.rto_initial));
  ASSERT_TRUE(move(rig, Roles(8, kNone)));
  EXPECT_EQ(rig.worker().stats().window, 2U);
  EXPECT_EQ(rig.worker().stats().rto_ns, static_cast<std::uint64_t>(config.rto_initial));
}

}  // namespace
}  // namespace wiresum::worker
