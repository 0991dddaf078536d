// A caller's handle of a collective that it has submitted, and the queue of those that are complete.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "process/home.hpp"
#include "worker/collective.hpp"

namespace wiresum::engine {

/// The most operations that may be submitted, and not complete or not yet taken from the queue. It bounds all mailboxes
/// and queues of an engine.
inline constexpr std::size_t kOperationsMax = std::size_t{1} << 16;

class Operation {
 public:
  Operation(std::uint64_t token, std::uint32_t tensor, bool notify) noexcept
      : token_(token), tensor_(tensor), notify_(notify) {}

  [[nodiscard]] std::uint64_t token() const noexcept { return token_; }
  [[nodiscard]] std::uint32_t tensor() const noexcept { return tensor_; }
  [[nodiscard]] bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  /// The status, valid once done.
  [[nodiscard]] worker::Status status() const noexcept { return status_; }
  /// Returns false if `timeout` passed first. Throws std::runtime_error in a forked child, where nobody would end the
  /// operation.
  [[nodiscard]] bool wait(std::chrono::nanoseconds timeout) const;
  /// Ends the operation, once. Returns true if the queue of completed operations shall hand it out.
  [[nodiscard]] bool end(worker::Status status);
  /// Makes the queue hand the operation out, though its request has no `notify`. Returns true if it has ended already.
  [[nodiscard]] bool notify_after_all();

 private:
  friend class CompletionQueue;

  std::uint64_t token_;
  std::uint32_t tensor_;
  worker::Status status_ = worker::Status::kOk;
  std::atomic<bool> done_{false};
  mutable std::mutex mutex_;
  bool notify_;
  mutable process::AtHome<std::condition_variable> done_changed_;
  std::shared_ptr<Operation> next_;  // the next in the queue of completed operations
};

/// Completed operations that nobody has taken yet. Any thread may call.
class CompletionQueue {
 public:
  CompletionQueue() = default;
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  /// Appends an operation, each once, and allocates nothing.
  void push(std::shared_ptr<Operation> operation);
  /// Takes all operations; sleeps up to `timeout` for the first.
  [[nodiscard]] std::vector<std::shared_ptr<Operation>> take(std::chrono::nanoseconds timeout);
  /// Ends the sleep of take(), now and later.
  void close();
  [[nodiscard]] std::size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Operation> first_;  // each operation leads to the next
  Operation* last_ = nullptr;
  std::size_t size_ = 0;
  bool closed_ = false;
};

}  // namespace wiresum::engine
