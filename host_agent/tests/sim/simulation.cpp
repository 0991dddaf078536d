#include "simulation.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace wiresum::sim {
namespace {

constexpr std::uint16_t kJob = 3;
constexpr std::uint32_t kKey = 0x5EED5EED;
constexpr std::uint16_t kWorkerPort = 20'000;

}  // namespace

Simulation::Simulation(const Scenario& scenario, std::vector<Task> tasks)
    : scenario_(scenario),
      tasks_(std::move(tasks)),
      packet_bytes_(wire::kHeaderBytes + scenario.lanes * wire::kWordBytes),
      random_(scenario.seed),
      up_(scenario.workers + scenario.parents.size(), Link(scenario.up)),
      down_(scenario.workers + scenario.parents.size(), Link(scenario.down)) {
  check();
  build_switches();
  build_hosts();
  schedule_faults();
}

void Simulation::check() const {
  for (const Task& task : tasks_) {
    if (task.requests.size() != scenario_.workers || task.submit_at.size() != scenario_.workers) {
      throw std::invalid_argument("a task needs a request and a time of submission for each worker");
    }
  }
  for (std::size_t i = 0; i < scenario_.parents.size(); ++i) {
    if (i == 0 ? scenario_.parents[i] != 0 : scenario_.parents[i] >= i) {
      throw std::invalid_argument("a switch's parent comes before it, and the root is its own");
    }
  }
  const std::vector<std::uint32_t>& leaves = scenario_.leaves;
  if (!leaves.empty() && (leaves.size() != scenario_.workers || std::ranges::max(leaves) >= scenario_.parents.size())) {
    throw std::invalid_argument("each worker hangs on a switch");
  }
}

// ---- The tree ----

std::uint32_t Simulation::above(Node node) const noexcept {
  if (!is_worker(node)) return scenario_.parents[node - scenario_.workers];
  return scenario_.leaves.empty() ? 0 : scenario_.leaves[node];
}

std::uint8_t Simulation::number_of(Node node) const noexcept {
  const std::vector<Node>& children = switches_[above(node)].children;
  return static_cast<std::uint8_t>(std::ranges::find(children, node) - children.begin());
}

wire::Endpoint Simulation::endpoint_of(Node node) const noexcept {
  return {.address = 0x0A000001 + node, .port = is_worker(node) ? kWorkerPort : wire::kSwitchPort};
}

void Simulation::build_switches() {
  const dataplane::Sizes sizes{
      .slots = scenario_.slots, .lanes_max = static_cast<std::uint16_t>(scenario_.lanes), .jobs_max = kJob + 1};
  switches_.resize(scenario_.parents.size());
  for (Node node = 0; node < scenario_.workers + switches_.size(); ++node) {
    if (node != node_of_switch(0)) switches_[above(node)].children.push_back(node);
  }
  for (std::uint32_t index = 0; index < switches_.size(); ++index) {
    const dataplane::JobEntry entry = entry_of(index);
    for (std::uint32_t thread = 0; thread < scenario_.threads; ++thread) {
      switches_[index].ports.push_back(std::make_unique<dataplane::Dataplane>(sizes));
      dataplane::Dataplane& port = *switches_[index].ports.back();
      leave_cells_used(port, entry);
      if (!port.admit(entry)) throw std::invalid_argument("a switch does not admit this job");
    }
  }
}

dataplane::JobEntry Simulation::entry_of(std::uint32_t index) const {
  const std::vector<Node>& children = switches_[index].children;
  dataplane::JobEntry entry{.job = kJob,
                            .key = kKey,
                            .workers = static_cast<std::uint8_t>(children.size()),
                            .threads = static_cast<std::uint8_t>(scenario_.threads),
                            .lanes = static_cast<std::uint16_t>(scenario_.lanes),
                            .slot_base = 0,
                            .slots = scenario_.slots,
                            .endpoints = {}};
  for (std::size_t i = 0; i < children.size() && i < entry.endpoints.size(); ++i) {
    entry.endpoints[i] = endpoint_of(children[i]);
  }
  if (index != 0) {
    const Node node = node_of_switch(index);
    entry.uplink = {.parent = endpoint_of(node_of_switch(above(node))), .worker = number_of(node)};
  }
  return entry;
}

/// Another job of these workers has had the slots before, and left each cell in a round of its own, half summed: many
/// in those that this job begins with. It must not be noticed.
void Simulation::leave_cells_used(dataplane::Dataplane& machine, dataplane::JobEntry entry) const {
  entry.key = ~kKey;
  entry.threads = 1;
  entry.uplink = {};
  if (!machine.admit(entry)) throw std::invalid_argument("the switch does not admit the job before this one");
  std::vector<std::byte> datagram(packet_bytes_, std::byte{0xA5});
  Random random(scenario_.seed);
  for (std::uint32_t cell = 0; cell < 2 * scenario_.slots; ++cell) {
    const std::uint32_t first = scenario_.round_first + ((scenario_.round_first ^ cell) & 1);
    const std::uint64_t ahead = random.below(3) == 0 ? random.below(std::uint64_t{1} << 31) : random.below(3);
    const std::uint32_t round = first + 2 * static_cast<std::uint32_t>(ahead) - 2;
    const wire::Header header{.job = kJob,
                              .key = entry.key,
                              .worker = static_cast<std::uint8_t>(random.below(entry.workers)),
                              .exponent = 255,
                              .cell = static_cast<std::uint16_t>(cell),
                              .round = round};
    wire::encode(header, std::span<std::byte, wire::kHeaderBytes>(datagram.data(), wire::kHeaderBytes));
    const dataplane::Outcome outcome = machine.handle(dataplane::read(entry.endpoints[header.worker], 0, datagram));
    if (outcome.reason != dataplane::Reason::kAdmitted) throw std::logic_error("the job before this one is refused");
  }
  machine.evict(kJob);
}

HostConfig Simulation::config_of(std::uint32_t worker) const {
  HostConfig host;
  host.scheduler = {.threads = scenario_.threads,
                    .rank = worker,
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
    config.worker = number_of(worker);
    config.workers = static_cast<std::uint16_t>(scenario_.workers);
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
        [this, worker](std::uint32_t thread, const Datagram& datagram) { send_up(worker, thread, datagram); }));
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
      for (const auto& port : switches_[above(fault.worker)].ports) port->reset();
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

void Simulation::send_up(Node from, std::uint32_t thread, const Datagram& datagram) {
  up_[from].carry(clock_.now(), datagram.size(), random_, [&](TimeNs at) {
    agenda_.at(at, [this, from, thread, datagram] { arrive_at_switch(above(from), from, thread, datagram); });
  });
}

void Simulation::send_down(Node to, std::uint32_t thread, const Datagram& datagram) {
  down_[to].carry(clock_.now(), datagram.size(), random_, [&](TimeNs at) {
    agenda_.at(at, [this, to, thread, datagram] {
      if (is_worker(to)) {
        hosts_[to]->arrive(thread, datagram);
      } else {
        arrive_at_switch(to - scenario_.workers, node_of_switch(above(to)), thread, datagram);
      }
    });
  });
}

void Simulation::arrive_at_switch(std::uint32_t index, Node from, std::uint32_t thread, const Datagram& datagram) {
  wire::Endpoint source = endpoint_of(from);
  source.port = static_cast<std::uint16_t>(source.port + thread);
  const Switch& there = switches_[index];
  const dataplane::Outcome outcome =
      there.ports[thread]->handle(dataplane::read(source, static_cast<std::uint8_t>(thread), datagram));
  const auto answer = [&] {
    Datagram bytes(packet_bytes_);
    wire::Packet packet{.data = bytes.data(), .bytes = 0};
    outcome.write(packet);
    bytes.resize(packet.bytes);
    return bytes;
  };
  switch (outcome.verdict) {
    case dataplane::Verdict::kMulticast:
      for (const Node child : there.children) send_down(child, thread, answer());
      return;
    case dataplane::Verdict::kResend:
      send_down(there.children[outcome.worker], thread, answer());
      return;
    case dataplane::Verdict::kRaise:
      send_up(node_of_switch(index), thread, answer());
      return;
    case dataplane::Verdict::kHold:
    case dataplane::Verdict::kDrop:
      return;
  }
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
