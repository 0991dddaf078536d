// Hosts with several ranks: real workers over shared memory, real leaves, a real switch above them, and between these a
// network in memory that loses, repeats and delays. Everything runs in this thread, in virtual time.
#include "leaf/leaf.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "dataplane.hpp"
#include "engine/roles.hpp"
#include "worker/worker.hpp"

namespace wiresum::leaf {
namespace {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937;
using engine::roles_of;

constexpr std::uint16_t kLanes = 16;
constexpr std::uint32_t kSlots = 8;
constexpr wire::Endpoint kSwitch{.address = 0x0A000001, .port = wire::kSwitchPort};
constexpr worker::TimeNs kStepNs = 100'000;

/// A leaf's way to the switch.
class Uplink final : public transport::Transport {
 public:
  std::deque<Bytes> sent;
  std::deque<Bytes> arrived;

  const char* name() const noexcept override { return "in memory"; }
  std::size_t receive(std::span<transport::RxDatagram> out) noexcept override {
    lent_.clear();
    for (; lent_.size() < out.size() && !arrived.empty(); arrived.pop_front()) lent_.push_back(arrived.front());
    for (std::size_t i = 0; i < lent_.size(); ++i) {
      out[i] = {.bytes = lent_[i], .source = from_, .port = 0, .marked = false};
    }
    return lent_.size();
  }
  std::span<wire::Packet> buffers(std::size_t wanted) noexcept override {
    for (std::size_t i = 0; i < packets_.size(); ++i) packets_[i] = {.data = memory_[i].data(), .bytes = 0};
    return std::span(packets_).first(std::min(wanted, packets_.size()));
  }
  std::size_t train_packets(std::size_t) const noexcept override { return 1; }
  void send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t, bool) noexcept override {
    EXPECT_EQ(to.size(), 1u);
    from_ = to.front();
    for (const wire::Packet& packet : std::span(packets_).first(count)) {
      sent.emplace_back(packet.data, packet.data + packet.bytes);
    }
  }
  bool hear(std::span<const wire::Endpoint>, transport::UdpSocket*) noexcept override { return true; }
  void wait(std::int64_t) noexcept override {}
  void wake() noexcept override {}
  const transport::TransportStats& stats() const noexcept override { return stats_; }
  int take_error() noexcept override { return 0; }

 private:
  std::array<std::array<std::byte, 256>, 4> memory_{};
  std::array<wire::Packet, 4> packets_{};
  std::vector<Bytes> lent_;
  wire::Endpoint from_{};
  transport::TransportStats stats_;
};

struct Rank {
  std::unique_ptr<transport::shm::ShmTransport> own;  // null: the leaf is its transport
  transport::Transport* transport;
  std::unique_ptr<worker::Worker> machine;
  std::vector<std::int32_t> tensor;
};

struct Host {
  Uplink* uplink = nullptr;
  std::unique_ptr<Leaf> leaf;
  std::vector<Rank> ranks;
};

struct Trouble {
  unsigned lost = 0;  // of a hundred packets between leaf and switch
  unsigned repeated = 0;
  unsigned still = 0;  // of a hundred turns of a rank that it does not take
};

class Cluster {
 public:
  Cluster(unsigned hosts, unsigned ranks, Trouble trouble = {}, std::uint32_t seed = 1)
      : trouble_(trouble), random_(seed), ranks_(ranks), planned_(hosts) {
    plane_ = std::make_unique<dataplane::Dataplane>(
        dataplane::SwitchSizes{.slots = kSlots, .lanes_max = kLanes, .jobs_max = 16});
    for (unsigned h = 0; h < hosts; ++h) {
      Host host;
      std::unique_ptr<Uplink> uplink = hosts > 1 ? std::make_unique<Uplink>() : nullptr;
      host.uplink = uplink.get();
      host.leaf = std::make_unique<Leaf>(job(h), transport::DataPath{.reserved = {}, .transport = std::move(uplink)});
      for (unsigned r = 0; r < ranks; ++r) {
        worker::WorkerConfig config{.job = number_, .key = key_, .worker = static_cast<std::uint8_t>(r)};
        config.workers = static_cast<std::uint16_t>(hosts * ranks);
        config.lanes = kLanes;
        config.slots = kSlots;
        config.rto_min = 2'000'000;
        Rank rank{.own = nullptr, .transport = host.leaf.get(), .machine = nullptr, .tensor = {}};
        if (r != 0) {
          rank.own = std::make_unique<transport::shm::ShmTransport>(host.leaf->link(static_cast<std::uint8_t>(r)),
                                                                    wire::kHeaderBytes + kLanes * wire::kWordBytes);
          rank.transport = rank.own.get();
        }
        rank.machine = std::make_unique<worker::Worker>(config);
        host.ranks.push_back(std::move(rank));
      }
      hosts_.push_back(std::move(host));
    }
    if (hosts > 1 && !plane_->admit(entry())) throw std::logic_error("the switch refuses the job");
  }

  /// Gives each rank a tensor of integers, and sums them. Returns whether all have the sum, bit for bit.
  bool sum(std::size_t elements) {
    begin(elements);
    for (int steps = 0; steps < 200'000 && done_ < hosts_.size() * ranks_; ++steps) step();
    return is_right();
  }

  void begin(std::size_t elements) {
    expected_.assign(elements, 0);
    done_ = 0;
    ++tensor_;
    for (Host& host : hosts_) {
      for (Rank& rank : host.ranks) {
        rank.tensor.resize(elements);
        for (std::size_t i = 0; i < elements; ++i) {
          rank.tensor[i] = static_cast<std::int32_t>(random_() >> 8);
          expected_[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(expected_[i]) +
                                                   static_cast<std::uint32_t>(rank.tensor[i]));
        }
      }
    }
    const auto chunks = static_cast<std::uint32_t>((elements + kLanes - 1) / kLanes);
    regions_.clear();
    for (Host& host : hosts_) {
      for (Rank& rank : host.ranks) {
        auto* const memory = reinterpret_cast<std::byte*>(rank.tensor.data());
        worker::Region region;
        region.source = memory;
        region.destination = memory;
        region.elements = elements;
        regions_.push_back(std::make_unique<worker::Region>(region));
        worker::Collective collective;
        collective.tensor = tensor_;
        collective.format = {.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone, .bits = 32};
        collective.regions = {regions_.back().get(), 1};
        collective.chunk_end = chunks;
        EXPECT_TRUE(rank.machine->submit(collective));
      }
    }
  }

  bool is_right() const {
    if (done_ != hosts_.size() * ranks_) return false;
    for (const Host& host : hosts_) {
      for (const Rank& rank : host.ranks) {
        if (rank.tensor != expected_) return false;
      }
    }
    return true;
  }

  void step() {
    now_ += kStepNs;
    for (Host& host : hosts_) {
      for (Rank& rank : host.ranks) {
        if (random_() % 100 >= trouble_.still) turn(rank);
      }
      if (host.uplink != nullptr) carry(host);
    }
  }

  /// All halt, the job goes on at a switch without a cell of the old one.
  void move() {
    std::vector<std::vector<std::uint32_t>> positions;
    for (Host& host : hosts_) {
      for (Rank& rank : host.ranks) {
        rank.machine->halt();
        std::vector<std::uint32_t> of_rank(kSlots);
        for (std::uint32_t slot = 0; slot < kSlots; ++slot) of_rank[slot] = rank.machine->position(slot);
        positions.push_back(std::move(of_rank));
      }
    }
    const std::vector<std::vector<std::uint8_t>> roles = roles_of(positions);
    EXPECT_TRUE(hosts_.size() == 1 || plane_->evict(number_));
    number_ ^= 4;
    key_ += 0x100;
    EXPECT_TRUE(hosts_.size() == 1 || plane_->admit(entry()));
    std::size_t rank_of_job = 0;
    for (unsigned h = 0; h < hosts_.size(); ++h) {
      EXPECT_TRUE(hosts_[h].leaf->serve(
          {.job = number_, .key = key_, .host = static_cast<std::uint8_t>(h), .parent = kSwitch}));
      for (unsigned r = 0; r < ranks_; ++r) {
        const worker::Lease lease{.job = number_, .key = key_, .worker = static_cast<std::uint8_t>(r)};
        EXPECT_TRUE(hosts_[h].ranks[r].machine->move(lease, roles[rank_of_job++]));
      }
    }
  }

  [[nodiscard]] Host& host(std::size_t index) { return hosts_[index]; }
  [[nodiscard]] std::uint64_t raised() const { return raised_; }

 private:
  [[nodiscard]] Job job(unsigned host) const {
    Job made{
        .number = number_, .key = key_, .ranks = static_cast<std::uint8_t>(ranks_), .lanes = kLanes, .slots = kSlots};
    if (planned_ > 1) made.uplink = {.parent = kSwitch, .worker = static_cast<std::uint8_t>(host)};
    return made;
  }
  [[nodiscard]] dataplane::JobEntry entry() const {
    dataplane::JobEntry made{.job = number_, .key = key_, .workers = static_cast<std::uint8_t>(hosts_.size())};
    made.lanes = kLanes;
    made.slots = kSlots;
    for (unsigned h = 0; h < hosts_.size(); ++h) made.endpoints[h] = address(h);
    return made;
  }
  static wire::Endpoint address(unsigned host) { return {.address = 0x0A000100 + host, .port = 1000}; }

  void turn(Rank& rank) {
    std::array<transport::RxDatagram, 32> datagrams{};
    const std::size_t count = rank.transport->receive(datagrams);
    for (std::size_t i = 0; i < count; ++i) rank.machine->handle_datagram(now_, datagrams[i].bytes, false);
    const std::span<wire::Packet> places = rank.transport->buffers(32);
    const std::size_t packets = rank.machine->poll_transmit(now_, places);
    if (packets != 0) rank.transport->send(packets, {&kSwitch, 1}, 0, false);
    while (const auto completion = rank.machine->poll_completion()) {
      EXPECT_EQ(completion->status, worker::Status::kOk);
      ++done_;
    }
  }

  void carry(Host& host) {
    const auto number = static_cast<unsigned>(&host - hosts_.data());
    for (; !host.uplink->sent.empty(); host.uplink->sent.pop_front()) {
      ++raised_;
      if (random_() % 100 < trouble_.lost) continue;
      const unsigned times = random_() % 100 < trouble_.repeated ? 2 : 1;
      for (unsigned i = 0; i < times; ++i) {
        const dataplane::Decision decision =
            plane_->handle(dataplane::read(address(number), 0, host.uplink->sent.front()));
        if (decision.verdict == dataplane::Verdict::kMulticast) {
          for (Host& each : hosts_) deliver(each, decision);
        } else if (decision.verdict == dataplane::Verdict::kResend) {
          deliver(host, decision);
        }
      }
    }
  }

  void deliver(Host& host, const dataplane::Decision& decision) {
    if (random_() % 100 < trouble_.lost) return;
    Bytes bytes(wire::kHeaderBytes + decision.payload.size());
    wire::Packet packet{.data = bytes.data(), .bytes = 0};
    decision.write(packet);
    const unsigned times = random_() % 100 < trouble_.repeated ? 2 : 1;
    for (unsigned i = 0; i < times; ++i) host.uplink->arrived.push_back(bytes);
  }

  const Trouble trouble_;
  Random random_;
  const unsigned ranks_;
  const std::size_t planned_;  // hosts
  std::uint16_t number_ = 3;
  std::uint32_t key_ = 0xC0FFEE;
  worker::TimeNs now_ = 1;
  std::uint32_t tensor_ = 0;
  std::unique_ptr<dataplane::Dataplane> plane_;
  std::vector<Host> hosts_;
  std::vector<std::unique_ptr<worker::Region>> regions_;
  std::vector<std::int32_t> expected_;
  std::size_t done_ = 0;
  std::uint64_t raised_ = 0;
};

constexpr std::size_t kElements = 3000;

TEST(Leaf, RanksOfOneHostSumWithoutASwitch) {
  for (const unsigned ranks : {1u, 2u, 4u, 8u}) {
    Cluster cluster(1, ranks);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(cluster.sum(kElements)) << ranks;
    EXPECT_EQ(cluster.host(0).leaf->counters().results, cluster.host(0).leaf->counters().contributions[0])
        << "each packet was sent once, and summed once";
    EXPECT_EQ(cluster.host(0).leaf->lost(), 0u);
  }
}

TEST(Leaf, HostsSumThroughASwitchWithOnePacketForEachHost) {
  Cluster cluster(3, 4);
  EXPECT_TRUE(cluster.sum(kElements));
  const std::size_t chunks = (kElements + kLanes - 1) / kLanes;
  // Slots begin with rounds that say exponents where there are any; integers have none.
  EXPECT_EQ(cluster.raised(), 3 * chunks);
}

TEST(Leaf, TheMostRanksAndHosts) {
  EXPECT_TRUE(Cluster(1, 32).sum(500));
  EXPECT_TRUE(Cluster(32, 8).sum(500));
  EXPECT_TRUE(Cluster(2, 31).sum(500));
}

TEST(Leaf, LossRepetitionAndRanksThatStandStillChangeNoSum) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    Cluster cluster(1 + seed % 4, 1 + seed % 5, {.lost = seed % 3 * 10, .repeated = 10, .still = seed % 4 * 20}, seed);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(cluster.sum(kElements)) << seed;
  }
}

TEST(Leaf, AJobMovesInTheMiddleOfASum) {
  for (std::uint32_t seed = 1; seed <= 30; ++seed) {
    Cluster cluster(1 + seed % 3, 1 + seed % 4, {.lost = 5, .repeated = 5, .still = 30}, seed);
    cluster.begin(kElements);
    for (int moves = 0; moves < 3; ++moves) {
      for (std::uint32_t steps = 0; steps < 10 + seed; ++steps) cluster.step();
      cluster.move();
    }
    for (int steps = 0; steps < 100'000 && !cluster.is_right(); ++steps) cluster.step();
    EXPECT_TRUE(cluster.is_right()) << seed;
    EXPECT_TRUE(cluster.sum(kElements)) << seed;
  }
}

TEST(Leaf, ARankCannotSpeakForAnotherNorForTheSwitch) {
  Leaf leaf({.number = 1, .key = 7, .ranks = 2, .lanes = kLanes, .slots = kSlots}, {});
  transport::shm::ShmTransport rank(leaf.link(1), wire::kHeaderBytes + kLanes * wire::kWordBytes);
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
  EXPECT_THROW(Leaf(good, {.reserved = {}, .transport = std::make_unique<Uplink>()}), std::invalid_argument);
  Leaf leaf(good, {});
  EXPECT_FALSE(leaf.serve({.job = 1, .key = 0})) << "and it goes on as before";
  EXPECT_TRUE(leaf.serve({.job = 2, .key = 8}));
  EXPECT_EQ(leaf.counters().results, 0u);
}

}  // namespace
}  // namespace wiresum::leaf
