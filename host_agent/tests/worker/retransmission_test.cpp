#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "rig.hpp"

namespace wiresum::worker {
namespace {

/// A worker of 64 slots, whose timeout begins at 20 ms and is doubled to at most 200 ms.
class Timers : public ::testing::Test {
 protected:
  static WorkerConfig config(std::uint32_t slots = 64) {
    WorkerConfig config = small_config(slots);
    config.window_initial = 8;
    config.window_min = 4;
    config.rto_min = config.rto_initial = 20 * kMillisecond;
    return config;
  }
  void submit(std::size_t chunks) {
    job.emplace(std::vector<std::int32_t>(4 * chunks, 1), config());
    ASSERT_TRUE(rig.worker().submit(job->work));
  }
  /// Sends chunks 0 to 7, and delivers the RESULT of one of them, which overtakes those before it.
  std::vector<Sent> overtake(std::uint32_t chunk, TimeNs at) {
    submit(8);
    std::vector<Sent> sent = rig.poll_at(0);
    rig.now = at;
    rig.echo(sent.at(chunk));
    return sent;
  }
  /// Sends a chunk and, at its timeout, the question about it.
  Sent ask() {
    submit(1);
    rig.poll_at(0);
    return rig.poll_at(20 * kMillisecond).at(0);
  }

  Rig rig{config()};
  std::optional<Integers> job;
};

TEST_F(Timers, NothingIsRetransmittedBeforeTheTimeout) {  // R4.19
  submit(1);
  EXPECT_LE(rig.worker().next_timeout(), 0) << "there is something to send right now";
  ASSERT_EQ(rig.poll_at(0).size(), 1u);
  EXPECT_EQ(rig.worker().next_timeout(), 20 * kMillisecond);
  EXPECT_TRUE(rig.poll_at(20 * kMillisecond - 1).empty());
  EXPECT_EQ(rig.poll_at(20 * kMillisecond).size(), 1u);
}

TEST_F(Timers, ARetransmissionIsTheSameBytesWithItsFlag) {  // R4.22
  submit(1);
  auto first = rig.poll_at(0).at(0);
  rig.miss(rig.poll_at(20 * kMillisecond).at(0));
  auto again = rig.poll().at(0);
  EXPECT_EQ(again.header.flags, wire::kFlagRetransmission);
  again.bytes[1] = first.bytes[1];
  EXPECT_EQ(again.bytes, first.bytes);
  EXPECT_EQ(rig.worker().stats().retransmissions, 1u);
}

TEST_F(Timers, TheLongerTheSilenceTheLongerBetweenProbesUpToACapMinusARandomPart) {  // R4.18, R4.19
  submit(1);
  rig.poll_at(0);
  ASSERT_EQ(rig.worker().next_timeout(), 20 * kMillisecond);
  ASSERT_EQ(rig.poll_at(20 * kMillisecond).size(), 1u);
  bool varied = false;
  TimeNs at = rig.now;
  for (int i = 0; i < 16; ++i) {
    const TimeNs timeout = std::clamp(at / 2, 20 * kMillisecond, 200 * kMillisecond);
    const TimeNs next = rig.worker().next_timeout();
    EXPECT_GT(next - at, timeout / 4 * 3);
    EXPECT_LE(next - at, timeout);
    varied |= next - at != timeout;
    EXPECT_TRUE(rig.poll_at(next - 1).empty());
    EXPECT_EQ(rig.poll_at(next).size(), 1u);
    at = next;
  }
  EXPECT_GT(at, 1000 * kMillisecond) << "the cap was reached";
  EXPECT_TRUE(varied) << "senders that collide must not do so for ever";
}

TEST_F(Timers, WorkersDoNotProbeInStep) {  // R4.18
  WorkerConfig other = config();
  other.worker = 0;
  Rig peer(other);
  submit(1);
  Integers work(std::vector<std::int32_t>(4, 1));
  ASSERT_TRUE(peer.worker().submit(work.work));
  rig.poll_at(0);
  peer.poll_at(0);
  rig.poll_at(20 * kMillisecond);
  peer.poll_at(20 * kMillisecond);
  EXPECT_NE(rig.worker().next_timeout(), peer.worker().next_timeout());
}

TEST_F(Timers, APacketIsProbedForEver) {
  submit(1);
  rig.poll_at(0);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(rig.poll_at(rig.worker().next_timeout()).size(), 1u);
  rig.run();
  EXPECT_EQ(rig.worker().stats().results, 0u) << "nothing was delivered";
}

TEST_F(Timers, DuringSilenceOnlyTheFirstPacketIsProbed) {  // R4.16, R4.25
  submit(8);
  ASSERT_EQ(rig.poll_at(0).size(), 8u);
  for (int i = 0; i < 3; ++i) {
    const auto probes = rig.poll_at(rig.worker().next_timeout());
    ASSERT_EQ(probes.size(), 1u);
    EXPECT_EQ(probes[0].header.chunk, 0u);
  }
  EXPECT_EQ(rig.worker().stats().window, 8u) << "a late peer is no loss";
}

TEST_F(Timers, APacketOvertakenByALaterOneIsRetransmittedAtItsTimeout) {  // R4.15
  overtake(5, 10 * kMillisecond);
  const auto again = rig.poll_at(20 * kMillisecond);
  ASSERT_EQ(again.size(), 5u) << "slots 0 to 4 were sent before slot 5";
  for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(again[i].header.chunk, i);
  EXPECT_EQ(rig.worker().stats().window, 4u) << "halved once";
}

TEST_F(Timers, ALateResultOfAnOlderPacketDoesNotUndoTheOvertaking) {
  const auto sent = overtake(5, 10 * kMillisecond);
  rig.echo(sent[2]);
  std::set<std::uint32_t> again;
  for (const Sent& packet : rig.poll_at(20 * kMillisecond)) again.insert(packet.header.chunk);
  EXPECT_EQ(again, (std::set<std::uint32_t>{0, 1, 3, 4})) << "slot 5's was sent after these";
}

TEST_F(Timers, ASlotsNextPacketStartsWithTheInitialTimeout) {
  Rig slots(config(3));
  Integers work(std::vector<std::int32_t>(4 * 12, 1));
  ASSERT_TRUE(slots.worker().submit(work.work));
  const auto sent = slots.poll_at(0);
  ASSERT_EQ(sent.size(), 3u);
  slots.now = 1 * kMillisecond;
  slots.echo(sent[2]);
  const auto fifth = slots.poll();
  ASSERT_EQ(slots.poll_at(20 * kMillisecond).size(), 2u) << "slots 0 and 1 are overtaken";
  slots.echo(sent[1]);
  ASSERT_EQ(slots.poll().at(0).header.chunk, 4u);
  slots.now = 21 * kMillisecond;  // too late for an RTT sample
  slots.echo(fifth.at(0));
  const auto eighth = slots.poll();
  ASSERT_EQ(eighth.at(0).header.chunk, 8u);
  slots.poll_at(40 * kMillisecond);
  slots.now = 41 * kMillisecond;
  slots.echo(eighth[0]);
  std::vector<TimeNs> asked;  // questions about chunk 4, whose slot had a timeout before
  for (TimeNs at = slots.now; at <= 81 * kMillisecond; at = slots.worker().next_timeout()) {
    for (const Sent& packet : slots.poll_at(at)) {
      if (packet.header.chunk == 4) asked.push_back(at);
    }
  }
  EXPECT_EQ(asked, (std::vector<TimeNs>{41 * kMillisecond, 61 * kMillisecond}));
}

TEST_F(Timers, TheResultAfterASilenceGivesTheOthersOneMoreTimeout) {
  submit(8);
  const auto sent = rig.poll_at(0);
  rig.poll_at(20 * kMillisecond);
  rig.now = 1000 * kMillisecond;  // the peer comes a second late
  rig.complete(sent[0]);
  rig.complete(sent[2]);
  EXPECT_TRUE(rig.poll().empty());
  EXPECT_EQ(rig.worker().next_timeout(), 1020 * kMillisecond);
  const auto again = rig.poll_at(1020 * kMillisecond);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].header.chunk, 1u);
}

TEST_F(Timers, ARetransmissionIsRepeatedAfterTheTimeout) {
  overtake(7, 1 * kMillisecond);
  ASSERT_EQ(rig.poll_at(20 * kMillisecond).size(), 7u);
  std::set<std::uint32_t> again;
  for (TimeNs at = 20 * kMillisecond; (at = rig.worker().next_timeout()) <= 40 * kMillisecond;) {
    for (const Sent& packet : rig.poll_at(at)) again.insert(packet.slot);
  }
  EXPECT_EQ(again.size(), 7u);
}

TEST_F(Timers, DuringALongSilenceOnlyTheProbeIsRetransmittedThoughMoreIsKnownLost) {  // R4.25
  const auto sent = overtake(7, 1 * kMillisecond);
  std::vector<TimeNs> asked;  // about a packet that is not the probe
  for (TimeNs at = 0; (at = rig.worker().next_timeout()) < 81 * kMillisecond;) {
    for (const Sent& packet : rig.poll_at(at)) {
      if (packet.header.chunk == 6) asked.push_back(at / kMillisecond);
    }
  }
  EXPECT_EQ(asked, (std::vector<TimeNs>{20, 40, 80})) << "four timeouts are no silence yet";
  for (int i = 0; i < 20; ++i) {
    const auto probes = rig.poll_at(rig.worker().next_timeout());
    ASSERT_EQ(probes.size(), 1u);
    EXPECT_EQ(probes[0].header.chunk, 0u);
  }
  rig.echo(sent[0]);
  const TimeNs resumed = rig.now;
  EXPECT_EQ(rig.worker().next_timeout(), resumed + 20 * kMillisecond) << "the next in order becomes the probe";
}

TEST_F(Timers, AWorkerThatMissedItsTimersSendsOnlyTheProbe) {
  overtake(7, 1 * kMillisecond);
  const auto probes = rig.poll_at(200 * kMillisecond);
  ASSERT_EQ(probes.size(), 1u) << "for all it knows the network has been silent since";
  EXPECT_EQ(probes[0].header.chunk, 0u);
}

/// Three slots on a path whose round trip is 0.4 ms: much less than the RTO's floor of 20 ms. Chunks 0 to 11 are done,
/// chunks 12 to 14 in flight since `rig.now`.
class FastPath : public Timers {
 protected:
  static constexpr TimeNs kRoundTrip = 400'000;
  static constexpr TimeNs kSoon = kRoundTrip + kRoundTrip / 4;

  FastPath() {
    EXPECT_TRUE(slots.worker().submit(work.work));
    sent = slots.poll_at(0);
    // Further rounds make the estimate forget the first sample's variation.
    for (int i = 0; i < kRounds; ++i) next();
    EXPECT_EQ(slots.worker().stats().rtt_smoothed_ns, static_cast<std::uint64_t>(kRoundTrip));
    EXPECT_GT(slots.worker().stats().rto_ns, 20'000'000u);
  }
  void next() {
    slots.now += kRoundTrip;
    for (const Sent& packet : sent) slots.echo(packet);
    sent = slots.poll();
  }

  static constexpr int kRounds = 40;
  Rig slots{config(3)};
  Integers work{std::vector<std::int32_t>(4 * 3 * (kRounds + 2), 1)};
  std::vector<Sent> sent;
};

TEST_F(FastPath, AnOvertakenPacketIsAskedAboutSoonAfterARoundTrip) {  // R4.15, R4.17
  const TimeNs begun = slots.now;
  slots.now += kRoundTrip;
  slots.echo(sent.at(2));
  slots.poll();
  ASSERT_EQ(slots.worker().next_timeout(), begun + kSoon);
  const auto asked = slots.poll_at(begun + kSoon);
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0].header.kind, wire::Kind::kQuestion);
}

TEST_F(FastPath, WhatHasBeenAskedAboutIsAskedAboutAgainAfterATimeThatDoubles) {  // R4.17
  const TimeNs begun = slots.now;
  std::vector<TimeNs> asked;  // about the second packet, which is not the probe
  slots.now += kRoundTrip;
  slots.echo(sent.at(2));
  auto last = slots.poll().at(0);
  for (TimeNs at = slots.worker().next_timeout(); asked.size() < 4; at = slots.worker().next_timeout()) {
    for (const Sent& packet : slots.poll_at(at)) {
      if (packet.header.chunk == sent.at(1).header.chunk) asked.push_back(at - begun);
    }
    if (last.header.chunk != 0) slots.echo(last);  // no silence
    const auto more = slots.poll();
    if (!more.empty()) last = more.at(0);
  }
  EXPECT_EQ(asked[0], kSoon);
  for (std::size_t i = 1; i < asked.size(); ++i) {
    const double wait = static_cast<double>(asked[i] - asked[i - 1]) / kSoon;
    EXPECT_NEAR(wait, 1 << i, 0.05 * (1 << i));
  }
}

TEST_F(FastPath, TheProbeDoesNotWaitForTheFloorOfTheRto) {  // R4.18
  const TimeNs begun = slots.now;
  ASSERT_EQ(slots.worker().next_timeout(), begun + 2 * kSoon);
  ASSERT_EQ(slots.poll_at(begun + 2 * kSoon).size(), 1u) << "the first in order alone: nothing was overtaken";
  EXPECT_EQ(slots.worker().stats().window, 3u) << "it may be a peer that is late";
}

TEST_F(FastPath, AProbeThatIsLostCostsHalfTheSilenceMore) {  // R4.16, R4.18
  const TimeNs begun = slots.now;
  for (int i = 0; i < 5; ++i) slots.poll_at(slots.worker().next_timeout());
  const TimeNs silence = slots.now - begun;
  const TimeNs wait = slots.worker().next_timeout() - slots.now;
  EXPECT_LE(wait, std::max(2 * kSoon, silence / 2));
  EXPECT_GT(wait, std::max(2 * kSoon, silence / 2) * 3 / 4 - 1);
}

TEST_F(FastPath, APeerThatIsASecondLateIsAskedForAFewTimesOnly) {
  const TimeNs begun = slots.now;
  const std::uint64_t before = slots.worker().stats().questions;
  while (slots.worker().next_timeout() < begun + 1000 * kMillisecond) slots.poll_at(slots.worker().next_timeout());
  EXPECT_LE(slots.worker().stats().questions - before, 30u) << "though a second has 2,500 round trips";
}

TEST_F(FastPath, WhatWasSentBeforeAMissingPacketWasAskedAboutIsAskedAboutToo) {  // R4.15
  const auto probe = slots.poll_at(slots.worker().next_timeout());
  ASSERT_EQ(probe.size(), 1u);
  slots.now += kRoundTrip;
  slots.miss(probe[0]);
  const auto now = slots.poll();
  ASSERT_EQ(now.size(), 3u);
  for (const std::size_t behind : {1, 2}) {
    EXPECT_EQ(now[behind - 1].header.kind, wire::Kind::kQuestion);
    EXPECT_EQ(now[behind - 1].header.chunk, sent[behind].header.chunk);
  }
  EXPECT_EQ(now[2].header.kind, wire::Kind::kData);
  EXPECT_EQ(now[2].header.chunk, sent[0].header.chunk);
}

TEST_F(FastPath, WhatWasSentBeforeALostResultWasAskedAboutIsAskedAboutToo) {  // R4.15
  const auto probe = slots.poll_at(slots.worker().next_timeout());
  ASSERT_EQ(probe.size(), 1u);
  slots.now += kRoundTrip;
  slots.echo(probe[0]);
  std::set<std::uint32_t> asked;
  for (const Sent& packet : slots.poll()) {
    if (packet.header.kind == wire::Kind::kQuestion) asked.insert(packet.header.chunk);
  }
  EXPECT_EQ(asked, (std::set<std::uint32_t>{sent[1].header.chunk, sent[2].header.chunk}));
}

TEST_F(FastPath, AResultFromALongQueueSaysNothingOfOthers) {  // R4.15
  const auto probe = slots.poll_at(slots.worker().next_timeout());
  slots.now += 10 * kRoundTrip;
  slots.echo(probe.at(0));
  for (const Sent& packet : slots.poll()) EXPECT_NE(packet.header.chunk, sent[2].header.chunk) << "it is no probe";
}

TEST_F(FastPath, WhileResultsComeAnAnswerSaysNothingOfOthers) {
  const auto probe = slots.poll_at(slots.worker().next_timeout());
  slots.now += kRoundTrip;
  slots.echo(sent[1]);
  slots.poll();
  slots.echo(probe.at(0));
  for (const Sent& packet : slots.poll()) EXPECT_NE(packet.header.kind, wire::Kind::kQuestion) << "the third slot's";
}

TEST(FlightTest, WhatHasBeenAskedAboutFourTimesIsNotOnItsWay) {  // R4.8
  std::vector<Slot> slots(2);
  Flight flight(slots.data());
  for (std::uint8_t list = Flight::kFresh; list < 4; ++list) {
    flight.append(0, list);
    EXPECT_EQ(flight.on_the_way(), 1u);
    flight.remove(0);
  }
  flight.append(0, 4);
  EXPECT_EQ(flight.on_the_way(), 0u);
  flight.append(1, Flight::kFresh);
  EXPECT_EQ(flight.on_the_way(), 1u);
  flight.age(slots[1].sent_at + 1);
  EXPECT_EQ(flight.on_the_way(), 0u);
  flight.remove(1);
  flight.append(1, Flight::kMissing);
  EXPECT_EQ(flight.on_the_way(), 0u) << "it was too old before";
  EXPECT_EQ(flight.size(), 2u);
}

TEST_F(FastPath, AResultThatALatePeerCompletesSaysNothingOfOthers) {
  static_cast<void>(slots.poll_at(slots.worker().next_timeout()));
  slots.now += kRoundTrip;
  slots.complete(sent[0]);
  slots.poll();
  EXPECT_EQ(slots.poll_at(slots.worker().next_timeout()).size(), 1u) << "the probe";
}

TEST_F(FastPath, WhatWasSentBeforeItStillMeasuresTheRoundTrip) {
  const auto probe = slots.poll_at(slots.worker().next_timeout());
  slots.now += kRoundTrip;
  slots.miss(probe.at(0));
  slots.echo(sent[1]);
  EXPECT_GT(slots.worker().stats().rtt_smoothed_ns, static_cast<std::uint64_t>(kRoundTrip));
}

TEST_F(Timers, ABurstThatWasLostHalvesTheWindowOnce) {  // R4.10
  submit(8);
  rig.poll_at(0);
  rig.miss(rig.poll_at(20 * kMillisecond).at(0));
  EXPECT_EQ(rig.poll().size(), 8u);
  EXPECT_EQ(rig.worker().stats().window, 4u);
}

TEST_F(FastPath, WhatWasSentAfterTheQuestionAboutAMissingPacketIsNotAskedAbout) {  // R4.15
  slots.now += kRoundTrip;
  slots.echo(sent[0]);
  const auto probe = slots.poll_at(slots.worker().next_timeout());
  ASSERT_EQ(probe.size(), 1u);
  ASSERT_EQ(probe[0].header.kind, wire::Kind::kData) << "the next of the first slot";
  const auto question = slots.poll_at(slots.worker().next_timeout()).at(0);
  ASSERT_EQ(question.header.chunk, sent[1].header.chunk);
  slots.echo(sent[2]);
  const auto after = slots.poll().at(0);
  slots.miss(question);
  for (const Sent& packet : slots.poll_at(slots.now + 3 * kSoon)) EXPECT_NE(packet.header.chunk, after.header.chunk);
}

TEST_F(FastPath, ASilenceBeginsWithTheLastResult) {
  const TimeNs begun = slots.now;
  for (int i = 0; i < 12; ++i) slots.poll_at(slots.worker().next_timeout());
  ASSERT_GT(slots.now - begun, 30 * kSoon);
  slots.echo(sent.at(0));  // the second packet becomes the probe
  slots.poll();
  slots.poll_at(slots.worker().next_timeout());
  EXPECT_LE(slots.worker().next_timeout() - slots.now, 4 * kSoon);
}

TEST_F(FastPath, WhileNothingIsInFlightThereIsNoSilence) {  // R4.25
  while (slots.worker().in_flight() > 0) next();
  slots.now += 1000 * kMillisecond;
  Integers later{std::vector<std::int32_t>(4 * 3, 1)};
  ASSERT_TRUE(slots.worker().submit(later.work));
  sent = slots.poll();
  const TimeNs begun = slots.now;
  slots.now += kRoundTrip;
  slots.echo(sent.at(2));
  slots.poll();
  EXPECT_EQ(slots.worker().next_timeout(), begun + kSoon) << "as without the pause";
}

TEST_F(Timers, APacketCountsAsLostOnceForTheWindow) {
  WorkerConfig wide = config();
  wide.window_min = 1;
  Rig lossy(wide);
  Integers work(std::vector<std::int32_t>(4 * 8, 1));
  ASSERT_TRUE(lossy.worker().submit(work.work));
  const auto sent = lossy.poll_at(0);
  lossy.now = 1 * kMillisecond;
  lossy.echo(sent.at(1));
  for (int i = 0; i < 10; ++i) lossy.poll_at(lossy.worker().next_timeout());
  EXPECT_EQ(lossy.worker().stats().questions, 10u);
  EXPECT_EQ(lossy.worker().stats().window, 4u) << "asked about again and again, it is the same loss";
}

TEST_F(Timers, TheFirstPacketOfASlotGivesNoRttSample) {
  submit(128);
  const auto sent = rig.poll_at(0);
  rig.now = 7 * kMillisecond;
  rig.echo(sent[0]);
  EXPECT_EQ(rig.worker().stats().rtt_smoothed_ns, 0u) << "it would measure how late the peers are";
}

TEST_F(Timers, LaterPacketsGiveRttSamplesUnlessRetransmitted) {
  Rig single(config(1));
  Integers work(std::vector<std::int32_t>(16, 1));
  ASSERT_TRUE(single.worker().submit(work.work));
  single.echo(single.poll_at(0).at(0));
  auto sent = single.poll_at(0);
  const auto again = single.poll_at(20 * kMillisecond);
  ASSERT_EQ(again.size(), 1u);
  single.echo(sent.at(0));
  EXPECT_EQ(single.worker().stats().rtt_smoothed_ns, 0u) << "Karn's rule";
  sent = single.poll();
  single.now += 3 * kMillisecond;
  single.echo(sent.at(0));
  EXPECT_EQ(single.worker().stats().rtt_smoothed_ns, 3'000'000u);
  sent = single.poll();
  single.now += 4 * kMillisecond;
  single.echo(sent.at(0));
  EXPECT_GT(single.worker().stats().rtt_smoothed_ns, 3'000'000u);
  EXPECT_EQ(single.worker().stats().rtt_least_ns, 3'000'000u);
}

/// One slot, and so one packet in flight, on a path whose round trip was 0.4 ms and is now longer.
class SlowerPath : public Timers, public ::testing::WithParamInterface<TimeNs> {
 protected:
  static constexpr int kRounds = 300;

  SlowerPath() { EXPECT_TRUE(single.worker().submit(work.work)); }
  /// Does a round, and returns the number of questions before its RESULT.
  std::uint64_t round(TimeNs round_trip) {
    const std::uint64_t before = single.worker().stats().questions;
    const auto sent = single.poll().at(0);
    const TimeNs comes = single.now + round_trip;
    for (TimeNs at = single.worker().next_timeout(); at < comes; at = single.worker().next_timeout())
      single.poll_at(at);
    single.now = comes;
    single.echo(sent);
    return single.worker().stats().questions - before;
  }

  Rig single{config(1)};
  Integers work{std::vector<std::int32_t>(4 * kRounds, 1)};
};

TEST_P(SlowerPath, IsNotAskedAboutForEver) {  // R4.20
  for (int i = 0; i < 100; ++i) round(400'000);
  ASSERT_EQ(single.worker().stats().rtt_smoothed_ns, 400'000u);
  ASSERT_EQ(single.worker().stats().questions, 0u);
  std::uint64_t questions = 0;
  for (int i = 0; i < 20; ++i) questions += round(GetParam());
  EXPECT_GT(questions, 0u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(round(GetParam()), 0u);
}

class LossyPath : public SlowerPath {
 protected:
  /// One round, whose packet is lost.
  void lose() {
    ASSERT_EQ(single.poll().at(0).header.kind, wire::Kind::kData);
    ASSERT_EQ(single.worker().next_timeout() - single.now, 1'000'000);
    const auto question = single.poll_at(single.worker().next_timeout()).at(0);
    single.now += GetParam();
    single.miss(question);
    const auto again = single.poll().at(0);
    single.now += GetParam();
    single.echo(again);
  }
};

TEST_P(LossyPath, ALossThatTheSwitchConfirmsLengthensNoTimer) {  // R4.20
  for (int i = 0; i < 100; ++i) round(400'000);
  for (int lost = 0; lost < 10; ++lost) lose();
}

TEST_P(LossyPath, TheNextPacketsLateResultDoes) {
  for (int i = 0; i < 100; ++i) round(400'000);
  lose();
  ASSERT_GT(round(1'700'000), 0u);
  single.poll();
  EXPECT_EQ(single.worker().next_timeout() - single.now, 2'000'000) << "twice what it was";
}

INSTANTIATE_TEST_SUITE_P(ARoundTripAndLess, LossyPath, ::testing::Values(400'000, 300'000));

INSTANTIATE_TEST_SUITE_P(ThreeTimesToThreeHundredTimes, SlowerPath,
                         ::testing::Values(1'100'000, 1'400'000, 1'700'000, 2'400'000, 4'000'000, 12'000'000,
                                           30'000'000, 120'000'000));

TEST_F(Timers, APacketWithPayloadIsAskedAboutBeforeItIsSentAgain) {  // R4.23
  submit(1);
  const auto sent = rig.poll_at(0).at(0);
  const auto question = rig.poll_at(20 * kMillisecond).at(0);
  wire::Header expected = sent.header;
  expected.kind = wire::Kind::kQuestion;
  expected.flags = wire::kFlagRetransmission;
  EXPECT_EQ(question.header, expected);
  EXPECT_EQ(question.bytes.size(), wire::kHeaderBytes);
  EXPECT_EQ(rig.worker().stats().questions, 1u);
  EXPECT_EQ(rig.worker().stats().retransmissions, 0u);
}

TEST_F(Timers, AMissingPacketIsSentAtOnceAndAskedAboutAgainAfterTheTimeout) {  // R4.24
  const auto question = ask();
  rig.now = 25 * kMillisecond;
  rig.miss(question);
  EXPECT_LE(rig.worker().next_timeout(), rig.now);
  EXPECT_EQ(rig.poll().at(0).header.kind, wire::Kind::kData);
  EXPECT_TRUE(rig.poll_at(rig.worker().next_timeout() - 1).empty());
  EXPECT_EQ(rig.poll_at(rig.worker().next_timeout()).at(0).header.kind, wire::Kind::kQuestion);
  EXPECT_GT(rig.now, (25 + 15) * kMillisecond) << "at most a quarter earlier";
  EXPECT_EQ(rig.worker().stats().retransmissions, 1u);
  EXPECT_EQ(rig.worker().stats().questions, 2u);
}

TEST_F(Timers, AResultMayAnswerAQuestion) {
  rig.answer(ask(), {5, 6, 7, 8});
  EXPECT_EQ(job->values, (std::vector<std::int32_t>{5, 6, 7, 8}));
  EXPECT_TRUE(rig.worker().poll_completion().has_value());
}

TEST_F(Timers, ALateOrRepeatedAnswerCausesNoRetransmission) {  // R4.24, R4.28
  submit(1);
  const auto sent = rig.poll_at(0).at(0);
  rig.miss(sent);
  EXPECT_TRUE(rig.poll().empty()) << "this worker has not asked";
  const auto question = rig.poll_at(20 * kMillisecond).at(0);
  rig.miss(question);
  rig.miss(question);
  EXPECT_EQ(rig.poll().size(), 1u);
  rig.miss(question);
  EXPECT_TRUE(rig.poll().empty());
  rig.echo(sent);
  rig.miss(question);
  EXPECT_TRUE(rig.poll().empty());
  EXPECT_EQ(rig.worker().stats().duplicates, 3u);
}

TEST_F(Timers, AnAnswerToAnotherWorkerOrAboutAnotherTensorIsForeign) {  // R4.27
  const auto question = ask();
  auto other = question;
  other.header.worker = 0;
  rig.miss(other);
  other = question;
  other.header.tensor = 2;
  rig.miss(other);
  EXPECT_TRUE(rig.poll().empty());
  EXPECT_EQ(rig.worker().stats().rejected, 2u);
  EXPECT_FALSE(rig.worker().poll_completion().has_value());
}

TEST_F(Timers, APacketWithoutPayloadIsSentAgainInsteadOfAQuestion) {  // R4.23
  Integers barrier({}, config());
  barrier.work.regions = {};
  barrier.work.chunk_end = 1;
  ASSERT_TRUE(rig.worker().submit(barrier.work));
  ASSERT_EQ(rig.poll_at(0).at(0).header.kind, wire::Kind::kMeta);
  EXPECT_EQ(rig.poll_at(20 * kMillisecond).at(0).header.kind, wire::Kind::kMeta);
  EXPECT_EQ(rig.worker().stats().questions, 0u);
}

TEST_F(Timers, ThePacketAfterAQuestionInItsSlotIsSentAgainWithItsOwnKind) {
  Rig single(config(1));
  Integers data(std::vector<std::int32_t>(4, 1));
  Collective barrier;
  barrier.chunk_end = 1;
  ASSERT_TRUE(single.worker().submit(data.work));
  ASSERT_TRUE(single.worker().submit(barrier));
  const auto sent = single.poll_at(0).at(0);
  ASSERT_EQ(single.poll_at(20 * kMillisecond).at(0).header.kind, wire::Kind::kQuestion);
  single.echo(sent);
  const auto meta = single.poll();
  ASSERT_EQ(meta.at(0).header.kind, wire::Kind::kMeta);
  single.miss(meta[0]);
  EXPECT_TRUE(single.poll().empty()) << "this worker has not asked about it";
  EXPECT_EQ(single.poll_at(single.worker().next_timeout()).at(0).header.kind, wire::Kind::kMeta);
}

TEST_F(Timers, DuringSilenceMissingPacketsWaitForTheProbe) {
  overtake(7, 1 * kMillisecond);
  const auto questions = rig.poll_at(20 * kMillisecond);
  ASSERT_EQ(questions.size(), 7u);
  rig.now = 200 * kMillisecond;
  for (const Sent& question : questions) rig.miss(question);
  const auto again = rig.poll();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].header.chunk, 0u);
  rig.echo(again[0]);
  EXPECT_EQ(rig.poll().size(), 6u);
}

TEST_F(Timers, TimeThatGoesBackCountsAsStandingStill) {
  submit(1);
  rig.poll_at(10 * kMillisecond);
  EXPECT_TRUE(rig.poll_at(0).empty());
  EXPECT_EQ(rig.worker().next_timeout(), 30 * kMillisecond);
}

}  // namespace
}  // namespace wiresum::worker
