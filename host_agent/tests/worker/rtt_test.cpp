#include "worker/rtt.hpp"

#include <gtest/gtest.h>

namespace wiresum::worker {
namespace {

constexpr TimeNs kMs = 1'000'000;

TEST(RttEstimator, StartsWithTheInitialTimeout) {  // R4.19
  const RttEstimator rtt(20 * kMs, 1 * kMs, 200 * kMs);
  EXPECT_EQ(rtt.rto(), 20 * kMs);
  EXPECT_EQ(rtt.smoothed(), 0);
}

TEST(RttEstimator, FirstSampleGivesThreeTimesTheRoundTrip) {
  RttEstimator rtt(20 * kMs, 1 * kMs, 200 * kMs);
  rtt.sample(4 * kMs);
  EXPECT_EQ(rtt.smoothed(), 4 * kMs);
  EXPECT_EQ(rtt.rto(), 12 * kMs);  // srtt + 4 * (rtt / 2)
}

TEST(RttEstimator, FollowsRfc6298) {
  RttEstimator rtt(20 * kMs, 1 * kMs, 200 * kMs);
  rtt.sample(8 * kMs);
  rtt.sample(16 * kMs);
  EXPECT_EQ(rtt.smoothed(), 9 * kMs);       // 8 + (16 - 8) / 8
  EXPECT_EQ(rtt.rto(), (9 + 4 * 5) * kMs);  // variation 4 + (8 - 4) / 4
}

TEST(RttEstimator, KeepsAMarginAboveASteadyRoundTrip) {
  RttEstimator rtt(20 * kMs, 1 * kMs, 200 * kMs);
  for (int i = 0; i < 10'000; ++i) rtt.sample(kMs / 10);
  EXPECT_NEAR(static_cast<double>(rtt.smoothed()), static_cast<double>(kMs) / 10, 100);
  EXPECT_EQ(rtt.rto(), rtt.smoothed() + 1 * kMs);
}

TEST(RttEstimator, RemembersTheShortest) {
  RttEstimator rtt(20 * kMs, 1 * kMs, 200 * kMs);
  EXPECT_EQ(rtt.least(), 0);
  for (const TimeNs sample : {5 * kMs, 3 * kMs, 9 * kMs}) rtt.sample(sample);
  EXPECT_EQ(rtt.least(), 3 * kMs);
}

TEST(RttEstimator, CapsASampleAndTheTimeout) {  // R4.19
  RttEstimator rtt(20 * kMs, 1 * kMs, 200 * kMs);
  rtt.sample(60'000 * kMs);
  EXPECT_EQ(rtt.smoothed(), 200 * kMs);
  EXPECT_EQ(rtt.rto(), 200 * kMs);
}

TEST(RttEstimator, KnowsHowLongAResultTakesThatIsNotLost) {  // R4.17
  RttEstimator rtt(20 * kMs, 1 * kMs, 200 * kMs);
  EXPECT_EQ(rtt.soon(), 20 * kMs) << "nothing is known of the path";
  rtt.sample(8 * kMs);
  rtt.sample(16 * kMs);
  EXPECT_EQ(rtt.soon(), (9 + 2 * 5) * kMs);
  EXPECT_EQ(rtt.later(), rtt.rto()) << "at most";
  for (int i = 0; i < 10'000; ++i) rtt.sample(kMs / 10);
  EXPECT_EQ(rtt.later(), 2 * rtt.soon());
  EXPECT_NEAR(static_cast<double>(rtt.soon()), 1.25 * static_cast<double>(kMs) / 10, 1000) << "without the floor";
  for (int i = 0; i < 10'000; ++i) rtt.sample(100 * kMs);
  EXPECT_EQ(rtt.soon(), rtt.rto()) << "at most";
}

TEST(RttEstimator, DoubtDoublesOneTimerUntilTheNextSample) {  // R4.20
  RttEstimator rtt(20 * kMs, 1 * kMs, 200 * kMs);
  for (int i = 0; i < 10'000; ++i) rtt.sample(kMs / 100);
  const TimeNs soon = rtt.soon();
  for (int doublings = 1; doublings <= 3; ++doublings) {
    rtt.doubt(kMs);
    EXPECT_EQ(rtt.soon(), soon);
    EXPECT_EQ(rtt.later(), 2 * soon << doublings);
  }
  for (int i = 0; i < 1000; ++i) rtt.doubt(200 * kMs);
  EXPECT_EQ(rtt.later(), rtt.rto()) << "at most";
  rtt.sample(kMs / 100);
  EXPECT_EQ(rtt.later(), 2 * rtt.soon());
}

TEST(RttEstimator, DoubtMakesTimersTwiceAsLongAsThePacketTookAtMost) {  // R4.20
  RttEstimator rtt(20 * kMs, 1 * kMs, 200 * kMs);
  for (int i = 0; i < 10'000; ++i) rtt.sample(kMs / 100);
  const TimeNs took = 3 * rtt.later() / 2;
  for (int i = 0; i < 100; ++i) rtt.doubt(took);
  EXPECT_EQ(rtt.later(), 2 * took);
  rtt.doubt(took / 2);
  EXPECT_EQ(rtt.later(), 2 * took) << "another one took longer";
}

TEST(RttEstimator, DoubtMakesTheRtoLongerUntilTheNextSample) {  // R4.20
  RttEstimator rtt(20 * kMs, 1 * kMs, 200 * kMs);
  for (int i = 0; i < 10'000; ++i) rtt.sample(kMs / 100);
  const TimeNs rto = rtt.rto();
  const TimeNs soon = rtt.soon();
  rtt.doubt(rto / 4);
  EXPECT_EQ(rtt.rto(), rto) << "it is longer already";
  for (int i = 0; i < 100; ++i) rtt.doubt(30 * kMs);
  EXPECT_EQ(rtt.rto(), 60 * kMs);
  EXPECT_EQ(rtt.later(), 60 * kMs);
  EXPECT_EQ(rtt.soon(), soon);
  for (int i = 0; i < 100; ++i) rtt.doubt(150 * kMs);
  EXPECT_EQ(rtt.rto(), 200 * kMs) << "at most";
  rtt.sample(kMs / 100);
  EXPECT_EQ(rtt.rto(), rto);
}

TEST(RttEstimator, WhatWasMeasuredWhilePeersWaitedForATimerIsForgottenAtOnce) {  // R4.21
  RttEstimator rtt(20 * kMs, 1 * kMs, 200 * kMs);
  for (int i = 0; i < 10; ++i) rtt.sample(20 * kMs);
  rtt.sample(20 * kMs / 8);
  EXPECT_GT(rtt.smoothed(), 17 * kMs) << "an eighth is no mistake";
  rtt.sample(rtt.smoothed() / 8 - 1);
  EXPECT_LT(rtt.smoothed(), 3 * kMs) << "less than an eighth is";
  rtt.sample(kMs / 100);
  EXPECT_EQ(rtt.smoothed(), kMs / 100);
  EXPECT_EQ(rtt.later(), 4 * kMs / 100) << "as after the first sample";
}

}  // namespace
}  // namespace wiresum::worker
