// Packets that a leaf refuses. The simulation (tests/sim) has its sums, for hosts of every size, under faults and
// moves.
#include "leaf/leaf.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <set>
#include <utility>

namespace wiresum::leaf {
namespace {

using transport::shm::ShmTransport;

constexpr std::uint16_t kLanes = 16;
constexpr std::uint32_t kSlots = 8;
constexpr std::size_t kLeafPacketBytes = wire::kHeaderBytes + kLanes * wire::kWordBytes;
constexpr wire::Endpoint kSwitch{.address = 0x0A000001, .port = wire::kSwitchPort};

TEST(Leaf, ARankCannotSpeakForAnotherNorForTheSwitch) {
  Leaf leaf({.number = 1, .key = 7, .ranks = 2, .lanes = kLanes, .slots = kSlots}, {});
  ShmTransport rank(leaf.link(1), kLeafPacketBytes);
  std::array<transport::RxDatagram, 8> datagrams{};
  const auto say = [&](wire::Header header, std::size_t words) {
    const std::span<wire::Packet> places = rank.buffers(1);
    ASSERT_EQ(places.size(), 1u);
    wire::encode(header, std::span<std::byte, wire::kHeaderBytes>(places[0].data, wire::kHeaderBytes));
    places[0].bytes = static_cast<std::uint32_t>(wire::kHeaderBytes + words * wire::kWordBytes);
    rank.send(1, {&kSwitch, 1}, 0, false);
    static_cast<void>(leaf.receive(datagrams));
  };
  const wire::Header of_rank_0{.kind = wire::Kind::kData, .job = 1, .key = 7, .worker = 0, .cell = 1, .round = 1};
  say(of_rank_0, kLanes);
  EXPECT_EQ(leaf.counters().contributions[0], 0u);
  wire::Header result = of_rank_0;
  result.kind = wire::Kind::kResult;
  say(result, kLanes);
  EXPECT_EQ(rank.receive(datagrams), 0u);
  wire::Header own = of_rank_0;
  own.worker = 1;
  say(own, kLanes);
  EXPECT_EQ(leaf.counters().contributions[1], 1u);
}

TEST(Leaf, ResultsWithoutWordsReachAllRanksOfAllSlots) {
  constexpr std::uint32_t kMany = 256;
  Leaf leaf({.number = 1, .key = 7, .ranks = 2, .lanes = kLanes, .slots = kMany}, {});
  ShmTransport rank(leaf.link(1), kLeafPacketBytes);
  const auto contribute = [](transport::Transport& transport, std::uint8_t worker) {
    for (std::uint16_t slot = 0; slot < kMany; ++slot) {
      const std::span<wire::Packet> places = transport.buffers(1);
      ASSERT_EQ(places.size(), 1u);
      const auto cell = static_cast<std::uint16_t>(2 * slot + 1);
      const wire::Header meta{
          .kind = wire::Kind::kMeta, .job = 1, .key = 7, .worker = worker, .cell = cell, .round = 1};
      wire::encode(meta, std::span<std::byte, wire::kHeaderBytes>(places[0].data, wire::kHeaderBytes));
      places[0].bytes = wire::kHeaderBytes;
      transport.send(1, {&kSwitch, 1}, 0, false);
    }
  };
  contribute(leaf, 0);
  contribute(rank, 1);
  std::array<transport::RxDatagram, 8> datagrams{};
  std::set<std::uint16_t> cells;
  const auto look = [&](transport::Transport& transport) {
    const std::size_t count = transport.receive(datagrams);
    for (std::size_t i = 0; i < count; ++i) {
      wire::Header header;
      EXPECT_EQ(wire::decode(datagrams[i].bytes, header), wire::ParseError::kNone);
      cells.insert(header.cell);
    }
    return count;
  };
  while (look(leaf) != 0) {
  }
  EXPECT_EQ(std::exchange(cells, {}).size(), kMany);
  while (look(rank) != 0) {
  }
  EXPECT_EQ(cells.size(), kMany);
  EXPECT_EQ(leaf.lost(), 0u);
}

TEST(Leaf, WhatMakesNoSenseIsRefused) {
  const Job good{.number = 1, .key = 7, .ranks = 2, .lanes = kLanes, .slots = kSlots};
  Job job = good;
  job.key = 0;
  EXPECT_THROW(Leaf(job, {}), std::invalid_argument);
  job = good;
  job.thread = 1;
  EXPECT_THROW(Leaf(job, {}), std::invalid_argument);
  job = good;
  job.uplink.parent = kSwitch;
  EXPECT_THROW(Leaf(job, {}), std::invalid_argument);
  Leaf leaf(good, {});
  auto uplink = std::make_unique<ShmTransport>(leaf.link(1), kLeafPacketBytes);
  EXPECT_THROW(Leaf(good, {.reserved = {}, .transport = std::move(uplink)}), std::invalid_argument);
  EXPECT_FALSE(leaf.serve({.job = 1, .key = 0})) << "and it goes on as before";
  EXPECT_TRUE(leaf.serve({.job = 2, .key = 8}));
  EXPECT_EQ(leaf.counters().results, 0u);
}

}  // namespace
}  // namespace wiresum::leaf
