// A worker's data path in one job: the threads, their sleep, the clock, the sockets. What lies between callers and
// shards is in dispatcher.hpp, what an engine thread does in shard.hpp.
//
// Any thread may call an Engine. Work goes to the engine threads through mailboxes and comes back as completed
// operations; nothing else is shared with the datapath. One more thread does the tasks (scheduler.hpp), which would
// keep packets waiting for longer than their timers run.
//
// A forked child has the object, but not the threads: there an engine refuses every call, and its destructor leaves
// alone what it is made of (process/home.hpp).
//
// A job may be at several aggregators, each a switch with a lease, rounds and a job number of its own. An engine thread
// talks to one of them. The chunks of a collective are divided among all threads of all aggregators, alike at all
// workers. At each of them the job may move to another lease while the others go on.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/aggregator.hpp"
#include "engine/dispatcher.hpp"
#include "engine/operation.hpp"
#include "engine/shard.hpp"
#include "process/home.hpp"
#include "schedule/scheduler.hpp"
#include "transport/open.hpp"
#include "transport/udp/socket.hpp"
#include "worker/worker.hpp"

namespace wiresum::engine {

/// The lower bound of the RTO. A datagram waits for other processes at both ends to give up a core, so a shorter wait
/// is no sign of a loss.
inline constexpr worker::TimeNs kRtoMinNs = 5'000'000;

struct EngineConfig {
  std::uint32_t rank = 0;  // the worker's rank in the job: not worker.worker where the job has several switches
  /// The same aggregators in the same order at all workers, since chunks are dealt over them. All have the same lanes;
  /// slots and threads may differ.
  std::vector<AggregatorConfig> aggregators;
  std::int64_t spin_ns = 0;   // busy polling before a thread goes to sleep
  transport::Spec transport;  // the transport of every engine thread
  /// See schedule::SchedulerConfig; the same at all workers.
  std::uint64_t exact_elements_max = 0;
};

/// A caller's request.
struct Request {
  schedule::Request work;        // submit fills in the deadline
  std::int64_t timeout_ns = -1;  // negative: no timeout
  bool notify = true;            // take_completed() returns the operation
  /// The caller will wait for nothing else. Then submit() may do the engine thread's work for a small collective
  /// itself, for some milliseconds, which saves two wake-ups.
  bool caller_waits = false;
};

/// Counters of an engine. Each aggregator has its own rounds, so the sum's round_newest means nothing if there are
/// several.
struct EngineStats : TrafficStats {
  std::vector<TrafficStats> aggregators;  // in the order of the configuration
  std::string transport;                  // Transport::name(): what packets go by
  schedule::SparseStats sparse;
  std::uint64_t exact_sums = 0;  // collectives whose sums were rounded once
};

class Engine {
 public:
  /// Transports by aggregator and thread.
  using Transports = std::vector<std::vector<std::unique_ptr<transport::Transport>>>;

  /// Takes over `sockets` (for each aggregator one for each thread, in order; further ones are closed) and starts the
  /// threads. A transport over a device serves one aggregator. Where `shared` has an aggregator's transports, to or
  /// with a leaf of this host, these are used, and the sockets are closed. Throws std::invalid_argument,
  /// std::system_error or std::runtime_error, whose text says what is missing; then no thread is left.
  Engine(const EngineConfig& config, std::vector<std::vector<transport::UdpSocket>> sockets, Transports shared = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Starts a collective. All workers must submit the same collectives in the same order. The memory of the regions
  /// belongs to the operation until it is done. Throws std::invalid_argument for a senseless request,
  /// std::runtime_error if kOperationsMax are in flight, or in a forked child.
  std::shared_ptr<Operation> submit(Request request);

  /// Takes completed operations whose requests have `notify`, each once; sleeps up to `timeout` for the first.
  [[nodiscard]] std::vector<std::shared_ptr<Operation>> take_completed(std::chrono::nanoseconds timeout);

  /// Makes take_completed() return this operation, too, though its request has no `notify`.
  void notify(const std::shared_ptr<Operation>& operation);

  /// True if nothing has failed, and this is the process that joined.
  [[nodiscard]] bool is_usable() const noexcept;

  /// The first failure, after which all operations end badly, if there is one.
  [[nodiscard]] std::optional<schedule::Failure> failure() const;

  [[nodiscard]] Standing standing() const;

  // Moves: docs/protocol.md, section 9.
  /// Halts the threads of an aggregator, and returns the position of each slot, by thread in order: the round whose
  /// RESULT this worker does not have yet. The threads send and accept nothing until move(); deadlines go on.
  /// Idempotent. Throws std::runtime_error if a thread does not halt within a few seconds, or in a forked child.
  [[nodiscard]] std::vector<std::uint32_t> halt(std::size_t aggregator);
  /// Continues halted threads at another lease of as many slots, threads and lanes. `roles` has a worker::Role for each
  /// slot, in the order of the positions. Throws std::invalid_argument if one of these differs,
  /// std::system_error, or std::runtime_error if a thread cannot move; then the job cannot go on.
  void move(std::size_t aggregator, const AggregatorConfig& to, std::span<const std::uint8_t> roles);

  /// Ends all pending and later operations with Status::kAborted. Idempotent.
  void abort() noexcept;

  /// Aborts, then ends the threads. Idempotent.
  void close() noexcept;

  /// Counters, a few milliseconds old at most while traffic flows; exact when idle.
  [[nodiscard]] EngineStats stats() const;

  /// The configuration that the engine was opened with.
  [[nodiscard]] const EngineConfig& config() const noexcept;

 private:
  struct Parts;
  class TaskThread;

  void check_process() const;
  [[nodiscard]] bool is_forked() const noexcept;

  process::Owned<Parts> parts_;
};

}  // namespace wiresum::engine
