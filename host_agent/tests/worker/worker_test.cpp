#include "worker/worker.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "rig.hpp"

namespace wiresum::worker {
namespace {

std::set<std::uint32_t> distinct_slots(const std::vector<Sent>& sent) {
  std::set<std::uint32_t> result;
  for (const Sent& packet : sent) result.insert(packet.slot);
  return result;
}

// ---- Configuration ----

TEST(WorkerConfigTest, RefusesInvalidConfigurations) {
  const auto make = [](auto change) {
    WorkerConfig config = small_config();
    change(config);
    return Worker(config);
  };
  EXPECT_NO_THROW(make([](WorkerConfig&) {}));
  EXPECT_THROW(make([](WorkerConfig& c) { c.workers = 0; }), std::invalid_argument);
  EXPECT_THROW(make([](WorkerConfig& c) { c.workers = 4097; }), std::invalid_argument);
  EXPECT_THROW(make([](WorkerConfig& c) { c.worker = 32; }), std::invalid_argument);
  EXPECT_THROW(make([](WorkerConfig& c) { c.lanes = 0; }), std::invalid_argument);
  EXPECT_THROW(make([](WorkerConfig& c) { c.slots = 0; }), std::invalid_argument);
  EXPECT_THROW(make([](WorkerConfig& c) { c.slot_first = 32768; }), std::invalid_argument);
  EXPECT_THROW(make([](WorkerConfig& c) { c.rto_min = 0; }), std::invalid_argument);
  EXPECT_THROW(make([](WorkerConfig& c) { c.rto_max = c.rto_initial - 1; }), std::invalid_argument);
  EXPECT_THROW(make([](WorkerConfig& c) { c.collectives_max = 0; }), std::invalid_argument);
  EXPECT_THROW(make([](WorkerConfig& c) { c.window_min = 0; }), std::invalid_argument);
}

TEST(ChunksOf, RoundsUpAndKnowsThePacking) {
  EXPECT_EQ(chunks_of(0, kFloat32, 360), 0u);
  EXPECT_EQ(chunks_of(360, kFloat32, 360), 1u);
  EXPECT_EQ(chunks_of(361, kFloat32, 360), 2u);
  EXPECT_EQ(chunks_of(1441, {numeric::Dtype::kBF16, numeric::Scaling::kBlockExponent, 8}, 360), 2u);
  EXPECT_EQ(chunks_of(1441, {numeric::Dtype::kRaw, numeric::Scaling::kNone, 8}, 360), 2u);
}

// ---- Dealing ----

TEST(WorkerDealing, ACollectiveUsesMoreSlotsOnlyForEnoughRounds) {  // R4.2
  WorkerConfig config = small_config(256);
  config.window_initial = config.slots;
  const auto slots_of = [&](std::size_t chunks, std::uint32_t spread_max = kSlotsSpreadMax) {
    Rig rig(config);
    Integers job(iota(chunks * config.lanes), config);
    job.work.slots_spread_max = spread_max;
    EXPECT_TRUE(rig.worker().submit(job.work));
    return distinct_slots(rig.poll()).size();
  };
  EXPECT_EQ(slots_of(1), 1u);
  EXPECT_EQ(slots_of(64), 64u);
  EXPECT_EQ(slots_of(1000), 64u);
  EXPECT_EQ(slots_of(1600), 100u);
  EXPECT_EQ(slots_of(10'000), 256u);
  EXPECT_EQ(slots_of(64, 32), 32u);
  EXPECT_EQ(slots_of(1600, 32), 100u);
  config.slots = config.window_initial = 1025;  // for a long path
  EXPECT_EQ(slots_of(64), 64u);
  EXPECT_EQ(slots_of(1600), 400u);
}

TEST(WorkerDealing, SendsTheHeaderOfTheProtocol) {  // R2.14
  WorkerConfig config = small_config();
  config.slot_first = 8;
  config.round_first = 5;
  Rig rig(config);
  Integers job(iota(6), config);
  job.work.tensor = 0xAB001234;
  ASSERT_TRUE(rig.worker().submit(job.work));
  const auto sent = rig.poll();
  ASSERT_EQ(sent.size(), 2u);
  const wire::Header expected{.kind = wire::Kind::kData,
                              .flags = 0,
                              .job = 7,
                              .key = 0xC0FFEE,
                              .worker = 1,
                              .exponent = 0,
                              .cell = 2 * 9 + 1,
                              .round = 5,
                              .tensor = 0xAB001234,
                              .chunk = 1};
  EXPECT_EQ(sent[1].header, expected);
  EXPECT_EQ(sent[0].lane(3), 4);
  EXPECT_EQ(sent[1].lane(1), 6);
  EXPECT_EQ(sent[1].lane(2), 0) << "the tail of the last chunk is zero";
}

TEST(WorkerDealing, AddsUpAndCompletes) {
  Rig rig;
  Integers job(iota(23));
  job.work.token = 99;
  ASSERT_TRUE(rig.worker().submit(job.work));
  for (auto sent = rig.poll(); !sent.empty(); sent = rig.poll()) {
    for (const Sent& packet : sent) {
      std::vector<std::int32_t> lanes(4);
      for (std::size_t i = 0; i < 4; ++i) lanes[i] = packet.lane(i) + 1000;
      rig.answer(packet, lanes);
    }
  }
  for (std::size_t i = 0; i < 23; ++i) EXPECT_EQ(job.values[i], static_cast<std::int32_t>(i + 1001));
  const auto completion = rig.worker().poll_completion();
  ASSERT_TRUE(completion.has_value());
  EXPECT_EQ(completion->token, 99u);
  EXPECT_EQ(completion->status, Status::kOk);
  EXPECT_FALSE(rig.worker().poll_completion().has_value());
  EXPECT_EQ(rig.worker().next_timeout(), kNever);
}

TEST(WorkerDealing, AssignsChunksToSlotsByTheStride) {  // R4.2
  Rig rig;
  Integers job(iota(4 * 11));
  ASSERT_TRUE(rig.worker().submit(job.work));
  std::uint32_t chunks = 0;
  for (auto sent = rig.poll(); !sent.empty(); sent = rig.poll()) {
    for (const Sent& packet : sent) {
      EXPECT_EQ(packet.slot, packet.header.chunk % 4);
      EXPECT_EQ(packet.header.round, 1 + packet.header.chunk / 4);
      EXPECT_EQ(packet.header.cell, wire::cell_of(packet.slot, packet.header.round));
      ++chunks;
      rig.echo(packet);
    }
  }
  EXPECT_EQ(chunks, 11u);
}

TEST(WorkerDealing, SmallCollectivesUseDifferentSlotsAtTheSameTime) {  // R4.2
  Rig rig;
  Integers first(iota(4)), second(iota(8)), third(iota(4));
  for (Integers* job : {&first, &second, &third}) ASSERT_TRUE(rig.worker().submit(job->work));
  const auto sent = rig.poll();
  ASSERT_EQ(sent.size(), 4u);
  EXPECT_EQ(distinct_slots(sent), (std::set<std::uint32_t>{0, 1, 2, 3}));
}

TEST(WorkerDealing, ASlotTakesItsCollectivesInOrderOfSubmission) {  // R4.4, R4.5
  Rig rig;
  Integers first(iota(16)), second(iota(16));
  first.work.tensor = 1;
  second.work.tensor = 2;
  ASSERT_TRUE(rig.worker().submit(first.work));
  ASSERT_TRUE(rig.worker().submit(second.work));
  const auto sent = rig.poll();
  ASSERT_EQ(sent.size(), 4u);
  rig.echo(sent[2]);
  const auto next = rig.poll();
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].slot, 2u);
  EXPECT_EQ(next[0].header.tensor, 2u);
  EXPECT_EQ(next[0].header.round, 2u);
}

TEST(WorkerDealing, OnlyItsShareOfTheChunksIsSent) {
  Rig rig;
  Integers job(iota(40));
  job.work.chunk_begin = 4;
  job.work.chunk_end = 7;
  ASSERT_TRUE(rig.worker().submit(job.work));
  const auto sent = rig.poll();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].header.chunk, 4u);
  EXPECT_EQ(sent[0].lane(0), 17);
  EXPECT_EQ(sent[0].slot, 0u);
  EXPECT_EQ(sent[2].header.chunk, 6u);
}

TEST(WorkerDealing, AnEmptyShareCompletesAtOnceAndMovesNoSlot) {
  Rig rig;
  Integers job(iota(40));
  job.work.chunk_begin = job.work.chunk_end = 3;
  ASSERT_TRUE(rig.worker().submit(job.work));
  EXPECT_TRUE(rig.worker().poll_completion().has_value());
  EXPECT_TRUE(rig.poll().empty());
  Integers next(iota(4));
  ASSERT_TRUE(rig.worker().submit(next.work));
  EXPECT_EQ(rig.poll().at(0).slot, 0u);
}

TEST(WorkerDealing, RefusesMoreCollectivesThanItHoldsUntilACompletionIsTaken) {
  WorkerConfig config = small_config();
  config.collectives_max = 2;
  Rig rig(config);
  Integers a(iota(4)), b(iota(4)), c(iota(4));
  EXPECT_TRUE(rig.worker().submit(a.work));
  EXPECT_TRUE(rig.worker().submit(b.work));
  EXPECT_FALSE(rig.worker().submit(c.work));
  rig.run();
  EXPECT_FALSE(rig.worker().submit(c.work));
  EXPECT_TRUE(rig.worker().poll_completion().has_value());
  EXPECT_TRUE(rig.worker().submit(c.work));
}

TEST(WorkerDealing, RoundNumbersWrapAround) {  // R4.5
  WorkerConfig config = small_config();
  config.round_first = UINT32_MAX - 2;
  Rig rig(config);
  Integers job(iota(4 * 4 * 7));
  ASSERT_TRUE(rig.worker().submit(job.work));
  EXPECT_EQ(rig.run(), 28u);
  EXPECT_TRUE(rig.worker().poll_completion().has_value());
  EXPECT_EQ(rig.worker().stats().round_newest, UINT32_MAX - 2 + 6);
}

TEST(WorkerDealing, TheLatestCollectiveIsThatWhichItHasSentFor) {
  Rig rig;
  EXPECT_EQ(rig.worker().stats().tensor_newest, 0u);
  for (const std::uint32_t tensor : {0xAAAAFFFEu, 0xBBBBFFFFu, 0xCCCC0000u}) {
    Integers job(iota(4));
    job.work.tensor = tensor;
    ASSERT_TRUE(rig.worker().submit(job.work));
    EXPECT_NE(rig.worker().stats().tensor_newest, std::uint64_t{1} + tensor);
    rig.run();
    EXPECT_EQ(rig.worker().stats().tensor_newest, std::uint64_t{1} + tensor);
    EXPECT_TRUE(rig.worker().poll_completion().has_value());
  }
}

TEST(WorkerDealing, ABarrierIsOneMetaRound) {  // R4.6, R6.1
  Rig rig;
  Collective barrier;
  barrier.chunk_end = 1;
  ASSERT_TRUE(rig.worker().submit(barrier));
  const auto sent = rig.poll();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].header.kind, wire::Kind::kMeta);
  EXPECT_EQ(sent[0].bytes.size(), wire::kHeaderBytes);
  rig.answer(sent[0], {});
  EXPECT_TRUE(rig.worker().poll_completion().has_value());
}

// ---- The agreed order and the window ----

TEST(WorkerOrder, SendsInTheAgreedOrderNotInTheOrderOfReadiness) {  // R4.7
  WorkerConfig config = small_config();
  config.window_min = config.window_initial = 2;
  Rig rig(config);
  Integers job(iota(4 * 12));
  ASSERT_TRUE(rig.worker().submit(job.work));
  auto sent = rig.poll();
  ASSERT_EQ(distinct_slots(sent), (std::set<std::uint32_t>{0, 1}));
  rig.echo(sent[1]);  // slot 1 is ready for its second round before slots 2 and 3 have sent their first
  sent = rig.poll();
  ASSERT_EQ(sent.size(), 2u) << "the window has grown by one";
  EXPECT_EQ(distinct_slots(sent), (std::set<std::uint32_t>{2, 3}));
}

TEST(WorkerOrder, APacketBeforeEverythingInFlightIsSentDespiteAFullWindow) {  // R4.8
  WorkerConfig config = small_config();
  config.window_min = 1;
  config.window_initial = 4;
  Rig rig(config);
  Integers job(iota(4 * 12));
  ASSERT_TRUE(rig.worker().submit(job.work));
  auto sent = rig.poll();
  ASSERT_EQ(sent.size(), 4u);
  for (std::size_t slot = 1; slot < 4; ++slot) rig.echo(sent[slot]);
  ASSERT_EQ(rig.poll().size(), 3u);
  // Slot 0's first packet is known to be lost, since later ones were answered: it is asked about, and the window
  // halves.
  const auto again = rig.poll_at(config.rto_initial);
  ASSERT_EQ(again.size(), 1u);
  ASSERT_EQ(again[0].slot, 0u);
  ASSERT_EQ(rig.worker().stats().window, 2u);
  rig.complete(sent[0]);
  ASSERT_EQ(rig.worker().in_flight(), 3u);
  // Slot 0's second round comes before those of slots 1 to 3, for which peers may wait.
  EXPECT_LE(rig.worker().next_timeout(), rig.now);
  const auto next = rig.poll();
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].slot, 0u);
}

TEST(WorkerWindow, BoundsThePacketsInFlight) {  // R4.8
  WorkerConfig config = small_config(64);
  config.window_min = 8;
  config.window_initial = 8;
  Rig rig(config);
  Integers job(iota(4 * 256), config);
  ASSERT_TRUE(rig.worker().submit(job.work));
  const auto sent = rig.poll();
  EXPECT_EQ(sent.size(), 8u);
  for (const Sent& packet : sent) rig.echo(packet);
  EXPECT_EQ(rig.poll().size(), 9u) << "one result came while the window was full";
}

TEST(WorkerWindow, BeginsWith32PacketsAndAsksAfter20To200Milliseconds) {  // R4.9, R4.19
  Rig rig(WorkerConfig{.workers = 2, .lanes = 4});
  Integers job(iota(4 * 100), {.workers = 2, .lanes = 4});
  ASSERT_TRUE(rig.worker().submit(job.work));
  EXPECT_EQ(rig.poll().size(), 32u);
  TimeNs pause = rig.worker().next_timeout();
  EXPECT_EQ(pause, 20 * kMillisecond);
  for (int i = 0; i < 20; ++i) {
    const TimeNs at = rig.worker().next_timeout();
    rig.poll_at(at);
    pause = rig.worker().next_timeout() - at;
    EXPECT_LE(pause, 200 * kMillisecond);
  }
  EXPECT_GE(pause, 150 * kMillisecond);
}

TEST(WorkerWindow, DoesNotCountWhatHasArrivedAndWaitsForPeers) {  // R4.8
  WorkerConfig config = small_config(64);
  config.window_min = config.window_initial = 8;
  config.rto_min = config.rto_initial = 20 * kMillisecond;
  Rig rig(config);
  Integers job(iota(4 * 256), config);
  ASSERT_TRUE(rig.worker().submit(job.work));
  auto sent = rig.poll();
  for (int round = 0; round < 8; ++round) {  // the first packets of the slots measure nothing
    rig.now += kMillisecond;
    for (const Sent& packet : sent) rig.echo(packet);
    sent = rig.poll();
  }
  const std::size_t window = rig.worker().stats().window;
  ASSERT_EQ(rig.worker().in_flight(), window);
  ASSERT_LE(2 * window, 64u);
  const TimeNs too_old = rig.now + static_cast<TimeNs>(rig.worker().stats().rto_ns) + 1;
  while (rig.worker().next_timeout() < too_old) {
    rig.poll_at(rig.worker().next_timeout());
    ASSERT_LE(rig.worker().in_flight(), window + 1) << "the probe, which has been asked about, may not count";
  }
  ASSERT_LE(rig.worker().next_timeout(), too_old);
  rig.poll_at(too_old);
  EXPECT_GE(rig.worker().in_flight(), 2 * window - 1);
}

// ---- Numbers ----

TEST(WorkerNumbers, BlockExponentBeginsWithAMetaRoundAndLooksOneChunkAhead) {  // R5.10, R5.11
  Rig rig(small_config(1));
  Floats job(std::vector<float>(12, 1.0F));
  std::vector<float>& values = job.values;
  values[5] = 8.0F;   // second chunk
  values[9] = 0.25F;  // third
  for (std::size_t i = 8; i < 12; ++i) values[i] = 0.25F;
  ASSERT_TRUE(rig.worker().submit(job.work));
  auto sent = rig.poll();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].header.kind, wire::Kind::kMeta);
  EXPECT_EQ(sent[0].header.exponent, 127);
  rig.answer(sent[0], {}, 128);  // a peer has larger numbers
  sent = rig.poll();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].header.kind, wire::Kind::kData);
  EXPECT_EQ(sent[0].header.exponent, 130);
  EXPECT_EQ(sent[0].header.chunk, 0u);
  EXPECT_EQ(sent[0].lane(0), 1 << 28) << "2^(30 - log2(2) - (128 - 127))";
  rig.answer(sent[0], {1 << 29, 1 << 28, 0, -(1 << 28)}, 130);
  EXPECT_EQ(values[0], 2.0F);
  EXPECT_EQ(values[3], -1.0F);
  sent = rig.poll();
  EXPECT_EQ(sent.at(0).header.exponent, 125);
  EXPECT_EQ(sent.at(0).lane(1), 1 << 29);
  rig.echo(sent[0]);
  sent = rig.poll();
  EXPECT_EQ(sent.at(0).header.exponent, 0) << "the slot carries nothing after its last chunk";
  rig.echo(sent[0]);
  EXPECT_TRUE(rig.worker().poll_completion().has_value());
  EXPECT_EQ(values[5], 8.0F);
  EXPECT_EQ(values[9], 0.25F);
}

TEST(WorkerNumbers, WithoutASourceSendsEmptyAndWithoutADestinationStoresNothing) {  // R5.16, R6.1
  Rig rig;
  std::vector<std::int32_t> kept(4, -1);
  std::vector<std::int32_t> given{5, 6, 7, 8};
  const std::array<Region, 2> regions{{
      {.source = {}, .destination = reinterpret_cast<std::byte*>(kept.data()), .elements = 4, .chunk_first = 0},
      {.source = reinterpret_cast<const std::byte*>(given.data()), .destination = {}, .elements = 4, .chunk_first = 1},
  }};
  Collective work;
  work.format = kInt32;
  work.regions = regions;
  work.chunk_end = 2;
  ASSERT_TRUE(rig.worker().submit(work));
  const auto sent = rig.poll();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].header.kind, wire::Kind::kEmpty);
  EXPECT_EQ(sent[0].bytes.size(), wire::kHeaderBytes);
  EXPECT_EQ(sent[1].header.kind, wire::Kind::kData);
  rig.answer(sent[0], {1, 2, 3, 4});
  rig.answer(sent[1], {1, 2, 3, 4});
  EXPECT_TRUE(rig.worker().poll_completion().has_value());
  EXPECT_EQ(kept, (std::vector<std::int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(given, (std::vector<std::int32_t>{5, 6, 7, 8}));
}

// ---- Validation ----

class WorkerValidation : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(rig.worker().submit(job.work));
    sent = rig.poll();
    ASSERT_EQ(sent.size(), 4u);
  }
  void expect_rejected(const std::vector<std::byte>& bytes) {
    const auto before = rig.worker().stats();
    rig.deliver(bytes);
    EXPECT_EQ(rig.worker().stats().rejected, before.rejected + 1);
    EXPECT_EQ(rig.worker().stats().results, before.results);
    EXPECT_EQ(job.values, iota(64));
  }
  wire::Header result_header() {
    wire::Header header = sent[0].header;
    header.kind = wire::Kind::kResult;
    return header;
  }

  Rig rig;
  Integers job{iota(64)};
  std::vector<Sent> sent;
};

TEST_F(WorkerValidation, RejectsWhatDoesNotParse) {  // R2.15
  auto bytes = Rig::result(sent[0], {1, 2, 3, 4});
  expect_rejected({});
  expect_rejected({bytes.begin(), bytes.begin() + 23});
  expect_rejected({bytes.begin(), bytes.end() - 1});
  bytes[0] = std::byte{0x22};
  expect_rejected(bytes);
}

TEST_F(WorkerValidation, RejectsForeignHeaders) {  // R4.26, R4.27
  const auto with = [&](auto change) {
    wire::Header header = result_header();
    change(header);
    return Rig::datagram(header, {1, 2, 3, 4});
  };
  expect_rejected(with([](wire::Header& h) { h.kind = wire::Kind::kData; }));
  expect_rejected(with([](wire::Header& h) { ++h.job; }));
  expect_rejected(with([](wire::Header& h) { ++h.key; }));
  expect_rejected(with([](wire::Header& h) { h.worker = 32; }));
  expect_rejected(with([](wire::Header& h) { h.cell = 8; }));
  expect_rejected(with([](wire::Header& h) { h.cell ^= 1; }));
  expect_rejected(with([](wire::Header& h) { h.round += 2; }));
  EXPECT_TRUE(rig.poll_at(1).empty());
}

TEST_F(WorkerValidation, RejectsCellsBelowItsShard) {  // R2.5, R4.26
  WorkerConfig config = small_config();
  config.slot_first = 4;
  Rig shard(config);
  Integers work(iota(16));
  ASSERT_TRUE(shard.worker().submit(work.work));
  auto packet = shard.poll().at(0);
  packet.header.cell = 1;
  shard.answer(packet, {0, 0, 0, 0});
  EXPECT_EQ(shard.worker().stats().rejected, 1u);
}

TEST_F(WorkerValidation, RejectsAWrongPayloadLength) {  // R4.26
  expect_rejected(Rig::datagram(result_header(), {}));
  expect_rejected(Rig::datagram(result_header(), {1, 2, 3}));
  expect_rejected(Rig::datagram(result_header(), {1, 2, 3, 4, 5}));
}

TEST_F(WorkerValidation, RejectsAnExponentBelowItsOwn) {  // R4.26
  Rig other;
  Floats floats(std::vector<float>(4, 1.0F));
  ASSERT_TRUE(other.worker().submit(floats.work));
  const auto meta = other.poll();
  other.answer(meta.at(0), {}, 126);
  EXPECT_EQ(other.worker().stats().rejected, 1u);
  other.answer(meta.at(0), {}, 127);
  EXPECT_EQ(other.worker().stats().results, 1u);
}

TEST_F(WorkerValidation, IgnoresDuplicatesAndKeepsTheFirstResult) {  // R4.28
  rig.answer(sent[0], {9, 9, 9, 9});
  const auto next = rig.poll();
  rig.answer(sent[0], {1, 1, 1, 1});
  EXPECT_EQ(rig.worker().stats().duplicates, 1u);
  EXPECT_EQ(job.values[0], 9);
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].header.round, 2u);
}

TEST_F(WorkerValidation, AResultForARoundThatWasNotSentIsRejected) {  // R4.26
  rig.answer(sent[0], {0, 0, 0, 0});  // slot 0 is ready, but its next packet has not been sent
  Sent early = sent[0];
  early.header.round += 1;
  early.header.cell ^= 1;
  const auto before = rig.worker().stats().rejected;
  rig.answer(early, {1, 1, 1, 1});
  EXPECT_EQ(rig.worker().stats().rejected, before + 1);
}

TEST_F(WorkerValidation, ADifferentTagInTheRightRoundIsDivergence) {  // R4.29
  wire::Header header = result_header();
  header.tensor ^= 0x10000;
  rig.deliver(Rig::datagram(header, {1, 2, 3, 4}));
  const auto completion = rig.worker().poll_completion();
  ASSERT_TRUE(completion.has_value());
  EXPECT_EQ(completion->status, Status::kDiverged);
  EXPECT_EQ(job.values, iota(64));
}

TEST_F(WorkerValidation, TheSwitchsMarkInTheRightRoundIsDivergence) {  // R4.29
  wire::Header header = result_header();
  header.flags = wire::kFlagDiverged;
  rig.deliver(Rig::datagram(header, {1, 2, 3, 4}));
  EXPECT_EQ(rig.worker().poll_completion().value().status, Status::kDiverged);
  EXPECT_EQ(job.values, iota(64));
}

TEST_F(WorkerValidation, ADifferentChunkInTheRightRoundIsDivergence) {  // R4.29
  wire::Header header = result_header();
  header.chunk += 1;
  rig.deliver(Rig::datagram(header, {1, 2}));  // another chunk may have another length
  EXPECT_EQ(rig.worker().poll_completion().value().status, Status::kDiverged);
}

TEST(WorkerStatsTest, CountsPacketsAndBytes) {
  Rig rig;
  Integers job(iota(16));
  ASSERT_TRUE(rig.worker().submit(job.work));
  rig.run();
  const WorkerStats& stats = rig.worker().stats();
  EXPECT_EQ(stats.packets_sent, 4u);
  EXPECT_EQ(stats.bytes_sent, 4u * 40);
  EXPECT_EQ(stats.bytes_received, 4u * 40);
  EXPECT_EQ(stats.results, 4u);
  EXPECT_EQ(stats.retransmissions, 0u);
  EXPECT_EQ(stats.round_newest, 1u);
}

}  // namespace
}  // namespace wiresum::worker
