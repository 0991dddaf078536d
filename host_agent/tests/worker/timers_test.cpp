#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "rig.hpp"

namespace wiresum::worker {
namespace {

/// 64 slots of a worker with fixed timeouts: 20 ms, doubled to at most 200 ms.
class Timers : public ::testing::Test {
 protected:
  static WorkerConfig config() {
    WorkerConfig config = small_config();
    config.slots = 64;
    config.window_initial = 8;
    config.window_min = 4;
    config.rto_min = config.rto_initial = 20 * kMillisecond;
    return config;
  }
  void submit(std::size_t chunks) {
    job.emplace(std::vector<std::int32_t>(4 * chunks, 1), config());
    ASSERT_TRUE(rig.worker().submit(job->work));
  }

  Rig rig{config()};
  std::optional<Integers> job;
};

TEST_F(Timers, NothingIsRetransmittedBeforeTheTimeout) {
  submit(1);
  EXPECT_LE(rig.worker().next_timeout(), 0) << "there is something to send right now";
  ASSERT_EQ(rig.poll_at(0).size(), 1u);
  EXPECT_EQ(rig.worker().next_timeout(), 20 * kMillisecond);
  EXPECT_TRUE(rig.poll_at(20 * kMillisecond - 1).empty());
  EXPECT_EQ(rig.poll_at(20 * kMillisecond).size(), 1u);
}

TEST_F(Timers, ARetransmissionIsTheSameBytesWithItsFlag) {
  submit(1);
  auto first = rig.poll_at(0).at(0);
  // What the caller does to its memory meanwhile must not change what goes out.
  job->values[0] = 12345;
  auto again = rig.poll_at(20 * kMillisecond).at(0);
  EXPECT_EQ(again.header.flags, wire::kFlagRetransmission);
  again.bytes[1] = first.bytes[1];
  EXPECT_EQ(again.bytes, first.bytes);
  EXPECT_EQ(rig.worker().stats().retransmissions, 1u);
}

TEST_F(Timers, AProbesTimeoutDoublesUpToItsCapLessARandomPart) {
  submit(1);
  rig.poll_at(0);
  ASSERT_EQ(rig.worker().next_timeout(), 20 * kMillisecond);
  ASSERT_EQ(rig.poll_at(20 * kMillisecond).size(), 1u);
  bool varied = false;
  TimeNs at = rig.now;
  for (const TimeNs timeout_ms : {40, 80, 160, 200, 200, 200}) {
    const TimeNs timeout = timeout_ms * kMillisecond;
    const TimeNs next = rig.worker().next_timeout();
    EXPECT_GT(next - at, timeout / 4 * 3);
    EXPECT_LE(next - at, timeout);
    varied |= next - at != timeout;
    EXPECT_TRUE(rig.poll_at(next - 1).empty());
    EXPECT_EQ(rig.poll_at(next).size(), 1u);
    at = next;
  }
  EXPECT_TRUE(varied) << "senders that collide must not do so for ever";
}

TEST_F(Timers, WorkersDoNotProbeInStep) {
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

TEST_F(Timers, BackoffGoesOnForEverWithoutLosingThePacket) {
  submit(1);
  rig.poll_at(0);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(rig.poll_at(rig.worker().next_timeout()).size(), 1u);
  rig.run();
  EXPECT_EQ(rig.worker().stats().results, 0u) << "nothing was delivered";
}

TEST_F(Timers, WhileAllIsSilentOnlyTheFirstIsProbed) {
  submit(8);
  ASSERT_EQ(rig.poll_at(0).size(), 8u);
  for (int i = 0; i < 3; ++i) {
    const auto probes = rig.poll_at(rig.worker().next_timeout());
    ASSERT_EQ(probes.size(), 1u);
    EXPECT_EQ(probes[0].header.chunk, 0u);
  }
  EXPECT_EQ(rig.worker().stats().window, 8u) << "a late peer is no loss";
}

TEST_F(Timers, APacketOvertakenByALaterOneIsRetransmittedAtItsTimeout) {
  submit(8);
  const auto sent = rig.poll_at(0);
  rig.now = 10 * kMillisecond;
  rig.echo(sent[5]);
  const auto again = rig.poll_at(20 * kMillisecond);
  ASSERT_EQ(again.size(), 5u) << "slots 0 to 4 were sent before slot 5";
  for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(again[i].header.chunk, i);
  EXPECT_EQ(rig.worker().stats().window, 4u) << "halved once";
}

TEST_F(Timers, TheResultThatEndsASilenceGivesTheOthersOneMoreTimeout) {
  submit(8);
  const auto sent = rig.poll_at(0);
  rig.poll_at(20 * kMillisecond);
  rig.now = 1000 * kMillisecond;  // the peer comes a second late
  rig.echo(sent[0]);
  rig.echo(sent[2]);
  EXPECT_TRUE(rig.poll().empty());
  EXPECT_EQ(rig.worker().next_timeout(), 1020 * kMillisecond);
  const auto again = rig.poll_at(1020 * kMillisecond);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].header.chunk, 1u);
}

TEST_F(Timers, WhatWasRetransmittedIsRetransmittedAgainAfterTwiceTheTimeout) {
  submit(8);
  const auto sent = rig.poll_at(0);
  rig.now = 1 * kMillisecond;
  rig.echo(sent[7]);
  ASSERT_EQ(rig.poll_at(20 * kMillisecond).size(), 7u);
  std::set<std::uint32_t> again;
  for (TimeNs at = 20 * kMillisecond; (at = rig.worker().next_timeout()) <= 60 * kMillisecond;) {
    for (const Sent& packet : rig.poll_at(at)) again.insert(packet.frame);
  }
  EXPECT_EQ(again.size(), 7u);
}

TEST_F(Timers, InALongSilenceOnlyTheProbeIsRetransmittedThoughMuchIsKnownLost) {
  submit(8);
  const auto sent = rig.poll_at(0);
  rig.now = 1 * kMillisecond;
  rig.echo(sent[7]);
  while (rig.worker().next_timeout() < 81 * kMillisecond) rig.poll_at(rig.worker().next_timeout());
  for (int i = 0; i < 20; ++i) {
    const auto probes = rig.poll_at(rig.worker().next_timeout());
    ASSERT_EQ(probes.size(), 1u);
    EXPECT_EQ(probes[0].header.chunk, 0u);
  }
  rig.echo(sent[0]);
  const TimeNs resumed = rig.now;
  EXPECT_EQ(rig.worker().next_timeout(), resumed + 20 * kMillisecond) << "the next in order becomes the probe";
}

TEST_F(Timers, TheFirstPacketOfASlotGivesNoSample) {
  submit(128);
  const auto sent = rig.poll_at(0);
  rig.now = 7 * kMillisecond;
  rig.echo(sent[0]);
  EXPECT_EQ(rig.worker().stats().rtt_smoothed_ns, 0u) << "it measures how late the peers are";
}

TEST_F(Timers, LaterPacketsGiveSamplesUnlessRetransmitted) {
  WorkerConfig one = config();
  one.slots = 1;
  Rig single(one);
  Integers work(std::vector<std::int32_t>(16, 1), one);
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
}

/// A worker with a stream of all chunks, whose first slot is in its second round, has been overtaken there by the other
/// slots, and whose round trip is 4 ms.
struct Overtaken {
  static constexpr std::uint32_t kChunks = 16;
  static constexpr TimeNs kSentAt = 4 * kMillisecond;
  static constexpr TimeNs kRoundTrip = 4 * kMillisecond;

  explicit Overtaken(std::uint8_t index = 1, std::vector<std::uint32_t> numbers = all_chunks())
      : rig(for_worker(index)),
        job(std::vector<std::int32_t>(4 * kChunks, 1), for_worker(index)),
        chunks(std::move(numbers)) {
    job.work.chunks = chunks;
    EXPECT_TRUE(rig.worker().submit(job.work));
    first = rig.poll_at(0);
    rig.now = kSentAt;
    for (const Sent& packet : first) rig.echo(packet);
    second = rig.poll();
    rig.now = kSentAt + kRoundTrip;
    for (std::size_t i = 1; i < second.size(); ++i) rig.echo(second[i]);
    rig.poll();
  }
  static WorkerConfig for_worker(std::uint8_t index) {
    WorkerConfig config = small_config();
    config.rto_min = config.rto_initial = 20 * kMillisecond;
    config.workers = 8;
    config.worker = index;
    return config;
  }
  /// The next packet for the first slot, and when it goes out.
  Sent next() {
    for (int i = 0; i < 100; ++i) {
      for (Sent& packet : rig.poll_at(rig.worker().next_timeout())) {
        if (packet.header.cell / 2 == 0) return packet;
      }
    }
    ADD_FAILURE() << "nothing goes out for the first slot";
    return {};
  }

  static std::vector<std::uint32_t> all_chunks() {
    std::vector<std::uint32_t> numbers(kChunks);
    std::iota(numbers.begin(), numbers.end(), 0U);
    return numbers;
  }

  Rig rig;
  Integers job;
  std::vector<std::uint32_t> chunks;
  std::vector<Sent> first, second;
};

TEST(TimersOfThePacketThatOthersHaveOvertaken, AQuestionAboutTheRoundBeforeGoesOutFirstAndChangesNothingAtTheSwitch) {
  Overtaken worker;
  const Sent question = worker.next();
  EXPECT_EQ(question.header.kind, wire::Kind::kMeta);
  EXPECT_EQ(question.bytes.size(), wire::kHeaderBytes);
  EXPECT_EQ(question.header.round, worker.first[0].header.round) << "whose RESULT is here, so that it is a duplicate";
  EXPECT_EQ(question.header.cell, worker.first[0].header.cell);
  EXPECT_EQ(question.header.tensor, worker.first[0].header.tensor);
  EXPECT_EQ(question.header.chunk, worker.first[0].header.chunk);
  EXPECT_EQ(question.header.exponent, worker.first[0].header.exponent);
  EXPECT_EQ(worker.rig.worker().stats().questions, 1u);
}

TEST(TimersOfThePacketThatOthersHaveOvertaken, WithoutAnAnswerThePacketIsSentAgainAtOnce) {
  Overtaken worker;
  worker.next();
  const TimeNs asked = worker.rig.now;
  const Sent again = worker.next();
  EXPECT_EQ(again.header.round, worker.second[0].header.round);
  EXPECT_EQ(again.header.flags, wire::kFlagRetransmission);
  EXPECT_EQ(worker.rig.now - asked, 2 * Overtaken::kRoundTrip);
}

TEST(TimersOfThePacketThatOthersHaveOvertaken, AfterAnAnswerTheWorkersSendAgainOneAfterTheOther) {
  std::set<TimeNs> waits;
  for (std::uint8_t index = 0; index < 8; ++index) {
    Overtaken worker(index);
    const Sent question = worker.next();
    const TimeNs answered = worker.rig.now;
    worker.rig.answer(question, {});
    EXPECT_EQ(worker.next().header.round, worker.second[0].header.round);
    waits.insert(worker.rig.now - answered);
  }
  EXPECT_EQ(waits.size(), 8u);
  EXPECT_GT(*waits.begin(), Overtaken::kRoundTrip) << "a peer that is a round behind has caught up";
  EXPECT_EQ(*waits.rbegin() - *waits.begin(), 7 * Overtaken::kRoundTrip / 2);
}

TEST(TimersOfThePacketThatOthersHaveOvertaken, TheResultOfThePacketItselfEndsTheWait) {
  Overtaken worker;
  worker.rig.answer(worker.next(), {});
  worker.rig.echo(worker.second[0]);
  EXPECT_EQ(worker.next().header.round, worker.second[0].header.round + 1) << "no retransmission any more";
}

TEST(TimersOfThePacketThatOthersHaveOvertaken, InACollectiveThatIsSentWholeItIsSentAgainAtOnce) {
  Overtaken worker(1, {});
  EXPECT_EQ(worker.next().header.round, worker.second[0].header.round);
  EXPECT_EQ(worker.rig.worker().stats().questions, 0u);
}

TEST(TimersOfThePacketThatOthersHaveOvertaken, ALateCopyOfAResultThatCarriesASumIsNoAnswer) {
  Overtaken worker;
  worker.next();
  const TimeNs asked = worker.rig.now;
  worker.rig.echo(worker.first[0]);
  worker.next();
  EXPECT_EQ(worker.rig.now - asked, 2 * Overtaken::kRoundTrip);
}

TEST_F(Timers, TimeThatGoesBackIsTakenAsStandingStill) {
  submit(1);
  rig.poll_at(10 * kMillisecond);
  EXPECT_TRUE(rig.poll_at(0).empty());
  EXPECT_EQ(rig.worker().next_timeout(), 30 * kMillisecond);
}

}  // namespace
}  // namespace wiresum::worker
