// A worker's membership in one job, as threads: each joins a state machine (worker/) and a transport.
//
// Any thread may call a Session. Work goes to the engine threads through mailboxes and comes back as completed
// operations; nothing else is shared with the datapath.
//
// A job may be at several aggregators, each a switch with a lease, rounds and a job number of its own. An engine thread
// talks to one of them, and nothing is shared between threads at one aggregator that is not shared between threads at
// two: collectives are dealt over all threads of all aggregators, alike at all workers.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "schedule/scheduler.hpp"
#include "transport/udp/socket.hpp"
#include "worker/worker.hpp"

namespace wiresum::engine {

/// More would have each engine thread wait for packets that hardly ever come.
inline constexpr std::size_t kAggregatorsMax = 8;

/// One of the switches that a job is at, and what it has there.
struct AggregatorConfig {
  /// slot_first and slots stand for the whole lease here; each thread gets its share.
  worker::WorkerConfig worker;
  unsigned threads = 1;  // divides worker.slots
  wire::Endpoint switch_endpoint;
  /// The multicast group that RESULTs for all come to, and its base port. Port 0: they come to the threads' own
  /// sockets.
  wire::Endpoint results_group;
};

struct SessionConfig {
  /// The same ones in the same order at all workers, since chunks are dealt over them. Lanes are the same at all of
  /// them; slots and threads may differ.
  std::vector<AggregatorConfig> aggregators;
  std::int64_t spin_ns = 0;  // busy polling before a thread goes to sleep
  bool offload = true;       // UDP GSO and GRO
};

/// What a caller asks for.
struct Request {
  schedule::Request work;        // its deadline is filled in by submit
  std::int64_t timeout_ns = -1;  // negative: none
  bool notify = true;            // shall take_completed() tell?
};

class Operation {
 public:
  [[nodiscard]] std::uint64_t token() const noexcept { return token_; }
  [[nodiscard]] std::uint32_t tensor() const noexcept { return tensor_; }
  [[nodiscard]] bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  /// Valid once done.
  [[nodiscard]] worker::Status status() const noexcept { return status_; }
  /// False if `timeout` passed first.
  [[nodiscard]] bool wait(std::chrono::nanoseconds timeout) const;

 private:
  friend class Session;
  std::uint64_t token_ = 0;
  std::uint32_t tensor_ = 0;
  bool notify_ = true;
  worker::Status status_ = worker::Status::kOk;
  std::atomic<bool> done_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable done_changed_;
};

/// Of one thread, or summed over several; then times and window are those of the first.
struct TrafficStats {
  worker::WorkerStats worker;
  std::uint64_t datagrams_sent = 0;
  std::uint64_t datagrams_received = 0;
  std::uint64_t send_calls = 0;
  std::uint64_t receive_calls = 0;
  std::uint64_t send_failures = 0;
  int transport_error = 0;  // the newest errno that the system reported for a datagram, 0 if none
};

/// Rounds are each aggregator's own, so worker.round_newest of the sum means nothing if there are several.
struct SessionStats : TrafficStats {
  std::vector<TrafficStats> aggregators;  // in the order of the configuration
  schedule::SparseStats sparse;
};

class Session {
 public:
  /// Takes over `sockets` (by aggregator one for each thread, in order; more are closed) and starts the threads.
  /// Throws std::invalid_argument or std::system_error.
  Session(const SessionConfig& config, std::vector<std::vector<transport::UdpSocket>> sockets);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Starts a collective. All workers must submit the same collectives in the same order.
  /// The memory of the regions belongs to the operation until it is done. Throws std::invalid_argument.
  std::shared_ptr<Operation> submit(Request request);

  /// Takes completed operations that asked for it, each once; sleeps up to `timeout` for the first.
  [[nodiscard]] std::vector<std::shared_ptr<Operation>> take_completed(std::chrono::nanoseconds timeout);

  /// Ends all pending and later operations with Status::kAborted. Idempotent.
  void abort() noexcept;

  /// Aborts, then ends the threads. Idempotent.
  void close() noexcept;

  /// As of a few milliseconds ago at most while traffic flows; exact when idle.
  [[nodiscard]] SessionStats stats() const;

 private:
  struct Place;
  class Thread;

  void complete_share(unsigned thread, const worker::Completion& completion);
  [[nodiscard]] std::optional<schedule::Scheduler::Chore> take_chore();
  void complete_chore(const schedule::Scheduler::Chore& chore);
  /// Fails the session if a request that is not dealt yet is past its deadline.
  void check_waiting(worker::TimeNs now);
  /// Hands out what the scheduler has for threads and callers. Needs mutex_.
  void dispatch();
  void retire(const schedule::Finished& finished);
  void fail_threads(worker::Status status) noexcept;

  SessionConfig config_;
  std::vector<std::unique_ptr<Thread>> threads_;

  mutable std::mutex mutex_;  // of all that follows, and of the order in the mailboxes
  std::condition_variable completed_changed_;
  schedule::Scheduler scheduler_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Operation>> pending_;
  std::deque<std::shared_ptr<Operation>> completed_;
  std::uint64_t submissions_ = 0;
  bool closed_ = false;

  std::mutex close_mutex_;
};

}  // namespace wiresum::engine
