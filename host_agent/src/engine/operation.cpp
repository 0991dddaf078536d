#include "engine/operation.hpp"

#include <cassert>
#include <utility>

namespace wiresum::engine {

bool Operation::wait(std::chrono::nanoseconds timeout) const {
  std::unique_lock lock(mutex_);
  return done_changed_.wait_for(lock, timeout, [this] { return done(); });
}

bool Operation::end(worker::Status status) {
  const std::lock_guard lock(mutex_);
  assert(!done());
  status_ = status;
  done_.store(true, std::memory_order_release);
  done_changed_.notify_all();
  return notify_;
}

bool Operation::notify_after_all() {
  const std::lock_guard lock(mutex_);
  return !std::exchange(notify_, true) && done();
}

void CompletionQueue::push(std::shared_ptr<Operation> operation) {
  const std::lock_guard lock(mutex_);
  operations_.push_back(std::move(operation));
  changed_.notify_all();
}

std::vector<std::shared_ptr<Operation>> CompletionQueue::take(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return !operations_.empty() || closed_; });
  std::vector<std::shared_ptr<Operation>> taken(operations_.begin(), operations_.end());
  operations_.clear();
  return taken;
}

void CompletionQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

std::size_t CompletionQueue::size() const {
  const std::lock_guard lock(mutex_);
  return operations_.size();
}

}  // namespace wiresum::engine
