#include "worker/slot_order.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace wiresum::worker {
namespace {

TEST(SlotOrder, IsEmptyAtFirstAndAfterClear) {
  SlotOrder order(5);
  EXPECT_TRUE(order.empty());
  order.set(3, 10);
  EXPECT_FALSE(order.empty());
  order.clear();
  EXPECT_TRUE(order.empty());
  EXPECT_EQ(order.first(), kNoSlot);
}

TEST(SlotOrder, WorksWithASingleSlot) {
  SlotOrder order(1);
  order.set(0, 42);
  EXPECT_EQ(order.first(), 0u);
  order.remove(0);
  EXPECT_TRUE(order.empty());
}

TEST(SlotOrder, ComparesKeysAsSerialNumbers) {
  SlotOrder order(2);
  order.set(0, 5);
  order.set(1, UINT64_MAX - 5);
  EXPECT_EQ(order.first(), 1u) << "a key just before the wrap comes before one just after it";
}

TEST(SlotOrder, AgreesWithASortedMapUnderRandomChanges) {
  std::mt19937 random(1);
  for (std::uint32_t slots : {1u, 2u, 3u, 8u, 13u, 128u}) {
    SlotOrder order(slots);
    std::map<std::uint64_t, std::uint32_t> by_key;
    std::vector<std::uint64_t> keys(slots, 0);
    for (std::uint64_t step = 1; step <= 5000; ++step) {
      const auto slot = static_cast<std::uint32_t>(random() % slots);
      by_key.erase(keys[slot]);
      keys[slot] = 0;
      if (random() % 3 == 0) {
        order.remove(slot);
      } else {
        keys[slot] = (std::uint64_t{random() % 1000} << 20) + step;
        by_key[keys[slot]] = slot;
        order.set(slot, keys[slot]);
      }
      ASSERT_EQ(order.first(), by_key.empty() ? kNoSlot : by_key.begin()->second);
    }
  }
}

}  // namespace
}  // namespace wiresum::worker
