#include "conformance.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "numbered_packets.hpp"

namespace wiresum::transport::testing {
namespace {

/// Sends until one packet has arrived: the first ones may be lost while addresses are resolved.
void find_way(Transport& from, Transport& to, wire::Endpoint endpoint) {
  const auto deadline = Clock::now() + kPatience;
  std::vector<Taken> taken;
  while (taken.empty() && Clock::now() < deadline) {
    send_some(from, std::span(&endpoint, 1), 0, 1, kBytesMin);
    to.wait(kSliceNs);
    drain(to, taken);
  }
  ASSERT_FALSE(taken.empty()) << "no way from one side to the other";
  take_rest(to);
}

}  // namespace

void Conformance::SetUp() {
  if (const std::string why = GetParam().why_not(); !why.empty()) {
    GTEST_SKIP() << "no transports of the kind " << GetParam().name << " are tested: " << why;
  }
}

void Conformance::build(const RigOptions& options) { rig_ = GetParam().make(options); }

void Conformance::open(const EndOptions& left, const EndOptions& right) {
  if (rig_ == nullptr) build({});
  left_ = rig_->open(Side::kLeft, left);
  right_ = rig_->open(Side::kRight, right);
  find_way(*left_, *right_, rig_->endpoint(Side::kRight));
  find_way(*right_, *left_, rig_->endpoint(Side::kLeft));
}

TEST_P(Conformance, DeliversABurstInOrderByteForByte) {
  open();
  ASSERT_TRUE(send_all(*left_, rig().endpoint(Side::kRight), 100, kBurst, 1464));
  const std::vector<Taken> taken = take(*right_, kBurst);
  expect_run(taken, 100, kBurst, 1464);
  for (const Taken& one : taken) {
    EXPECT_EQ(one.source, rig().endpoint(Side::kLeft));
    EXPECT_EQ(one.port, 0);
  }
  EXPECT_TRUE(take_rest(*right_).empty());
}

TEST_P(Conformance, CountsSentAndReceivedPackets) {
  open();
  const TransportStats sent = left_->stats();
  const TransportStats received = right_->stats();
  ASSERT_TRUE(send_all(*left_, rig().endpoint(Side::kRight), 0, 40, 500));
  ASSERT_EQ(take(*right_, 40).size(), 40);
  EXPECT_EQ(left_->stats().datagrams_sent - sent.datagrams_sent, 40);
  EXPECT_EQ(left_->stats().send_failures, sent.send_failures);
  EXPECT_GT(left_->stats().send_calls, sent.send_calls);
  EXPECT_EQ(right_->stats().datagrams_received - received.datagrams_received, 40);
}

TEST_P(Conformance, DeliversEverySize) {
  open();
  std::vector<Taken> taken;
  for (std::size_t bytes = kBytesMin; bytes <= 1464; ++bytes) {
    ASSERT_TRUE(send_all(*left_, rig().endpoint(Side::kRight), static_cast<std::uint32_t>(bytes), 1, bytes));
    if (bytes % 32 == 0 || bytes == 1464) {
      const std::size_t wanted = bytes - kBytesMin + 1 - taken.size();
      for (const Taken& one : take(*right_, wanted)) taken.push_back(one);
    }
  }
  ASSERT_EQ(taken.size(), 1464 - kBytesMin + 1);
  for (std::size_t i = 0; i < taken.size(); ++i) {
    ASSERT_EQ(taken[i].number, kBytesMin + i);
    ASSERT_EQ(taken[i].bytes, kBytesMin + i);
    ASSERT_TRUE(taken[i].intact) << taken[i].bytes << " bytes";
  }
}

TEST_P(Conformance, DeliversJumboDatagrams) {
  const std::size_t largest = GetParam().datagram_bytes_max;
  if (largest <= 1464) GTEST_SKIP() << GetParam().name << " has no jumbo datagrams";
  build({.mtu = largest + 28});
  const EndOptions options{.datagram_bytes_max = largest};
  open(options, options);
  const TransportStats before = left_->stats();
  std::uint32_t number = 1;
  for (std::size_t round = 0; round < 100; ++round) {
    for (const std::size_t bytes : {largest, kBytesMin, largest - 1, largest / 2, largest / 3, std::size_t{3776},
                                    std::size_t{4032}, std::size_t{4033}, std::size_t{4096}, std::size_t{8128}}) {
      const std::size_t fitting = std::min(bytes, largest);
      ASSERT_TRUE(send_all(*left_, rig().endpoint(Side::kRight), number, 4, fitting));
      expect_run(take(*right_, 4), number, 4, fitting);
      if (HasFatalFailure()) FAIL() << fitting << " bytes, round " << round;
      number += 4;
    }
  }
  EXPECT_EQ(left_->stats().datagrams_sent - before.datagrams_sent, number - 1);
}

TEST_P(Conformance, WorksAfterItsRingsHaveWrappedAround) {
  open();
  constexpr std::size_t kTotal = 20'000;
  std::mt19937 random(7);
  for (std::uint32_t sent = 0; sent < kTotal;) {
    const std::size_t count = 1 + random() % kBurst;
    const std::size_t bytes = kBytesMin + random() % (1465 - kBytesMin);
    ASSERT_TRUE(send_all(*left_, rig().endpoint(Side::kRight), sent, count, bytes));
    expect_run(take(*right_, count), sent, count, bytes);
    if (HasFatalFailure()) FAIL() << "after " << sent;
    // Packets also go in the other direction, so that both rings of both ends wrap around.
    ASSERT_TRUE(send_all(*right_, rig().endpoint(Side::kLeft), sent, 1, bytes));
    expect_run(take(*left_, 1), sent, 1, bytes);
    if (HasFatalFailure()) FAIL() << "after " << sent;
    sent += static_cast<std::uint32_t>(count);
  }
}

TEST_P(Conformance, AMarkArrivesAtEachPacketThatWasSentWithIt) {
  open();
  const wire::Endpoint to = rig().endpoint(Side::kRight);
  const auto is_marked = [](std::uint32_t number) { return number / 8 % 3 == 1; };
  constexpr std::size_t kRun = 8, kTotal = 6 * kRun;
  for (std::uint32_t number = 0; number < kTotal; number += kRun) {
    ASSERT_EQ(send_some(*left_, std::span(&to, 1), number, kRun, 500, 0, is_marked(number)), kRun);
  }
  const std::vector<Taken> taken = take(*right_, kTotal);
  expect_run(taken, 0, kTotal, 500);
  for (const Taken& each : taken) EXPECT_EQ(each.marked, is_marked(each.number)) << "packet " << each.number;
}

TEST_P(Conformance, BuffersThatAreNotSentAreOfferedAgain) {
  open();
  for (int i = 0; i < 100'000; ++i) {
    ASSERT_EQ(left_->buffers(kBurst).size(), kBurst) << "after " << i;
  }
  for (std::uint32_t i = 0; i < 5'000; ++i) {
    // One offered buffer is sent, the others are not.
    const std::span<wire::Packet> buffers = left_->buffers(kBurst);
    ASSERT_FALSE(buffers.empty());
    write(buffers[0], i, 64);
    const wire::Endpoint to = rig().endpoint(Side::kRight);
    left_->send(1, std::span(&to, 1), 0, false);
    expect_run(take(*right_, 1), i, 1, 64);
    if (HasFatalFailure()) FAIL() << "after " << i;
  }
}

TEST_P(Conformance, BuffersAreAlignedAndDoNotOverlap) {
  open();
  const std::span<wire::Packet> buffers = left_->buffers(kBurst);
  ASSERT_FALSE(buffers.empty());
  std::vector<std::byte*> places;
  for (const wire::Packet& packet : buffers) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(packet.data) % 8, 0);
    places.push_back(packet.data);
  }
  std::sort(places.begin(), places.end());
  for (std::size_t i = 1; i < places.size(); ++i) EXPECT_GE(places[i] - places[i - 1], 1464);
}

TEST_P(Conformance, BuffersInFlightAreNotReused) {
  open();
  // The receiver takes fewer than are sent, so that many packets are in flight while new ones are written. If a buffer
  // were offered again too early, a packet's content would not match its number.
  std::uint32_t sent = 0;
  std::vector<Taken> taken;
  const wire::Endpoint to = rig().endpoint(Side::kRight);
  for (int round = 0; round < 500; ++round) {
    for (int burst = 0; burst < 8; ++burst) {
      sent += static_cast<std::uint32_t>(send_some(*left_, std::span(&to, 1), sent, kBurst, 1464));
    }
    drain(*right_, taken, 16);
  }
  for (const Taken& one : take_rest(*right_)) taken.push_back(one);
  ASSERT_GT(taken.size(), 100);
  std::uint32_t last = 0;
  for (const Taken& one : taken) {
    ASSERT_TRUE(one.intact) << "packet " << one.number;
    ASSERT_TRUE(&one == &taken.front() || one.number > last) << "out of order, or twice";
    last = one.number;
  }
}

TEST_P(Conformance, ReceivedDatagramsStayValidUntilTheNextReceive) {
  open();
  ASSERT_TRUE(send_all(*left_, rig().endpoint(Side::kRight), 7000, 32, 1000));
  std::vector<RxDatagram> lent(32);
  std::size_t count = 0;
  const auto deadline = Clock::now() + kPatience;
  while (count == 0 && Clock::now() < deadline) {
    right_->wait(kSliceNs);
    count = right_->receive(lent);
  }
  ASSERT_NE(count, 0);
  for (std::uint32_t round = 0; round < 100; ++round) {
    const wire::Endpoint to = rig().endpoint(Side::kRight);
    send_some(*left_, std::span(&to, 1), 100 * round, kBurst, 1000);
  }
  right_->wait(-1);  // until some of them are there
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(number_of(lent[i].bytes), 7000 + i);
    EXPECT_TRUE(intact(lent[i].bytes));
  }
}

TEST_P(Conformance, EachEndpointGetsEverythingInOrder) {
  open({}, {.ports = 5});
  std::vector<wire::Endpoint> to;
  for (std::size_t port = 0; port < 5; ++port) to.push_back(rig().endpoint(Side::kRight, port));
  std::map<std::uint8_t, std::uint32_t> next;
  for (std::uint32_t burst = 0; burst < 200; ++burst) {
    ASSERT_TRUE(send_all(*left_, to, burst * 10, 10, 300));
    for (const Taken& one : take(*right_, 50)) {
      ASSERT_TRUE(one.intact);
      ASSERT_EQ(one.number, next[one.port]++) << "port " << int{one.port};
    }
    for (std::uint8_t port = 0; port < 5; ++port) ASSERT_EQ(next[port], (burst + 1) * 10);
  }
}

TEST_P(Conformance, MoreEndpointsThanWorkersAreServedToo) {
  open({}, {.ports = 16});
  std::vector<wire::Endpoint> to;
  for (std::size_t i = 0; i < 80; ++i) to.push_back(rig().endpoint(Side::kRight, i % 16));
  ASSERT_TRUE(send_all(*left_, to, 1, 1, 1464));
  const std::vector<Taken> taken = take(*right_, to.size());
  EXPECT_EQ(taken.size(), to.size());
  std::map<std::uint8_t, std::size_t> each;
  for (const Taken& one : taken) {
    EXPECT_TRUE(one.intact && one.number == 1);
    ++each[one.port];
  }
  for (const auto& [port, count] : each) EXPECT_EQ(count, 5) << "port " << int{port};
}

TEST_P(Conformance, PortsKeepTheirNumbers) {
  open({.ports = 16}, {.ports = 16});
  for (std::size_t from = 0; from < 16; ++from) {
    const std::size_t to = (from * 7 + 3) % 16;
    ASSERT_TRUE(send_all(*left_, rig().endpoint(Side::kRight, to), 1, 3, 80, static_cast<std::uint8_t>(from)));
    const std::vector<Taken> taken = take(*right_, 3);
    expect_run(taken, 1, 3, 80);
    for (const Taken& one : taken) {
      EXPECT_EQ(one.source, rig().endpoint(Side::kLeft, from));
      EXPECT_EQ(one.port, to);
    }
  }
}

TEST_P(Conformance, DatagramsFromOthersThanThePeerAreDropped) {
  build({});
  open({.ports = 2}, {.peer = rig().endpoint(Side::kLeft, 0)});
  ASSERT_TRUE(send_all(*left_, rig().endpoint(Side::kRight), 10, 5, 100, 1));
  ASSERT_TRUE(send_all(*left_, rig().endpoint(Side::kRight), 20, 5, 100, 0));
  expect_run(take(*right_, 5), 20, 5, 100);
  EXPECT_TRUE(take_rest(*right_).empty());
  const wire::Endpoint other = rig().endpoint(Side::kLeft, 1);
  ASSERT_TRUE(right_->hear({&other, 1}, nullptr));
  ASSERT_TRUE(send_all(*left_, rig().endpoint(Side::kRight), 30, 5, 100, 0));
  ASSERT_TRUE(send_all(*left_, rig().endpoint(Side::kRight), 40, 5, 100, 1));
  expect_run(take(*right_, 5), 40, 5, 100);
}

TEST_P(Conformance, DatagramsToOtherPortsAreDropped) {
  open();
  ASSERT_TRUE(send_all(*left_, rig().endpoint(Side::kRight, 1), 10, 5, 100));
  ASSERT_TRUE(send_all(*left_, rig().endpoint(Side::kRight, 0), 20, 5, 100));
  expect_run(take(*right_, 5), 20, 5, 100);
  EXPECT_TRUE(take_rest(*right_).empty());
}

TEST_P(Conformance, BrokenAndForeignFramesAreDropped) {
  open();
  const wire::Endpoint to = rig().endpoint(Side::kRight);
  const ethernet::Path path{.source_mac = rig().mac(Side::kLeft),
                            .destination_mac = rig().mac(Side::kRight),
                            .source = rig().endpoint(Side::kLeft),
                            .destination = to};
  const auto frame_of = [&](const ethernet::Path& along, ethernet::UdpChecksum kind) {
    std::vector<std::byte> frame(ethernet::kHeadersBytes + 200);
    wire::Packet packet{.data = frame.data() + ethernet::kHeadersBytes};
    write(packet, 5, 200);
    ethernet::Headers(along).write(std::span(frame).first<ethernet::kHeadersBytes>(), 200, kind,
                                   ethernet::sum({packet.data, packet.bytes}));
    return frame;
  };
  const std::vector<std::byte> good = frame_of(path, ethernet::UdpChecksum::kWhole);
  if (!rig().inject(good)) GTEST_SKIP() << GetParam().name << " has no wire to put frames on";
  ASSERT_EQ(take(*right_, 1).size(), 1) << "not even a good frame arrives";
  ASSERT_TRUE(rig().inject(frame_of(path, ethernet::UdpChecksum::kNone)));
  ASSERT_EQ(take(*right_, 1).size(), 1) << "a datagram needs no checksum";

  struct Change {
    std::size_t at;
    std::uint8_t value;
  };
  for (const Change change :
       {Change{12, 0x86}, Change{14, 0x46}, Change{14, 0x65}, Change{16, 0xFF}, Change{17, 0x10}, Change{20, 0x20},
        Change{21, 0x07}, Change{23, 6}, Change{24, 0xAA}, Change{33, 0x77}, Change{36, 0x11}, Change{38, 0xFF},
        Change{39, 0x08}, Change{39, 0x00}, Change{41, 0x5C}, Change{100, 0xEE}}) {
    std::vector<std::byte> frame = good;
    if (frame[change.at] == std::byte{change.value}) frame[change.at] = std::byte{0x5D};
    frame[change.at] = std::byte{change.value};
    // Once with the old IPv4 checksum, and once with the right one for the changed header.
    ASSERT_TRUE(rig().inject(frame));
    if (change.at != 24 && change.at >= 14 && change.at < 34) {
      frame[24] = frame[25] = std::byte{0};
      const std::uint16_t right = ethernet::checksum(ethernet::sum(std::span(frame).subspan(14, 20)));
      frame[24] = static_cast<std::byte>(right >> 8);
      frame[25] = static_cast<std::byte>(right & 0xFF);
      ASSERT_TRUE(rig().inject(frame));
    }
  }
  for (std::size_t length = 14; length < good.size(); ++length) {
    ASSERT_TRUE(rig().inject(std::span(good).first(length)));
  }
  ethernet::Path elsewhere = path;
  elsewhere.destination.address += 7;
  ASSERT_TRUE(rig().inject(frame_of(elsewhere, ethernet::UdpChecksum::kWhole)));
  ethernet::Path flooded = path;  // from a switch that does not know the other host's port
  flooded.destination_mac.bytes[5] ^= 1;
  ASSERT_TRUE(rig().inject(frame_of(flooded, ethernet::UdpChecksum::kWhole)));
  EXPECT_TRUE(take_rest(*right_).empty());

  ASSERT_TRUE(send_all(*left_, to, 20, 5, 100));
  expect_run(take(*right_, 5), 20, 5, 100);
}

TEST_P(Conformance, AReceiverThatDoesNotReadBlocksNoSender) {
  open();
  const wire::Endpoint to = rig().endpoint(Side::kRight);
  std::uint32_t sent = 0;
  for (int burst = 0; burst < 500; ++burst) {
    sent += static_cast<std::uint32_t>(send_some(*left_, std::span(&to, 1), sent, kBurst, 1464));
  }
  // The packets that were kept are intact and in order; the others are lost.
  std::vector<Taken> taken = take_rest(*right_);
  ASSERT_FALSE(taken.empty());
  EXPECT_LE(taken.size(), sent);
  std::uint32_t last = 0;
  for (const Taken& one : taken) {
    ASSERT_TRUE(one.intact);
    ASSERT_TRUE(&one == &taken.front() || one.number > last);
    last = one.number;
  }
  // Afterwards everything works as before.
  for (std::uint32_t round = 0; round < 50; ++round) {
    ASSERT_TRUE(send_all(*left_, to, 1'000'000 + round * kBurst, kBurst, 1464));
    expect_run(take(*right_, kBurst), 1'000'000 + round * kBurst, kBurst, 1464);
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
  EXPECT_EQ(left_->buffers(kBurst).size(), kBurst);
}

TEST_P(Conformance, SendingToAnAbsentPeerBlocksNothing) {
  open();
  wire::Endpoint nobody = rig().endpoint(Side::kRight);
  nobody.address += 40;
  for (int burst = 0; burst < 100; ++burst) send_some(*left_, std::span(&nobody, 1), 1, 8, 200);
  // Other destinations are still reached.
  const std::array<wire::Endpoint, 3> both{nobody, rig().endpoint(Side::kRight), nobody};
  for (std::uint32_t round = 0; round < 300; ++round) {
    ASSERT_TRUE(send_all(*left_, both, round * 4, 4, 200));
    expect_run(take(*right_, 4), round * 4, 4, 200);
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
}

TEST_P(Conformance, WaitEndsWhenADatagramComes) {
  open();
  for (int i = 0; i < 20; ++i) {
    const std::jthread sender([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(i % 5));  // the other may sleep already, or not yet
      send_all(*left_, rig().endpoint(Side::kRight), 1, 1, 64);
    });
    std::vector<Taken> taken;
    while (taken.empty()) {
      right_->wait(-1);
      drain(*right_, taken);
    }
    EXPECT_EQ(taken.size(), 1);
  }
}

TEST_P(Conformance, WaitReturnsAtOnceIfADatagramIsThere) {
  open();
  ASSERT_TRUE(send_all(*left_, rig().endpoint(Side::kRight), 1, 2, 64));
  right_->wait(-1);
  right_->wait(-1);
  // Neither if the caller's burst had no room for the datagram.
  std::array<RxDatagram, 1> one{};
  ASSERT_EQ(right_->receive(one), 1);
  right_->wait(-1);
  EXPECT_EQ(right_->receive(one), 1);
}

TEST_P(Conformance, WaitTimesOut) {
  open();
  for (const std::int64_t timeout_ns : {std::int64_t{0}, std::int64_t{1'000'000}, std::int64_t{50'000'000}}) {
    const auto begin = Clock::now();
    right_->wait(timeout_ns);
    EXPECT_GE(Clock::now() - begin, std::chrono::nanoseconds(timeout_ns));
  }
}

TEST_P(Conformance, WakeEndsAWaitFromAnyThread) {
  open();
  for (int i = 0; i < 20; ++i) {
    const std::jthread waker([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      right_->wake();
    });
    right_->wait(-1);
  }
  // A wake-up before the wait is not lost, and several count as one.
  for (int i = 0; i < 10; ++i) right_->wake();
  right_->wait(-1);
  const auto begin = Clock::now();
  right_->wait(20'000'000);
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(20));
}

TEST_P(Conformance, OtherThreadsMayWakeAndReadErrorsUnderTraffic) {
  open();
  const std::jthread other([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      right_->wake();
      static_cast<void>(right_->take_error());
      std::this_thread::yield();
    }
  });
  for (std::uint32_t round = 0; round < 100; ++round) {
    ASSERT_TRUE(send_all(*left_, rig().endpoint(Side::kRight), round * 16, 16, 400));
    expect_run(take(*right_, 16), round * 16, 16, 400);
  }
}

TEST_P(Conformance, MayBeClosedAndOpenedAgainUnderTraffic) {
  open();
  std::uint32_t sent = 0;
  const std::jthread sender([&](const std::stop_token& stop) {
    const wire::Endpoint to = rig().endpoint(Side::kRight);
    while (!stop.stop_requested()) {
      const std::size_t count = send_some(*left_, std::span(&to, 1), sent, 16, 800);
      sent += static_cast<std::uint32_t>(count);
      std::vector<Taken> ignored;
      drain(*left_, ignored);
      left_->wait(200'000);
    }
  });
  for (int i = 0; i < 5; ++i) {
    right_.reset();
    right_ = rig().open(Side::kRight, {});
    const std::vector<Taken> taken = take(*right_, 100);
    EXPECT_GE(taken.size(), 100) << "opened " << i + 1 << " times";
    for (const Taken& one : taken) EXPECT_TRUE(one.intact);
  }
}

TEST_P(Conformance, AnEndMayBeClosedWithPacketsInFlight) {
  open();
  for (int i = 0; i < 5; ++i) {
    const wire::Endpoint to = rig().endpoint(Side::kRight);
    for (std::uint32_t burst = 0; burst < 4; ++burst)
      send_some(*left_, std::span(&to, 1), burst * kBurst, kBurst, 1464);
    left_.reset();
    for (const Taken& one : take_rest(*right_)) EXPECT_TRUE(one.intact);
    left_ = rig().open(Side::kLeft, {.peer = to});
    find_way(*left_, *right_, to);
    ASSERT_TRUE(send_all(*left_, to, 9, 1, 100));
    expect_run(take(*right_, 1), 9, 1, 100);
  }
}

TEST_P(Conformance, SeveralQueuesAreOneTransport) {
  build({.queues = 2});
  open({.ports = 16}, {.ports = 16});
  for (std::size_t from = 0; from < 16; ++from) {
    ASSERT_TRUE(send_all(*left_, rig().endpoint(Side::kRight, from), 1, 8, 900, static_cast<std::uint8_t>(from)));
    expect_run(take(*right_, 8), 1, 8, 900);
    ASSERT_TRUE(send_all(*right_, rig().endpoint(Side::kLeft, from), 1, 8, 900, static_cast<std::uint8_t>(from)));
    expect_run(take(*left_, 8), 1, 8, 900);
  }
}

}  // namespace wiresum::transport::testing
