#include "engine/operation.hpp"

#include <gtest/gtest.h>

namespace wiresum::engine {
namespace {

using worker::Status;

TEST(Operation, NotifiesTheQueueExactlyOnce) {
  Operation asked(1, 1, true);
  EXPECT_TRUE(asked.end(Status::kOk));
  EXPECT_FALSE(asked.notify_after_all()) << "the queue was notified at the end";

  Operation late(2, 2, false);
  EXPECT_FALSE(late.end(Status::kAborted));
  EXPECT_TRUE(late.notify_after_all());
  EXPECT_FALSE(late.notify_after_all());

  Operation under_way(3, 3, false);
  EXPECT_FALSE(under_way.notify_after_all()) << "the queue will be notified";
  EXPECT_TRUE(under_way.end(Status::kOk));
  EXPECT_FALSE(under_way.notify_after_all());
}

}  // namespace
}  // namespace wiresum::engine
