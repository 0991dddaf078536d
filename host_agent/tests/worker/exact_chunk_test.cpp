// Chunks that block floating point cannot carry are summed exactly in further rounds of their slot, alike at all
// workers.
#include "worker/exact_chunk.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <map>

#include "rig.hpp"

namespace wiresum::worker {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr numeric::Format kFixed32{numeric::Dtype::kF32, numeric::Scaling::kFixed, 32};

/// Two workers whose packets are summed slot by slot, as by a switch.
class Pair {
 public:
  explicit Pair(WorkerConfig config = small_config(1)) : lanes_(config.lanes) {
    for (std::uint8_t worker = 0; worker < 2; ++worker) {
      config.worker = worker;
      rigs_.emplace_back(config);
    }
  }

  void submit(std::array<const Collective*, 2> works) {
    for (std::size_t i = 0; i < 2; ++i) ASSERT_TRUE(rigs_[i].worker().submit(*works[i]));
  }

  /// One round of each slot. Returns the kinds and exponents that the workers sent, and the RESULT's exponent.
  struct Round {
    std::array<wire::Kind, 2> kinds;
    int exponent = 0;
    bool operator==(const Round&) const = default;
  };
  std::vector<Round> round() {
    const std::vector<Sent> first = rigs_[0].poll();
    const std::vector<Sent> second = rigs_[1].poll();
    EXPECT_EQ(first.size(), second.size());
    std::vector<Round> rounds;
    for (std::size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
      EXPECT_EQ(first[i].header.cell, second[i].header.cell);
      EXPECT_EQ(first[i].header.round, second[i].header.round);
      EXPECT_EQ(first[i].header.chunk, second[i].header.chunk);
      const bool meta = first[i].header.kind == wire::Kind::kMeta;
      EXPECT_EQ(second[i].header.kind == wire::Kind::kMeta, meta);
      std::vector<std::int32_t> sum(meta ? 0 : lanes_);
      for (const Sent* sent : {&first[i], &second[i]}) {
        if (sent->header.kind != wire::Kind::kData) continue;
        for (std::size_t lane = 0; lane < lanes_; ++lane) {
          sum[lane] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sum[lane]) +
                                                static_cast<std::uint32_t>(sent->lane(lane)));
        }
      }
      const int exponent = std::max(first[i].header.exponent, second[i].header.exponent);
      rounds.push_back({.kinds = {first[i].header.kind, second[i].header.kind}, .exponent = exponent});
      rigs_[0].answer(first[i], sum, exponent);
      rigs_[1].answer(second[i], sum, exponent);
    }
    return rounds;
  }

  std::vector<Round> run() {
    std::vector<Round> all;
    for (std::vector<Round> rounds = round(); !rounds.empty(); rounds = round()) {
      all.insert(all.end(), rounds.begin(), rounds.end());
    }
    for (Rig& rig : rigs_) {
      const std::optional<Completion> completion = rig.worker().poll_completion();
      EXPECT_TRUE(completion.has_value() && completion->status == Status::kOk);
    }
    return all;
  }

  Rig& rig(std::size_t worker) { return rigs_[worker]; }
  WorkerStats stats() { return rigs_[0].worker().stats(); }

 private:
  std::size_t lanes_;
  std::deque<Rig> rigs_;
};

void expect_same(const std::vector<float>& values, const std::vector<float>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(values[i])) << i;
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(expected[i])) << i;
    }
  }
}

WorkerConfig exact_when_wide(std::uint32_t slots = 1) {
  WorkerConfig config = small_config(slots);
  config.exact_when_wide = true;
  return config;
}

TEST(ExactChunks, AnInfAndANanStayWhereTheyAre) {  // R5.12, R5.13
  Pair pair;
  Floats first({1.0F, kInf, 3.0F, kInf, 5.0F, 6.0F, 7.0F, 8.0F});
  Floats second({1.0F, 1.0F, kNan, -kInf, 1.0F, 1.0F, 1.0F, 1.0F});
  pair.submit({&first.work, &second.work});
  using enum wire::Kind;
  const std::vector<Pair::Round> rounds = pair.run();
  const std::vector<Pair::Round> expected = {
      {{kMeta, kMeta}, 128},      // the exponent of the finite elements
      {{kEmpty, kEmpty}, 255},    // both want the chunk exactly
      {{kMeta, kMeta}, 7},        // plane 4 of 0..10 is the lowest of all workers
      {{kData, kData}, 32 + 6},   // plane 4, and 5 is next
      {{kData, kEmpty}, 32 + 1},  // plane 5, which one worker has, and that of Inf and NaN is next
      {{kData, kData}, 0},        // the end
      {{kMeta, kMeta}, 130},      // the next chunk's exponent
      {{kData, kData}, 0},
  };
  EXPECT_TRUE(rounds == expected);
  for (const Floats* job : {&first, &second}) {
    expect_same(job->values, {2.0F, kInf, kNan, kNan, 6.0F, 7.0F, 8.0F, 9.0F});
  }
  EXPECT_EQ(pair.stats().chunks_exact, 1u);
}

TEST(ExactChunks, OneWorkerIsEnoughAndTheOtherHasNothingLeftOut) {  // R5.12
  Pair pair;
  Floats first({1.0F, 2.0F, 3.0F, 4.0F, 0.5F});
  Floats second({0.0F, -kInf, 0.0F, 0.0F, 0.25F});
  pair.submit({&first.work, &second.work});
  const std::vector<Pair::Round> rounds = pair.run();
  EXPECT_EQ(rounds.at(1).kinds[0], wire::Kind::kData) << "it does not know yet";
  EXPECT_EQ(rounds.at(1).kinds[1], wire::Kind::kEmpty);
  EXPECT_EQ(rounds.at(3).kinds[1], wire::Kind::kEmpty) << "it has none of the finite planes";
  for (const Floats* job : {&first, &second}) expect_same(job->values, {1.0F, -kInf, 3.0F, 4.0F, 0.75F});
}

TEST(ExactChunks, AWideChunkIsSummedExactlyIfThatIsAskedFor) {  // R5.12, R5.13
  const std::vector<float> mine = {1e4F, 1e-6F, 1e-30F, -1e4F, 1.0F, 2.0F, 3.0F, 4.0F};
  const std::vector<float> other = {1e4F, 1e-6F, 0.0F, 1e4F, 1.0F, 1.0F, 1.0F, 1.0F};
  Pair exact(exact_when_wide());
  Floats first(mine);
  Floats second(other);
  exact.submit({&first.work, &second.work});
  exact.run();
  for (const Floats* job : {&first, &second}) {
    expect_same(job->values, {2e4F, 2e-6F, 1e-30F, 0.0F, 2.0F, 3.0F, 4.0F, 5.0F});
  }
  EXPECT_EQ(exact.stats().chunks_exact, 1u);
  EXPECT_EQ(exact.stats().chunks_wide, 0u);

  Pair coarse;
  Floats third(mine);
  Floats fourth(other);
  coarse.submit({&third.work, &fourth.work});
  EXPECT_EQ(coarse.run().size(), 3u) << "an exponent and two chunks";
  EXPECT_EQ(third.values[1], 0.0F);
  EXPECT_EQ(coarse.stats().chunks_exact, 0u);
  EXPECT_EQ(coarse.stats().chunks_wide, 1u);
}

TEST(ExactChunks, AChunkIsWideAlsoIfTheLargeElementIsAnotherWorkers) {
  Pair pair(exact_when_wide());
  Floats first({1e4F, 1.0F, 1.0F, 1.0F});
  Floats second({0.0F, 1e-6F, 0.0F, 1e-6F});
  pair.submit({&first.work, &second.work});
  pair.run();
  for (const Floats* job : {&first, &second}) expect_same(job->values, {1e4F, 1.000001F, 1.0F, 1.000001F});
  EXPECT_EQ(pair.stats().chunks_exact, 1u);
}

TEST(ExactChunks, ThereIsNoWideChunkOfNarrowLanesOrAFixedScale) {
  for (const numeric::Format format : {numeric::Format{.bits = 16}, kFixed32}) {
    Pair pair(exact_when_wide());
    Floats first({1e4F, 1e-6F, 1.0F, 1.0F});
    Floats second(first.values);
    first.work.format = second.work.format = format;
    first.work.chunk_end = second.work.chunk_end = 1;
    pair.submit({&first.work, &second.work});
    pair.run();
    EXPECT_EQ(first.values[1], 0.0F);
    EXPECT_EQ(pair.stats().chunks_exact + pair.stats().chunks_wide, 0u);
  }
}

TEST(ExactChunks, OfAnExactCollectiveAllChunksAreSummedExactlyFromTheStart) {  // R5.4, R5.5, R5.6
  Pair pair;
  Floats first({1e4F, 1e-6F, kInf, 0.0F, 0.0F, 0.0F, -0.0F, 0.0F, 1.0F});
  Floats second({1e4F, 1e-30F, 1.0F, -0.0F, 0.0F, 0.0F, -0.0F, 0.0F, 2.0F});
  first.work.exact = second.work.exact = true;
  pair.submit({&first.work, &second.work});
  using enum wire::Kind;
  const std::vector<Pair::Round> rounds = pair.run();
  std::vector<int> metas;
  for (const Pair::Round& round : rounds) {
    if (round.kinds[0] == kMeta) metas.push_back(round.exponent);
  }
  EXPECT_EQ(metas, (std::vector<int>{10, 7})) << "the first planes of the first chunk, and after the one that is zero";
  for (const Floats* job : {&first, &second}) {
    expect_same(job->values, {2e4F, 1e-6F, kInf, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 3.0F});
  }
  EXPECT_EQ(pair.stats().chunks_exact, 0u) << "none was summed again";
}

TEST(ExactChunks, WithAFixedScaleNoMetaRoundFollows) {  // R5.11, R5.13
  Pair pair;
  Floats first({1.0F, kInf, 3.0F, 4.0F, 1.0F, 1.0F, 1.0F, 1.0F});
  Floats second({1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F});
  first.work.format = second.work.format = kFixed32;
  first.work.fixed_scale = second.work.fixed_scale = 16.0F;
  pair.submit({&first.work, &second.work});
  const std::vector<Pair::Round> rounds = pair.run();
  EXPECT_EQ(rounds.front().exponent, 255);
  EXPECT_EQ(rounds.back().kinds[0], wire::Kind::kData);
  std::size_t metas = 0;
  for (const Pair::Round& round : rounds) metas += round.kinds[0] == wire::Kind::kMeta ? 1 : 0;
  EXPECT_EQ(metas, 1u);
  for (const Floats* job : {&first, &second}) {
    expect_same(job->values, {2.0F, kInf, 4.0F, 5.0F, 2.0F, 2.0F, 2.0F, 2.0F});
  }
}

TEST(ExactChunks, OfNarrowLanesAPlaneTakesAsManyRoundsAsAWordHasElements) {  // R5.7
  Pair pair;
  std::vector<float> values(18, 1.0F);  // a chunk of 16 and one of 2, in lanes of 8 bits
  values[15] = kNan;
  Floats first(values);
  Floats second(values);
  first.work.format.bits = second.work.format.bits = 8;
  first.work.chunk_end = second.work.chunk_end = 2;
  pair.submit({&first.work, &second.work});
  const std::vector<Pair::Round> rounds = pair.run();
  // Exponent, sum, planes, two planes of four rounds each, exponent, sum.
  EXPECT_EQ(rounds.size(), 3u + 2u * 4u + 2u);
  std::vector<float> expected(18, 2.0F);
  expected[15] = kNan;
  for (const Floats* job : {&first, &second}) expect_same(job->values, expected);
}

TEST(ExactChunks, AnAverageIsDividedBeforeItIsRounded) {
  Pair pair;
  Floats first({3e38F, kInf, 1.0F, 0.0F});
  Floats second({3e38F, 1.0F, 2.0F, -0.0F});
  first.work.divisor = second.work.divisor = 2.0F;
  pair.submit({&first.work, &second.work});
  pair.run();
  for (const Floats* job : {&first, &second}) expect_same(job->values, {3e38F, kInf, 1.5F, 0.0F});
}

TEST(ExactChunks, WhoKeepsNothingStoresNothingAndWhoGivesNothingSendsEmpty) {  // R5.5
  Pair pair;
  Floats giver({1.0F, kInf, 3.0F, 4.0F});
  Floats keeper({9.0F, 9.0F, 9.0F, 9.0F});
  const std::vector<float> before = giver.values;
  giver.region.destination = {};
  keeper.region.source = {};
  pair.submit({&giver.work, &keeper.work});
  for (const Pair::Round& round : pair.run()) {
    EXPECT_TRUE(round.kinds[1] == wire::Kind::kEmpty || round.kinds[1] == wire::Kind::kMeta);
  }
  expect_same(giver.values, before);
  expect_same(keeper.values, {1.0F, kInf, 3.0F, 4.0F});
}

TEST(ExactChunks, EachSlotSumsItsOwnWhileOthersGoOn) {
  Pair pair(exact_when_wide(4));
  std::vector<float> values(40, 1.0F);
  values[3] = kInf;
  values[17] = 1e-20F;
  values[39] = -kInf;
  Floats first(values);
  Floats second(std::vector<float>(40, 1.0F));
  pair.submit({&first.work, &second.work});
  pair.run();
  std::vector<float> expected(40, 2.0F);
  expected[3] = kInf;
  expected[17] = 1.0F;
  expected[39] = -kInf;
  for (const Floats* job : {&first, &second}) expect_same(job->values, expected);
  EXPECT_EQ(pair.stats().chunks_exact, 3u);
}

TEST(ExactChunks, APlaneThatCannotComeNextIsRejected) {  // R5.5
  Rig rig(small_config(1));
  Floats job({1.0F, kInf, 1.0F, 1.0F});
  ASSERT_TRUE(rig.worker().submit(job.work));
  rig.echo(rig.poll().at(0));
  rig.answer(rig.poll().at(0), {0, 0, 0, 0}, 255);
  const Sent planes = rig.poll().at(0);
  rig.answer(planes, {}, 12);  // fp32 of two workers has planes 0..10, so codes 1..11
  EXPECT_EQ(rig.worker().stats().rejected, 1u);
  rig.answer(planes, {}, 0);  // below this worker's own
  EXPECT_EQ(rig.worker().stats().rejected, 2u);
  rig.echo(planes);
  const Sent plane = rig.poll().at(0);
  ASSERT_EQ(plane.header.kind, wire::Kind::kData);
  rig.answer(plane, {0, 0, 0, 0}, planes.header.exponent);  // the same plane again
  EXPECT_EQ(rig.worker().stats().rejected, 3u);
  rig.run();
  expect_same(job.values, {1.0F, kInf, 1.0F, 1.0F});
}

TEST(ExactChunks, ACodeThatTheNextChunkCannotHaveIsRejected) {  // R5.6
  Rig rig(small_config(1));
  Floats job({1.0F, 1.0F, 1.0F, 1.0F, 2.0F});
  job.work.exact = true;
  ASSERT_TRUE(rig.worker().submit(job.work));
  rig.echo(rig.poll().at(0));
  const Sent plane = rig.poll().at(0);
  ASSERT_EQ(plane.header.kind, wire::Kind::kData);
  rig.answer(plane, {1, 1, 1, 1}, 12);  // fp32 of two workers has planes 0..10, so codes 1..11
  EXPECT_EQ(rig.worker().stats().rejected, 1u);
  rig.echo(plane);
  const Sent last = rig.poll().at(0);
  EXPECT_EQ(last.header.chunk, 1u);
  EXPECT_EQ(last.header.kind, wire::Kind::kData) << "no META round comes first";
  rig.answer(last, {1, 0, 0, 0}, 1);  // there is no further chunk
  EXPECT_EQ(rig.worker().stats().rejected, 2u);
  rig.run();
  expect_same(job.values, {1.0F, 1.0F, 1.0F, 1.0F, 2.0F});
}

TEST(ExactChunks, AQuestionBringsTheSamePlaneAgain) {
  Rig rig(small_config(1));
  Floats job({1.0F, kInf, 1.0F, 1.0F});
  ASSERT_TRUE(rig.worker().submit(job.work));
  rig.echo(rig.poll().at(0));
  rig.answer(rig.poll().at(0), {0, 0, 0, 0}, 255);
  rig.echo(rig.poll().at(0));
  const Sent plane = rig.poll().at(0);
  const Sent question = rig.poll_at(rig.worker().next_timeout()).at(0);
  ASSERT_EQ(question.header.kind, wire::Kind::kQuestion);
  rig.miss(question);
  const Sent again = rig.poll_at(rig.worker().next_timeout()).at(0);
  EXPECT_EQ(again.header.kind, wire::Kind::kData);
  for (std::size_t lane = 0; lane < 4; ++lane) EXPECT_EQ(again.lane(lane), plane.lane(lane));
}

TEST(ExactChunks, AnInvalidFixedScaleStillGivesNan) {
  Pair pair;
  Floats first({1.0F, kInf, 3.0F, 4.0F});
  Floats second({1.0F, 1.0F, 1.0F, 1.0F});
  first.work.format = second.work.format = kFixed32;
  first.work.fixed_scale = second.work.fixed_scale = 0.0F;
  pair.submit({&first.work, &second.work});
  EXPECT_EQ(pair.run().size(), 1u);
  for (const Floats* job : {&first, &second}) expect_same(job->values, {kNan, kNan, kNan, kNan});
}

}  // namespace
}  // namespace wiresum::worker
