// Between callers and shards: calls go in, shares go to the shards' mailboxes, completions come back, operations end.
//
// It is the scheduler (schedule/) under a lock, and the operations that callers hold. It has no thread and no clock: an
// engine drives it with threads, the simulation in virtual time.
//
// Any thread may submit, take tasks, or fail the engine; each shard's driver reports completions. No work on a tensor
// is done under the lock: it is done in prepare(), or in tasks.
//
// fail() is final: what waits ends at once, what a shard has ends when the shard hears of it, and nothing is issued any
// more. So the shards may be stopped after it.
//
// submit() allocates what it takes to end the operation and to bring its shares to the shards, and throws if it cannot.
// Later allocations are the scheduler's and the state machines', which fail without them. So only prepare() and
// submit() throw.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/operation.hpp"
#include "engine/shard.hpp"
#include "schedule/scheduler.hpp"

namespace wiresum::engine {

/// A caller's progress. Operations are counted from 1, as in their tokens, and so alike at all workers.
struct Standing {
  std::uint64_t submitted = 0;
  std::uint64_t oldest = 0;  // the oldest operation that has not ended; 0: none
};

class Dispatcher {
 public:
  /// `shards` are in the order in which they get shares; the thread that makes a task calls `on_task`.
  Dispatcher(const schedule::SchedulerConfig& config, std::vector<Shard*> shards, std::function<void()> on_task);

  /// A request that has been surveyed.
  struct Prepared {
    schedule::Request request;
    schedule::Survey survey;
    bool notify = true;
  };
  /// Surveys the request's memory, which takes a while. Throws std::invalid_argument for a senseless request,
  /// std::bad_alloc.
  [[nodiscard]] Prepared prepare(schedule::Request request, bool notify);
  /// Submits a request; the order of these calls must be the same at all workers. Throws std::runtime_error if
  /// kOperationsMax are pending, std::bad_alloc; then nothing was submitted.
  std::shared_ptr<Operation> submit(Prepared prepared);

  /// Notes that shard number `shard` has completed its part.
  void complete_share(unsigned shard, const worker::Completion& completion);

  /// Takes a task, for a thread with the default floating-point environment, which then calls complete_task().
  [[nodiscard]] std::optional<schedule::Task> take_task();
  /// Ends a task; `status` is kOk if it was done.
  void complete_task(const schedule::Task& task, worker::Status status);

  /// Fails if a request without a part in a shard is past its deadline. Call it regularly.
  void check_deadlines(TimeNs now);

  /// Ends all pending and later operations with `status`. The first failure stays.
  void fail(worker::Status status);

  [[nodiscard]] CompletionQueue& completed() noexcept { return completed_; }
  [[nodiscard]] schedule::SparseStats stats() const;
  [[nodiscard]] std::uint64_t exact_sums() const;
  /// True if all operations end badly from now on.
  [[nodiscard]] bool has_failed() const noexcept { return has_failed_.load(std::memory_order_relaxed); }
  /// The first failure, if there is one.
  [[nodiscard]] std::optional<schedule::Failure> failure() const;
  /// The number of operations that have not ended.
  [[nodiscard]] std::size_t pending() const;
  [[nodiscard]] Standing standing() const;

 private:
  /// Hands out what the scheduler has for shards and callers. Needs mutex_.
  void dispatch();
  void retire(const schedule::Finished& finished);
  /// Reserves space for so many operations in all mailboxes. Needs mutex_.
  void reserve(std::size_t operations);

  const std::size_t lanes_;
  std::atomic<bool> has_failed_{false};
  std::vector<Shard*> shards_;
  std::function<void()> on_task_;
  CompletionQueue completed_;

  mutable std::mutex mutex_;  // protects all later members, and the order in the mailboxes
  schedule::Scheduler scheduler_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Operation>> pending_;
  std::uint64_t preparations_ = 0;
  std::size_t reserved_ = 0;  // number of operations
};

}  // namespace wiresum::engine
