#include "process/home.hpp"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <new>
#include <vector>

namespace wiresum::process {
namespace {

/// The number of forks between the first process that asked and this one. A count is read faster than getpid(), for
/// each operation, and process numbers are used again.
std::atomic<unsigned> generation{0};

unsigned watched_generation() {
  static const bool is_watched = [] {
    if (pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); }) != 0) {
      throw std::bad_alloc();  // its only failure
    }
    return true;
  }();
  static_cast<void>(is_watched);
  return generation.load(std::memory_order_relaxed);
}

}  // namespace

Home::Home() : generation_(watched_generation()) {}

bool Home::is_here() const noexcept { return generation_ == generation.load(std::memory_order_relaxed); }

void leave_alone(const void* object) noexcept {
  static std::mutex mutex;
  static auto* const left = new (std::nothrow) std::vector<const void*>;
  const std::lock_guard lock(mutex);
  try {
    if (left != nullptr) left->push_back(object);
  } catch (const std::bad_alloc&) {
    return;  // the object is left alone anyway
  }
}

}  // namespace wiresum::process
