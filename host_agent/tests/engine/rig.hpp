// Engines of one job and the real software switches that it uses, all in this process, over loopback.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.hpp"
#include "engine/paths.hpp"
#include "patience.hpp"
#include "roles.hpp"
#include "server.hpp"

namespace wiresum::engine {

using worker::Region;

inline constexpr std::uint32_t kLoopback = 0x7F000001;
inline constexpr std::uint16_t kJob = 3;
inline constexpr std::uint32_t kKey = 0xC0FFEE;
inline constexpr std::uint16_t kLanes = 360;
inline constexpr std::uint32_t kSlots = 64;

inline constexpr numeric::Format kInt32{.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone, .bits = 32};
inline constexpr numeric::Format kFloat32{};

template <typename T>
Region region(const T* source, T* destination, std::size_t elements) {
  Region made{.source = {}, .destination = {}, .elements = elements};
  if (source != nullptr) made.source = reinterpret_cast<const std::byte*>(source);
  if (destination != nullptr) made.destination = reinterpret_cast<std::byte*>(destination);
  return made;
}

inline Request request(numeric::Format format, std::vector<Region> regions) {
  Request made;
  made.work.format = format;
  made.work.regions = std::move(regions);
  return made;
}

struct At {
  unsigned threads = 1;
  std::uint32_t slots = kSlots;
  unsigned ranks = 1;  // of a host, where they share a leaf. If all are on one host there is no switch
};

/// N engines of one job at one or several switches.
class Job {
 public:
  Job(unsigned workers, unsigned threads, bool offload = true) : Job(workers, {At{.threads = threads}}, offload) {}

  Job(unsigned workers, const std::vector<At>& aggregators, bool offload = true, std::uint64_t exact_elements_max = 0,
      decltype(transport::Spec::around) around = nullptr) {
    std::vector<EngineConfig> configs(workers);
    std::vector<std::vector<std::vector<transport::UdpSocket>>> sockets(workers);
    std::vector<Engine::Transports> shared(workers);
    for (const At& at : aggregators) {
      add_aggregator(at, offload, configs, sockets);
      transport::Spec spec;
      spec.offload = offload;
      spec.around = around;
      share(at.ranks, spec, configs, sockets, shared);
    }
    for (unsigned i = 0; i < workers; ++i) {
      configs[i].rank = i;
      configs[i].exact_elements_max = exact_elements_max;
      configs[i].transport.offload = offload;
      configs[i].transport.around = around;
      at_.push_back(configs[i].aggregators);
      engines_.push_back(std::make_unique<Engine>(configs[i], std::move(sockets[i]), std::move(shared[i])));
    }
  }

  Engine& operator[](std::size_t worker) { return *engines_[worker]; }
  [[nodiscard]] std::size_t workers() const { return engines_.size(); }
  /// Stops the switch as if its process had been killed.
  void kill(std::size_t aggregator) { servers_[aggregator].reset(); }

  [[nodiscard]] std::vector<std::vector<std::uint32_t>> halt(std::size_t aggregator) {
    std::vector<std::vector<std::uint32_t>> positions;
    for (const auto& engine : engines_) positions.push_back(engine->halt(aggregator));
    return positions;
  }
  /// What has halted goes on at another switch, which is started now, with another job number, key and numbers of the
  /// workers.
  void move(std::size_t aggregator, const std::vector<std::vector<std::uint32_t>>& positions) {
    dataplane::JobEntry& entry = entries_[aggregator];
    entry.job ^= 4;
    entry.key += 0x10000;
    std::reverse(entry.endpoints.begin(), entry.endpoints.begin() + entry.workers);
    servers_[aggregator] = start(entry);
    const std::vector<std::vector<std::uint8_t>> roles = roles_of(positions);
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      AggregatorConfig& to = at_[i][aggregator];
      to.worker.job = entry.job;
      to.worker.key = entry.key;
      std::uint8_t& number = ranks_[aggregator] > 1 ? to.host : to.worker.worker;
      number = static_cast<std::uint8_t>(entry.workers - 1 - number);
      to.switch_endpoint = servers_[aggregator]->local();
      engines_[i]->move(aggregator, to, roles[i]);
    }
  }

 private:
  /// At each switch the job has a different number, key and first round.
  void add_aggregator(const At& at, bool offload, std::vector<EngineConfig>& configs,
                      std::vector<std::vector<std::vector<transport::UdpSocket>>>& sockets) {
    const auto number = static_cast<std::uint16_t>(servers_.size());
    const std::size_t hosts = (configs.size() + at.ranks - 1) / at.ranks;
    offload_ = offload;
    ranks_.push_back(at.ranks);
    dataplane::JobEntry entry{.job = static_cast<std::uint16_t>(kJob + number),
                              .key = kKey + number,
                              .workers = static_cast<std::uint8_t>(hosts),
                              .threads = static_cast<std::uint8_t>(at.threads),
                              .lanes = kLanes,
                              .slot_base = 0,
                              .slots = at.slots,
                              .endpoints = {}};
    for (std::size_t i = 0; i < configs.size(); ++i) {
      sockets[i].push_back(transport::bind_consecutive({.address = kLoopback, .port = 0}, at.threads));
      if (i % at.ranks == 0) entry.endpoints[i / at.ranks] = sockets[i].back().front().local();
    }
    servers_.push_back(start(entry));
    for (std::size_t i = 0; i < configs.size(); ++i) {
      AggregatorConfig& config = configs[i].aggregators.emplace_back();
      config.worker.job = entry.job;
      config.worker.key = entry.key;
      config.worker.worker = static_cast<std::uint8_t>(at.ranks > 1 ? i % at.ranks : i);
      config.host = static_cast<std::uint8_t>(i / at.ranks);
      config.worker.workers = static_cast<std::uint16_t>(configs.size());
      config.worker.lanes = kLanes;
      config.worker.slots = at.slots;
      config.worker.round_first = 0xFFFFFFF0 - number;  // rounds wrap around during every test
      config.threads = at.threads;
      if (at.ranks == 1 || hosts > 1) config.switch_endpoint = servers_.back()->local();
    }
    entries_.push_back(entry);
  }

  /// The ranks of each host meet, all at once.
  static void share(unsigned ranks, const transport::Spec& spec, const std::vector<EngineConfig>& configs,
                    std::vector<std::vector<std::vector<transport::UdpSocket>>>& sockets,
                    std::vector<Engine::Transports>& shared) {
    static std::atomic<unsigned> meetings{0};
    const std::string meeting = std::to_string(++meetings);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < configs.size(); ++i) {
      leaf::Transports& mine = shared[i].emplace_back();
      if (ranks == 1) continue;
      const std::size_t first = i / ranks * ranks;
      leaf::Place place;
      for (std::size_t rank = first; rank < std::min(first + ranks, configs.size()); ++rank) {
        place.ranks.push_back(static_cast<std::uint16_t>(rank));
      }
      place.index = static_cast<std::uint8_t>(i - first);
      std::string half = meeting + "-" + std::to_string(first) + "-" + std::to_string(getpid());
      half.resize(leaf::kSecretBytes / 2, '.');
      place.secret = half + half;
      threads.emplace_back([&, place, i] {
        mine =
            open_shared(spec, configs[i].aggregators.back(), std::move(sockets[i].back()), place, {.most = kPatience});
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  [[nodiscard]] std::unique_ptr<soft_switch::SwitchServer> start(const dataplane::JobEntry& entry) const {
    transport::Spec transport;
    transport.offload = offload_;
    auto server = std::make_unique<soft_switch::SwitchServer>(
        soft_switch::ServerConfig{.local = {.address = kLoopback, .port = 0},
                                  .ports = entry.threads,
                                  .threads = std::min<unsigned>(entry.threads, 2U),
                                  .sizes = {.slots = entry.slots, .lanes_max = kLanes, .jobs_max = 8},
                                  .transport = transport});
    server->admit(entry);
    return server;
  }

  bool offload_ = true;
  std::vector<dataplane::JobEntry> entries_;       // by aggregator
  std::vector<unsigned> ranks_;                    // of a host, by aggregator
  std::vector<std::vector<AggregatorConfig>> at_;  // by worker: where it is
  std::vector<std::unique_ptr<soft_switch::SwitchServer>> servers_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

inline std::shared_ptr<Operation> submit_sum(Engine& engine, std::vector<std::int32_t>& values) {
  return engine.submit(request(kInt32, {region(values.data(), values.data(), values.size())}));
}

/// How the operation ended, or nothing if it did not end in time.
inline std::optional<worker::Status> end_of(const std::shared_ptr<Operation>& operation,
                                            std::chrono::nanoseconds patience = kPatience) {
  return operation->wait(patience) ? std::optional(operation->status()) : std::nullopt;
}

/// A tensor of many blocks, some of which hold this worker's number in every element.
inline std::vector<float> sparse_tensor(std::size_t worker, std::size_t blocks, std::size_t every) {
  std::vector<float> values(blocks * kLanes);
  for (std::size_t block = worker; block < blocks; block += every) {
    std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(block * kLanes), kLanes, static_cast<float>(worker + 1));
  }
  return values;
}

inline Request sparse_request(std::vector<float>& values, std::uint16_t signature) {
  Request made = request(kFloat32, {region(values.data(), values.data(), values.size())});
  made.work.may_be_sparse = true;
  made.work.signature = signature;
  return made;
}

}  // namespace wiresum::engine
