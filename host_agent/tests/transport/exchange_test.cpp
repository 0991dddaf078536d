// Several threads share a device whose queues bring each thread packets for the others, too.
#include "transport/exchange.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace wiresum::transport {
namespace {

constexpr std::size_t kBytes = 64;
constexpr std::size_t kPorts = 6;

/// A thread's part of a device: what a test puts in is received once, in memory that the next receive() overwrites.
class Part final : public Transport {
 public:
  struct Sent {
    std::size_t count;
    std::uint8_t port;
  };

  void arrive(std::uint8_t port, std::uint32_t number) {
    const std::lock_guard lock(mutex_);
    arrived_.push_back({port, number});
    event_.notify_all();
  }

  const char* name() const noexcept override { return "part"; }
  std::size_t receive(std::span<RxDatagram> out) noexcept override {
    const std::lock_guard lock(mutex_);
    for (auto& datagram : lent_) std::ranges::fill(datagram, std::byte{0xDD});
    const std::size_t count = std::min({out.size(), arrived_.size(), lent_.size()});
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(lent_[i].data(), &arrived_[i].second, sizeof arrived_[i].second);
      out[i] = {.bytes = lent_[i],
                .source = {.address = 7, .port = 7},
                .port = arrived_[i].first,
                .marked = arrived_[i].second % 2 == 1};
    }
    arrived_.erase(arrived_.begin(), arrived_.begin() + static_cast<std::ptrdiff_t>(count));
    stats_.datagrams_received += count;
    return count;
  }
  std::span<wire::Packet> buffers(std::size_t) noexcept override { return {}; }
  std::size_t train_packets(std::size_t) const noexcept override { return 1; }
  void send(std::size_t count, std::span<const wire::Endpoint>, std::uint8_t port, bool /*marked*/) noexcept override {
    sent.push_back({count, port});
  }
  void wait(std::int64_t) noexcept override {
    std::unique_lock lock(mutex_);
    event_.wait(lock, [this] { return woken_ || !arrived_.empty(); });
    woken_ = false;
  }
  void wake() noexcept override {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    event_.notify_all();
  }
  const TransportStats& stats() const noexcept override { return stats_; }
  int take_error() noexcept override { return 0; }

  std::vector<Sent> sent;

 private:
  std::mutex mutex_;
  std::condition_variable event_;
  bool woken_ = false;
  std::vector<std::pair<std::uint8_t, std::uint32_t>> arrived_;
  std::array<std::array<std::byte, kBytes>, 32> lent_{};
  TransportStats stats_;
};

struct ThreadTransports {
  explicit ThreadTransports(std::size_t count) {
    std::vector<std::unique_ptr<Transport>> queues;
    for (std::size_t i = 0; i < count; ++i) {
      parts.push_back(new Part);
      queues.emplace_back(parts.back());
    }
    transports = thread_transports(std::move(queues), kBytes);
  }

  std::vector<Part*> parts;
  std::vector<std::unique_ptr<Transport>> transports;
};

std::uint32_t number_of(const RxDatagram& datagram) {
  std::uint32_t number = 0;
  std::memcpy(&number, datagram.bytes.data(), sizeof number);
  return number;
}

TEST(Exchange, ASingleThreadGetsTheTransportItself) {
  const ThreadTransports one(1);
  EXPECT_EQ(one.transports.front().get(), one.parts.front());
}

TEST(Exchange, EachThreadGetsThePacketsForItsPortsFromEveryQueue) {
  const ThreadTransports three(3);
  std::uint32_t number = 0;
  for (Part* const part : three.parts) {
    for (std::uint8_t port = 0; port < kPorts; ++port) part->arrive(port, 100u * port + number);
    ++number;
  }
  std::array<RxDatagram, 32> out{};
  for (const auto& transport : three.transports) static_cast<void>(transport->receive(std::span(out).first(0)));
  std::array<std::set<std::uint32_t>, 3> got;
  for (int turn = 0; turn < 4; ++turn) {
    for (std::size_t thread = 0; thread < 3; ++thread) {
      for (const RxDatagram& datagram : std::span(out).first(three.transports[thread]->receive(out))) {
        const std::uint32_t found = number_of(datagram);
        EXPECT_EQ(found / 100, 3u * datagram.port + thread) << "numbered by the thread's own ports";
        EXPECT_EQ(datagram.source, (wire::Endpoint{.address = 7, .port = 7}));
        EXPECT_EQ(datagram.marked, found % 2 == 1);
        EXPECT_TRUE(got[thread].insert(found).second);
      }
    }
  }
  for (std::size_t thread = 0; thread < 3; ++thread) {
    EXPECT_EQ(got[thread].size(), 6u);
    EXPECT_EQ(three.transports[thread]->stats().datagrams_received, 6u);
    EXPECT_EQ(three.transports[thread]->stats().datagrams_passed, 4u);
  }
}

TEST(Exchange, EachThreadSendsByItsOwnQueuesFromItsOwnPorts) {
  const ThreadTransports three(3);
  three.transports[2]->send(5, {}, 1, false);
  ASSERT_EQ(three.parts[2]->sent.size(), 1u);
  EXPECT_EQ(three.parts[2]->sent[0].count, 5u);
  EXPECT_EQ(three.parts[2]->sent[0].port, 5);
}

TEST(Exchange, OwnQueuesAndMailboxDoNotStarveEachOther) {
  const ThreadTransports two(2);
  for (std::uint32_t i = 0; i < 20; ++i) {
    two.parts[0]->arrive(1, i);
    two.parts[1]->arrive(1, 1000 + i);
  }
  std::array<RxDatagram, 32> out{};
  EXPECT_EQ(two.transports[0]->receive(out), 0u);
  int own = 0;
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(two.transports[1]->receive(std::span(out).first(1)), 1u);
    own += number_of(out[0]) >= 1000 ? 1 : 0;
  }
  EXPECT_EQ(own, 5);
}

TEST(Exchange, AFullMailboxDropsOnlyPacketsThatArriveThen) {
  const ThreadTransports two(2);
  std::array<RxDatagram, 32> out{};
  for (std::uint32_t i = 0; i < kPassedMax + 32; ++i) two.parts[0]->arrive(1, i);
  for (std::size_t i = 0; i < kPassedMax / 32 + 1; ++i) EXPECT_EQ(two.transports[0]->receive(out), 0u);
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < kPassedMax / 32 + 2; ++i) {
    for (const RxDatagram& datagram : std::span(out).first(two.transports[1]->receive(out))) {
      EXPECT_EQ(number_of(datagram), next++);
    }
  }
  EXPECT_EQ(next, kPassedMax);
  two.parts[0]->arrive(1, 77);
  EXPECT_EQ(two.transports[0]->receive(out), 0u);
  std::size_t count = 0;
  for (int i = 0; i < 2 && count == 0; ++i) count = two.transports[1]->receive(out);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(number_of(out[0]), 77u);
}

TEST(Exchange, ASleepingThreadIsWokenForPassedPackets) {
  const ThreadTransports two(2);
  std::atomic<bool> got{false};
  std::thread sleeper([&] {
    std::array<RxDatagram, 4> out{};
    while (two.transports[1]->receive(out) == 0) two.transports[1]->wait(-1);
    got = number_of(out[0]) == 42;
  });
  two.parts[0]->arrive(1, 42);
  std::array<RxDatagram, 4> out{};
  EXPECT_EQ(two.transports[0]->receive(out), 0u);
  sleeper.join();
  EXPECT_TRUE(got);
}

TEST(Exchange, ConcurrentThreadsLoseNothingAndSeeNothingTwice) {
  constexpr std::uint32_t kEach = 5'000;
  const ThreadTransports three(3);
  std::atomic<std::uint32_t> made{0};
  std::atomic<std::uint32_t> received{0};
  std::array<std::set<std::uint32_t>, 3> got;
  const auto work = [&](std::size_t thread) {
    std::mt19937 chance(static_cast<unsigned>(thread));
    std::array<RxDatagram, 48> out{};
    std::uint32_t own = 0;
    // A thread that has sent everything must still receive, until all have theirs.
    while (received.load() != 3 * kEach) {
      // Few packets are in flight, so that no mailbox overflows.
      for (int i = 0; i < 8 && own < kEach && made.load() - received.load() < kPassedMax / 2; ++i) {
        made.fetch_add(1);
        const auto port = static_cast<std::uint8_t>(chance() % kPorts);
        three.parts[thread]->arrive(port, static_cast<std::uint32_t>(thread) * kEach + own++);
      }
      const std::size_t count = three.transports[thread]->receive(out);
      for (const RxDatagram& datagram : std::span(out).first(count)) got[thread].insert(number_of(datagram));
      received.fetch_add(static_cast<std::uint32_t>(count));
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 3; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  std::size_t sum = 0;
  for (const auto& numbers : got) {
    sum += numbers.size();
    EXPECT_LT(*numbers.rbegin(), 3 * kEach);
  }
  EXPECT_EQ(sum, 3u * kEach);
}

}  // namespace
}  // namespace wiresum::transport
