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

/// A datagram waits for other processes at both ends to give up a core: less than this is no sign of a loss.
inline constexpr worker::TimeNs kRtoMinNs = 5'000'000;

struct EngineConfig {
  std::uint32_t rank = 0;  // in the job: not worker.worker where the job has several switches
  /// The same ones in the same order at all workers, since chunks are dealt over them. Lanes are the same at all of
  /// them; slots and threads may differ.
  std::vector<AggregatorConfig> aggregators;
  std::int64_t spin_ns = 0;   // busy polling before a thread goes to sleep
  transport::Spec transport;  // of every engine thread
  /// See schedule::SchedulerConfig; the same at all workers.
  std::uint64_t exact_elements_max = 0;
};

/// What a caller asks for.
struct Request {
  schedule::Request work;        // its deadline is filled in by submit
  std::int64_t timeout_ns = -1;  // negative: none
  bool notify = true;            // shall take_completed() tell?
  /// The caller will wait for nothing else. Then submit() may do the engine thread's work for a small collective
  /// itself, for some milliseconds, in place of waking the thread and being woken by it.
  bool caller_waits = false;
};

/// Rounds are each aggregator's own, so round_newest of the sum means nothing if there are several.
struct EngineStats : TrafficStats {
  std::vector<TrafficStats> aggregators;  // in the order of the configuration
  std::string transport;                  // what packets go by, as Transport::name() says it
  schedule::SparseStats sparse;
  std::uint64_t exact_sums = 0;  // collectives whose sums were rounded once
};

class Engine {
 public:
  /// By aggregator, by thread.
  using Transports = std::vector<std::vector<std::unique_ptr<transport::Transport>>>;

  /// Takes over `sockets` (by aggregator one for each thread, in order; more are closed) and starts the threads. A
  /// transport over a device serves one aggregator. Where `shared` has transports for an aggregator, to or with a leaf
  /// of this host, these are used, and the sockets are closed. Throws std::invalid_argument, std::system_error or
  /// std::runtime_error, whose text says what is missing; then no thread is left.
  Engine(const EngineConfig& config, std::vector<std::vector<transport::UdpSocket>> sockets, Transports shared = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Starts a collective. All workers must submit the same collectives in the same order.
  /// The memory of the regions belongs to the operation until it is done. Throws std::invalid_argument if the request
  /// makes no sense, std::runtime_error if kOperationsMax are in flight, or in a forked child.
  std::shared_ptr<Operation> submit(Request request);

  /// Takes completed operations that asked for it, each once; sleeps up to `timeout` for the first.
  [[nodiscard]] std::vector<std::shared_ptr<Operation>> take_completed(std::chrono::nanoseconds timeout);

  /// take_completed() shall hand out this one, too, though its request did not ask for that.
  void notify(const std::shared_ptr<Operation>& operation);

  /// Has nothing failed, and is this the process that joined?
  [[nodiscard]] bool is_usable() const noexcept;

  /// The first failure, after which all operations end badly; nullopt if there is none.
  [[nodiscard]] std::optional<schedule::Failure> failure() const;

  [[nodiscard]] Standing standing() const;

  // Moves: docs/protocol.md, section 9.
  /// Halts the threads of an aggregator, and says the position of each slot, by thread in order: the round whose RESULT
  /// this worker does not have yet. Nothing is sent there, or accepted, until move(); deadlines go on. Idempotent.
  /// Throws std::runtime_error if a thread does not halt within a few seconds, or in a forked child.
  [[nodiscard]] std::vector<std::uint32_t> halt(std::size_t aggregator);
  /// What halted goes on at another lease of as many slots, threads and lanes. `roles` (worker::Role): one for each
  /// slot, in that order. Throws std::invalid_argument if the lease is another one, std::system_error, or
  /// std::runtime_error if a thread cannot move; then the job cannot go on.
  void move(std::size_t aggregator, const AggregatorConfig& to, std::span<const std::uint8_t> roles);

  /// Ends all pending and later operations with Status::kAborted. Idempotent.
  void abort() noexcept;

  /// Aborts, then ends the threads. Idempotent.
  void close() noexcept;

  /// As of a few milliseconds ago at most while traffic flows; exact when idle.
  [[nodiscard]] EngineStats stats() const;

  /// As it was opened.
  [[nodiscard]] const EngineConfig& config() const noexcept;

 private:
  struct Parts;
  class TaskThread;

  void check_process() const;
  [[nodiscard]] bool is_forked() const noexcept;

  process::Owned<Parts> parts_;
};

}  // namespace wiresum::engine
