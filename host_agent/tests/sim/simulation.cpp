#include "simulation.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace wiresum::sim {
namespace {

constexpr std::uint16_t kJob = 3;
constexpr std::uint32_t kKey = 0x5EED5EED;
constexpr std::uint16_t kWorkerPort = 20'000;

wire::Endpoint endpoint_of(std::uint32_t worker) { return {.address = 0x0A000001 + worker, .port = kWorkerPort}; }

}  // namespace

Simulation::Simulation(const Scenario& scenario, std::vector<Task> tasks)
    : scenario_(scenario),
      tasks_(std::move(tasks)),
      packet_bytes_(wire::kHeaderBytes + scenario.lanes * wire::kWordBytes),
      random_(scenario.seed),
      up_(scenario.workers, Link(scenario.up)),
      down_(scenario.workers, Link(scenario.down)) {
  for (const Task& task : tasks_) {
    if (task.requests.size() != scenario_.workers || task.submit_at.size() != scenario_.workers) {
      throw std::invalid_argument("a task needs a request and a time of submission for each worker");
    }
  }
  build_ports();
  build_hosts();
  schedule_faults();
}

void Simulation::build_ports() {
  const dataplane::Sizes sizes{
      .slots = scenario_.slots, .lanes_max = static_cast<std::uint16_t>(scenario_.lanes), .jobs_max = kJob + 1};
  dataplane::JobEntry entry{.job = kJob,
                            .key = kKey,
                            .workers = static_cast<std::uint8_t>(scenario_.workers),
                            .threads = static_cast<std::uint8_t>(scenario_.threads),
                            .lanes = static_cast<std::uint16_t>(scenario_.lanes),
                            .slot_base = 0,
                            .slots = scenario_.slots,
                            .endpoints = {}};
  for (std::uint32_t worker = 0; worker < scenario_.workers; ++worker) entry.endpoints[worker] = endpoint_of(worker);
  for (std::uint32_t thread = 0; thread < scenario_.threads; ++thread) {
    ports_.push_back(std::make_unique<dataplane::Dataplane>(sizes));
    leave_cells_used(*ports_.back(), entry);
    if (!ports_.back()->admit(entry)) throw std::invalid_argument("the switch does not admit this job");
  }
}

/// Another job of these workers has had the slots before, and left each cell in a round of its own, half summed: many
/// in those that this job begins with. It must not be noticed.
void Simulation::leave_cells_used(dataplane::Dataplane& machine, dataplane::JobEntry entry) const {
  entry.key = ~kKey;
  entry.threads = 1;
  if (!machine.admit(entry)) throw std::invalid_argument("the switch does not admit the job before this one");
  std::vector<std::byte> datagram(packet_bytes_, std::byte{0xA5});
  Random random(scenario_.seed);
  for (std::uint32_t cell = 0; cell < 2 * scenario_.slots; ++cell) {
    const std::uint32_t first = scenario_.round_first + ((scenario_.round_first ^ cell) & 1);
    const std::uint64_t ahead = random.below(3) == 0 ? random.below(std::uint64_t{1} << 31) : random.below(3);
    const std::uint32_t round = first + 2 * static_cast<std::uint32_t>(ahead) - 2;
    const wire::Header header{.job = kJob,
                              .key = entry.key,
                              .worker = static_cast<std::uint8_t>(random.below(scenario_.workers)),
                              .exponent = 255,
                              .cell = static_cast<std::uint16_t>(cell),
                              .round = round};
    wire::encode(header, std::span<std::byte, wire::kHeaderBytes>(datagram.data(), wire::kHeaderBytes));
    const dataplane::Outcome outcome = machine.handle(dataplane::read(endpoint_of(header.worker), 0, datagram));
    if (outcome.reason != dataplane::Reason::kAdmitted) throw std::logic_error("the job before this one is refused");
  }
  machine.evict(kJob);
}

HostConfig Simulation::config_of(std::uint32_t worker) const {
  HostConfig host;
  host.scheduler = {.threads = scenario_.threads,
                    .worker = worker,
                    .workers = scenario_.workers,
                    .lanes = scenario_.lanes,
                    .chunks_per_thread_min = 1,
                    .sparse_chunks_min = scenario_.sparse_chunks_min,
                    .vote_lag_chunks = scenario_.vote_lag_chunks,
                    .exact_elements_max = scenario_.exact_elements_max};
  host.interruption_max = scenario_.interruption_max;
  host.chore_max = scenario_.chore_max;
  host.device_delay_max = scenario_.device_delay_max;
  host.device_packets = scenario_.device_packets;
  for (const Stall& stall : scenario_.stalls) {
    if (stall.worker == worker) host.stalls.push_back(stall);
  }
  const std::uint32_t slots = scenario_.slots / scenario_.threads;
  for (std::uint32_t thread = 0; thread < scenario_.threads; ++thread) {
    worker::WorkerConfig& config = host.shards.emplace_back();
    config.job = kJob;
    config.key = kKey;
    config.worker = static_cast<std::uint8_t>(worker);
    config.workers = static_cast<std::uint8_t>(scenario_.workers);
    config.lanes = static_cast<std::uint16_t>(scenario_.lanes);
    config.slot_first = thread * slots;
    config.slots = slots;
    config.round_first = scenario_.round_first;
    config.window_min = scenario_.window_min;
    config.window_initial = scenario_.window_initial;
    config.rto_initial = scenario_.rto_initial;
    config.rto_min = scenario_.rto_min;
    config.rto_max = scenario_.rto_max;
    config.collectives_max = scenario_.collectives_max;
  }
  return host;
}

void Simulation::build_hosts() {
  for (std::uint32_t worker = 0; worker < scenario_.workers; ++worker) {
    hosts_.push_back(std::make_unique<Host>(
        config_of(worker), clock_, agenda_, random_,
        [this, worker](std::uint32_t thread, Datagram datagram) { send(worker, thread, std::move(datagram)); }));
    for (const Task& task : tasks_) {
      hosts_.back()->submit_at(task.submit_at[worker], task.requests[worker], task.timeout);
    }
  }
}

// ---- Faults ----

void Simulation::schedule_faults() {
  for (const Fault& fault : scenario_.faults) {
    if (fault.worker >= scenario_.workers) throw std::invalid_argument("a fault of a worker that is not there");
    agenda_.at(fault.at, [this, fault] { happen(fault); });
  }
}

void Simulation::happen(const Fault& fault) {
  Host& host = *hosts_[fault.worker];
  switch (fault.kind) {
    case Fault::Kind::kAbort:
      if (!host.dead()) host.abort();
      return;
    case Fault::Kind::kClose:
      host.close();
      return;
    case Fault::Kind::kDeath:
      host.kill();
      return;
    case Fault::Kind::kSwitchRestart:
      for (const auto& port : ports_) port->reset();
      return;
  }
}

// ---- Running ----

bool Simulation::is_done() const {
  return std::ranges::all_of(hosts_, [](const auto& host) { return host->idle(); });
}

Report Simulation::run() {
  while (failure_.empty() && !is_done()) {
    if (agenda_.empty()) {
      failure_ = "nothing is left to happen, but operations have not ended";
    } else if (agenda_.next() > scenario_.time_max) {
      failure_ = "not finished within the bound of virtual time";
    } else {
      clock_.advance(agenda_.next());
      agenda_.step();
    }
  }
  return report();
}

void Simulation::send(std::uint32_t worker, std::uint32_t thread, Datagram datagram) {
  up_[worker].carry(clock_.now(), datagram.size(), random_, [&](TimeNs at) {
    agenda_.at(at, [this, worker, thread, datagram] { arrive_at_switch(worker, thread, datagram); });
  });
}

void Simulation::arrive_at_switch(std::uint32_t worker, std::uint32_t thread, const Datagram& datagram) {
  wire::Endpoint source = endpoint_of(worker);
  source.port = static_cast<std::uint16_t>(source.port + thread);
  const dataplane::Outcome outcome =
      ports_[thread]->handle(dataplane::read(source, static_cast<std::uint8_t>(thread), datagram));
  const auto answer = [&] {
    Datagram bytes(packet_bytes_);
    wire::Packet packet{.data = bytes.data(), .bytes = 0};
    outcome.write(packet);
    bytes.resize(packet.bytes);
    return bytes;
  };
  switch (outcome.verdict) {
    case dataplane::Verdict::kMulticast:
      for (std::uint32_t receiver = 0; receiver < scenario_.workers; ++receiver) {
        send_result(receiver, thread, answer());
      }
      return;
    case dataplane::Verdict::kResend:
      send_result(worker, thread, answer());
      return;
    case dataplane::Verdict::kHold:
    case dataplane::Verdict::kDrop:
      return;
  }
}

void Simulation::send_result(std::uint32_t worker, std::uint32_t thread, const Datagram& datagram) {
  down_[worker].carry(clock_.now(), datagram.size(), random_, [&](TimeNs at) {
    agenda_.at(at, [this, worker, thread, datagram] { hosts_[worker]->arrive(thread, datagram); });
  });
}

Report Simulation::report() const {
  Report report;
  report.finished = failure_.empty();
  report.failure = failure_;
  report.time_ns = clock_.now();
  report.results.assign(tasks_.size(), {});
  for (const auto& host : hosts_) {
    const auto results = host->results();
    for (std::size_t task = 0; task < tasks_.size(); ++task) report.results[task].push_back(results[task]);
    for (std::uint32_t thread = 0; thread < scenario_.threads; ++thread) {
      const worker::WorkerStats stats = host->traffic(thread).worker;
      report.packets_sent += stats.packets_sent;
      report.bytes_sent += stats.bytes_sent;
      report.retransmissions += stats.retransmissions;
      report.questions += stats.questions;
      report.duplicates += stats.duplicates;
      report.rejected += stats.rejected;
      report.rto_ns = std::max(report.rto_ns, stats.rto_ns);
    }
    report.sparse.push_back(host->sparse());
  }
  for (const std::vector<Link>* links : {&up_, &down_}) {
    for (const Link& link : *links) {
      report.link_packets += link.counters().packets;
      report.link_lost += link.counters().lost;
      report.link_overflow += link.counters().overflow;
    }
  }
  return report;
}

}  // namespace wiresum::sim
