// Collectives end early by failures, divergence and deadlines.
#include <gtest/gtest.h>

#include "rig.hpp"
#include "worker/worker.hpp"

namespace wiresum::worker {
namespace {

TEST(WorkerEnds, FailEndsAllCollectivesAndLaterOnes) {  // R4.31
  Rig rig;
  Integers a(iota(64)), b(iota(4)), late(iota(4));
  a.work.token = 1;
  b.work.token = 2;
  late.work.token = 3;
  ASSERT_TRUE(rig.worker().submit(a.work));
  ASSERT_TRUE(rig.worker().submit(b.work));
  const auto sent = rig.poll();
  rig.worker().fail(Status::kAborted);
  rig.worker().fail(Status::kTimedOut);
  ASSERT_TRUE(rig.worker().submit(late.work));
  for (std::uint64_t token : {1u, 2u, 3u}) {
    const auto completion = rig.worker().poll_completion();
    ASSERT_TRUE(completion.has_value());
    EXPECT_EQ(completion->token, token);
    EXPECT_EQ(completion->status, Status::kAborted) << "the first failure stays";
  }
  rig.answer(sent.at(0), {9, 9, 9, 9});
  EXPECT_EQ(a.values, iota(64)) << "memory belongs to the caller again";
  EXPECT_TRUE(rig.poll_at(10'000 * kMillisecond).empty());
  EXPECT_EQ(rig.worker().next_timeout(), kNever);
}

TEST(WorkerEnds, ACompletedCollectiveStaysCompletedWhenALaterOneFails) {
  Rig rig;
  Integers done(iota(4)), lost(iota(4));
  ASSERT_TRUE(rig.worker().submit(done.work));
  ASSERT_TRUE(rig.worker().submit(lost.work));
  rig.echo(rig.poll().at(0));
  rig.worker().fail(Status::kAborted);
  EXPECT_EQ(rig.worker().poll_completion().value().status, Status::kOk);
  EXPECT_EQ(rig.worker().poll_completion().value().status, Status::kAborted);
}

TEST(WorkerEnds, APassedDeadlineTimesOut) {  // R4.30
  Rig rig;
  Integers soon(iota(4)), later(iota(4));
  soon.work.deadline = 5 * kMillisecond;
  later.work.deadline = 50 * kMillisecond;
  soon.work.token = 1;
  later.work.token = 2;
  ASSERT_TRUE(rig.worker().submit(later.work));
  ASSERT_TRUE(rig.worker().submit(soon.work));
  rig.poll_at(1 * kMillisecond);
  EXPECT_EQ(rig.worker().next_timeout(), 5 * kMillisecond);
  rig.poll_at(5 * kMillisecond - 1);
  EXPECT_FALSE(rig.worker().poll_completion().has_value());
  rig.poll_at(5 * kMillisecond);
  for (const std::uint64_t token : {1u, 2u}) {
    const Completion completion = rig.worker().poll_completion().value();
    EXPECT_EQ(completion.token, token) << "first the one that failed";
    EXPECT_EQ(completion.status, Status::kTimedOut);
  }
}

TEST(WorkerEnds, TheCollectiveAtWhichADivergenceShowedEndsFirst) {
  Rig rig;
  Integers first(iota(4)), second(iota(4)), third(iota(4));
  first.work.token = 1;
  second.work.token = 2;
  third.work.token = 3;
  for (Integers* const sum : {&first, &second, &third}) ASSERT_TRUE(rig.worker().submit(sum->work));
  Sent differs = rig.poll().at(1);
  differs.header.tensor ^= 0x10000;
  rig.answer(differs, {1, 2, 3, 4});
  for (const std::uint64_t token : {2u, 1u, 3u}) {
    const Completion completion = rig.worker().poll_completion().value();
    EXPECT_EQ(completion.token, token);
    EXPECT_EQ(completion.status, Status::kDiverged);
  }
}

TEST(WorkerEnds, ADeadlineThatWasMetHasNoEffect) {
  Rig rig;
  Integers first(iota(4)), second(iota(4));
  first.work.deadline = 5 * kMillisecond;
  ASSERT_TRUE(rig.worker().submit(first.work));
  ASSERT_TRUE(rig.worker().submit(second.work));
  const auto sent = rig.poll();
  rig.echo(sent.at(0));
  rig.poll_at(6 * kMillisecond);
  EXPECT_EQ(rig.worker().poll_completion().value().status, Status::kOk);
  EXPECT_FALSE(rig.worker().poll_completion().has_value());
  EXPECT_GT(rig.worker().next_timeout(), rig.now) << "else its thread would never sleep";
  rig.echo(sent.at(1));
  EXPECT_EQ(rig.worker().poll_completion().value().status, Status::kOk);
}

TEST(WorkerEnds, ADeadlineHoldsThoughAnEarlierOneWasMet) {
  Rig rig;
  Integers first(iota(4)), second(iota(4));
  first.work.deadline = 5 * kMillisecond;
  second.work.deadline = 50 * kMillisecond;
  ASSERT_TRUE(rig.worker().submit(first.work));
  ASSERT_TRUE(rig.worker().submit(second.work));
  rig.echo(rig.poll().at(0));
  EXPECT_EQ(rig.worker().poll_completion().value().status, Status::kOk);
  rig.poll_at(6 * kMillisecond);
  rig.poll_at(50 * kMillisecond);
  EXPECT_EQ(rig.worker().poll_completion().value().status, Status::kTimedOut);
}

}  // namespace
}  // namespace wiresum::worker
