#include "worker/window.hpp"

#include <gtest/gtest.h>

namespace wiresum::worker {
namespace {

TEST(CongestionWindow, GrowsByOneForEachResultInSlowStart) {
  CongestionWindow window(32, 32, 128);
  for (int i = 0; i < 10; ++i) window.on_result(true);
  EXPECT_EQ(window.size(), 42u);
}

TEST(CongestionWindow, GrowsOnlyWhileItIsTheLimit) {
  CongestionWindow window(32, 32, 128);
  for (int i = 0; i < 100; ++i) window.on_result(false);
  EXPECT_EQ(window.size(), 32u);
}

TEST(CongestionWindow, NeverExceedsTheSlots) {
  CongestionWindow window(32, 32, 48);
  for (int i = 0; i < 1000; ++i) window.on_result(true);
  EXPECT_EQ(window.size(), 48u);
  EXPECT_EQ(CongestionWindow(32, 32, 4).size(), 4u);
}

TEST(CongestionWindow, HalvesOnLossAtMostOnceInARoundTrip) {
  CongestionWindow window(128, 8, 128);
  window.on_loss(1000, 100);
  EXPECT_EQ(window.size(), 64u);
  window.on_loss(1099, 100);
  EXPECT_EQ(window.size(), 64u);
  window.on_loss(1100, 100);
  EXPECT_EQ(window.size(), 32u);
}

TEST(CongestionWindow, NeverFallsBelowItsFloor) {
  CongestionWindow window(128, 32, 128);
  for (TimeNs now = 0; now < 10'000; now += 100) window.on_loss(now, 100);
  EXPECT_EQ(window.size(), 32u);
}

TEST(CongestionWindow, GrowsByOneForEachWindowAfterALoss) {
  CongestionWindow window(64, 8, 128);
  window.on_loss(0, 100);
  ASSERT_EQ(window.size(), 32u);
  for (int i = 0; i < 31; ++i) window.on_result(true);
  EXPECT_EQ(window.size(), 32u);
  window.on_result(true);
  EXPECT_EQ(window.size(), 33u);
}

}  // namespace
}  // namespace wiresum::worker
