#include "server.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "data_thread.hpp"
#include "transport/udp/udp.hpp"

namespace wiresum::soft_switch {
namespace {

using dataplane::JobCounters;

constexpr unsigned kDefaultThreadsMax = 4;
constexpr std::chrono::microseconds kDefaultSpin{50};

unsigned cores() { return std::max(1u, std::thread::hardware_concurrency()); }

/// Half of the cores: the other half is for workers on the same machine, or for the network stack.
unsigned threads_for(const ServerConfig& config) {
  const unsigned wanted = config.threads != 0 ? config.threads : std::clamp(cores() / 2, 1u, kDefaultThreadsMax);
  return std::min(wanted, config.ports);
}

/// Busy polling pays only where it takes no core away from somebody who has work to do.
std::chrono::microseconds spin_for(const ServerConfig& config, unsigned threads) {
  if (config.spin_us >= 0) return std::chrono::microseconds(config.spin_us);
  return cores() > 2 * threads ? kDefaultSpin : std::chrono::microseconds(0);
}

void add(JobCounters& sum, const JobCounters& counters) {
  for (std::size_t i = 0; i < sum.packets.size(); ++i) sum.packets[i] += counters.packets[i];
  sum.results += counters.results;
  for (std::size_t worker = 0; worker < wire::kWorkersMax; ++worker) {
    if (counters.contributions[worker] == 0) continue;
    // Each thread has seen its share of a worker's packets: the newest tag of all is the worker's.
    if (sum.contributions[worker] == 0 || wire::newer(counters.tensor_last[worker], sum.tensor_last[worker])) {
      sum.tensor_last[worker] = counters.tensor_last[worker];
    }
    sum.contributions[worker] += counters.contributions[worker];
  }
}

}  // namespace

SwitchServer::SwitchServer(const ServerConfig& config) : ports_(config.ports), sizes_(config.sizes) {
  if (config.ports == 0 || config.ports > wire::kThreadsMax) {
    throw std::invalid_argument("a switch listens on 1 to 16 ports, not " + std::to_string(config.ports));
  }
  const unsigned count = threads_for(config);
  const transport::UdpConfig udp{
      .datagram_bytes_max = wire::kHeaderBytes + sizes_.lanes_max * wire::kWordBytes,
      .frames = std::size_t{2} * sizes_.slots,
      .receive_buffer_bytes = config.receive_buffer_bytes,
      .offload = config.offload,
  };
  std::vector<transport::UdpSocket> sockets = transport::bind_consecutive(config.local, ports_);
  local_ = sockets.front().local();
  std::vector<std::vector<SwitchPort>> dealt(count);
  for (unsigned port = 0; port < ports_; ++port) {
    dealt[port % count].push_back({std::move(sockets[port]), static_cast<std::uint8_t>(port)});
  }
  for (std::vector<SwitchPort>& share : dealt) {
    threads_.push_back(std::make_unique<DataThread>(sizes_, udp, std::move(share), spin_for(config, count)));
  }
}

SwitchServer::~SwitchServer() { stop(); }

void SwitchServer::require_running() const {
  if (stopped_) throw std::runtime_error("the switch was stopped");
}

void SwitchServer::admit(const dataplane::JobEntry& entry) {
  const std::lock_guard lock(control_);
  require_running();
  if (entry.threads > ports_) {
    throw std::invalid_argument("the switch listens on " + std::to_string(ports_) + " ports, too few for a job of " +
                                std::to_string(entry.threads) + " threads");
  }
  std::size_t told = 0;
  try {
    for (; told < threads_.size(); ++told) {
      DataThread& thread = *threads_[told];
      const char* objection = nullptr;
      thread.run([&] {
        objection = thread.plane().objection(entry);
        if (objection == nullptr && !thread.plane().admit(entry)) objection = "the data plane refused it";
      });
      if (objection != nullptr) {
        throw std::invalid_argument("cannot admit job " + std::to_string(entry.job) + ": " + objection);
      }
    }
  } catch (...) {
    // A job that not all threads know would hang: take it back from those that do.
    while (told-- > 0) threads_[told]->run([&] { threads_[told]->plane().evict(entry.job); });
    throw;
  }
}

bool SwitchServer::evict(std::uint16_t job) {
  const std::lock_guard lock(control_);
  require_running();
  bool known = false;
  for (const auto& thread : threads_) thread->run([&] { known |= thread->plane().evict(job); });
  return known;
}

JobCounters SwitchServer::counters(std::uint16_t job) {
  const std::lock_guard lock(control_);
  JobCounters sum;
  for (const auto& thread : threads_) thread->run([&] { add(sum, thread->plane().counters(job)); });
  return sum;
}

ServerStats SwitchServer::stats() {
  const std::lock_guard lock(control_);
  ServerStats sum;
  sum.threads = static_cast<unsigned>(threads_.size());
  for (const auto& thread : threads_) {
    thread->run([&] {
      const transport::TransportStats& transport = thread->transport_stats();
      sum.cpu_seconds += thread->cpu_seconds();
      sum.datagrams_received += transport.datagrams_received;
      sum.datagrams_sent += transport.datagrams_sent;
      sum.receive_calls += transport.receive_calls;
      sum.send_calls += transport.send_calls;
      sum.send_failures += transport.send_failures;
      add(sum.stray, thread->plane().stray());
    });
  }
  return sum;
}

void SwitchServer::stop() {
  const std::lock_guard lock(control_);
  stopped_ = true;
  for (const auto& thread : threads_) thread->stop();
}

}  // namespace wiresum::soft_switch
