// Virtual time: what happens when.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/shard.hpp"

namespace wiresum::sim {

using worker::TimeNs;

/// Virtual time: the time of the event that is being processed.
class VirtualClock final : public engine::Clock {
 public:
  [[nodiscard]] TimeNs now() const noexcept override { return now_; }
  void advance(TimeNs now) noexcept { now_ = now; }

 private:
  TimeNs now_ = 0;
};

/// Something to call once. What it captures is kept within it, since events are too many to allocate memory for each.
class Action {
 public:
  template <class Call>
    requires(!std::is_same_v<std::remove_cvref_t<Call>, Action>)
  Action(Call call) noexcept {  // NOLINT(google-explicit-constructor): a lambda is an action
    static_assert(sizeof(Call) <= kBytes && alignof(Call) <= alignof(std::max_align_t), "captures too much");
    static_assert(std::is_nothrow_move_constructible_v<Call>);
    new (place_.data()) Call(std::move(call));
    use_ = [](std::byte* place, std::byte* to, bool call_it) {
      Call* const mine = std::launder(reinterpret_cast<Call*>(place));
      if (call_it) (*mine)();
      if (to != nullptr) new (to) Call(std::move(*mine));
      if (!call_it) mine->~Call();
    };
  }
  Action(Action&& other) noexcept : use_(std::exchange(other.use_, nullptr)) {
    if (use_ != nullptr) use_(other.place_.data(), place_.data(), false);
  }
  Action& operator=(Action&& other) noexcept {
    if (this != &other) {
      this->~Action();
      new (this) Action(std::move(other));
    }
    return *this;
  }
  Action(const Action&) = delete;
  Action& operator=(const Action&) = delete;
  ~Action() {
    if (use_ != nullptr) use_(place_.data(), nullptr, false);
  }

  void operator()() { use_(place_.data(), nullptr, true); }

 private:
  static constexpr std::size_t kBytes = 64;
  alignas(std::max_align_t) std::array<std::byte, kBytes> place_;
  /// Calls what is at `place`, or moves it from there to `to`, or, if that is nowhere, destroys it.
  void (*use_)(std::byte* place, std::byte* to, bool call_it) = nullptr;
};

/// Events in order of time; those of the same time in the order in which they were scheduled.
class Agenda {
 public:
  void at(TimeNs time, Action action) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(actions_.size()));
      actions_.push_back(std::move(action));
    } else {
      actions_[free_.back()] = std::move(action);
    }
    events_.push_back({time, number_++, free_.back()});
    free_.pop_back();
    std::ranges::push_heap(events_, later);
  }
  [[nodiscard]] bool empty() const { return events_.empty(); }
  [[nodiscard]] TimeNs next() const { return events_.front().time; }
  /// Runs the next event.
  void step() {
    std::ranges::pop_heap(events_, later);
    const std::uint32_t place = events_.back().place;
    events_.pop_back();
    Action action = std::move(actions_[place]);
    free_.push_back(place);
    action();
  }

 private:
  struct Event {
    TimeNs time;
    std::uint64_t number;
    std::uint32_t place;  // of its action
  };
  static bool later(const Event& one, const Event& other) noexcept {
    return one.time != other.time ? one.time > other.time : one.number > other.number;
  }

  std::vector<Event> events_;  // a heap
  std::vector<Action> actions_;
  std::vector<std::uint32_t> free_;  // places of actions
  std::uint64_t number_ = 0;
};

}  // namespace wiresum::sim
