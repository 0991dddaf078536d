// One data thread of the switch, with a device that reads late or with a socket.
#include "data_thread.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "late_device.hpp"
#include "udp_job.hpp"
#include "udp_worker.hpp"

namespace wiresum::soft_switch {
namespace {

using dataplane::JobEntry;
using dataplane::Words;
using wire::Header;
using wire::Kind;

const std::chrono::milliseconds kAnswerMax{kPatienceMs};

// A job of two workers at a switch whose device has three send buffers.
class LateDataThread : public testing::Test {
 protected:
  static constexpr std::size_t kBuffers = 3;
  static constexpr std::uint32_t kSlots = 8;

  LateDataThread() : entry_(dataplane::job_entry(1, 2, kLanes, 0, kSlots)) {
    auto device = std::make_unique<LateDevice>(kBuffers, wire::kHeaderBytes + kLanes * wire::kWordBytes);
    device_ = device.get();
    transport::DataPath path;
    path.transport = std::move(device);
    const dataplane::SwitchSizes sizes{.slots = kSlots, .lanes_max = kLanes, .jobs_max = 2};
    thread_ = std::make_unique<DataThread>(sizes, std::move(path), std::vector<std::uint8_t>{0},
                                           std::chrono::microseconds(0), kAnswerMax);
    bool admitted = false;
    thread_->run([&] { admitted = thread_->plane().admit(entry_); });
    EXPECT_TRUE(admitted);
  }

  void contribute(std::uint32_t slot, std::uint32_t round, std::uint32_t value) {
    for (const std::uint8_t worker : {std::uint8_t{0}, std::uint8_t{1}}) {
      const Header header{.kind = Kind::kData,
                          .job = entry_.job,
                          .key = entry_.key,
                          .worker = worker,
                          .cell = wire::cell_of(slot, round),
                          .round = round};
      device_->arrive(entry_.endpoints[worker], dataplane::datagram_of(header, Words(kLanes, value)));
    }
  }
  JobEntry entry_;
  LateDevice* device_ = nullptr;
  std::unique_ptr<DataThread> thread_;
};

TEST_F(LateDataThread, AnUnreadResultIsUnchangedWhenItsCellMovesOn) {
  for (std::uint32_t round = 1; round <= 5; round += 2) {  // three rounds of one cell
    contribute(2, round, round);
    while (device_->unread() != (round + 1) / 2) std::this_thread::yield();
  }
  for (const std::uint32_t round : {5U, 3U, 1U}) {
    const std::optional<LateDevice::Sent> sent = device_->read();
    ASSERT_TRUE(sent.has_value());
    EXPECT_FALSE(sent->was_changed);
    Header header;
    ASSERT_EQ(wire::decode(sent->bytes, header), wire::ParseError::kNone);
    EXPECT_EQ(header.round, round);
    EXPECT_EQ(dataplane::load_words(std::span<const std::byte>(sent->bytes).subspan(wire::kHeaderBytes)),
              Words(kLanes, 2 * round));
    EXPECT_EQ(sent->to.size(), 2U);
  }
}

/// Only the packet that completes a round counts, since it has waited for longest.
TEST_F(LateDataThread, AResultIsMarkedIfThePacketThatCompletesItWas) {  // R3.22
  constexpr std::array<std::array<bool, 2>, kBuffers> kMarks{{{true, false}, {false, true}, {true, true}}};
  for (std::uint32_t slot = 0; slot < kBuffers; ++slot) {
    for (const std::uint8_t worker : {std::uint8_t{0}, std::uint8_t{1}}) {
      const Header header{.kind = Kind::kData,
                          .job = entry_.job,
                          .key = entry_.key,
                          .worker = worker,
                          .cell = wire::cell_of(slot, 1),
                          .round = 1};
      device_->arrive(entry_.endpoints[worker], dataplane::datagram_of(header, Words(kLanes, 1)), 0,
                      kMarks[slot][worker]);
    }
  }
  while (device_->unread() != kBuffers) std::this_thread::yield();
  while (const std::optional<LateDevice::Sent> sent = device_->read()) {
    Header header;
    ASSERT_EQ(wire::decode(sent->bytes, header), wire::ParseError::kNone);
    EXPECT_EQ(sent->marked, kMarks[header.cell / 2U][1]) << "slot " << header.cell / 2U;
  }
}

TEST_F(LateDataThread, ResultsWithoutABufferAreCountedAsLostAndSentOnRequest) {
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) contribute(slot, 1, slot + 1);
  std::uint64_t lost = 0;
  while (lost != kSlots - kBuffers) {
    thread_->run([&] { lost = thread_->results_lost(); });
  }
  std::set<std::uint32_t> read;
  while (const std::optional<LateDevice::Sent> sent = device_->read()) {
    Header header;
    ASSERT_EQ(wire::decode(sent->bytes, header), wire::ParseError::kNone);
    read.insert(header.cell / 2U);
  }
  EXPECT_EQ(read.size(), kBuffers);
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    if (read.contains(slot)) continue;
    const Header question{.kind = Kind::kQuestion,
                          .job = entry_.job,
                          .key = entry_.key,
                          .worker = 1,
                          .cell = wire::cell_of(slot, 1),
                          .round = 1};
    device_->arrive(entry_.endpoints[1], dataplane::datagram_of(question));
    std::optional<LateDevice::Sent> sent;
    while (!(sent = device_->read()).has_value()) std::this_thread::yield();
    EXPECT_EQ(dataplane::load_words(std::span<const std::byte>(sent->bytes).subspan(wire::kHeaderBytes)),
              Words(kLanes, 2 * (slot + 1)));
    EXPECT_EQ(sent->to, std::vector<wire::Endpoint>{entry_.endpoints[1]});
  }
}

TEST(DataThread, WithAParentSumsUpAndResultsDownLeaveInOneCallEach) {  // R8.1
  constexpr std::uint32_t kHalf = 4;
  auto owned = std::make_unique<LateDevice>(16, wire::kHeaderBytes + kLanes * wire::kWordBytes);
  LateDevice* const device = owned.get();
  transport::DataPath path;
  path.transport = std::move(owned);
  const dataplane::SwitchSizes sizes{.slots = 2 * kHalf, .lanes_max = kLanes, .jobs_max = 2};
  DataThread thread(sizes, std::move(path), {0}, std::chrono::microseconds(0), kAnswerMax);
  JobEntry entry = dataplane::job_entry(1, 2, kLanes, 0, 2 * kHalf);
  const wire::Endpoint parent{.address = 0x0A000001, .port = 4000};
  entry.uplink = {.parent = parent, .worker = 3};
  const auto arrive = [&](Kind kind, wire::Endpoint source, std::uint8_t worker, std::uint32_t slot) {
    const Header header{
        .kind = kind, .job = entry.job, .key = entry.key, .worker = worker, .cell = wire::cell_of(slot, 1), .round = 1};
    device->arrive(source, dataplane::datagram_of(header, Words(kLanes, slot + 1)));
  };
  const auto contribute = [&](std::uint32_t slot) {
    for (std::uint8_t worker = 0; worker < 2; ++worker) arrive(Kind::kData, entry.endpoints[worker], worker, slot);
  };
  bool admitted = false;
  thread.run([&] {  // between two bursts, so that everything arrives in one
    admitted = thread.plane().admit(entry);
    for (std::uint32_t slot = 0; slot < kHalf; ++slot) contribute(slot);
  });
  ASSERT_TRUE(admitted);
  while (device->unread() != kHalf) std::this_thread::yield();
  EXPECT_EQ(device->sends(), 1U);
  thread.run([&] {
    for (std::uint32_t slot = 0; slot < kHalf; ++slot) {
      contribute(kHalf + slot);
      arrive(Kind::kResult, parent, 3, slot);
    }
  });
  while (device->unread() != 3 * kHalf) std::this_thread::yield();
  EXPECT_EQ(device->sends(), 3U);
  std::map<std::size_t, std::size_t> sent_to;
  while (const std::optional<LateDevice::Sent> sent = device->read()) ++sent_to[sent->to.size()];
  EXPECT_EQ(sent_to, (std::map<std::size_t, std::size_t>{{1, 2 * kHalf}, {2, kHalf}}));
}

// A device delivers the packets for all ports together.
TEST(DataThread, PacketsForTwoPortsInOneBurstAreAnsweredFromTheirOwnPorts) {  // R2.2
  constexpr std::uint32_t kSlots = 8;
  auto owned = std::make_unique<LateDevice>(2 * kSlots, wire::kHeaderBytes + kLanes * wire::kWordBytes);
  LateDevice* const device = owned.get();
  transport::DataPath path;
  path.transport = std::move(owned);
  const dataplane::SwitchSizes sizes{.slots = kSlots, .lanes_max = kLanes, .jobs_max = 2};
  DataThread thread(sizes, std::move(path), {4, 5}, std::chrono::microseconds(0), kAnswerMax);
  JobEntry entry = dataplane::job_entry(1, 2, kLanes, 0, kSlots);
  entry.threads = 2;
  entry.port_offset = 4;
  bool admitted = false;
  thread.run([&] {
    admitted = thread.plane().admit(entry);
    for (std::uint32_t slot = 0; slot < kSlots / 2; ++slot) {
      for (std::uint8_t port = 0; port < 2; ++port) {  // alternating between the ports
        for (std::uint8_t worker = 0; worker < 2; ++worker) {
          const Header header{.job = entry.job,
                              .key = entry.key,
                              .worker = worker,
                              .cell = wire::cell_of(port * kSlots / 2 + slot, 1),
                              .round = 1};
          device->arrive(dataplane::source_of(worker, port), dataplane::datagram_of(header, Words(kLanes, 1)), port);
        }
      }
    }
  });
  ASSERT_TRUE(admitted);
  while (device->unread() != kSlots) std::this_thread::yield();
  while (const std::optional<LateDevice::Sent> sent = device->read()) {
    Header header;
    ASSERT_EQ(wire::decode(sent->bytes, header), wire::ParseError::kNone);
    EXPECT_EQ(sent->port, header.cell / 2U / (kSlots / 2));
    EXPECT_EQ(sent->to,
              (std::vector<wire::Endpoint>{dataplane::source_of(0, sent->port), dataplane::source_of(1, sent->port)}));
  }
}

TEST(DataThread, AMulticastAndAnAnswerInTheSameBurstReachTheirOwnReceivers) {  // R3.27, R3.29
  constexpr int kSilenceMs = 100;
  const Job job(1, 2, 1, 0, 8);
  transport::UdpSocket socket({.address = UdpWorker::kLoopback, .port = 0});
  const wire::Endpoint at = socket.local();
  std::vector<transport::UdpSocket> sockets;
  sockets.push_back(std::move(socket));
  const dataplane::SwitchSizes sizes{.slots = 8, .lanes_max = kLanes, .jobs_max = 2};
  std::vector<transport::DataPath> paths = transport::open_for_threads({}, {}, std::move(sockets), 1);
  DataThread thread(sizes, std::move(paths.front()), {0}, std::chrono::microseconds(0), kAnswerMax);
  const auto send = [&](std::size_t worker, std::uint32_t slot) {
    const Header header = job.header(Kind::kData, worker, 1, slot);
    job.members[worker].send(at, dataplane::datagram_of(header, Words(kLanes, slot + 1)));
  };
  const auto slots_heard = [&](std::size_t worker, std::size_t count) {
    std::multiset<std::uint32_t> slots;
    for (std::size_t i = 0; i < count; ++i) {
      const std::optional<Received> result = job.members[worker].receive(kPatienceMs);
      if (!result.has_value()) break;
      slots.insert(result->header.cell / 2u);
      EXPECT_EQ(result->words, Words(kLanes, 2 * (result->header.cell / 2u + 1)));
    }
    EXPECT_FALSE(job.members[worker].receive(kSilenceMs).has_value());
    return slots;
  };
  bool admitted = false;
  thread.run([&] {
    admitted = thread.plane().admit(job.entry);
    for (const std::size_t worker : {0U, 1U}) send(worker, 0);
  });
  ASSERT_TRUE(admitted);
  for (const std::size_t worker : {0U, 1U}) EXPECT_EQ(slots_heard(worker, 1), (std::multiset<std::uint32_t>{0}));
  thread.run([&] {  // between two bursts, so that everything is sent in one
    for (const std::size_t worker : {0U, 1U}) send(worker, 1);
    send(1, 0);
  });
  EXPECT_EQ(slots_heard(0, 1), (std::multiset<std::uint32_t>{1}));
  EXPECT_EQ(slots_heard(1, 2), (std::multiset<std::uint32_t>{0, 1}));
}

}  // namespace
}  // namespace wiresum::soft_switch
