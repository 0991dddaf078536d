// Engines and software switches with their threads and sockets, over loopback, where datagrams are lost, duplicated and
// reordered. This covers the threads, which the simulation replaces. Several jobs at a time share one switch, a tree of
// them, or several aggregators; collectives of all kinds overlap; jobs are aborted, closed and evicted in the middle,
// and the next job takes their slots at once; jobs lose a switch and move to another one. Every operation must end, and
// every result that is reported as good must be right bit for bit.
//
//   WIRESUM_STRESS_SEED=7 stress_test --gtest_filter='Stress.*'      repeats a seed, but not the order of threads
//   WIRESUM_STRESS_SEEDS=100 stress_test --gtest_filter='Stress.*'   runs more seeds
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.hpp"
#include "lossy_transport.hpp"
#include "patience.hpp"
#include "programs.hpp"
#include "roles.hpp"
#include "server.hpp"

namespace wiresum::stress {
namespace {

using namespace std::chrono_literals;
using engine::AggregatorConfig;
using engine::Engine;
using engine::EngineConfig;
using engine::Operation;
using soft_switch::SwitchServer;
using worker::Status;

constexpr std::uint32_t kLoopback = 0x7F000001;
constexpr std::uint32_t kSlots = 64;  // slots of a lease
constexpr std::size_t kJobsAtATime = 3;
constexpr std::size_t kSwitches = 3;  // the first may be the root of the others; and as many to move to
constexpr std::size_t kLives = 6;     // the number of jobs that use the same slots one after the other
constexpr std::size_t kCallsMax = 24;
constexpr std::size_t kMovesMax = 4;
constexpr std::uint16_t kNumbers = 16;  // a job that has moved may have the number of before plus this

std::string replay(std::uint64_t seed) {
  return "; replay: WIRESUM_STRESS_SEED=" + std::to_string(seed) + " stress_test --gtest_filter='Stress.*'";
}

/// The switches, and the bad network between them and the workers.
class Network {
 public:
  explicit Network(std::uint64_t seed) : random_(seed), seeds_(seed << 32) {
    if (seed % 4 != 0) mishaps_ = {.loss = 0.02, .duplicate = 0.01, .held_back = 0.02};
    spec_.offload = seed % 2 == 0;
    spec_.around = [this](std::unique_ptr<transport::Transport> inner) {
      return std::make_unique<LossyTransport>(std::move(inner), mishaps_, ++seeds_);
    };
    for (std::size_t i = 0; i < 2 * kSwitches; ++i) {
      soft_switch::ServerConfig config;
      config.local = {.address = kLoopback, .port = 0};
      config.threads = static_cast<unsigned>(1 + below(random_, 3));
      config.sizes = {.slots = 2 * kJobsAtATime * kSlots, .lanes_max = 360, .jobs_max = 2 * kNumbers};
      config.spin_us = happens(random_, 0.3) ? 20 : 0;
      config.transport = spec_;
      switches_.push_back(std::make_unique<SwitchServer>(config));
    }
  }

  [[nodiscard]] SwitchServer& at(std::size_t index) { return *switches_[index]; }
  [[nodiscard]] const transport::Spec& spec() const { return spec_; }
  [[nodiscard]] std::uint32_t new_key() { return 0x5EED0001 + keys_++ * 0x01000193; }

 private:
  Random random_;
  std::atomic<std::uint64_t> seeds_;
  std::atomic<std::uint32_t> keys_{0};
  Mishaps mishaps_;
  transport::Spec spec_;
  std::vector<std::unique_ptr<SwitchServer>> switches_;
};

/// A job's entry at a switch.
struct Node {
  std::size_t at = 0;
  dataplane::JobEntry entry;
};

/// One job from admission to end, on a fixed range of slots.
class Life {
 public:
  Life(Network& network, std::uint64_t seed, std::size_t lane, std::uint64_t number)
      : network_(network), seed_(seed), random_(seed * 1000 + lane * 100 + number), lane_(lane) {
    workers_ = 1 + below(random_, 4);
    threads_ = one_of<std::uint8_t>(random_, {1, 1, 2, 4});
    lanes_ = one_of<std::uint16_t>(random_, {8, 64, 360});
    port_offset_ = static_cast<std::uint8_t>(threads_ * below(random_, 16 / threads_));
    number_ = static_cast<std::uint16_t>(lane * 4 + number % 4);
    round_first_ = happens(random_, 0.5) ? 1 : 0xFFFFFFF0;
    configs_.resize(workers_);
    sockets_.resize(workers_);
    const std::uint64_t shape = below(random_, 3);
    if (shape == 0) {
      add_tree();
    } else if (shape == 1) {
      add_switch(below(random_, kSwitches));
    } else {
      for (std::size_t i = 0; i < 1 + below(random_, kSwitches); ++i) add_switch(i);
    }
    const std::size_t calls = 1 + below(random_, kCallsMax);
    for (std::size_t i = 0; i < calls; ++i) program_.push_back(draw_call(random_, workers_, lanes_));
  }

  void run() {
    for (const Node& node : nodes_) network_.at(node.at).admit(node.entry);
    for (std::size_t i = 0; i < workers_; ++i) {
      configs_[i].rank = static_cast<std::uint32_t>(i);
      configs_[i].transport = network_.spec();
      configs_[i].exact_elements_max = kExactElementsMax;
      configs_[i].spin_ns = happens(random_, 0.2) ? 30'000 : 0;
      engines_.push_back(std::make_unique<Engine>(configs_[i], std::move(sockets_[i])));
    }
    is_cut_short_ = happens(random_, 0.4);
    const std::size_t moves = happens(random_, 0.5) ? 1 + below(random_, kMovesMax) : 0;
    std::thread mover([this, moves, own = random_()] { move_now_and_then(moves, Random(own)); });
    std::vector<std::thread> callers;
    for (std::size_t i = 0; i < workers_; ++i) {
      callers.emplace_back([this, i, own = random_()] { call(i, Random(own)); });
    }
    if (is_cut_short_) cut_short();
    for (std::thread& caller : callers) caller.join();
    is_over_.store(true);
    mover.join();
    if (!is_cut_short_ && moves == 0 && !testing::Test::HasFailure()) {
      expect_that_all_came_to_the_last();
      for (const auto& engine : engines_) {
        EXPECT_EQ(engine->stats().rejected, 0U) << "it rejected packets of a switch" << replay(seed_);
      }
    }
    const bool evicts_first = happens(random_, 0.3);
    if (evicts_first) evict();
    engines_.clear();
    if (!evicts_first) evict();
  }

 private:
  /// Places all workers at one switch.
  void add_switch(std::size_t at) {
    Node node = new_node(at);
    for (std::size_t i = 0; i < workers_; ++i) join(i, node);
    nodes_.push_back(node);
  }

  /// Places workers below two leaves or at the root; the root is admitted first.
  void add_tree() {
    std::vector<Node> all;
    for (std::size_t at = 0; at < kSwitches; ++at) all.push_back(new_node(at));
    std::vector<std::size_t> at;  // by worker
    for (std::size_t i = 0; i < workers_; ++i) join(i, all[at.emplace_back(below(random_, kSwitches))]);
    for (std::size_t leaf = 1; leaf < kSwitches; ++leaf) {
      if (all[leaf].entry.workers == 0) continue;
      dataplane::JobEntry& root = all[0].entry;
      all[leaf].entry.uplink = {.parent = port_of(0), .worker = root.workers};
      root.endpoints[root.workers++] = port_of(leaf);
    }
    std::vector<std::size_t> place(kSwitches);  // in nodes_
    for (std::size_t index = 0; index < kSwitches; ++index) {
      place[index] = nodes_.size();
      if (all[index].entry.workers != 0) nodes_.push_back(all[index]);
    }
    for (const std::size_t index : at) leaf_of_.push_back(place[index]);
    is_tree_ = true;
    for (EngineConfig& config : configs_) config.aggregators.front().worker.key = all[0].entry.key;
    for (Node& node : nodes_) node.entry.key = all[0].entry.key;
  }

  [[nodiscard]] wire::Endpoint port_of(std::size_t at) {
    wire::Endpoint port = network_.at(at).local();
    port.port = static_cast<std::uint16_t>(port.port + port_offset_);
    return port;
  }

  [[nodiscard]] Node new_node(std::size_t at) {
    return {.at = at,
            .entry = {.job = number_,
                      .key = network_.new_key(),
                      .workers = 0,
                      .threads = threads_,
                      .port_offset = port_offset_,
                      .lanes = lanes_,
                      .slot_base = static_cast<std::uint32_t>(lane_ * kSlots),
                      .slots = kSlots,
                      .endpoints = {}}};
  }

  void join(std::size_t worker, Node& node) {
    sockets_[worker].push_back(transport::bind_consecutive({.address = kLoopback, .port = 0}, threads_));
    AggregatorConfig& config = configs_[worker].aggregators.emplace_back();
    config.worker.job = number_;
    config.worker.key = node.entry.key;
    config.worker.worker = node.entry.workers;
    config.worker.workers = static_cast<std::uint16_t>(workers_);
    config.worker.lanes = lanes_;
    config.worker.slots = kSlots;
    config.worker.round_first = round_first_;
    config.threads = threads_;
    config.switch_endpoint = port_of(node.at);
    node.entry.endpoints[node.entry.workers++] = sockets_[worker].back().front().local();
  }

  /// The program of one worker: keeps some collectives in flight, and checks each one when it has ended.
  void call(std::size_t worker, Random random) {
    struct Pending {
      std::size_t number;
      std::shared_ptr<Operation> operation;
    };
    std::deque<Bytes> memory(program_.size());
    std::deque<Pending> pending;
    const std::size_t in_flight_max = 1 + below(random, 8);
    const auto finish_oldest = [&] {
      const auto [number, operation] = pending.front();
      pending.pop_front();
      if (!operation->wait(kPatience)) {
        ADD_FAILURE() << "call " << number << " of worker " << worker << " does not end" << replay(seed_);
        for (const auto& engine : engines_) engine->abort();
        static_cast<void>(operation->wait(kPatience));
        return;
      }
      last_tensor_.store(operation->tensor());
      const Status status = operation->status();
      if (status != Status::kOk) {
        EXPECT_TRUE(is_cut_short_ && status == Status::kAborted)
            << "call " << number << " of worker " << worker << " ended as " << static_cast<int>(status)
            << replay(seed_);
        return;
      }
      EXPECT_TRUE(memory[number] == program_[number].expected)
          << "call " << number << " of worker " << worker << " is wrong" << replay(seed_);
    };
    for (std::size_t number = 0; number < program_.size(); ++number) {
      if (happens(random, 0.2)) std::this_thread::sleep_for(std::chrono::microseconds(below(random, 500)));
      engine::Request request = program_[number].request(worker, memory[number]);
      request.caller_waits = happens(random, 0.4);  // some of these have others in flight
      pending.push_back({number, engines_[worker]->submit(std::move(request))});
      ++submitted_;
      while (pending.size() >= in_flight_max) finish_oldest();
    }
    while (!pending.empty()) finish_oldest();
  }

  /// Ends the job early, in one of several ways. The others are told, as the controller tells them.
  void cut_short() {
    const std::uint64_t moment = below(random_, workers_ * program_.size());
    for (int i = 0; submitted_.load() < moment && i < 1000; ++i) std::this_thread::sleep_for(100us);
    std::this_thread::sleep_for(std::chrono::microseconds(below(random_, 2000)));
    const std::size_t first = below(random_, workers_);
    switch (below(random_, 3)) {
      case 0:
        engines_[first]->abort();
        break;
      case 1:
        engines_[first]->close();
        break;
      default:
        evict();
        break;
    }
    for (const auto& engine : engines_) engine->abort();
  }

  /// Evicts the leaves first.
  void evict() {
    const std::lock_guard lock(moving_);
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) network_.at(node->at).evict(node->entry.job);
  }

  // ---- Moves ----

  void move_now_and_then(std::size_t moves, Random random) {
    for (std::size_t i = 0; i < moves && !is_over_.load(); ++i) {
      const std::uint64_t moment = below(random, workers_ * program_.size());
      for (int step = 0; submitted_.load() < moment && step < 100; ++step) std::this_thread::sleep_for(100us);
      std::this_thread::sleep_for(std::chrono::microseconds(below(random, 2000)));
      try {
        move(is_tree_ ? 0 : below(random, nodes_.size()), random);
      } catch (const std::exception& error) {
        // A closed engine does not move.
        EXPECT_TRUE(is_cut_short_) << error.what() << replay(seed_);
        return;
      }
    }
  }

  /// Moves like a controller: leaves an aggregator's switch, or the whole tree, for others, with another key.
  void move(std::size_t aggregator, Random& random) {
    const std::lock_guard lock(moving_);
    const std::span<Node> moving = is_tree_ ? std::span(nodes_) : std::span(nodes_).subspan(aggregator, 1);
    const std::vector<Node> before(moving.begin(), moving.end());
    const auto leave = [&] {
      for (auto node = before.rbegin(); node != before.rend(); ++node) network_.at(node->at).evict(node->entry.job);
    };
    const bool is_lost = happens(random, 0.5);  // otherwise the old switch goes on, also with packets in flight
    if (is_lost) leave();
    try {
      std::vector<std::vector<std::uint32_t>> positions;
      for (const auto& engine : engines_) {
        pause(random);
        positions.push_back(engine->halt(aggregator));
      }
      place_anew(moving, random);
      const auto roles = engine::roles_of(positions);
      for (std::size_t i = 0; i < workers_; ++i) {
        pause(random);
        const Node& node = moving[is_tree_ ? leaf_of_[i] : 0];
        AggregatorConfig& to = configs_[i].aggregators[aggregator];
        to.worker.key = node.entry.key;
        to.worker.job = node.entry.job;
        to.switch_endpoint = port_of(node.at);
        engines_[i]->move(aggregator, to, roles[i]);
      }
    } catch (...) {
      if (!is_lost) leave();
      throw;
    }
    if (!is_lost) leave();
  }

  static void pause(Random& random) {
    if (happens(random, 0.3)) std::this_thread::sleep_for(std::chrono::microseconds(below(random, 500)));
  }

  void place_anew(std::span<Node> moving, Random& random) {
    const std::uint32_t key = network_.new_key();
    constexpr std::uint32_t kSlotsOfAll = kJobsAtATime * kSlots;
    for (Node& node : moving) {
      if (is_tree_ || happens(random, 0.7)) node.at = (node.at + kSwitches) % (2 * kSwitches);
      node.entry.key = key;
      node.entry.job = static_cast<std::uint16_t>((node.entry.job + kNumbers) % (2 * kNumbers));
      node.entry.slot_base = (node.entry.slot_base + kSlotsOfAll) % (2 * kSlotsOfAll);
      if (node.entry.uplink.exists()) node.entry.uplink.parent = port_of(moving.front().at);
    }
    for (std::size_t i = 1; i < moving.size(); ++i) {
      moving.front().entry.endpoints[moving[i].entry.uplink.worker] = port_of(moving[i].at);
    }
    for (const Node& node : moving) network_.at(node.at).admit(node.entry);
  }

  /// A switch that sees all of a worker's packets has seen the packets of its last collective.
  void expect_that_all_came_to_the_last() {
    if (nodes_.size() != 1 || is_tree_) return;
    const dataplane::JobCounters counters = network_.at(nodes_[0].at).counters(number_);
    for (std::size_t i = 0; i < workers_; ++i) {
      EXPECT_EQ(counters.tensor_last[i] & 0xFFFF, last_tensor_.load() & 0xFFFF) << "of worker " << i << replay(seed_);
    }
  }

  Network& network_;
  const std::uint64_t seed_;
  Random random_;
  const std::size_t lane_;
  std::size_t workers_ = 0;
  std::uint8_t threads_ = 1;
  std::uint16_t lanes_ = 0;
  std::uint8_t port_offset_ = 0;
  std::uint16_t number_ = 0;
  std::uint32_t round_first_ = 1;
  bool is_tree_ = false;
  bool is_cut_short_ = false;
  std::atomic<bool> is_over_{false};
  std::mutex moving_;                 // protects the job's place
  std::vector<Node> nodes_;           // the root first
  std::vector<std::size_t> leaf_of_;  // by worker, in a tree: the node that it is at
  std::vector<EngineConfig> configs_;
  std::vector<std::vector<std::vector<transport::UdpSocket>>> sockets_;
  std::vector<Call> program_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::atomic<std::uint64_t> submitted_{0};
  std::atomic<std::uint32_t> last_tensor_{0};
};

std::vector<std::uint64_t> seeds() {
  if (const char* one = std::getenv("WIRESUM_STRESS_SEED")) return {std::strtoull(one, nullptr, 10)};
  const char* const count = std::getenv("WIRESUM_STRESS_SEEDS");
  std::vector<std::uint64_t> all(count != nullptr ? std::strtoull(count, nullptr, 10) : 8);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

/// Runs the body of a thread of the test; an exception becomes a failure that names the seed.
void attempt(std::uint64_t seed, const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what() << replay(seed);
  }
}

TEST(Stress, JobsThatShareSwitchesOverABadNetworkEndAndNoneEndsWellWithAWrongSum) {
  for (const std::uint64_t seed : seeds()) {
    Network network(seed);
    std::atomic<bool> enough{false};
    std::thread observer([&] {
      while (!enough.load() && !testing::Test::HasFailure()) {
        attempt(seed, [&] {
          for (std::size_t at = 0; at < kSwitches; ++at) static_cast<void>(network.at(at).stats());
        });
        std::this_thread::sleep_for(1ms);
      }
    });
    std::vector<std::thread> lanes;
    for (std::size_t lane = 0; lane < kJobsAtATime; ++lane) {
      lanes.emplace_back([&network, seed, lane] {
        for (std::uint64_t number = 0; number < kLives && !testing::Test::HasFailure(); ++number) {
          attempt(seed, [&] { Life(network, seed, lane, number).run(); });
        }
      });
    }
    for (std::thread& lane : lanes) lane.join();
    enough.store(true);
    observer.join();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace wiresum::stress
