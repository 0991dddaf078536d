#include "simulation.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace wiresum::sim {
namespace {

constexpr std::uint16_t kJob = 3;
constexpr std::uint32_t kKey = 0x5EED5EED;
constexpr std::uint16_t kWorkerPort = 20'000;

/// A switch never gets the same key twice.
std::uint32_t next_key(World& world) { return kKey + 0x9E3779B9 * world.keys++; }

std::uint32_t lanes_max(const std::vector<JobPlan>& plans) {
  const auto lanes_of = [](const JobPlan& plan) { return plan.scenario.lanes; };
  return lanes_of(*std::ranges::max_element(plans, {}, lanes_of));
}

}  // namespace

Job::Job(World& world, JobPlan plan, const Lease& lease, std::shared_ptr<Network> network)
    : world_(world),
      scenario_(std::move(plan.scenario)),
      tasks_(std::move(plan.tasks)),
      lease_(lease),
      key_(next_key(world)),
      packet_bytes_(wire::kHeaderBytes + scenario_.lanes * wire::kWordBytes),
      network_(std::move(network)) {
  if (network_ == nullptr) {
    const std::vector<std::uint32_t>& hosts = scenario_.hosts;
    const std::uint32_t used = hosts.empty() ? scenario_.workers : std::ranges::max(hosts) + 1;
    const auto there = static_cast<std::uint32_t>(scenario_.leaves.size());
    network_ = std::make_shared<Network>(scenario_, there == 0 ? used : there, world.clock, world.agenda, world.random);
  }
  check();
  build_switches();
}

void Job::check() const {
  for (const Task& task : tasks_) {
    if (task.requests.size() != scenario_.workers || task.submit_at.size() != scenario_.workers) {
      throw std::invalid_argument("a task needs a request and a time of submission for each worker");
    }
  }
  std::vector<std::uint32_t> hosts = scenario_.hosts;
  std::ranges::sort(hosts);
  const bool shared = std::ranges::adjacent_find(hosts) != hosts.end();
  if (shared || (!hosts.empty() && (hosts.size() != scenario_.workers || hosts.back() >= network_->hosts())) ||
      scenario_.workers > network_->hosts()) {
    throw std::invalid_argument("each worker of a job is on a host of its own in the network");
  }
}

// ---- The tree ----

Network::Node Job::host_of(std::uint32_t worker) const noexcept {
  return scenario_.hosts.empty() ? worker : scenario_.hosts[worker];
}

std::uint8_t Job::number_of(Node node) const noexcept {
  const std::vector<Node>& children = switches_[network_->above(node)].children;
  return static_cast<std::uint8_t>(std::ranges::find(children, node) - children.begin());
}

wire::Endpoint Job::endpoint_of(Node node) const noexcept {
  return {.address = 0x0A000001 + node, .port = network_->is_host(node) ? kWorkerPort : wire::kSwitchPort};
}

void Job::build_switches() {
  switches_.resize(network_->switches());
  worker_on_.resize(network_->hosts());
  const auto add = [&](Node node) { switches_[network_->above(node)].children.push_back(node); };
  for (std::uint32_t worker = 0; worker < scenario_.workers; ++worker) {
    worker_on_[host_of(worker)] = worker;
    add(host_of(worker));
  }
  // A switch's number is above its parent's: so when its turn comes, all that is below it has been added.
  for (std::uint32_t index = network_->switches(); index-- > 1;) {
    if (is_used(index)) add(network_->node_of_switch(index));
  }
}

dataplane::Dataplane& Job::port(std::uint32_t index, std::uint32_t thread) const {
  return *world_.ports[index][lease_.port_offset + thread];
}

void Job::admit_at(std::uint32_t index) {
  if (!is_used(index)) return;
  const dataplane::JobEntry entry = entry_of(index);
  for (std::uint32_t thread = 0; thread < scenario_.threads; ++thread) {
    dataplane::Dataplane& machine = port(index, thread);
    if (machine.find(lease_.job) == nullptr && !machine.admit(entry)) {
      throw std::invalid_argument("a switch does not admit this job");
    }
  }
}

void Job::admit() {
  for (std::uint32_t index = 0; index < switches_.size(); ++index) admit_at(index);
  stage_ = Stage::kRuns;
  began_ = world_.clock.now();
  build_hosts();
  schedule_faults();
}

void Job::evict() {
  for (std::size_t index = switches_.size(); index-- > 0;) {
    for (std::uint32_t thread = 0; thread < scenario_.threads; ++thread) {
      port(static_cast<std::uint32_t>(index), thread).evict(lease_.job);
    }
  }
  stage_ = Stage::kOver;
  ended_ = world_.clock.now();
}

dataplane::JobEntry Job::entry_of(std::uint32_t index) const {
  const std::vector<Node>& children = switches_[index].children;
  dataplane::JobEntry entry{.job = lease_.job,
                            .key = key_,
                            .workers = static_cast<std::uint8_t>(children.size()),
                            .threads = static_cast<std::uint8_t>(scenario_.threads),
                            .port_offset = lease_.port_offset,
                            .lanes = static_cast<std::uint16_t>(scenario_.lanes),
                            .slot_base = lease_.slot_base,
                            .slots = scenario_.slots,
                            .endpoints = {}};
  for (std::size_t i = 0; i < children.size() && i < entry.endpoints.size(); ++i) {
    entry.endpoints[i] = endpoint_of(children[i]);
  }
  if (index != 0) {
    const Node node = network_->node_of_switch(index);
    entry.uplink = {.parent = endpoint_of(network_->node_of_switch(network_->above(node))), .worker = number_of(node)};
  }
  return entry;
}

/// Sets the cells as an earlier job of these workers would have left them: each in a different round, half summed, many
/// of them in rounds with which this job begins. The job must not be affected.
void Job::leave_cells_used() const {
  for (std::uint32_t index = 0; index < switches_.size(); ++index) {
    for (std::uint32_t thread = 0; is_used(index) && thread < scenario_.threads; ++thread) {
      leave_cells_used(port(index, thread), entry_of(index));
    }
  }
}

void Job::leave_cells_used(dataplane::Dataplane& machine, dataplane::JobEntry entry) const {
  entry.key = ~key_;
  entry.threads = 1;
  entry.uplink = {};
  if (!machine.admit(entry)) throw std::invalid_argument("the switch does not admit the job before this one");
  std::vector<std::byte> datagram(packet_bytes_, std::byte{0xA5});
  Random random(scenario_.seed);
  for (std::uint32_t cell = 0; cell < 2 * scenario_.slots; ++cell) {
    const std::uint32_t first = scenario_.round_first + ((scenario_.round_first ^ cell) & 1);
    const std::uint64_t ahead = random.below(3) == 0 ? random.below(std::uint64_t{1} << 31) : random.below(3);
    const std::uint32_t round = first + 2 * static_cast<std::uint32_t>(ahead) - 2;
    const wire::Header header{.job = entry.job,
                              .key = entry.key,
                              .worker = static_cast<std::uint8_t>(random.below(entry.workers)),
                              .exponent = 255,
                              .cell = static_cast<std::uint16_t>(cell),
                              .round = round};
    wire::encode(header, std::span<std::byte, wire::kHeaderBytes>(datagram.data(), wire::kHeaderBytes));
    const dataplane::Decision decision =
        machine.handle(dataplane::read(entry.endpoints[header.worker], entry.port_offset, datagram));
    if (decision.reason != dataplane::Reason::kAdmitted) throw std::logic_error("the job before this one is refused");
  }
  machine.evict(entry.job);
}

HostConfig Job::config_of(std::uint32_t worker) const {
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
  host.task_max = scenario_.task_max;
  host.device_delay_max = scenario_.device_delay_max;
  host.device_packets = scenario_.device_packets;
  for (const Stall& stall : scenario_.stalls) {
    if (stall.worker == worker) host.stalls.push_back({worker, began_ + stall.begin, began_ + stall.end});
  }
  const std::uint32_t slots = scenario_.slots / scenario_.threads;
  for (std::uint32_t thread = 0; thread < scenario_.threads; ++thread) {
    worker::WorkerConfig& config = host.shards.emplace_back();
    config.job = lease_.job;
    config.key = key_;
    config.worker = number_of(host_of(worker));
    config.workers = static_cast<std::uint16_t>(scenario_.workers);
    config.lanes = static_cast<std::uint16_t>(scenario_.lanes);
    config.exact_when_wide = scenario_.exact_when_wide;
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

void Job::build_hosts() {
  DeviceMemory& devices =
      world_.devices.try_emplace(scenario_.device_packets, scenario_.device_packets, world_.packet_bytes_max)
          .first->second;
  for (std::uint32_t worker = 0; worker < scenario_.workers; ++worker) {
    const auto carry = [this, host = host_of(worker)](std::uint32_t thread, const Packet& packet) {
      network_->send_up(host, {this, thread, packet});
    };
    hosts_.push_back(std::make_unique<Host>(config_of(worker), world_.clock, world_.agenda, world_.random,
                                            world_.packets, devices, carry));
    for (const Task& task : tasks_) {
      hosts_.back()->submit_at(began_ + task.submit_at[worker], task.requests[worker], task.timeout);
    }
  }
}

// ---- Faults ----

void Job::schedule_faults() {
  for (const Fault& fault : scenario_.faults) {
    if (fault.worker >= scenario_.workers) throw std::invalid_argument("a fault of a worker that is not there");
    world_.agenda.at(began_ + fault.at, [this, fault] { happen(fault); });
  }
}

void Job::happen(const Fault& fault) {
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
      for (const auto& machine : world_.ports[network_->above(host_of(fault.worker))]) machine->reset();
      return;
    case Fault::Kind::kSwitchReturn:
      if (stage_ == Stage::kRuns) admit_at(network_->above(host_of(fault.worker)));
      return;
  }
}

// ---- Running ----

bool Job::is_done() {
  if (stage_ == Stage::kWaits) return false;
  while (idle_through_ < hosts_.size() && hosts_[idle_through_]->idle()) ++idle_through_;
  return idle_through_ == hosts_.size();
}

void Job::arrive_from(Network::Node node, std::uint32_t thread, const Packet& packet) {
  handle(network_->above(node), node, thread, packet);
}

void Job::arrive_at(Network::Node node, std::uint32_t thread, const Packet& packet) {
  if (network_->is_host(node)) {
    hosts_[worker_on_[node]]->arrive(thread, packet);
  } else {
    handle(node - network_->hosts(), network_->node_of_switch(network_->above(node)), thread, packet);
  }
}

void Job::handle(std::uint32_t index, Node from, std::uint32_t thread, const Packet& packet) {
  wire::Endpoint source = endpoint_of(from);
  source.port = static_cast<std::uint16_t>(source.port + thread);
  const dataplane::Decision decision =
      port(index, thread)
          .handle(dataplane::read(source, static_cast<std::uint8_t>(lease_.port_offset + thread), packet.bytes()));
  if (decision.verdict == dataplane::Verdict::kDrop || decision.verdict == dataplane::Verdict::kHold) return;
  const Packet answer = world_.packets.make([&](std::byte* data) {
    wire::Packet written{.data = data, .bytes = 0};
    decision.write(written);
    return std::size_t{written.bytes};
  });
  const std::vector<Node>& children = switches_[index].children;
  if (decision.verdict == dataplane::Verdict::kRaise) {
    network_->send_up(network_->node_of_switch(index), {this, thread, answer});
  } else if (decision.verdict == dataplane::Verdict::kResend) {
    network_->send_down(children[decision.worker], {this, thread, answer});
  } else {
    for (const Node child : children) network_->send_down(child, {this, thread, answer});
  }
}

Report Job::report(std::string failure) {
  Report report;
  report.finished = is_done();
  report.failure = std::move(failure);
  report.time_ns = (stage_ == Stage::kOver ? ended_ : world_.clock.now()) - began_;
  report.results.assign(tasks_.size(), {});
  for (const auto& host : hosts_) {
    const auto results = host->results();
    for (std::size_t task = 0; task < tasks_.size(); ++task) report.results[task].push_back(results[task]);
    for (std::uint32_t thread = 0; thread < scenario_.threads; ++thread) {
      const worker::WorkerStats stats = host->traffic(thread);
      report.packets_sent += stats.packets_sent;
      report.bytes_sent += stats.bytes_sent;
      report.retransmissions += stats.retransmissions;
      report.questions += stats.questions;
      report.duplicates += stats.duplicates;
      report.rejected += stats.rejected;
      report.chunks_exact += stats.chunks_exact;
      report.chunks_wide += stats.chunks_wide;
      report.rto_ns = std::max(report.rto_ns, stats.rto_ns);
    }
    report.sparse.push_back(host->sparse());
  }
  const LinkCounters links = network_->counters();
  report.link_packets = links.packets;
  report.link_lost = links.lost;
  report.link_overflow = links.overflow;
  report.link_marked = links.marked;
  report.cross_packets = links.cross_packets;
  report.cross_overflow = links.cross_overflow;
  report.buffer_held_max = network_->buffer_held_max();
  report.packets_max = world_.packets.packets_max();
  return report;
}

// ---- Several jobs ----

Simulation::Simulation(std::vector<JobPlan> plans)
    : world_(plans.at(0).scenario.seed, wire::kHeaderBytes + lanes_max(plans) * wire::kWordBytes) {
  std::vector<Lease> leases;
  dataplane::SwitchSizes sizes{.slots = 0,
                               .lanes_max = static_cast<std::uint16_t>(lanes_max(plans)),
                               .jobs_max = static_cast<std::uint16_t>(kJob + plans.size())};
  std::uint32_t ports = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const Scenario& scenario = plans[i].scenario;
    // Every other job begins at a different port, so that jobs share only some ports.
    Lease& lease = leases.emplace_back(Lease{.job = static_cast<std::uint16_t>(kJob + i),
                                             .port_offset = static_cast<std::uint8_t>(i % 2 * scenario.threads),
                                             .slot_base = sizes.slots});
    if (const std::optional<std::size_t> before = plans[i].follows) {
      if (*before >= i || plans[*before].scenario.slots != scenario.slots) {
        throw std::invalid_argument("a job takes the slots, and as many, of one before it");
      }
      lease.job = leases[*before].job;
      lease.slot_base = leases[*before].slot_base;
    } else {
      sizes.slots += scenario.slots;
    }
    if (plans[i].shares.has_value() && *plans[i].shares >= i) {
      throw std::invalid_argument("a job shares the network of one before it");
    }
    ports = std::max(ports, lease.port_offset + scenario.threads);
    world_.ports.resize(std::max(world_.ports.size(), scenario.parents.size()));
  }
  for (auto& machines : world_.ports) {
    for (std::uint32_t port = 0; port < ports; ++port)
      machines.push_back(std::make_unique<dataplane::Dataplane>(sizes));
  }
  for (std::size_t i = 0; i < plans.size(); ++i) {
    follows_.push_back(plans[i].follows);
    std::shared_ptr<Network> network = plans[i].shares.has_value() ? jobs_[*plans[i].shares]->network() : nullptr;
    jobs_.push_back(std::make_unique<Job>(world_, std::move(plans[i]), leases[i], std::move(network)));
    if (!follows_[i].has_value()) jobs_.back()->leave_cells_used();
  }
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    if (!follows_[i].has_value()) jobs_[i]->admit();
  }
}

void Simulation::end_those_that_are_done() {
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    if (jobs_[i]->is_over() || !jobs_[i]->is_done()) continue;
    jobs_[i]->evict();
    for (std::size_t next = i + 1; next < jobs_.size(); ++next) {
      if (follows_[next] == i) jobs_[next]->admit();
    }
  }
}

std::vector<Report> Simulation::run() {
  const auto is_over = [](const auto& job) { return job->is_over(); };
  std::string failure;
  for (end_those_that_are_done(); failure.empty() && !std::ranges::all_of(jobs_, is_over); end_those_that_are_done()) {
    const auto is_late = [&](const auto& job) { return !job->is_over() && world_.agenda.next() > job->time_max(); };
    if (world_.agenda.empty()) {
      failure = "nothing is left to happen, but operations have not ended";
    } else if (std::ranges::any_of(jobs_, is_late)) {
      failure = "not finished within the bound of virtual time";
    } else {
      world_.clock.advance(world_.agenda.next());
      world_.agenda.step();
    }
  }
  std::vector<Report> reports;
  for (const auto& job : jobs_) reports.push_back(job->report(job->is_done() ? std::string() : failure));
  return reports;
}

Report simulate(const Scenario& scenario, std::vector<Task> tasks) {
  std::vector<JobPlan> plans(1);
  plans[0] = {.scenario = scenario, .tasks = std::move(tasks)};
  return Simulation(std::move(plans)).run().front();
}

}  // namespace wiresum::sim
