#include "simulation.hpp"

#include <algorithm>
#include <array>
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
      frame_stride_(wire::kHeaderBytes + scenario.lanes * wire::kWordBytes),
      random_(scenario.seed),
      up_(scenario.workers, Link(scenario.up)),
      down_(scenario.workers, Link(scenario.down)) {
  for (const Task& task : tasks_) {
    if (task.requests.size() != scenario_.workers || task.submit_at.size() != scenario_.workers) {
      throw std::invalid_argument("a task needs a request and a time of submission for each worker");
    }
  }
  build_ports();
  build_shards();
  schedule_submissions();
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
    Port port{.frames = std::vector<std::byte>(2 * scenario_.slots * frame_stride_), .machine = nullptr};
    port.machine = std::make_unique<dataplane::Dataplane>(sizes, port.frames.data(), frame_stride_);
    leave_cells_used(*port.machine, entry);
    if (!port.machine->admit(entry)) throw std::invalid_argument("the switch does not admit this job");
    ports_.push_back(std::move(port));
  }
}

/// Another job of these workers has had the slots before, and left each cell in a round of its own, half summed: many
/// in those that this job begins with. It must not be noticed.
void Simulation::leave_cells_used(dataplane::Dataplane& machine, dataplane::JobEntry entry) const {
  entry.key = ~kKey;
  entry.threads = 1;
  if (!machine.admit(entry)) throw std::invalid_argument("the switch does not admit the job before this one");
  std::vector<std::byte> datagram(frame_stride_, std::byte{0xA5});
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
    const std::size_t bytes = wire::kHeaderBytes + scenario_.lanes * wire::kWordBytes;
    const dataplane::Outcome outcome = machine.handle(endpoint_of(header.worker), 0, std::span(datagram).first(bytes));
    if (outcome.reason != dataplane::Reason::kAdmitted) throw std::logic_error("the job before this one is refused");
  }
  machine.evict(kJob);
}

void Simulation::build_shards() {
  const std::uint32_t slots = scenario_.slots / scenario_.threads;
  for (std::uint32_t worker = 0; worker < scenario_.workers; ++worker) {
    hosts_.push_back({.scheduler = std::make_unique<schedule::Scheduler>(
                          schedule::SchedulerConfig{.threads = scenario_.threads,
                                                    .worker = worker,
                                                    .workers = scenario_.workers,
                                                    .lanes = scenario_.lanes,
                                                    .chunks_per_thread_min = 1,
                                                    .sparse_chunks_min = scenario_.sparse_chunks_min,
                                                    .lead_chunks = scenario_.lead_chunks,
                                                    .vote_lag_chunks = scenario_.vote_lag_chunks})});
    for (std::uint32_t thread = 0; thread < scenario_.threads; ++thread) {
      worker::WorkerConfig config;
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
      Shard& shard = shards_.emplace_back();
      shard.worker = worker;
      shard.thread = thread;
      shard.frames.resize(slots * frame_stride_);
      shard.machine = std::make_unique<worker::Worker>(config, shard.frames.data(), frame_stride_);
    }
  }
}

void Simulation::schedule_submissions() {
  completions_left_ = tasks_.size() * hosts_.size();
  for (std::size_t task = 0; task < tasks_.size(); ++task) {
    for (std::uint32_t worker = 0; worker < scenario_.workers; ++worker) {
      agenda_.at(tasks_[task].submit_at[worker], [this, worker, task] { submit(worker, task); });
    }
  }
}

Report Simulation::run() {
  while (completions_left_ > 0 && failure_.empty()) {
    if (agenda_.empty()) {
      failure_ = "nothing is left to happen, but collectives are not complete";
    } else if (agenda_.next() > scenario_.time_max) {
      failure_ = "not finished within the bound of virtual time";
    } else {
      now_ = agenda_.next();
      agenda_.step();
    }
  }
  return report();
}

void Simulation::when_awake(std::uint32_t worker, Agenda::Action action) {
  TimeNs awake = now_;
  for (const Stall& stall : scenario_.stalls) {
    if (stall.worker == worker && stall.begin <= awake && awake < stall.end) awake = stall.end;
  }
  if (awake == now_) {
    action();
  } else {
    agenda_.at(awake, std::move(action));
  }
}

void Simulation::submit(std::uint32_t worker, std::size_t task) {
  when_awake(worker, [this, worker, task] {
    Host& host = hosts_[worker];
    schedule::Request& request = tasks_[task].requests[worker];
    schedule::Survey survey = host.scheduler->survey(request, host.submissions++);
    host.scheduler->submit(request, std::move(survey));
    dispatch(worker);
  });
}

void Simulation::dispatch(std::uint32_t worker) {
  schedule::Scheduler& scheduler = *hosts_[worker].scheduler;
  while (const auto chore = scheduler.poll_chore()) {
    agenda_.at(now_ + random_.below(scenario_.chore_max), [this, worker, chore = *chore] { do_chore(worker, chore); });
  }
  while (const auto share = scheduler.poll_share()) {
    Shard& target = shard(worker, share->thread);
    if (!target.machine->submit(share->work)) failure_ = "a worker refused a collective";
    activate(target);
  }
  while (const auto finished = scheduler.poll_finished()) {
    if (finished->status != worker::Status::kOk) failure_ = "a collective ended with an error";
    --completions_left_;
  }
}

void Simulation::do_chore(std::uint32_t worker, const schedule::Scheduler::Chore& chore) {
  when_awake(worker, [this, worker, chore] {
    while (!chore.run()) continue;
    hosts_[worker].scheduler->complete(chore);
    dispatch(worker);
  });
}

void Simulation::activate(Shard& shard) {
  std::array<worker::Transmit, 16> burst{};
  for (std::size_t count = burst.size(); count == burst.size();) {
    count = shard.machine->poll_transmit(now_, burst);
    for (std::size_t i = 0; i < count; ++i) send(shard, burst[i]);
  }
  bool completed = false;
  while (const auto completion = shard.machine->poll_completion()) {
    hosts_[shard.worker].scheduler->complete(shard.thread, *completion);
    completed = true;
  }
  // What comes next may be for this very shard: it is activated again, one level deeper for each collective.
  if (completed) dispatch(shard.worker);
  const TimeNs next = shard.machine->next_timeout();
  if (next == worker::kNever || next >= shard.wake_at) return;
  shard.wake_at = next;
  Shard* const sleeper = &shard;
  agenda_.at(std::max(next, now_ + 1), [this, sleeper] {
    if (sleeper->wake_at > now_) return;  // an earlier wake-up has taken its place
    sleeper->wake_at = worker::kNever;
    when_awake(sleeper->worker, [this, sleeper] { activate(*sleeper); });
  });
}

void Simulation::send(Shard& shard, const worker::Transmit& transmit) {
  const std::byte* frame = shard.frames.data() + transmit.frame * frame_stride_;
  std::vector<std::byte> datagram(frame, frame + transmit.bytes);
  up_[shard.worker].carry(now_, datagram.size(), random_, [&](TimeNs at) {
    agenda_.at(at, [this, worker = shard.worker, thread = shard.thread, datagram] {
      arrive_at_switch(worker, thread, datagram);
    });
  });
}

void Simulation::arrive_at_switch(std::uint32_t worker, std::uint32_t thread, const std::vector<std::byte>& datagram) {
  Port& port = ports_[thread];
  wire::Endpoint source = endpoint_of(worker);
  source.port = static_cast<std::uint16_t>(source.port + thread);
  const dataplane::Outcome outcome = port.machine->handle(source, static_cast<std::uint8_t>(thread), datagram);
  const std::byte* frame = port.frames.data() + outcome.frame * frame_stride_;
  switch (outcome.verdict) {
    case dataplane::Verdict::kMulticast:
      for (std::uint32_t receiver = 0; receiver < scenario_.workers; ++receiver) {
        send_result(receiver, thread, {frame, frame + outcome.bytes});
      }
      return;
    case dataplane::Verdict::kResend:
      send_result(worker, thread, {frame, frame + outcome.bytes});
      return;
    case dataplane::Verdict::kHold:
    case dataplane::Verdict::kDrop:
      return;
  }
}

void Simulation::send_result(std::uint32_t worker, std::uint32_t thread, const std::vector<std::byte>& datagram) {
  down_[worker].carry(now_, datagram.size(), random_, [&](TimeNs at) {
    agenda_.at(at, [this, worker, thread, datagram] { arrive_at_worker(worker, thread, datagram); });
  });
}

void Simulation::arrive_at_worker(std::uint32_t worker, std::uint32_t thread, std::vector<std::byte> datagram) {
  when_awake(worker, [this, worker, thread, datagram = std::move(datagram)] {
    Shard& receiver = shard(worker, thread);
    receiver.machine->handle_datagram(now_, datagram);
    activate(receiver);
  });
}

Report Simulation::report() const {
  Report report;
  report.finished = completions_left_ == 0 && failure_.empty();
  report.failure = failure_;
  report.time_ns = now_;
  for (const Shard& shard : shards_) {
    const worker::WorkerStats& stats = shard.machine->stats();
    report.packets_sent += stats.packets_sent;
    report.bytes_sent += stats.bytes_sent;
    report.retransmissions += stats.retransmissions;
    report.questions += stats.questions;
    report.results += stats.results;
    report.duplicates += stats.duplicates;
    report.rejected += stats.rejected;
    report.rto_ns = std::max(report.rto_ns, stats.rto_ns);
  }
  for (const Host& host : hosts_) report.sparse.push_back(host.scheduler->stats());
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
