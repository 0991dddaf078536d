#include "simulation.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace wiresum::sim {
namespace {

constexpr std::uint16_t kJob = 3;
constexpr std::uint32_t kKey = 0x5EED5EED;
/// Sets of switches, if a job moves.
constexpr std::size_t kSetsMax = 2;

/// A switch never gets the same key twice.
std::uint32_t next_key(World& world) { return kKey + 0x9E3779B9 * world.keys++; }

std::uint32_t lanes_max(const std::vector<JobPlan>& plans) {
  const auto lanes_of = [](const JobPlan& plan) { return plan.scenario.packet_words(); };
  return lanes_of(*std::ranges::max_element(plans, {}, lanes_of));
}

/// The workers' name for the switches of a job's nth placement.
wire::Endpoint endpoint_of_placement(std::size_t number) {
  return {.address = static_cast<std::uint32_t>(number + 1), .port = wire::kSwitchPort};
}

std::size_t moves_in(const JobPlan& plan) {
  return static_cast<std::size_t>(
      std::ranges::count(plan.scenario.faults, Fault::Kind::kMove, [](const Fault& fault) { return fault.kind; }));
}

}  // namespace

Job::Job(World& world, JobPlan plan, std::vector<Lease> leases, std::shared_ptr<Network> network)
    : world_(world),
      scenario_(std::move(plan.scenario)),
      tasks_(std::move(plan.tasks)),
      leases_(std::move(leases)),
      network_(std::move(network)),
      wrong_bits_(scenario_.wrong_bits) {
  if (network_ == nullptr) {
    const std::vector<std::uint32_t>& hosts = scenario_.hosts;
    const std::uint32_t used = hosts.empty() ? scenario_.workers : std::ranges::max(hosts) + 1;
    const auto there = static_cast<std::uint32_t>(scenario_.leaves.size());
    network_ = std::make_shared<Network>(scenario_, there == 0 ? used : there, world.clock, world.agenda, world.random);
  }
  find_streams();
  check();
  if (leases_.size() > 1) mover_ = make_mover(std::move(plan.roles_of));
  place_at(leases_.front());
}

void Job::check() const {
  for (const Task& task : tasks_) {
    if (task.requests.size() != scenario_.workers || task.submit_at.size() != scenario_.workers) {
      throw std::invalid_argument("a task needs a request and a time of submission for each worker");
    }
  }
  if (stream_of_.size() != scenario_.workers ||
      !std::ranges::all_of(streams_, [this](const Stream& each) { return each.host < network_->hosts(); })) {
    throw std::invalid_argument("each worker of a job is on a host of the network");
  }
}

void Job::find_streams() {
  std::vector<std::uint32_t> hosts = scenario_.hosts;
  for (std::uint32_t worker = 0; scenario_.hosts.empty() && worker < scenario_.workers; ++worker)
    hosts.push_back(worker);
  for (std::uint32_t worker = 0; worker < hosts.size(); ++worker) {
    auto stream = std::ranges::find(streams_, hosts[worker], &Stream::host);
    if (stream == streams_.end()) stream = streams_.insert(stream, {.host = hosts[worker], .workers = {}});
    stream->workers.push_back(worker);
    stream_of_.push_back(static_cast<std::uint32_t>(stream - streams_.begin()));
  }
}

void Job::place_at(const Lease& lease) {
  std::vector<Network::Node> hosts;
  for (const Stream& stream : streams_) hosts.push_back(stream.host);
  const Shape shape{.threads = scenario_.threads, .lanes = scenario_.packet_words(), .slots = scenario_.slots};
  const wire::Endpoint source = endpoint_of_placement(placements_.size());
  placements_.push_back(std::make_unique<Placement>(
      world_, Tree(network_, std::move(hosts)), shape, lease, wrong_bits_,
      [this, source](std::uint32_t stream, std::uint32_t thread, const Packet& packet) {
        const auto port = static_cast<std::uint16_t>(source.port + thread);
        ranks_[streams_[stream].workers.front()]->arrive(thread, packet, {.address = source.address, .port = port});
      }));
}

// ---- Workers ----

void Job::admit() {
  placement().admit();
  stage_ = Stage::kRuns;
  began_ = world_.clock.now();
  build_ranks();
  schedule_faults();
}

void Job::evict() {
  for (const auto& each : placements_) each->evict();
  stage_ = Stage::kOver;
  ended_ = world_.clock.now();
}

RankConfig Job::config_of(std::uint32_t worker) const {
  RankConfig rank;
  rank.sharing = sharing_of(worker);
  rank.switch_endpoint = endpoint_of_placement(0);
  rank.scheduler = {.threads = scenario_.threads,
                    .rank = worker,
                    .workers = scenario_.workers,
                    .lanes = scenario_.lanes,
                    .chunks_per_thread_min = 1,
                    .sparse_chunks_min = scenario_.sparse_chunks_min,
                    .vote_lag_chunks = scenario_.vote_lag_chunks,
                    .exact_elements_max = scenario_.exact_elements_max};
  rank.interruption_max = scenario_.interruption_max;
  rank.task_max = scenario_.task_max;
  rank.device_delay_max = scenario_.device_delay_max;
  rank.device_packets = scenario_.device_packets;
  rank.callers_write = scenario_.callers_write;
  for (const Stall& stall : scenario_.stalls) {
    if (stall.worker == worker) rank.stalls.push_back({worker, began_ + stall.begin, began_ + stall.end});
  }
  const std::uint32_t slots = scenario_.slots / scenario_.threads;
  for (std::uint32_t thread = 0; thread < scenario_.threads; ++thread) {
    worker::WorkerConfig& config = rank.shards.emplace_back();
    config.job = placement().lease().job;
    config.key = placement().lease().key;
    config.worker = rank.sharing ? rank.sharing->index : placement().number_of(stream_of_[worker]);
    config.workers = static_cast<std::uint16_t>(scenario_.workers);
    config.lanes = static_cast<std::uint16_t>(scenario_.packet_words());
    config.check_word = scenario_.check_word;
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
  return rank;
}

std::optional<Sharing> Job::sharing_of(std::uint32_t worker) const {
  const std::uint32_t stream = stream_of_[worker];
  const std::vector<std::uint32_t>& workers = streams_[stream].workers;
  if (workers.size() == 1) return std::nullopt;
  const Lease& lease = placement().lease();
  Sharing sharing{.job = {.number = lease.job,
                          .key = lease.key,
                          .ranks = static_cast<std::uint8_t>(workers.size()),
                          .threads = static_cast<std::uint8_t>(scenario_.threads),
                          .lanes = static_cast<std::uint16_t>(scenario_.packet_words()),
                          .slots = scenario_.slots},
                  .index = static_cast<std::uint8_t>(std::ranges::find(workers, worker) - workers.begin()),
                  .first = worker == workers.front() ? nullptr : ranks_[workers.front()].get()};
  // Where all workers are on one host, its leaf is the root, and no packet leaves.
  if (streams_.size() > 1) {
    sharing.job.uplink = {.parent = endpoint_of_placement(0), .worker = placement().number_of(stream)};
  }
  return sharing;
}

void Job::build_ranks() {
  DeviceMemory& devices =
      world_.devices.try_emplace(scenario_.device_packets, scenario_.device_packets, world_.packet_bytes_max)
          .first->second;
  for (std::uint32_t worker = 0; worker < scenario_.workers; ++worker) {
    const Stream& stream = streams_[stream_of_[worker]];
    Rank::Hooks hooks{
        .carry =
            [this, host = stream.host](std::uint32_t thread, const Packet& packet, wire::Endpoint to) {
              network_->send_up(host, {placements_[to.address - 1].get(), thread, packet});
            },
        .halted = [this, worker](std::uint32_t number,
                                 Positions positions) { mover_->halted(worker, number, std::move(positions)); },
        .stepped = nullptr};
    if (stream.workers.size() > 1) {
      hooks.stepped = [this, &stream](std::uint32_t thread) {
        for (const std::uint32_t each : stream.workers) ranks_[each]->look(thread);
      };
    }
    ranks_.push_back(std::make_unique<Rank>(config_of(worker), world_.clock, world_.agenda, world_.random,
                                            world_.packets, devices, std::move(hooks)));
    for (const Task& task : tasks_) {
      ranks_.back()->submit_at(began_ + task.submit_at[worker], task.requests[worker], task.timeout);
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
  Rank& rank = *ranks_[fault.worker];
  switch (fault.kind) {
    case Fault::Kind::kAbort:
      if (!rank.dead()) rank.abort();
      return;
    case Fault::Kind::kClose:
      rank.close();
      return;
    case Fault::Kind::kDeath:
      rank.kill();
      return;
    case Fault::Kind::kSwitchRestart:
      placement().restart(switch_of(fault.worker));
      return;
    case Fault::Kind::kSwitchReturn:
      if (stage_ == Stage::kRuns) placement().admit_at(switch_of(fault.worker));
      return;
    case Fault::Kind::kMove:
      if (stage_ == Stage::kRuns) mover_->begin();
      return;
  }
}

std::uint32_t Job::switch_of(std::uint32_t worker) const noexcept {
  return network_->above(streams_[stream_of_[worker]].host);
}

// ---- Moves ----

std::unique_ptr<Mover> Job::make_mover(RolesOf roles_of) {
  if (roles_of == nullptr) throw std::invalid_argument("a move needs somebody who decides who repeats what");
  Mover::Hooks hooks{.halt = [this](std::uint32_t worker, std::uint32_t number) { ranks_[worker]->halt(number); },
                     .place = [this] { place_anew(); },
                     .move =
                         [this](std::uint32_t worker, std::uint32_t move, const Roles& roles) {
                           const Lease& lease = placement().lease();
                           const std::uint8_t number = placement().number_of(stream_of_[worker]);
                           const std::optional<Sharing> shared = sharing_of(worker);
                           const engine::Destination destination{
                               .lease = {.job = lease.job, .key = lease.key, .worker = shared ? shared->index : number},
                               .host = number,
                               .parent = endpoint_of_placement(placements_.size() - 1),
                               .switch_endpoint = endpoint_of_placement(placements_.size() - 1),
                               .peers = {}};
                           ranks_[worker]->move(move, destination, roles);
                         },
                     .give_up =
                         [this] {
                           for (const auto& rank : ranks_) {
                             if (!rank->dead()) rank->abort();
                           }
                         }};
  return std::make_unique<Mover>(scenario_.workers, scenario_.message_delay_max, scenario_.move_max, world_.clock,
                                 world_.agenda, world_.random, std::move(roles_of), std::move(hooks));
}

/// Places the job at the same set of switches or another one; with the slots and the number of an earlier lease, if
/// these are free.
void Job::place_anew() {
  Lease lease = leases_[placements_.size()];
  lease.set = static_cast<std::uint32_t>(world_.random.below(static_cast<TimeNs>(world_.ports.size())));
  lease.rotation = static_cast<std::uint32_t>(world_.random.below(wire::kSwitchWorkersMax));
  const Placement* const left = placements_[world_.random.below(static_cast<TimeNs>(placements_.size()))].get();
  if (!left->is_there(lease.set)) {
    lease.job = left->lease().job;
    lease.slot_base = left->lease().slot_base;
  }
  Placement* const before = placements_.back().get();
  world_.agenda.at(world_.clock.now() + world_.random.below(scenario_.message_delay_max),
                   [before] { before->evict(); });
  place_at(lease);
  placement().admit();
}

// ---- Running ----

bool Job::is_done() {
  if (stage_ == Stage::kWaits) return false;
  while (idle_through_ < ranks_.size() && ranks_[idle_through_]->idle()) ++idle_through_;
  return idle_through_ == ranks_.size();
}

Report Job::report(std::string failure) {
  Report report;
  report.finished = is_done();
  report.failure = std::move(failure);
  report.time_ns = (stage_ == Stage::kOver ? ended_ : world_.clock.now()) - began_;
  report.results.assign(tasks_.size(), {});
  for (const auto& rank : ranks_) {
    const auto results = rank->results();
    for (std::size_t task = 0; task < tasks_.size(); ++task) report.results[task].push_back(results[task]);
    for (std::uint32_t thread = 0; thread < scenario_.threads; ++thread) {
      const worker::WorkerStats stats = rank->traffic(thread);
      report.packets_sent += stats.packets_sent;
      report.bytes_sent += stats.bytes_sent;
      report.retransmissions += stats.retransmissions;
      report.questions += stats.questions;
      report.duplicates += stats.duplicates;
      report.rejected += stats.rejected;
      report.chunks_exact += stats.chunks_exact;
      report.chunks_wide += stats.chunks_wide;
      report.sums_wrong += stats.sums_wrong;
      report.rto_ns = std::max(report.rto_ns, stats.rto_ns);
    }
    report.sparse.push_back(rank->sparse());
  }
  report.flips = wrong_bits_.flips;
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
  std::vector<std::vector<Lease>> leases(plans.size());
  const std::size_t moves = std::transform_reduce(plans.begin(), plans.end(), std::size_t{0}, std::plus(), moves_in);
  dataplane::SwitchSizes sizes{.slots = 0,
                               .lanes_max = static_cast<std::uint16_t>(lanes_max(plans)),
                               .jobs_max = static_cast<std::uint16_t>(kJob + plans.size() + moves)};
  std::uint32_t ports = 0;
  std::size_t switches = 0;
  std::uint16_t next_job = kJob;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const Scenario& scenario = plans[i].scenario;
    for (std::size_t move = 0; move <= moves_in(plans[i]); ++move) {
      // Every other job begins at a different port, so that jobs share only some ports.
      leases[i].push_back({.job = next_job++,
                           .key = next_key(world_),
                           .port_offset = static_cast<std::uint8_t>(i % 2 * scenario.threads),
                           .slot_base = sizes.slots});
      sizes.slots += scenario.slots;
    }
    if (const std::optional<std::size_t> before = plans[i].follows) {
      if (*before >= i || plans[*before].scenario.slots != scenario.slots) {
        throw std::invalid_argument("a job takes the slots, and as many, of one before it");
      }
      leases[i].front().job = leases[*before].front().job;
      leases[i].front().slot_base = leases[*before].front().slot_base;
    }
    if (plans[i].shares.has_value() && *plans[i].shares >= i) {
      throw std::invalid_argument("a job shares the network of one before it");
    }
    ports = std::max(ports, leases[i].front().port_offset + scenario.threads);
    switches = std::max(switches, scenario.parents.size());
  }
  world_.ports.resize(moves == 0 ? 1 : kSetsMax);
  for (auto& set : world_.ports) {
    set.resize(switches);
    for (World::Ports& machines : set) {
      for (std::uint32_t port = 0; port < ports; ++port) {
        machines.push_back(std::make_unique<dataplane::Dataplane>(sizes));
      }
    }
  }
  for (std::size_t i = 0; i < plans.size(); ++i) {
    follows_.push_back(plans[i].follows);
    std::shared_ptr<Network> network = plans[i].shares.has_value() ? jobs_[*plans[i].shares]->network() : nullptr;
    jobs_.push_back(std::make_unique<Job>(world_, std::move(plans[i]), std::move(leases[i]), std::move(network)));
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
