#include "engine/engine.hpp"

#include <algorithm>
#include <cassert>
#include <condition_variable>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "engine/engine_thread.hpp"
#include "engine/paths.hpp"
#include "numeric/codec.hpp"
#include "process/thread.hpp"
#include "worker/chunks.hpp"

namespace wiresum::engine {
namespace {

using worker::Status;
using worker::TimeNs;

constexpr const char* kGroupOverDevice =
    "the switch sends results to a multicast group, which only UDP sockets hear: a switch without --multicast sends to "
    "each worker";
/// The most chunks of a collective that a waiting caller drives itself. For more chunks, the time to wake a thread does
/// not matter.
constexpr std::uint64_t kCallerDrivesChunks = 64;

worker::WorkerConfig thread_config(const AggregatorConfig& aggregator, unsigned thread) {
  worker::WorkerConfig config = aggregator.worker;
  config.rto_min = kRtoMinNs;  // R4.25
  config.slots = aggregator.worker.slots / aggregator.threads;
  config.slot_first = aggregator.worker.slot_first + thread * config.slots;
  return config;
}

/// Returns the configuration. Throws std::invalid_argument for a senseless one.
EngineConfig checked(EngineConfig config, const std::vector<std::vector<transport::UdpSocket>>& sockets,
                     const Engine::Transports& shared) {
  const std::vector<AggregatorConfig>& aggregators = config.aggregators;
  const bool over_a_device = config.transport.kind != transport::TransportKind::kUdp;
  if (aggregators.empty() || aggregators.size() > wire::kAggregatorsMax || sockets.size() != aggregators.size()) {
    throw std::invalid_argument("a session needs 1..8 aggregators, and sockets for each");
  }
  for (std::size_t i = 0; i < aggregators.size(); ++i) {
    const AggregatorConfig& aggregator = aggregators[i];
    if (aggregator.threads == 0 || aggregator.threads > wire::kThreadsMax ||
        aggregator.worker.slots % aggregator.threads != 0) {
      throw std::invalid_argument("threads must be 1..16 and divide the slots of the lease");
    }
    if (std::max(sockets[i].size(), shared[i].size()) < aggregator.threads) {
      throw std::invalid_argument("a session needs a socket for each thread");
    }
    if (over_a_device && aggregators.size() != 1) {
      throw std::invalid_argument("a transport over a device serves one aggregator");
    }
    if (over_a_device && aggregator.results_group.port != 0) {
      throw std::invalid_argument(kGroupOverDevice);
    }
    if (aggregator.worker.lanes != aggregators.front().worker.lanes) {
      throw std::invalid_argument("the packets of all aggregators must have the same number of lanes");
    }
  }
  return config;
}

schedule::SchedulerConfig scheduler_config(const EngineConfig& config) {
  const worker::WorkerConfig& first = config.aggregators.front().worker;
  schedule::SchedulerConfig scheduler{.threads = 0,
                                      .rank = config.rank,
                                      .workers = first.workers,
                                      .lanes = first.element_words(),
                                      .vote_lag_chunks = 0,
                                      .exact_elements_max = config.exact_elements_max};
  for (const AggregatorConfig& aggregator : config.aggregators) {
    scheduler.threads += aggregator.threads;
    scheduler.vote_lag_chunks += std::uint64_t{2} * aggregator.worker.slots;
  }
  return scheduler;
}

bool is_small(const schedule::Request& request, const EngineConfig& config) {
  const worker::WorkerConfig& worker = config.aggregators.front().worker;
  std::uint64_t elements = 0;
  for (const auto& region : request.regions) elements += region.elements;
  if (request.reduction.has_value()) elements *= worker.workers;
  return elements <= kCallerDrivesChunks * worker::chunk_elements(request.format, worker.element_words());
}

/// Throws std::invalid_argument unless the new lease has the shape of the old one.
void check_move(const AggregatorConfig& from, const AggregatorConfig& to, std::size_t roles, bool over_a_device) {
  if (to.threads != from.threads || to.worker.slots != from.worker.slots || to.worker.lanes != from.worker.lanes ||
      to.worker.workers != from.worker.workers) {
    throw std::invalid_argument("a job moves to a lease of as many slots, threads, lanes and workers");
  }
  if (roles != from.worker.slots) throw std::invalid_argument("a move has a role for each slot");
  if (over_a_device && to.results_group.port != 0) throw std::invalid_argument(kGroupOverDevice);
}

}  // namespace

/// The parts of an engine, which its threads use.
struct Engine::Parts {
  Parts(const EngineConfig& settings, std::vector<std::vector<transport::UdpSocket>> sockets, Transports shared);
  ~Parts() { close(); }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  /// Throws std::system_error if there cannot be so many threads.
  void start_threads();
  [[nodiscard]] std::vector<std::uint32_t> halt(std::size_t aggregator);
  void move(std::size_t aggregator, const AggregatorConfig& to, std::span<const std::uint8_t> roles);
  /// Makes an aggregator's thread number `thread`.
  [[nodiscard]] std::unique_ptr<EngineThread> new_thread(std::size_t aggregator, unsigned thread,
                                                         transport::DataPath path);
  /// An aggregator's threads, in order. Throws std::invalid_argument if there is no such aggregator.
  [[nodiscard]] std::vector<EngineThread*> threads_of(std::size_t aggregator);
  void close() noexcept;

  const EngineConfig config;
  std::unique_ptr<TaskThread> tasks;
  std::vector<std::unique_ptr<EngineThread>> threads;
  std::unique_ptr<Dispatcher> dispatcher;

  std::mutex moving_mutex;  // held during an order
  std::mutex close_mutex;
  bool closed = false;
};

/// The thread that does tasks.
class Engine::TaskThread {
 public:
  explicit TaskThread(Parts& engine) : engine_(engine) {}

  void start() {
    thread_ = process::start_thread("the thread for tasks of this session", [this] { run(); });
  }

  void rouse() {
    {
      const std::lock_guard lock(mutex_);
      has_tasks_ = true;
    }
    roused_.notify_one();
  }

  /// Ends when all tasks are done, since callers wait for the collectives.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    roused_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

 private:
  static Status run(const schedule::Task& task) {
    try {
      return task.run();
    } catch (const std::bad_alloc&) {
      return Status::kNoMemory;
    }
  }

  void run() {
    const numeric::DefaultFloatEnvironment environment;
    std::unique_lock lock(mutex_);
    while (true) {
      roused_.wait(lock, [this] { return has_tasks_ || stopping_; });
      const bool is_last = stopping_;
      has_tasks_ = false;
      lock.unlock();
      while (const std::optional<schedule::Task> task = engine_.dispatcher->take_task()) {
        engine_.dispatcher->complete_task(*task, run(*task));
      }
      lock.lock();
      if (is_last) return;
    }
  }

  Parts& engine_;
  std::mutex mutex_;
  std::condition_variable roused_;
  bool has_tasks_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

// ---- Engine ----

Engine::Parts::Parts(const EngineConfig& settings, std::vector<std::vector<transport::UdpSocket>> sockets,
                     Transports shared)
    : config(checked(settings, sockets, shared)), tasks(std::make_unique<TaskThread>(*this)) {
  std::vector<std::vector<transport::DataPath>> paths(config.aggregators.size());
  for (std::size_t i = 0; i < config.aggregators.size(); ++i) {
    for (auto& transport : shared[i]) paths[i].push_back({.reserved = {}, .transport = std::move(transport)});
    if (paths[i].empty()) paths[i] = open_paths(config.transport, config.aggregators[i], std::move(sockets[i]));
  }
  // A collective of few chunks is issued to few threads, so neighbours belong to different aggregators.
  std::vector<Shard*> shards;
  for (unsigned thread = 0; thread < wire::kThreadsMax; ++thread) {
    for (std::size_t i = 0; i < config.aggregators.size(); ++i) {
      if (thread >= config.aggregators[i].threads) continue;
      threads.push_back(new_thread(i, thread, std::move(paths[i][thread])));
      shards.push_back(&threads.back()->shard());
    }
  }
  dispatcher = std::make_unique<Dispatcher>(scheduler_config(config), std::move(shards), [this] { tasks->rouse(); });
}

std::unique_ptr<EngineThread> Engine::Parts::new_thread(std::size_t aggregator, unsigned thread,
                                                        transport::DataPath path) {
  const AggregatorConfig& at = config.aggregators[aggregator];
  const auto index = static_cast<unsigned>(threads.size());
  EngineThread::Hooks hooks{
      .on_completion = [this,
                        index](const worker::Completion& completion) { dispatcher->complete_share(index, completion); },
      .on_look_around = nullptr};
  if (index == 0) hooks.on_look_around = [this](TimeNs now) { dispatcher->check_deadlines(now); };
  const unsigned all = scheduler_config(config).threads;
  EngineThreadConfig settings{
      .name = "engine thread " + std::to_string(index + 1) + " of " + std::to_string(all) + " of this session",
      .aggregator = aggregator,
      .worker = thread_config(at, thread),
      .switch_endpoint = thread_port(at.switch_endpoint, thread),
      .spin_ns = config.spin_ns};
  return std::make_unique<EngineThread>(std::move(settings), std::move(path), std::move(hooks));
}

void Engine::Parts::start_threads() {
  for (const auto& thread : threads) thread->start();
  tasks->start();
}

std::vector<EngineThread*> Engine::Parts::threads_of(std::size_t aggregator) {
  if (aggregator >= config.aggregators.size()) throw std::invalid_argument("there is no such aggregator");
  std::vector<EngineThread*> found;
  for (const auto& thread : threads) {
    if (thread->aggregator() == aggregator) found.push_back(thread.get());
  }
  return found;
}

std::vector<std::uint32_t> Engine::Parts::halt(std::size_t aggregator) {
  const std::vector<EngineThread*> mine = threads_of(aggregator);
  const std::lock_guard one_at_a_time(moving_mutex);
  for (EngineThread* const thread : mine) thread->post_halt();
  std::vector<std::uint32_t> all;
  for (EngineThread* const thread : mine) {
    const std::vector<std::uint32_t> positions = thread->await_positions();
    all.insert(all.end(), positions.begin(), positions.end());
  }
  return all;
}

void Engine::Parts::move(std::size_t aggregator, const AggregatorConfig& to, std::span<const std::uint8_t> roles) {
  const std::vector<EngineThread*> mine = threads_of(aggregator);
  const bool over_a_device = config.transport.kind != transport::TransportKind::kUdp;
  check_move(config.aggregators[aggregator], to, roles.size(), over_a_device);
  std::vector<transport::UdpSocket> groups = open_groups(to);
  const std::lock_guard one_at_a_time(moving_mutex);
  for (unsigned i = 0; i < mine.size(); ++i) {
    Destination destination{.lease = {.job = to.worker.job, .key = to.worker.key, .worker = to.worker.worker},
                            .host = to.host,
                            .parent = to.switch_endpoint,
                            .switch_endpoint = thread_port(to.switch_endpoint, i),
                            .peers = peers_of(config.transport, to, i)};
    const auto share = roles.subspan(i * roles.size() / mine.size(), roles.size() / mine.size());
    mine[i]->post_move(std::move(destination), {share.begin(), share.end()},
                       groups.empty() ? std::nullopt : std::optional(std::move(groups[i])));
  }
  for (EngineThread* const thread : mine) thread->await_moved();
}

void Engine::Parts::close() noexcept {
  const std::lock_guard closing(close_mutex);
  if (closed) return;
  closed = true;
  // No share is issued from now on, so that no caller waits for a stopped thread.
  dispatcher->fail(Status::kAborted);
  for (const auto& thread : threads) thread->stop();
  tasks->stop();
  assert(dispatcher->pending() == 0);
  dispatcher->completed().close();
}

Engine::Engine(const EngineConfig& config, std::vector<std::vector<transport::UdpSocket>> sockets, Transports shared) {
  shared.resize(config.aggregators.size());
  parts_.reset(new Parts(config, std::move(sockets), std::move(shared)));
  parts_->start_threads();
}

Engine::~Engine() = default;

bool Engine::is_forked() const noexcept { return !parts_.get_deleter().home.is_here(); }

void Engine::check_process() const {
  if (is_forked()) {
    throw std::runtime_error("this session belongs to the process that joined: a forked child must join by itself");
  }
}

const EngineConfig& Engine::config() const noexcept { return parts_->config; }

std::shared_ptr<Operation> Engine::submit(Request request) {
  check_process();
  if (request.timeout_ns >= 0) request.work.deadline = SteadyClock().now() + request.timeout_ns;
  Dispatcher& dispatcher = *parts_->dispatcher;
  const bool may_drive = request.caller_waits && parts_->threads.size() == 1 && is_small(request.work, config());
  Dispatcher::Prepared prepared = dispatcher.prepare(std::move(request.work), request.notify);
  const auto submit = [&] { return dispatcher.submit(std::move(prepared)); };
  if (may_drive) {
    if (std::shared_ptr<Operation> driven = parts_->threads.front()->drive(submit)) return driven;
  }
  return submit();
}

std::vector<std::shared_ptr<Operation>> Engine::take_completed(std::chrono::nanoseconds timeout) {
  check_process();
  return parts_->dispatcher->completed().take(timeout);
}

void Engine::notify(const std::shared_ptr<Operation>& operation) {
  check_process();
  if (operation->notify_after_all()) parts_->dispatcher->completed().push(operation);
}

bool Engine::is_usable() const noexcept { return !is_forked() && !parts_->dispatcher->has_failed(); }

std::optional<schedule::Failure> Engine::failure() const {
  check_process();
  return parts_->dispatcher->failure();
}

Standing Engine::standing() const {
  check_process();
  return parts_->dispatcher->standing();
}

std::vector<std::uint32_t> Engine::halt(std::size_t aggregator) {
  check_process();
  return parts_->halt(aggregator);
}

void Engine::move(std::size_t aggregator, const AggregatorConfig& to, std::span<const std::uint8_t> roles) {
  check_process();
  parts_->move(aggregator, to, roles);
}

void Engine::abort() noexcept {
  if (!is_forked()) parts_->dispatcher->fail(Status::kAborted);
}

void Engine::close() noexcept {
  if (!is_forked()) parts_->close();
}

EngineStats Engine::stats() const {
  check_process();
  const auto& threads = parts_->threads;
  const std::size_t aggregators = parts_->config.aggregators.size();
  EngineStats sum;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    const TrafficStats more = threads[i]->stats();
    if (i < aggregators) {
      sum.aggregators.push_back(more);  // the first threads are the first ones of each aggregator
    } else {
      add(sum.aggregators[threads[i]->aggregator()], more);
    }
  }
  static_cast<TrafficStats&>(sum) = sum.aggregators.front();
  for (std::size_t i = 1; i < sum.aggregators.size(); ++i) {
    add(sum, sum.aggregators[i]);
  }
  sum.transport = threads.front()->transport().name();
  sum.sparse = parts_->dispatcher->stats();
  sum.exact_sums = parts_->dispatcher->exact_sums();
  return sum;
}

}  // namespace wiresum::engine
