#include "worker/window.hpp"

#include <gtest/gtest.h>

namespace wiresum::worker {
namespace {

TEST(CongestionWindow, GrowsByOneForEachResultInSlowStart) {  // R4.9
  CongestionWindow window(32, 32, 128);
  for (int i = 0; i < 10; ++i) window.on_result(true, false);
  EXPECT_EQ(window.size(), 42u);
}

TEST(CongestionWindow, GrowsOnlyWhileItIsTheLimit) {
  CongestionWindow window(32, 32, 128);
  for (int i = 0; i < 100; ++i) window.on_result(false, false);
  EXPECT_EQ(window.size(), 32u);
}

TEST(CongestionWindow, NeverExceedsTheSlots) {  // R4.9
  CongestionWindow window(32, 32, 48);
  for (int i = 0; i < 1000; ++i) window.on_result(true, false);
  EXPECT_EQ(window.size(), 48u);
  EXPECT_EQ(CongestionWindow(32, 32, 4).size(), 4u);
}

TEST(CongestionWindow, HalvesOnLossAtMostOnceInARoundTrip) {  // R4.10
  CongestionWindow window(128, 8, 128);
  window.on_loss(1000, 100);
  EXPECT_EQ(window.size(), 64u);
  window.on_loss(1099, 100);
  EXPECT_EQ(window.size(), 64u);
  window.on_loss(1100, 100);
  EXPECT_EQ(window.size(), 32u);
}

TEST(CongestionWindow, NeverFallsBelowItsFloor) {  // R4.10
  CongestionWindow window(128, 32, 128);
  for (TimeNs now = 0; now < 10'000; now += 100) window.on_loss(now, 100);
  EXPECT_EQ(window.size(), 32u);
}

TEST(CongestionWindow, GrowsByOneForEachWindowAfterALoss) {  // R4.9
  CongestionWindow window(64, 8, 128);
  window.on_loss(0, 100);
  ASSERT_EQ(window.size(), 32u);
  for (int i = 0; i < 31; ++i) window.on_result(true, false);
  EXPECT_EQ(window.size(), 32u);
  window.on_result(true, false);
  EXPECT_EQ(window.size(), 33u);
}

/// The shortest round trip, and one during which packets queued.
constexpr TimeNs kLeast = 100, kQueued = 120;

/// A window in congestion avoidance, on a path whose last round trips had so many RESULTs and took so long.
CongestionWindow measured(std::uint32_t size, std::uint64_t results, TimeNs rtt) {
  CongestionWindow window(size, 8, 512);
  window.on_loss(0, 1);
  while (window.size() < size) window.on_result(true, false);
  for (int i = 0; i < 100; ++i) window.on_round_trip(results, rtt, kLeast);
  return window;
}

TEST(CongestionWindow, KeepsWhatThePathHoldsAndHalfItsFloor) {  // R4.10
  CongestionWindow window = measured(120, 120, kQueued);
  for (TimeNs now = 1000; now < 100'000; now += kLeast) window.on_loss(now, kLeast);
  EXPECT_EQ(window.size(), 104u);
}

TEST(CongestionWindow, DoesNotKeepWhatWasQueued) {  // R4.10
  CongestionWindow window = measured(400, 400, 4 * kLeast);
  window.on_loss(1000, kLeast);
  EXPECT_EQ(window.size(), 200u) << "halved, though the path holds 100";
  window.on_loss(2000, kLeast);
  EXPECT_EQ(window.size(), 104u);
}

TEST(CongestionWindow, ForgetsWhatAFasterPathHeld) {
  CongestionWindow window = measured(120, 120, kQueued);
  for (int i = 0; i < 100; ++i) window.on_round_trip(24, kQueued, kLeast);
  window.on_loss(1000, kLeast);
  EXPECT_EQ(window.size(), 60u);
  window.on_loss(2000, kLeast);
  EXPECT_EQ(window.size(), 30u);
  window.on_loss(3000, kLeast);
  EXPECT_EQ(window.size(), 24u);
}

TEST(CongestionWindow, ALossNeverWidensIt) {
  CongestionWindow window = measured(40, 600, kQueued);
  window.on_loss(1000, kLeast);
  EXPECT_EQ(window.size(), 40u);
}

/// A window in slow start, with half of its packets in flight a round trip ago, of which the path held `path`.
CongestionWindow doubled(std::uint32_t size, std::uint64_t path) {
  CongestionWindow window(32, 8, 512);
  while (window.size() < size) window.on_result(true, false);
  for (int i = 0; i < 100; ++i) window.on_round_trip((path * kQueued + kLeast - 1) / kLeast, kQueued, kLeast);
  window.on_loss(1000, kLeast);
  return window;
}

TEST(CongestionWindow, ALossDoesNotEndSlowStartIfThePathDeliveredAll) {  // R4.11
  CongestionWindow window = doubled(128, 64);
  EXPECT_EQ(window.size(), 128u);
  window.on_result(true, false);
  EXPECT_EQ(window.size(), 129u);
}

TEST(CongestionWindow, ALossEndsSlowStartIfThePathDeliveredLess) {  // R4.11
  CongestionWindow window = doubled(256, 64);
  EXPECT_EQ(window.size(), 132u) << "twice 64, and half the floor";
  window.on_result(true, false);
  EXPECT_EQ(window.size(), 132u);
  window.on_loss(2000, kLeast);
  EXPECT_EQ(window.size(), 68u);
}

/// The size after so many losses, a round trip apart, on a path that holds 400 packets, of which none queues.
std::uint32_t after_losses(int losses) {
  CongestionWindow window = measured(500, 400, kLeast);
  for (int i = 0; i < losses; ++i) window.on_loss(1000 + i * kLeast, kLeast);
  return window.size();
}

TEST(CongestionWindow, WhereNothingQueuesOneLossOfFiftyPacketsIsRandom) {  // R4.32
  EXPECT_EQ(after_losses(11), 500u);
  EXPECT_LT(after_losses(12), 500u);
  CongestionWindow window = measured(500, 400, kLeast);
  for (int i = 0; i < 100; ++i) {
    window.on_loss(1000 + i * kLeast, kLeast);
    for (int result = 0; result < 50; ++result) window.on_result(false, false);
  }
  EXPECT_EQ(window.size(), 500u) << "each window's losses count by themselves";
}

TEST(CongestionWindow, GrowsFasterAfterALossWhereNothingQueues) {  // R4.32
  for (const TimeNs rtt : {kLeast, kLeast + kLeast / 8, kLeast + kLeast / 8 + 1}) {
    CongestionWindow window = measured(256, 100, rtt);
    for (int i = 0; i < 256; ++i) window.on_result(true, false);
    EXPECT_EQ(window.size(), rtt - kLeast <= kLeast / 8 ? 260u : 257u) << rtt;
  }
}

/// Gives `count` windows of RESULTs, each of which is marked if `every` divides its number.
void windows(CongestionWindow& window, int count, std::uint32_t every) {
  for (int i = 0; i < count; ++i) {
    const std::uint32_t results = window.size();
    for (std::uint32_t result = 0; result < results; ++result) window.on_result(false, result % every == 0);
  }
}

TEST(CongestionWindow, MarksShrinkItByHalfTheirShare) {  // R4.14
  CongestionWindow all(400, 8, 512), some(400, 8, 512);
  windows(all, 1, 1);
  EXPECT_EQ(all.size(), 200u) << "the first marks halve it";
  windows(some, 1, 1'000'000);
  EXPECT_NEAR(some.size(), 213, 1) << "a single one nearly so: the share was taken for 1";
  CongestionWindow tenth(32, 8, 512);
  windows(tenth, 100, 1'000'000'000);  // each begins with a mark
  EXPECT_LE(tenth.size(), 32u);
  CongestionWindow quiet(400, 8, 512);
  for (int i = 0; i < 40'000; ++i) quiet.on_result(false, false);
  windows(quiet, 1, 10);
  EXPECT_GE(quiet.size(), 390u) << "after many windows without a mark a tenth counts little";
  windows(all, 100, 1);
  EXPECT_EQ(all.size(), 8u) << "never below the floor";
}

TEST(CongestionWindow, AMarkEndsSlowStart) {  // R4.13
  CongestionWindow window(32, 8, 512);
  window.on_result(true, true);
  for (int i = 0; i < 20; ++i) window.on_result(true, false);
  EXPECT_EQ(window.size(), 32u);
}

TEST(CongestionWindow, ALossAmongMarksHalvesItAsAnyOther) {  // R4.14
  CongestionWindow marked(256, 8, 512), unmarked(256, 8, 512);
  marked.on_result(true, true);
  for (CongestionWindow* const window : {&marked, &unmarked}) window->on_loss(1000, kLeast);
  EXPECT_EQ(marked.size(), 128u);
  EXPECT_EQ(marked.size(), unmarked.size());
  marked.on_loss(1050, kLeast);
  EXPECT_EQ(marked.size(), 128u) << "once in a round trip";
  windows(marked, 1, 1'000'000'000);
  EXPECT_EQ(marked.size(), 128u) << "the window that was halved is not reduced for its marks, too";
  windows(marked, 1, 1);
  EXPECT_LT(marked.size(), 128u) << "the next one is";
}

/// The size after 200 windows on a path of such round trips, all of whose RESULTs are marked.
std::uint32_t all_marked(TimeNs rtt, bool a_loss_in_each) {
  CongestionWindow window(400, 32, 4096);
  TimeNs now = 1000;
  for (int i = 0; i < 200; ++i, now += rtt) {
    const std::uint32_t results = window.size();
    if (a_loss_in_each) window.on_loss(now, rtt);
    for (std::uint32_t result = 0; result < results; ++result) window.on_result(true, true);
    window.on_round_trip(results, rtt, kLeast);
  }
  return window.size();
}

TEST(CongestionWindow, LossesThatShrinkNothingDoNotHideMarks) {
  for (const TimeNs rtt : {kLeast, kLeast * 100 / 95, 2 * kLeast}) {
    EXPECT_LE(all_marked(rtt, false), 33u) << rtt;
    EXPECT_LE(all_marked(rtt, true), 33u) << rtt << ": the path held all, so that a loss kept the window";
  }
}

TEST(CongestionWindow, OfALossAndMarksTheStrongerAnswerCounts) {  // R4.14
  CongestionWindow window(100, 8, 512);
  for (int i = 0; i < 100; ++i) window.on_round_trip(96, kQueued, kLeast);
  window.on_result(false, true);
  window.on_loss(1000, kLeast);
  ASSERT_EQ(window.size(), 84u);
  for (int i = 1; i < 84; ++i) window.on_result(false, true);
  EXPECT_EQ(window.size(), 50u) << "half of what it was before the loss, not of what the loss left";
}

TEST(CongestionWindow, LossesAreAnsweredWhileAllIsMarked) {
  CongestionWindow window(512, 8, 512);
  TimeNs now = 1000;
  for (int i = 0; i < 3; ++i, now += kLeast) {
    const std::uint32_t before = window.size();
    window.on_loss(now, kLeast);
    EXPECT_EQ(window.size(), before / 2);
    for (std::uint32_t result = 0; result < before / 4; ++result) window.on_result(true, true);
  }
}

}  // namespace
}  // namespace wiresum::worker
