#include "schedule/reserved_queue.hpp"

#include <gtest/gtest.h>

#include <deque>

namespace wiresum::schedule {
namespace {

TEST(ReservedQueue, IsFirstInFirstOutUnderRandomUse) {
  ReservedQueue<int> queue;
  std::deque<int> expected;
  int next = 0;
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < round * 7 % 11; ++i, ++next) {
      queue.push(next);
      expected.push_back(next);
    }
    for (int i = 0; i < round * 5 % 9 && !expected.empty(); ++i) {
      ASSERT_EQ(queue.front(), expected.front());
      ASSERT_EQ(queue.take(), expected.front());
      expected.pop_front();
    }
    ASSERT_EQ(queue.size(), expected.size());
  }
  for (; !expected.empty(); expected.pop_front()) ASSERT_EQ(queue.take(), expected.front());
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.take(), std::nullopt);
}

TEST(ReservedQueue, HoldsTheReservedNumberAtEveryPosition) {
  constexpr std::size_t kMore = 5;
  ReservedQueue<int> queue;
  for (int taken = 0; taken < 20; ++taken) {
    queue.push(taken);
    queue.reserve(kMore);
    const int* const memory = &queue.front();
    const std::size_t before = queue.size();
    for (std::size_t i = 0; i < kMore; ++i) queue.push(-1);
    EXPECT_EQ(&queue.front(), memory) << "the memory moved";
    while (queue.size() > before) queue.pop();
    queue.pop();
  }
}

}  // namespace
}  // namespace wiresum::schedule
