// The rings between a rank and its host's leaf: order, room, wake-ups, and a process at the other end that writes
// anything there.
#include "transport/shm/channel.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "patience.hpp"
#include "transport/shm/memory.hpp"
#include "transport/shm/shm.hpp"

namespace wiresum::transport::shm {
namespace {

constexpr std::size_t kPacketBytes = 100;

/// Any number, or one of so many.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint32_t operator()() { return static_cast<std::uint32_t>(engine_()); }
  std::uint32_t operator()(std::uint32_t below) { return operator()() % below; }

 private:
  std::mt19937_64 engine_;
};
constexpr std::size_t kResultsBytes = 4096;

/// Both ends of a channel, in this process.
struct Pair {
  Shape shape{kPacketBytes};
  Memory memory{shape.channel_bytes(), false};
  Memory results{kResultsBytes, true};
  process::Descriptor rank_event = make_event();
  process::Descriptor leaf_event = make_event();
  RankEnd rank{memory.data(), {results.data(), results.size()}, shape, rank_event.get(), leaf_event.get()};
  LeafEnd leaf{memory.data(), shape, leaf_event.get(), rank_event.get()};
  Layout at{memory.data(), shape};

  bool send(std::uint32_t number) {
    std::array<wire::Packet, 1> packet{};
    if (rank.offer(packet) == 0) return false;
    std::memcpy(packet[0].data, &number, sizeof number);
    packet[0].bytes = sizeof number;
    rank.send(packet);
    return true;
  }
  bool answer(std::uint32_t number) {
    std::byte* const place = leaf.copy();
    if (place == nullptr) return false;
    std::memcpy(place, &number, sizeof number);
    leaf.post_copy(sizeof number, number % 2 == 1);
    return true;
  }
};

std::uint32_t number_in(const Lent& lent) {
  std::uint32_t number = 0;
  EXPECT_EQ(lent.bytes.size(), sizeof number);
  std::memcpy(&number, lent.bytes.data(), sizeof number);
  return number;
}

TEST(ShmChannel, PacketsComeInOrderHoweverTheTwoTakeTurns) {
  Pair pair;
  Random random(1);
  std::vector<Lent> lent(7);
  std::uint32_t sent = 0;
  std::uint32_t received = 0;
  while (received < 20 * pair.shape.up) {
    for (unsigned more = random(300); more > 0; --more) sent += pair.send(sent) ? 1 : 0;
    const std::size_t count =
        pair.leaf.receive(std::span(lent).first(1 + random(static_cast<std::uint32_t>(lent.size()))));
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(number_in(lent[i]), received++);
    ASSERT_LE(received, sent);
    ASSERT_LE(sent - received, pair.shape.up);
  }
}

TEST(ShmChannel, APacketsPlaceIsNotOfferedWhileTheLeafHasIt) {
  Pair pair;
  while (pair.send(5)) {
  }
  std::array<wire::Packet, 4> offered{};
  std::array<Lent, 3> lent{};
  ASSERT_EQ(pair.leaf.receive(lent), 3u);
  EXPECT_EQ(pair.rank.offer(offered), 0u);
  EXPECT_FALSE(pair.rank.has_room());
  ASSERT_EQ(pair.leaf.receive(lent), 3u);  // gives the first three back
  ASSERT_EQ(pair.rank.offer(offered), 3u);
  for (const Lent& each : lent) {
    for (const wire::Packet& packet : std::span(offered).first(3)) EXPECT_NE(packet.data, each.bytes.data());
  }
}

TEST(ShmChannel, AnswersComeInOrderAndACopyIsNotWrittenOverWhileItIsUnread) {
  Pair pair;
  Random random(2);
  std::vector<Lent> lent(9);
  std::uint32_t posted = 0;
  std::uint32_t read = 0;
  while (read < 20 * kCopies) {
    for (unsigned more = random(100); more > 0; --more) posted += pair.answer(posted) ? 1 : 0;
    if (random(2) == 0) pair.leaf.flush();
    ASSERT_LE(posted - read, kCopies);
    const std::size_t count =
        pair.rank.receive(std::span(lent).first(1 + random(static_cast<std::uint32_t>(lent.size()))));
    // Lent answers stay as they are, whatever the leaf posts meanwhile.
    for (unsigned more = random(100); more > 0; --more) posted += pair.answer(posted) ? 1 : 0;
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(lent[i].marked, read % 2 == 1);
      ASSERT_EQ(number_in(lent[i]), read++);
    }
  }
}

TEST(ShmChannel, AResultIsReadWhereItLies) {
  Pair pair;
  std::memset(pair.results.data(), 0x5A, kResultsBytes);
  ASSERT_TRUE(pair.leaf.post(64, 80, true));
  ASSERT_TRUE(pair.leaf.post(kResultsBytes - 8, 8, false));
  EXPECT_FALSE(pair.rank.has_answer()) << "nothing has been published";
  pair.leaf.flush();
  std::array<Lent, 3> lent{};
  ASSERT_EQ(pair.rank.receive(lent), 2u);
  EXPECT_EQ(lent[0].bytes.data(), pair.results.data() + 64);
  EXPECT_EQ(lent[0].bytes.size(), 80u);
  EXPECT_TRUE(lent[0].marked);
  EXPECT_EQ(lent[1].bytes.data(), pair.results.data() + kResultsBytes - 8);
  EXPECT_FALSE(lent[1].marked);
}

TEST(ShmChannel, ARankThatDoesNotReadLosesAnswersAndHoldsUpNobody) {
  Pair pair;
  std::uint32_t posted = 0;
  for (std::uint32_t i = 0; i < 2 * pair.shape.down; ++i) posted += pair.leaf.post(0, 8, false) ? 1 : 0;
  EXPECT_EQ(posted, pair.shape.down);
  pair.leaf.flush();
  EXPECT_EQ(pair.leaf.copy(), nullptr);
  std::vector<Lent> lent(pair.shape.down);
  EXPECT_EQ(pair.rank.receive(lent), pair.shape.down);
  EXPECT_FALSE(pair.leaf.post(0, 8, false)) << "they are lent";
  EXPECT_EQ(pair.rank.receive(lent), 0u);
  EXPECT_TRUE(pair.leaf.post(0, 8, false));
}

// Every field that the other process can write gets senseless values, also between this process's calls: nothing
// outside of the memory is touched (ASan sees that), and no one waits for ever.
TEST(ShmChannel, WhateverARankWritesTheLeafLendsNothingOutsideOfTheChannel) {
  Random random(3);
  for (int world = 0; world < 20; ++world) {
    Pair pair;
    const std::span<std::byte> memory(pair.memory.data(), pair.memory.size());
    std::array<Lent, 64> lent{};
    for (int step = 0; step < 50; ++step) {
      for (std::uint32_t* field : {pair.at.up_written, pair.at.rank_sleeps, pair.at.down_read}) {
        if (random(2) == 0) *field = random(2) == 0 ? random() : *field + random(512);
      }
      for (std::uint32_t i = 0; i < pair.shape.up; ++i) pair.at.up_bytes[i] = random();
      const std::size_t count = pair.leaf.receive(lent);
      ASSERT_LE(count, lent.size());
      for (const Lent& each : std::span(lent).first(count)) {
        ASSERT_GE(each.bytes.data(), memory.data());
        ASSERT_LE(each.bytes.data() + each.bytes.size(), memory.data() + memory.size());
        ASSERT_LE(each.bytes.size(), pair.shape.stride);
      }
      std::byte* const copy = pair.leaf.copy();
      if (copy != nullptr) {
        ASSERT_GE(copy, memory.data());
        ASSERT_LE(copy + pair.shape.stride, memory.data() + memory.size());
        pair.leaf.post_copy(8, false);
      }
      static_cast<void>(pair.leaf.post(0, 8, false));
      pair.leaf.flush();
      EXPECT_LE(pair.leaf.has_packet() ? 1 : 0, 1);
    }
  }
}

TEST(ShmChannel, WhateverTheLeafWritesARankIsLentNothingOutsideOfItsMemory) {
  Random random(4);
  std::uint64_t impossible = 0;
  for (int world = 0; world < 20; ++world) {
    Pair pair;
    const auto inside = [](const Lent& lent, const Memory& memory) {
      return lent.bytes.data() >= memory.data() &&
             lent.bytes.data() + lent.bytes.size() <= memory.data() + memory.size();
    };
    std::array<Lent, 64> lent{};
    std::array<wire::Packet, 8> offered{};
    for (int step = 0; step < 50; ++step) {
      for (std::uint32_t* field : {pair.at.down_written, pair.at.leaf_sleeps, pair.at.up_read}) {
        if (random(2) == 0) *field = random(2) == 0 ? random() : *field + random(512);
      }
      for (std::uint32_t i = 0; i < pair.shape.down; ++i) {
        pair.at.answers[i] = random(2) == 0 ? std::uint64_t{random()} << 32 | random()
                                            : std::uint64_t{random(64)} << 32 | random(kResultsBytes / 8);
      }
      const std::size_t count = pair.rank.receive(lent);
      ASSERT_LE(count, lent.size());
      for (const Lent& each : std::span(lent).first(count)) {
        ASSERT_TRUE(inside(each, pair.memory) || inside(each, pair.results));
      }
      const std::size_t places = pair.rank.offer(offered);
      for (wire::Packet& packet : std::span(offered).first(places)) {
        ASSERT_GE(packet.data, pair.memory.data());
        ASSERT_LE(packet.data + pair.shape.stride, pair.memory.data() + pair.memory.size());
        packet.bytes = 8;
      }
      pair.rank.send(std::span(offered).first(places));
    }
    impossible += pair.rank.impossible();
  }
  EXPECT_GT(impossible, 0u);
}

TEST(ShmChannel, NoWakeUpIsLostWhoeverSleepsWhen) {
  Pair pair;
  constexpr std::uint32_t kNumbers = 20'000;
  std::atomic<int> overslept{0};
  const auto sleep = [&](const Bell& bell, Bell::Sleep how, int event, auto is_there) {
    bell.sleep(how);
    if (!is_there()) {
      const auto begun = std::chrono::steady_clock::now();
      await_event(event, std::chrono::nanoseconds(kPatience).count());
      if (std::chrono::steady_clock::now() - begun >= kPatience) ++overslept;
    }
    bell.awake();
  };
  // The leaf sends back what it gets; the rank sends on only while its ring has room, and then sleeps.
  std::thread leaf([&] {
    std::array<Lent, 16> lent{};
    for (std::uint32_t expected = 0; expected < kNumbers && overslept == 0;) {
      const std::size_t count = pair.leaf.receive(lent);
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(number_in(lent[i]), expected);
        EXPECT_TRUE(pair.leaf.post(8 * (expected++ % 500), 8, false));
      }
      pair.leaf.flush();
      if (count == 0) {
        sleep(pair.leaf.bell(), Bell::kForPackets, pair.leaf_event.get(), [&] { return pair.leaf.has_packet(); });
      }
    }
  });
  std::array<Lent, 16> lent{};
  const std::size_t answers_max = pair.shape.down - lent.size();  // lent answers are in the ring, too
  std::uint32_t sent = 0;
  for (std::uint32_t received = 0; received < kNumbers && overslept == 0;) {
    while (sent < kNumbers && sent - received < answers_max && pair.send(sent)) ++sent;
    const std::size_t count = pair.rank.receive(lent);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(lent[i].bytes.data(), pair.results.data() + 8 * (received++ % 500));
    }
    if (count != 0) continue;
    const bool for_room = sent < kNumbers;
    sleep(pair.rank.bell(), for_room ? Bell::kForRoom : Bell::kForPackets, pair.rank_event.get(),
          [&] { return pair.rank.has_answer() || (for_room && pair.rank.has_room()); });
  }
  leaf.join();
  EXPECT_EQ(overslept, 0);
}

process::Descriptor copy_of(const process::Descriptor& descriptor) {
  return process::Descriptor(dup(descriptor.get()));
}

ShmTransport transport_of(const Pair& pair) {
  process::Descriptor memory(dup(pair.memory.descriptor()));
  process::Descriptor results(dup(pair.results.descriptor()));
  return ShmTransport({.channel = Memory(std::move(memory), pair.shape.channel_bytes(), false),
                       .results = Memory(std::move(results), kResultsBytes, true),
                       .event = copy_of(pair.rank_event),
                       .leaf = copy_of(pair.leaf_event)},
                      kPacketBytes);
}

TEST(ShmTransport, WhatIsNotCopiedStays) {
  Pair pair;
  ShmTransport rank = transport_of(pair);
  ASSERT_TRUE(pair.leaf.post(64, 80, false));
  ASSERT_NE(pair.leaf.copy(), nullptr);
  pair.leaf.post_copy(80, false);
  pair.leaf.flush();
  std::array<RxDatagram, 4> datagrams{};
  ASSERT_EQ(rank.receive(datagrams), 2u);
  EXPECT_TRUE(datagrams[0].stays);
  EXPECT_FALSE(datagrams[1].stays) << "the copy is written again when it has been read";
}

TEST(ShmTransport, WhoIsOfferedLessThanItWantedAndSendsNothingSleeps) {
  Pair pair;
  ShmTransport rank = transport_of(pair);
  while (rank.buffers(64).size() == 64) rank.send(40, {}, 0, false);
  ASSERT_FALSE(rank.buffers(64).empty());
  write_event(pair.rank_event.get());
  rank.wait(0);
  std::uint64_t count = 0;
  EXPECT_EQ(read(pair.rank_event.get(), &count, sizeof count), -1) << "it did not sleep, or its event would be taken";
}

// ---- Memory ----

TEST(ShmMemory, NobodyCanCutItShort) {
  const Memory memory(4096, false);
  EXPECT_NE(ftruncate(memory.descriptor(), 0), 0);
  EXPECT_NE(ftruncate(memory.descriptor(), 8192), 0);
}

TEST(ShmMemory, WhatOthersMayOnlyReadTheyCannotMapToWrite) {
  const Memory memory(4096, true);
  memory.data()[0] = std::byte{7};
  EXPECT_THROW(Memory(process::Descriptor(dup(memory.descriptor())), 4096, false), std::system_error);
  const Memory other(process::Descriptor(dup(memory.descriptor())), 4096, true);
  EXPECT_EQ(other.data()[0], std::byte{7});
  EXPECT_NE(mprotect(other.data(), 4096, PROT_READ | PROT_WRITE), 0);
}

TEST(ShmMemory, OfAnotherProcessOnlyWhatIsLargeEnoughAndStaysIsTaken) {
  const Memory memory(4096, false);
  EXPECT_THROW(Memory(process::Descriptor(dup(memory.descriptor())), 8192, false), std::invalid_argument);
  process::Descriptor unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  EXPECT_THROW(Memory(std::move(unsealed), 4096, false), std::invalid_argument);
  EXPECT_THROW(Memory(make_event(), 4096, false), std::invalid_argument);
}

}  // namespace
}  // namespace wiresum::transport::shm
