#include "engine/operation.hpp"

#include <cassert>
#include <stdexcept>
#include <utility>

namespace wiresum::engine {

bool Operation::wait(std::chrono::nanoseconds timeout) const {
  if (!done_changed_.is_here()) {
    throw std::runtime_error("this operation belongs to the process that submitted it, not to a forked child");
  }
  std::unique_lock lock(mutex_);
  return done_changed_->wait_for(lock, timeout, [this] { return done(); });
}

bool Operation::end(worker::Status status) {
  const std::lock_guard lock(mutex_);
  assert(!done());
  status_ = status;
  done_.store(true, std::memory_order_release);
  done_changed_->notify_all();
  return notify_;
}

bool Operation::notify_after_all() {
  const std::lock_guard lock(mutex_);
  return !std::exchange(notify_, true) && done();
}

CompletionQueue::~CompletionQueue() {
  // Elements are destroyed one by one: each destructor would otherwise run within that of the element before.
  while (first_ != nullptr) first_ = std::exchange(first_->next_, nullptr);
}

void CompletionQueue::push(std::shared_ptr<Operation> operation) {
  const std::lock_guard lock(mutex_);
  Operation* const pushed = operation.get();
  (last_ == nullptr ? first_ : last_->next_) = std::move(operation);
  last_ = pushed;
  ++size_;
  changed_.notify_all();
}

std::vector<std::shared_ptr<Operation>> CompletionQueue::take(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return first_ != nullptr || closed_; });
  std::vector<std::shared_ptr<Operation>> taken;
  taken.reserve(size_);
  while (first_ != nullptr) {
    taken.push_back(std::move(first_));
    first_ = std::exchange(taken.back()->next_, nullptr);
  }
  last_ = nullptr;
  size_ = 0;
  return taken;
}

void CompletionQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

std::size_t CompletionQueue::size() const {
  const std::lock_guard lock(mutex_);
  return size_;
}

}  // namespace wiresum::engine
