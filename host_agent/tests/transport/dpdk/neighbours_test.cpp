#include "transport/dpdk/neighbours.hpp"

#include <gtest/gtest.h>

namespace wiresum::transport::dpdk {
namespace {

constexpr std::uint32_t kOwner = 0x0A000001;
constexpr TimeNs kMs = 1'000'000;
constexpr TimeNs kSecond = 1000 * kMs;

NextHop hop(std::uint8_t last, std::uint8_t port = 0) { return {.mac = {{2, 0, 0, 0, 0, last}}, .port = port}; }

class NeighboursTest : public ::testing::Test {
 protected:
  /// The ARP request that is due now, or nothing.
  bool asks(TimeNs now) { return table.poll_question(now, question); }

  /// Sends the request, and receives the answer.
  void learn(std::uint32_t address, const NextHop& from, TimeNs now) {
    ASSERT_EQ(table.find(address, now), nullptr);
    ASSERT_TRUE(asks(now));
    table.claimed(address, from, true, now);
    ASSERT_NE(table.find(address, now), nullptr);
  }

  bool is_at(std::uint32_t address, const NextHop& where, TimeNs now) {
    const NextHop* const found = table.find(address, now);
    return found != nullptr && *found == where;
  }

  Neighbours table;
  Neighbours::Question question;
};

TEST_F(NeighboursTest, BroadcastsARequestForAnUnknownAddress) {
  EXPECT_FALSE(asks(0));
  EXPECT_EQ(table.find(kOwner, 0), nullptr);
  ASSERT_TRUE(asks(0));
  EXPECT_EQ(question.address, kOwner);
  EXPECT_TRUE(question.everybody);
  table.claimed(kOwner, hop(1, 2), true, kMs);
  EXPECT_TRUE(is_at(kOwner, hop(1, 2), kMs));
  EXPECT_FALSE(asks(kSecond));
}

TEST_F(NeighboursTest, RequestsBecomeLessFrequent) {
  int questions = 0;
  for (TimeNs now = 0; now < 10 * kSecond; now += kMs / 10) {
    static_cast<void>(table.find(kOwner, now));
    questions += asks(now) ? 1 : 0;
  }
  EXPECT_GE(questions, 10);
  EXPECT_LE(questions, 20);
  EXPECT_TRUE(table.silent(kOwner));
}

TEST_F(NeighboursTest, RequestsSeveralAddressesOneAfterTheOther) {
  for (std::uint32_t i = 0; i < 32; ++i) static_cast<void>(table.find(kOwner + i, 0));
  EXPECT_TRUE(asks(0));
  EXPECT_FALSE(asks(0));
  int questions = 1;
  for (TimeNs now = 0; now < 9 * kMs; now += Neighbours::kQuestionNs) questions += asks(now) ? 1 : 0;
  EXPECT_EQ(questions, 32);
}

TEST_F(NeighboursTest, StopsRequestingAnUnusedAddress) {
  static_cast<void>(table.find(kOwner, 0));
  ASSERT_TRUE(asks(0));
  EXPECT_FALSE(asks(Neighbours::kForgetNs + kSecond));
  EXPECT_FALSE(asks(Neighbours::kForgetNs + 2 * kSecond));
}

TEST_F(NeighboursTest, IgnoresUnsolicitedAnswers) {
  table.claimed(kOwner, hop(6), true, 0);
  table.claimed(kOwner, hop(6), false, 0);
  EXPECT_EQ(table.find(kOwner, 0), nullptr);
  // Wanted, but no request has been sent yet.
  table.claimed(kOwner, hop(6), true, 0);
  EXPECT_EQ(table.find(kOwner, 0), nullptr);
  ASSERT_TRUE(asks(0));
  // A request was sent, but this is no answer, or it comes too late.
  table.claimed(kOwner, hop(6), false, 0);
  table.claimed(kOwner, hop(6), true, Neighbours::kAnswerNs);
  EXPECT_EQ(table.find(kOwner, Neighbours::kAnswerNs), nullptr);
}

TEST_F(NeighboursTest, AClaimDoesNotReplaceAnOwnerThatStillAnswers) {
  learn(kOwner, hop(1), 0);
  for (TimeNs now = 0; now < 10 * kSecond; now += 20 * kMs) {
    table.claimed(kOwner, hop(6), true, now);
    table.claimed(kOwner, hop(6), false, now);
    table.heard(kOwner, hop(6), now);
    EXPECT_TRUE(is_at(kOwner, hop(1), now));
    if (asks(now)) {
      EXPECT_FALSE(question.everybody);
      EXPECT_EQ(question.to, hop(1));
      table.claimed(kOwner, hop(1), true, now + kMs);  // the owner still answers
    }
    EXPECT_TRUE(is_at(kOwner, hop(1), now));
  }
}

TEST_F(NeighboursTest, AnOwnerThatHasMovedIsFoundAgain) {
  learn(kOwner, hop(1, 0), 0);
  // The same machine is now behind another port, with another card: it sends a request for our address, and does not
  // answer at the old place.
  table.claimed(kOwner, hop(2, 3), false, 0);
  TimeNs now = 0;
  int alone = 0;
  for (; now < kSecond; now += kMs) {
    if (!asks(now)) continue;
    if (question.everybody) break;
    ++alone;
    EXPECT_TRUE(is_at(kOwner, hop(1, 0), now));
  }
  EXPECT_EQ(alone, Neighbours::kDoubtsMax);
  EXPECT_TRUE(question.everybody);
  EXPECT_LE(now, 200 * kMs);
  table.claimed(kOwner, hop(2, 3), true, now);
  EXPECT_TRUE(is_at(kOwner, hop(2, 3), now));
}

TEST_F(NeighboursTest, DatagramsKeepAnEntryAlive) {
  learn(kOwner, hop(1), 0);
  for (TimeNs now = 0; now < 300 * kSecond; now += kSecond) {
    table.heard(kOwner, hop(1), now);
    EXPECT_TRUE(is_at(kOwner, hop(1), now));
    EXPECT_FALSE(asks(now));
  }
}

TEST_F(NeighboursTest, AnOldEntryIsRefreshedWhileItIsUsed) {
  learn(kOwner, hop(1), 0);
  const TimeNs later = Neighbours::kConfirmedNs + kSecond;
  EXPECT_TRUE(is_at(kOwner, hop(1), later));
  ASSERT_TRUE(asks(later));
  EXPECT_FALSE(question.everybody);
  table.claimed(kOwner, hop(1), true, later);
  EXPECT_FALSE(asks(later + kSecond));
}

TEST_F(NeighboursTest, AFloodOfInventedAddressesEvictsNoEntry) {
  learn(kOwner, hop(1), 0);
  for (std::uint32_t i = 1; i < 100'000; ++i) {
    table.heard(kOwner + i * 977, hop(6), kMs);
    static_cast<void>(table.find(kOwner + i * 31, kMs));
  }
  EXPECT_TRUE(is_at(kOwner, hop(1), kMs));
  int questions = 0;
  for (TimeNs now = kMs; now < kMs + kSecond; now += kMs / 20) questions += asks(now) ? 1 : 0;
  EXPECT_LE(questions, kSecond / Neighbours::kQuestionNs);
  // There is still room for an address that is wanted.
  learn(kOwner + 7, hop(7), 20 * kSecond);
}

}  // namespace
}  // namespace wiresum::transport::dpdk
