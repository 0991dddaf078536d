// A queue whose memory can be reserved before it is needed.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace wiresum::schedule {

template <class T>
class ReservedQueue {
 public:
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] const T& front() const noexcept {
    assert(!empty());
    return ring_[first_];
  }

  /// Reserves memory: push() allocates nothing until the queue holds `more` elements more than now.
  void reserve(std::size_t more) {
    const std::size_t needed = size_ + more;
    if (needed <= ring_.size()) return;
    std::vector<T> larger(std::max(needed, 2 * ring_.size()));
    for (std::size_t i = 0; i < size_; ++i) larger[i] = std::move(ring_[(first_ + i) % ring_.size()]);
    ring_ = std::move(larger);
    first_ = 0;
  }
  void push(T item) {
    reserve(1);
    ring_[(first_ + size_++) % ring_.size()] = std::move(item);
  }
  void pop() noexcept { static_cast<void>(take()); }
  [[nodiscard]] std::optional<T> take() noexcept {
    if (empty()) return std::nullopt;
    std::optional<T> item(std::exchange(ring_[first_], T{}));
    first_ = (first_ + 1) % ring_.size();
    --size_;
    return item;
  }

 private:
  std::vector<T> ring_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace wiresum::schedule
