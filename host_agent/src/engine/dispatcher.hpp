// Between callers and shards: calls go in, shares go to the shards' mailboxes, completions come back, operations end.
//
// It is the scheduler (schedule/) under a lock, and the operations that callers hold. No thread and no clock of its
// own: an engine drives it with threads, the simulation in virtual time.
//
// What may run at once: any thread submits, takes tasks, or fails the engine; each shard's driver reports
// completions. The lock is held for no work on a tensor: that is done in prepare(), before it, or in tasks.
//
// Ends. fail() is for good: what waits ends at once, what a shard has ends when the shard hears of it, and nothing is
// dealt any more. So whoever stops the shards after fail() leaves nothing behind.
//
// Memory. submit() takes what is needed to end the operation and to bring its shares to the shards, and throws if it
// cannot have that. What is allocated later is the scheduler's, which fails if it cannot have it. So no call but
// prepare() and submit() throws.
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

/// How far a caller has come. Operations are counted from 1, as their tokens say, and so alike at all workers.
struct Standing {
  std::uint64_t submitted = 0;
  std::uint64_t oldest = 0;  // of those that have not ended; 0: none
};

class Dispatcher {
 public:
  /// `shards` in the order in which they are dealt to; `on_task` is called, from whoever made it, when there is one.
  Dispatcher(const schedule::SchedulerConfig& config, std::vector<Shard*> shards, std::function<void()> on_task);

  /// A request that has been looked at.
  struct Prepared {
    schedule::Request request;
    schedule::Survey survey;
    bool notify = true;
  };
  /// Looks at the request's memory, which takes a while; the caller has it to itself until submit(). Throws
  /// std::invalid_argument if the request makes no sense, std::bad_alloc.
  [[nodiscard]] Prepared prepare(schedule::Request request, bool notify);
  /// The order of these calls must be the same at all workers. Throws std::runtime_error if kOperationsMax are pending,
  /// std::bad_alloc; then nothing was submitted.
  std::shared_ptr<Operation> submit(Prepared prepared);

  /// Shard number `shard` has completed its part.
  void complete_share(unsigned shard, const worker::Completion& completion);

  /// Something to run, by a thread with the default floating-point environment, and then to complete.
  [[nodiscard]] std::optional<schedule::Task> take_task();
  /// `status`: has it been done?
  void complete_task(const schedule::Task& task, worker::Status status);

  /// Fails if a request that no shard has a part of is past its deadline. To be called now and then.
  void check_deadlines(TimeNs now);

  /// Ends all pending and later operations with `status`. The first failure stays.
  void fail(worker::Status status);

  [[nodiscard]] CompletionQueue& completed() noexcept { return completed_; }
  [[nodiscard]] schedule::SparseStats stats() const;
  [[nodiscard]] std::uint64_t exact_sums() const;
  /// Do all operations end badly from now on?
  [[nodiscard]] bool has_failed() const noexcept { return has_failed_.load(std::memory_order_relaxed); }
  /// The first operation that ended badly; none so far: null.
  [[nodiscard]] std::shared_ptr<Operation> failed() const;
  /// Operations that have not ended.
  [[nodiscard]] std::size_t pending() const;
  [[nodiscard]] Standing standing() const;

 private:
  /// Hands out what the scheduler has for shards and callers. Needs mutex_.
  void dispatch();
  void retire(const schedule::Finished& finished);
  /// Room for so many operations in all mailboxes. Needs mutex_.
  void reserve(std::size_t operations);

  const std::size_t lanes_;
  std::atomic<bool> has_failed_{false};
  std::vector<Shard*> shards_;
  std::function<void()> on_task_;
  CompletionQueue completed_;

  mutable std::mutex mutex_;  // of all that follows, and of the order in the mailboxes
  schedule::Scheduler scheduler_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Operation>> pending_;
  std::shared_ptr<Operation> failed_;
  std::uint64_t preparations_ = 0;
  std::size_t reserved_ = 0;  // operations
};

}  // namespace wiresum::engine
