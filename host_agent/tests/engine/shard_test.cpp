// A shard by itself: its mailbox, collectives that the state machine has no room for yet, and its end.
#include "engine/shard.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "sim_transport.hpp"

namespace wiresum::engine {
namespace {

using worker::Collective;
using worker::Status;

class SetClock final : public Clock {
 public:
  [[nodiscard]] TimeNs now() const noexcept override { return time; }
  TimeNs time = 0;
};

worker::WorkerConfig small_config() {
  worker::WorkerConfig config;
  config.lanes = 4;
  config.slots = 4;
  config.collectives_max = 1;
  return config;
}

Collective barrier(std::uint64_t token) {
  Collective work;
  work.chunk_end = 1;
  work.token = token;
  return work;
}

class ShardTest : public testing::Test {
 protected:
  /// Answers all packets that were sent.
  void answer() {
    for (const sim::Packet& packet : sent) {
      wire::Header header;
      ASSERT_EQ(wire::decode(packet.bytes(), header), wire::ParseError::kNone);
      header.kind = wire::Kind::kResult;
      transport.arrive(pool.make([&](std::byte* data) {
        std::ranges::copy(packet.bytes(), data);
        wire::encode(header, std::span<std::byte, wire::kHeaderBytes>(data, wire::kHeaderBytes));
        return packet.size();
      }));
    }
    sent.clear();
  }

  SetClock clock;
  static constexpr std::size_t kPacketBytes = wire::kHeaderBytes + 4 * wire::kWordBytes;
  sim::PacketPool pool{kPacketBytes};
  sim::DeviceMemory memory{4, kPacketBytes};
  std::vector<sim::Packet> sent;
  std::vector<worker::Completion> completions;
  int mails = 0;
  std::vector<std::pair<sim::SimTransport::Place, sim::Packet>> unread;  // packets that the device has not read yet
  bool device_is_late = false;
  sim::SimTransport transport{memory, pool,
                              [this](sim::SimTransport::Place place, const sim::Packet& packet, wire::Endpoint to) {
                                if (device_is_late) {
                                  unread.emplace_back(place, packet);
                                } else {
                                  transport.read(place, packet, to);
                                }
                              },
                              [this](const sim::Packet& packet, wire::Endpoint) { sent.push_back(packet); }};
  Shard shard{small_config(), wire::Endpoint{}, clock, transport,
              Shard::Hooks{.on_mail = [this] { ++mails; },
                           .on_completion =
                               [this](const worker::Completion& completion) { completions.push_back(completion); }}};
};

TEST_F(ShardTest, WaitingCollectivesEnterTheStateMachineWhenACompletionIsTaken) {
  for (std::uint64_t token = 1; token <= 3; ++token) shard.post(barrier(token));
  EXPECT_EQ(mails, 3);
  EXPECT_TRUE(shard.take_mail());
  EXPECT_FALSE(shard.take_mail());
  for (std::uint64_t token = 1; token <= 3; ++token) {
    ASSERT_TRUE(shard.transmit());
    ASSERT_EQ(sent.size(), 1U);
    answer();
    ASSERT_TRUE(shard.receive());
    ASSERT_TRUE(shard.report());
    ASSERT_EQ(completions.size(), token);
    EXPECT_EQ(completions.back().token, token);
    EXPECT_EQ(completions.back().status, Status::kOk);
  }
  EXPECT_FALSE(shard.transmit());
  EXPECT_FALSE(shard.report());
}

TEST_F(ShardTest, ADeadlineCountsAlsoWhileTheStateMachineHasNoRoom) {
  shard.post(barrier(1));
  Collective late = barrier(2);
  late.deadline = 1'000;
  shard.post(late);
  shard.take_mail();
  shard.transmit();
  EXPECT_LE(shard.next_timeout(), 1'000);
  clock.time = 1'000;
  shard.transmit();
  shard.report();
  ASSERT_EQ(completions.size(), 2U);
  for (const worker::Completion& completion : completions) EXPECT_EQ(completion.status, Status::kTimedOut);
  EXPECT_EQ(completions.front().token, late.token) << "it is the one that failed";
  EXPECT_EQ(shard.next_timeout(), worker::kNever);
}

TEST_F(ShardTest, ADeadlineIsOverWithItsCollective) {
  Collective first = barrier(1);
  Collective second = barrier(2);
  first.deadline = second.deadline = 1'000;
  Collective third = barrier(3);
  third.deadline = 2'000;
  for (const Collective& work : {first, second, third}) shard.post(work);
  shard.take_mail();
  for (int step = 0; step < 2; ++step) {
    shard.transmit();
    answer();
    shard.receive();
    shard.report();
  }
  clock.time = 1'999;
  shard.transmit();
  answer();
  shard.receive();
  shard.report();
  ASSERT_EQ(completions.size(), 3U);
  for (const worker::Completion& completion : completions) EXPECT_EQ(completion.status, Status::kOk);
}

TEST_F(ShardTest, ItsEndEndsPendingCollectivesAndThoseInTheMailbox) {
  shard.post(barrier(1));
  shard.take_mail();
  ASSERT_TRUE(shard.transmit());
  shard.post(barrier(2));
  shard.post(barrier(3));
  shard.end();
  ASSERT_EQ(completions.size(), 3U);
  for (std::uint64_t token = 1; token <= 3; ++token) {
    EXPECT_EQ(completions[token - 1].token, token);
    EXPECT_EQ(completions[token - 1].status, Status::kAborted);
  }
}

TEST_F(ShardTest, PacketsWaitUntilTheDeviceHasRoom) {
  device_is_late = true;
  std::vector<std::int32_t> values(4 * 16, 7);
  auto* bytes = reinterpret_cast<std::byte*>(values.data());
  const worker::Region region{.source = bytes, .destination = bytes, .elements = values.size()};
  Collective work;
  work.format = {numeric::Dtype::kI32, numeric::Scaling::kNone, 32};
  work.regions = {&region, 1};
  work.chunk_end = 16;
  shard.post(work);
  shard.take_mail();
  std::size_t steps = 0;
  for (; completions.empty() && steps < 100; ++steps) {
    shard.transmit();
    EXPECT_LE(unread.size(), 4U);  // the device's room
    if (!unread.empty()) {
      transport.read(unread.back().first, unread.back().second, {});  // the device reads them in no particular order
      unread.pop_back();
    }
    answer();
    shard.receive();
    shard.report();
  }
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions.front().status, Status::kOk);
  EXPECT_EQ(values, std::vector<std::int32_t>(4 * 16, 7));
}

TEST_F(ShardTest, TheFirstFailureIsThatOfAllLaterCollectives) {
  shard.post(barrier(1));
  shard.post_failure(Status::kTimedOut);
  shard.post_failure(Status::kAborted);
  EXPECT_TRUE(shard.has_mail());
  shard.take_mail();
  shard.report();
  shard.post(barrier(2));
  shard.take_mail();
  shard.report();
  ASSERT_EQ(completions.size(), 2U);
  for (const worker::Completion& completion : completions) EXPECT_EQ(completion.status, Status::kTimedOut);
  EXPECT_FALSE(shard.transmit());
  EXPECT_EQ(shard.next_timeout(), worker::kNever);
}

}  // namespace
}  // namespace wiresum::engine
