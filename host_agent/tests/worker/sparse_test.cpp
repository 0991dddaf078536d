// The state machine's part in sparse collectives: the list of chunks, the scan's findings, and the vote.
#include <gtest/gtest.h>

#include <cmath>

#include "rig.hpp"
#include "worker/worker.hpp"

namespace wiresum::worker {
namespace {

/// An fp32 all-reduce in place over `chunks` chunks of four elements; only some chunks are listed.
struct Listed {
  Listed(std::size_t chunks, std::vector<std::uint32_t> list)
      : values(4 * chunks), presence(chunks), listed(std::move(list)) {
    auto* const bytes = reinterpret_cast<std::byte*>(values.data());
    region = {.source = bytes, .destination = bytes, .elements = values.size()};
    work.format = kFloat32;
    work.regions = {&region, 1};
    work.chunks = listed;
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) presence.set(chunk, false);
    work.presence = &presence;
    work.chunk_end = static_cast<std::uint32_t>(listed.size());
  }
  Listed(const Listed&) = delete;
  void put(std::uint32_t chunk, float value) {
    values[4 * std::size_t{chunk}] = value;
    presence.set(chunk, true);
  }
  std::vector<float> values;
  ChunkPresence presence;
  std::vector<std::uint32_t> listed;
  Region region;
  Collective work;
};

std::vector<std::uint32_t> chunk_numbers(const std::vector<Sent>& sent) {
  std::vector<std::uint32_t> numbers;
  for (const Sent& packet : sent) numbers.push_back(packet.header.chunk);
  return numbers;
}

TEST(SparseCollective, SendsTheListedChunksInOrderUnderTheirOwnNumbers) {  // R6.5
  Rig rig;
  Listed job(100, {2, 3, 50, 51, 98, 99});
  ASSERT_TRUE(rig.worker().submit(job.work));
  const auto metas = rig.poll();
  EXPECT_EQ(chunk_numbers(metas), (std::vector<std::uint32_t>{2, 3, 50, 51}));
  for (const Sent& packet : metas) rig.answer(packet, {});
  const auto data = rig.poll();
  EXPECT_EQ(chunk_numbers(data), (std::vector<std::uint32_t>{2, 3, 50, 51}));
  for (const Sent& packet : data) rig.echo(packet);
  EXPECT_EQ(chunk_numbers(rig.poll()), (std::vector<std::uint32_t>{98, 99}));
}

TEST(SparseCollective, SendsEmptyForAbsentChunksAndStoresTheSum) {
  Rig rig;
  Listed job(10, {4, 7});
  job.put(7, 1.5F);
  ASSERT_TRUE(rig.worker().submit(job.work));
  for (const Sent& packet : rig.poll()) {
    EXPECT_EQ(packet.header.exponent, packet.header.chunk == 7 ? 127 : 0);
    rig.answer(packet, {}, 127);
  }
  const auto sent = rig.poll();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].header.kind, wire::Kind::kEmpty);
  EXPECT_EQ(sent[1].header.kind, wire::Kind::kData);
  for (const Sent& packet : sent) rig.answer(packet, {3 << 27, 0, 0, 0});
  EXPECT_EQ(job.values[4 * 4], 0.75F);
  EXPECT_EQ(job.values[4 * 7], 0.75F);
  EXPECT_TRUE(rig.worker().poll_completion().has_value());
}

TEST(SparseCollective, DoesNotReadAChunkThatIsKnownToBeAbsent) {
  Rig rig;
  Listed job(10, {4});
  job.put(4, 1.0F);
  job.presence.set(4, false);  // like a worker that lacks a block of the union
  ASSERT_TRUE(rig.worker().submit(job.work));
  EXPECT_EQ(rig.poll()[0].header.exponent, 0);
}

TEST(SparseCollective, AnUnscannedZeroChunkIsSentEmpty) {  // R6.3
  for (const numeric::Scaling scaling : {numeric::Scaling::kBlockExponent, numeric::Scaling::kFixed}) {
    Rig rig;
    Listed job(4, {0, 1, 2, 3});
    job.work.chunks = {};
    job.work.presence = &kNothingKnown;
    job.work.format.scaling = scaling;
    job.work.fixed_scale = 1e30F;
    job.values[5] = 1.0F;
    job.values[9] = -0.0F;
    job.values[13] = 1e-44F;  // subnormal: not zero, though its exponent is
    ASSERT_TRUE(rig.worker().submit(job.work));
    std::vector<Sent> sent = rig.poll();
    if (scaling == numeric::Scaling::kBlockExponent) {
      for (const Sent& packet : sent) rig.echo(packet);
      sent = rig.poll();
    }
    ASSERT_EQ(sent.size(), 4u);
    EXPECT_EQ(sent[0].header.kind, wire::Kind::kEmpty);
    EXPECT_EQ(sent[1].header.kind, wire::Kind::kData);
    EXPECT_EQ(sent[2].header.kind, wire::Kind::kEmpty);
    EXPECT_EQ(sent[3].header.kind, wire::Kind::kData);
    for (const Sent& packet : sent) rig.echo(packet);
    EXPECT_GT(job.values[5], 0.0F);
    EXPECT_FALSE(std::signbit(job.values[9]));
  }
}

TEST(SparseCollective, DetectsADifferentListAtAnotherWorker) {
  Rig rig;
  Listed job(10, {4, 7});
  ASSERT_TRUE(rig.worker().submit(job.work));
  const auto sent = rig.poll();
  wire::Header other = sent[0].header;
  other.kind = wire::Kind::kResult;
  other.chunk = 5;
  rig.deliver(Rig::datagram(other, {}));
  const auto completion = rig.worker().poll_completion();
  ASSERT_TRUE(completion.has_value());
  EXPECT_EQ(completion->status, Status::kDiverged);
}

// ---- Votes ----

TEST(Vote, TheCompletionReportsTheLargestVote) {  // R6.6
  Rig rig;
  Integers job(std::vector<std::int32_t>(4 * 6, 1));
  job.work.vote = 90;
  ASSERT_TRUE(rig.worker().submit(job.work));
  for (auto sent = rig.poll(); !sent.empty(); sent = rig.poll()) {
    for (const Sent& packet : sent) {
      const bool last = packet.header.chunk == 5;
      EXPECT_EQ(packet.header.exponent, last ? 90 : 0);
      rig.answer(packet, {1, 1, 1, 1}, last ? 120 : 0);
    }
  }
  const auto completion = rig.worker().poll_completion();
  ASSERT_TRUE(completion.has_value());
  EXPECT_EQ(completion->vote, 120);
}

TEST(Vote, IsThatOfTheLastChunkThoughOtherResultsComeLater) {
  Rig rig;
  Integers job(std::vector<std::int32_t>(4 * 4, 1));
  job.work.vote = 90;
  ASSERT_TRUE(rig.worker().submit(job.work));
  const auto sent = rig.poll();
  ASSERT_EQ(sent.size(), 4u);
  rig.answer(sent[3], {1, 1, 1, 1}, 120);
  for (std::size_t i = 0; i < 3; ++i) rig.answer(sent[i], {1, 1, 1, 1}, 0);
  EXPECT_EQ(rig.worker().poll_completion().value().vote, 120);
}

TEST(Vote, DoesNotDisturbTheExponentsOfBlockFloatingPoint) {  // R6.6
  Rig rig;
  Listed job(1, {0});
  job.put(0, 1.0F);
  job.work.vote = 200;
  ASSERT_TRUE(rig.worker().submit(job.work));
  const auto meta = rig.poll();
  ASSERT_EQ(meta.size(), 1u);
  EXPECT_EQ(meta[0].header.exponent, 127);
  rig.answer(meta[0], {}, 127);
  const auto data = rig.poll();
  ASSERT_EQ(data.size(), 1u);
  EXPECT_EQ(data[0].header.exponent, 200);
  rig.echo(data[0]);
  EXPECT_EQ(job.values[0], 1.0F);
}

TEST(Vote, ANotFiniteChunkUnderAFixedScaleOverridesTheVote) {
  Rig rig;
  Listed job(1, {0});
  job.put(0, INFINITY);
  job.work.format.scaling = numeric::Scaling::kFixed;
  job.work.vote = 200;
  ASSERT_TRUE(rig.worker().submit(job.work));
  const auto sent = rig.poll();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].header.exponent, numeric::kExponentNotFinite);
}

TEST(RoundTripChunks, IsTheNumberInFlightScaledToAnEmptyPath) {
  WorkerConfig config = small_config(64);
  config.window_initial = 32;
  config.window_min = 8;
  Rig rig(config);
  const auto one_collective = [&rig](std::size_t chunks, TimeNs round_trip) {
    Integers job(std::vector<std::int32_t>(4 * chunks, 1));
    EXPECT_TRUE(rig.worker().submit(job.work));
    for (auto sent = rig.poll(); !sent.empty(); sent = rig.poll()) {
      rig.now += round_trip;
      for (const Sent& packet : sent) rig.echo(packet);
    }
    return rig.worker().poll_completion()->round_trip_chunks;
  };
  one_collective(128, kMillisecond / 10);
  std::uint32_t chunks = 0;
  for (int i = 0; i < 4; ++i) chunks = one_collective(128, kMillisecond);
  EXPECT_NEAR(chunks, static_cast<double>(rig.worker().stats().window) / 10, 1.5);
  EXPECT_GE(rig.worker().stats().window, 40u);
  EXPECT_NEAR(one_collective(20, kMillisecond), 20.0 / 10, 1) << "a packet for each chunk";
  EXPECT_NEAR(one_collective(1, kMillisecond), 8.0 / 10, 1) << "one packet tells nothing about the path's capacity";
}

}  // namespace
}  // namespace wiresum::worker
