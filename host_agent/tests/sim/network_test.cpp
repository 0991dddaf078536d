// The arithmetic of the simulated network: rates, queues, shared buffers, cross traffic, packets' memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "agenda.hpp"
#include "link.hpp"
#include "network.hpp"
#include "packet.hpp"

namespace wiresum::sim {
namespace {

constexpr std::size_t kBytes = 1464;  // with 42 of headers 1506
constexpr double kWireBits = 1506 * 8;

LinkConfig link_of(double gbit) {
  LinkConfig config;
  config.rate_bps = gbit * 1e9;
  config.delay_ns = 0;
  config.queue_bytes = 1u << 30;
  return config;
}

/// The arrivals of packets that are given to the link at these times.
std::vector<TimeNs> arrivals(Link& link, const std::vector<TimeNs>& sent) {
  Random random(1);
  std::vector<TimeNs> found;
  for (const TimeNs at : sent)
    link.carry(at, kBytes, random, [&](TimeNs arrival, bool /*marked*/) { found.push_back(arrival); });
  return found;
}

TEST(Link, KeepsFractionsOfANanosecond) {
  for (const double gbit : {0.1, 10.0, 100.0, 400.0, 800.0, 37.3}) {
    Link link(link_of(gbit));
    const std::vector<TimeNs> found = arrivals(link, std::vector<TimeNs>(10'000, 0));
    ASSERT_EQ(found.size(), 10'000u);
    for (const std::size_t packets : {1u, 2u, 999u, 10'000u}) {
      EXPECT_NEAR(static_cast<double>(found[packets - 1]), static_cast<double>(packets) * kWireBits / gbit, 6.0)
          << packets << " packets at " << gbit << " Gbit/s";
    }
  }
}

TEST(Link, APacketThatFindsItFreeWaitsForNone) {
  Link link(link_of(800));
  EXPECT_EQ(arrivals(link, {0, 1000, 1001}), (std::vector<TimeNs>{16, 1016, 1031}));  // 15.06 ns each, rounded up
}

TEST(Link, LetsABurstPassAtOnceAfterAPause) {
  LinkConfig config = link_of(1);
  config.burst_bytes = 3 * 1506;
  Link link(config);
  constexpr TimeNs kPacketNs = 12'048, kLater = 1'000'000;
  EXPECT_EQ(arrivals(link, std::vector<TimeNs>(5, kLater)),
            (std::vector<TimeNs>{kLater, kLater, kLater, kLater + kPacketNs, kLater + 2 * kPacketNs}));
  const TimeNs busy = kLater + 2 * kPacketNs;  // the bucket is empty, and fills as packets leave
  EXPECT_EQ(arrivals(link, {busy, busy}), (std::vector<TimeNs>{busy + kPacketNs, busy + 2 * kPacketNs}));
}

TEST(Link, DropsWhatFindsItsQueueFullAndMarksBefore) {
  LinkConfig config = link_of(1);
  config.queue_bytes = 10 * 1506;
  config.mark_bytes = 4 * 1506;
  Link link(config);
  EXPECT_EQ(arrivals(link, std::vector<TimeNs>(20, 0)).size(), 11u);  // ten wait, and one may always go
  EXPECT_EQ(link.counters().overflow, 9u);
  EXPECT_EQ(link.counters().marked, 6u) << "those that found more than four waiting";
  EXPECT_EQ(arrivals(link, std::vector<TimeNs>(20, 12'048 * 5)).size(), 5u);  // room for as many as have left
}

TEST(SharedBuffer, APortThatIsCongestedLeavesRoomForTheOthers) {
  SharedBuffer buffer(100 * 1506, 1.0);
  Link congested(link_of(1), &buffer), other(link_of(1), &buffer);
  // Each may hold as much as is free: alone half of it.
  EXPECT_EQ(arrivals(congested, std::vector<TimeNs>(200, 0)).size(), 51u);
  EXPECT_EQ(arrivals(other, std::vector<TimeNs>(200, 0)).size(), 25u);
  EXPECT_EQ(buffer.held_max(), 76u * 1506u);
  // A packet that has left makes room, after 12,048 ns.
  EXPECT_EQ(arrivals(other, std::vector<TimeNs>(200, 12'048 * 25)).size(), 38u);
}

TEST(SharedBuffer, HoldsNoMoreThanItHas) {
  SharedBuffer buffer(10 * 1506, 1e9);
  Link one(link_of(1), &buffer), other(link_of(1), &buffer);
  EXPECT_EQ(arrivals(one, std::vector<TimeNs>(7, 0)).size(), 7u);
  EXPECT_EQ(arrivals(other, std::vector<TimeNs>(7, 0)).size(), 3u);
}

CrossTraffic traffic_of(double gbit) {
  CrossTraffic traffic;
  traffic.rate_bps = gbit * 1e9;
  traffic.packet_bytes = 1506;
  return traffic;
}

TEST(CrossTraffic, TakesItsShareOfTheRate) {
  Link link(link_of(100));
  link.add(traffic_of(75));
  // A packet of ours every 481.92 ns is a quarter of the rate: together they fill the link.
  std::vector<TimeNs> sent;
  for (int i = 0; i < 1000; ++i) sent.push_back(static_cast<TimeNs>(i * 481.92));
  const std::vector<TimeNs> found = arrivals(link, sent);
  ASSERT_EQ(found.size(), 1000u);
  EXPECT_LT(found.back() - sent.back(), 2 * 121);
  EXPECT_NEAR(static_cast<double>(link.counters().cross_packets), 3000, 3);
}

TEST(CrossTraffic, ComesInBursts) {
  CrossTraffic bursts = traffic_of(100);
  bursts.begin = 1000;
  bursts.burst = 1204;  // ten packets
  bursts.period = 10'000;
  bursts.end = 25'000;  // three bursts
  Link link(link_of(100));
  link.add(bursts);
  EXPECT_EQ(arrivals(link, {999}), (std::vector<TimeNs>{1120}));
  EXPECT_EQ(link.counters().cross_packets, 0u);
  EXPECT_EQ(arrivals(link, {2200}), (std::vector<TimeNs>{2445})) << "behind ours of before, and ten of the burst";
  EXPECT_EQ(link.counters().cross_packets, 10u);
  static_cast<void>(arrivals(link, {100'000}));
  EXPECT_EQ(link.counters().cross_packets, 30u);

  CrossTraffic once = bursts;
  once.period = once.end = 0;
  Link other(link_of(100));
  other.add(once);
  static_cast<void>(arrivals(other, {100'000}));
  EXPECT_EQ(other.counters().cross_packets, 10u);
}

TEST(CrossTraffic, FillsTheQueueAndLosesToo) {
  LinkConfig config = link_of(10);
  config.queue_bytes = 10 * 1506;
  Link link(config);
  link.add(traffic_of(100));
  static_cast<void>(arrivals(link, {1'000'000}));
  const LinkCounters& counters = link.counters();
  EXPECT_NEAR(static_cast<double>(counters.cross_packets - counters.cross_overflow), 1e6 * 10 / kWireBits, 15);
  EXPECT_NEAR(static_cast<double>(counters.cross_packets), 1e6 * 100 / kWireBits, 2);
}

TEST(CrossTraffic, NeedsALinkWithARate) {
  Link link((LinkConfig()));
  EXPECT_THROW(link.add(traffic_of(1)), std::invalid_argument);
  CrossTraffic overlapping = traffic_of(1);
  overlapping.burst = 2;
  overlapping.period = 1;
  Link other(link_of(1));
  EXPECT_THROW(other.add(overlapping), std::invalid_argument);
}

class Sink final : public Network::Receiver {
 public:
  explicit Sink(const VirtualClock& clock) : clock_(clock) {}
  void arrive_from(Network::Node node, std::uint32_t thread, const Packet& packet) override {
    up.push_back({clock_.now(), node, thread, packet});
  }
  void arrive_at(Network::Node node, std::uint32_t thread, const Packet& packet) override {
    down.push_back({clock_.now(), node, thread, packet});
  }
  struct Arrival {
    TimeNs at;
    Network::Node node;
    std::uint32_t thread;
    Packet packet;
  };
  std::vector<Arrival> up, down;

 private:
  const VirtualClock& clock_;
};

struct Parts {
  PacketPool packets{1500};
  VirtualClock clock;
  Agenda agenda;
  Random random{1};
  Sink sink{clock};

  void run() {
    while (!agenda.empty()) {
      clock.advance(agenda.next());
      agenda.step();
    }
  }
  [[nodiscard]] Packet packet(std::size_t bytes) { return packets.copy(std::vector<std::byte>(bytes)); }
};

TEST(Network, CopiesOfAPacketShareItsMemory) {
  Parts parts;
  NetworkConfig config;
  config.down = config.up = link_of(100);
  Network network(config, 31, parts.clock, parts.agenda, parts.random);
  for (int round = 0; round < 10; ++round) {
    for (Network::Node host = 0; host < 31; ++host) network.send_down(host, {&parts.sink, 0, parts.packet(kBytes)});
    const Packet for_all = parts.packet(kBytes);
    for (Network::Node host = 0; host < 31; ++host) network.send_down(host, {&parts.sink, 1, for_all});
  }
  parts.run();
  EXPECT_EQ(parts.sink.down.size(), 10u * 2 * 31);
  EXPECT_EQ(parts.packets.packets_max(), 10u * (31 + 1));
  parts.sink.down.clear();  // gives them back
  const Packet again = parts.packet(kBytes);
  EXPECT_EQ(parts.packets.packets_max(), 10u * (31 + 1));
}

TEST(Network, EachLinkHasItsOwnRateAndTheOthersTheCommonOne) {
  Parts parts;
  NetworkConfig config;
  config.parents = {0, 0};
  config.leaves = {1, 1};
  config.up = config.down = link_of(100);
  config.other_links.push_back({{.of_switch = false, .number = 1}, link_of(10), link_of(1)});
  config.other_links.push_back({{.of_switch = true, .number = 1}, link_of(50), link_of(100)});
  Network network(config, 2, parts.clock, parts.agenda, parts.random);
  EXPECT_EQ(network.above(0), 1u);
  EXPECT_EQ(network.above(network.node_of_switch(1)), 0u);
  for (const Network::Node node : {0u, 1u, network.node_of_switch(1)}) {
    network.send_up(node, {&parts.sink, 0, parts.packet(kBytes)});
    network.send_down(node, {&parts.sink, 0, parts.packet(kBytes)});
  }
  parts.run();
  const auto time_of = [](const std::vector<Sink::Arrival>& arrived, Network::Node node) {
    for (const Sink::Arrival& each : arrived) {
      if (each.node == node) return each.at;
    }
    return TimeNs{-1};
  };
  EXPECT_EQ(time_of(parts.sink.up, 0), 121);
  EXPECT_EQ(time_of(parts.sink.up, 1), 1205);
  EXPECT_EQ(time_of(parts.sink.up, network.node_of_switch(1)), 241);
  EXPECT_EQ(time_of(parts.sink.down, 1), 12'048);
}

TEST(Network, PacketsThatAreHeldBackAreOvertaken) {
  Parts parts;
  NetworkConfig config;
  config.up = link_of(100);
  config.up.reorder = 0.3;
  config.up.reorder_ns_max = 10'000;
  Network network(config, 1, parts.clock, parts.agenda, parts.random);
  for (std::size_t i = 1; i <= 200; ++i) network.send_up(0, {&parts.sink, 0, parts.packet(i)});
  parts.run();
  ASSERT_EQ(parts.sink.up.size(), 200u);
  bool overtaken = false;
  for (std::size_t i = 1; i < 200; ++i) {
    EXPECT_LE(parts.sink.up[i - 1].at, parts.sink.up[i].at);
    overtaken |= parts.sink.up[i - 1].packet.size() > parts.sink.up[i].packet.size();
  }
  EXPECT_TRUE(overtaken);
}

TEST(Network, RefusesLinksOfNobody) {
  Parts parts;
  const auto make = [&](const NetworkConfig& config) {
    return Network(config, 2, parts.clock, parts.agenda, parts.random).hosts();
  };
  NetworkConfig config;
  EXPECT_EQ(make(config), 2u);
  config.other_links.push_back({{.of_switch = false, .number = 2}, {}, {}});
  EXPECT_THROW(make(config), std::invalid_argument);
  config = {};
  config.leaves = {0};
  EXPECT_THROW(make(config), std::invalid_argument);
  config = {};
  config.parents = {0, 1};
  EXPECT_THROW(make(config), std::invalid_argument);
}

TEST(Agenda, EventsOfTheSameTimeHappenInTheOrderInWhichTheyWereScheduled) {
  Agenda agenda;
  std::vector<int> happened;
  for (int i = 0; i < 100; ++i) agenda.at(i % 10, [&happened, i] { happened.push_back(i % 10 * 100 + i); });
  agenda.at(3, [&] { agenda.at(3, [&] { happened.push_back(399); }); });
  while (!agenda.empty()) agenda.step();
  EXPECT_EQ(happened.size(), 101u);
  EXPECT_TRUE(std::ranges::is_sorted(happened));
}

TEST(Agenda, WhatNeverHappensIsDestroyed) {
  const auto held = std::make_shared<int>(1);
  {
    Agenda agenda;
    agenda.at(1, [held] {});
    agenda.at(2, [held] {});
    agenda.step();
    EXPECT_EQ(held.use_count(), 2);
  }
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace wiresum::sim
