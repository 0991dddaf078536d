#include "engine/engine_thread.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "numeric/codec.hpp"
#include "process/thread.hpp"

namespace wiresum::engine {
namespace {

/// The loop's rounds between publications of statistics while busy.
constexpr unsigned kStatsPeriod = 64;
constexpr TimeNs kLookAroundPeriodNs = 100'000'000;
/// The longest wait for a thread to follow an order of a move. A thread looks for orders between its steps, and no step
/// waits.
constexpr std::chrono::seconds kOrderMax{5};
/// The longest sleep, in case an event were missed.
constexpr TimeNs kSleepMaxNs = 1'000'000'000;
/// The longest time that a waiting caller drives: after it some worker is late, and the caller must be interruptible.
constexpr TimeNs kCallerDrivesNs = 10'000'000;

}  // namespace

TimeNs SteadyClock::now() const noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

EngineThread::EngineThread(EngineThreadConfig config, transport::DataPath path, Hooks hooks)
    : config_(std::move(config)),
      hooks_(std::move(hooks)),
      path_(std::move(path)),
      park_ns_max_(path_.transport->untended_ns_max()),
      shard_(config_.worker, config_.switch_endpoint, clock_, *path_.transport,
             {.on_mail = [this] { rouse(); },
              .on_completion = hooks_.on_completion,
              .on_halted =
                  [this](std::vector<std::uint32_t> positions) {
                    const std::lock_guard lock(answer_mutex_);
                    positions_ = std::move(positions);
                    answered_.notify_all();
                  },
              .on_moved =
                  [this](const char* objection) {
                    const std::lock_guard lock(answer_mutex_);
                    objection_ = objection;
                    answered_.notify_all();
                  }}) {}

void EngineThread::start() {
  thread_ = process::start_thread(config_.name, [this] { run(); });
}

void EngineThread::stop() noexcept {
  stopping_.store(true);
  rouse();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(answer_mutex_);
  stopped_ = true;
  answered_.notify_all();
}

// ---- Orders ----

void EngineThread::post_halt() {
  forget_answer();
  shard_.post_halt();
}

void EngineThread::post_move(Destination destination, std::vector<std::uint8_t> roles,
                             std::optional<transport::UdpSocket> group) {
  forget_answer();
  shard_.post_move(std::move(destination), std::move(roles), std::move(group));
}

void EngineThread::await_moved() {
  const char* const objection = await(objection_, "moved");
  if (objection != nullptr) throw std::runtime_error(config_.name + " cannot move: " + objection);
}

void EngineThread::forget_answer() {
  const std::lock_guard lock(answer_mutex_);
  positions_.reset();
  objection_.reset();
}

template <class Answer>
Answer EngineThread::await(std::optional<Answer>& answer, const char* done) {
  std::unique_lock lock(answer_mutex_);
  answered_.wait_for(lock, kOrderMax, [&] { return answer.has_value() || stopped_; });
  if (!answer.has_value()) {
    throw std::runtime_error(config_.name + (stopped_ ? " has ended, and so has not " : " has not ") + done);
  }
  return std::move(*answer);
}

// ---- Callers that drive ----

std::shared_ptr<Operation> EngineThread::drive(const std::function<std::shared_ptr<Operation>()>& submit) {
  if (!take_over()) return nullptr;
  struct HandingBack {
    EngineThread& thread;
    ~HandingBack() { thread.hand_back(); }
  } const handing_back{*this};
  const numeric::DefaultFloatEnvironment environment;
  std::shared_ptr<Operation> operation = submit();
  const TimeNs until = clock_.now() + kCallerDrivesNs;
  // If only a task is left, its end wakes no driver.
  drive_until(until, [&](TimeNs now) { return operation->done() || !has_work() || now >= until; });
  return operation;
}

bool EngineThread::take_over() noexcept {
  const std::lock_guard lock(nap_mutex_);
  if (driver_ != Driver::kNobody) return false;
  driver_ = Driver::kCaller;
  sleep_.store(Sleep::kNone);
  return true;
}

void EngineThread::hand_back() noexcept {
  bool is_unfinished = false;
  {
    const std::lock_guard lock(nap_mutex_);
    is_unfinished = has_work();
    driver_ = Driver::kNobody;
    sleep_.store(Sleep::kOnCondition);
  }
  if (is_unfinished || is_wanted()) nap_over_.notify_one();
}

// ---- The driver ----

/// Pairs with sleep(): either the sleeper sees the mail, or its order to stop, or this caller sees the sleep.
void EngineThread::rouse() noexcept {
  const Sleep where = sleep_.load();
  if (where == Sleep::kInTransport) transport().wake();
  if (where != Sleep::kOnCondition) return;
  // A driver on its way to sleep has looked for mail with the mutex held, or looks only now.
  {
    const std::lock_guard lock(nap_mutex_);
  }
  nap_over_.notify_one();
}

void EngineThread::run() {
  const numeric::DefaultFloatEnvironment environment;
  drive_until(worker::kNever, [this](TimeNs) { return stopping_.load(std::memory_order_relaxed); });
  shard_.end();
}

template <class IsOver>
void EngineThread::drive_until(TimeNs until, IsOver is_over) {
  TimeNs now = clock_.now();
  TimeNs busy_at = now;
  for (unsigned round = 0; !is_over(now); ++round) {
    bool worked = shard_.take_mail();
    worked |= shard_.receive();
    worked |= shard_.transmit();
    worked |= shard_.report();
    now = clock_.now();
    if (hooks_.on_look_around && now >= looked_around_at_ + kLookAroundPeriodNs) {
      looked_around_at_ = now;
      hooks_.on_look_around(now);
    }
    if (worked) {
      busy_at = now;
      if (round % kStatsPeriod == 0) shard_.publish_stats();
    } else if (now - busy_at >= config_.spin_ns) {
      sleep(now, until);
    }
  }
}

void EngineThread::sleep(TimeNs now, TimeNs until) {
  shard_.publish_stats();
  if (is_wanted()) return;
  const bool is_caller = until != worker::kNever;
  const TimeNs due = std::min(shard_.next_timeout(), until);
  const TimeNs limit = due == worker::kNever ? kSleepMaxNs : std::clamp<TimeNs>(due - now, 0, kSleepMaxNs);
  const bool parks = due == worker::kNever && park_ns_max_ > 0;
  const TimeNs nap = is_caller || parks ? 0 : std::min(limit, shard_.nap_ns(now));
  sleep_.store(parks || nap > 0 ? Sleep::kOnCondition : Sleep::kInTransport);
  if (!is_wanted()) {
    if (parks) {
      park();
    } else if (nap > 0) {
      std::unique_lock lock(nap_mutex_);
      nap_over_.wait_for(lock, std::chrono::nanoseconds(nap), [this] { return is_wanted(); });
    } else {
      transport().wait(limit);
    }
  }
  sleep_.store(Sleep::kNone);
}

/// Nothing is in flight, so no datagram matters: any that comes waits for the next driver.
void EngineThread::park() {
  std::unique_lock lock(nap_mutex_);
  driver_ = Driver::kNobody;
  const std::chrono::nanoseconds limit(park_ns_max_);
  if (!has_work() && !stopping_.load()) nap_over_.wait_for(lock, limit);
  while (driver_ == Driver::kCaller) nap_over_.wait_for(lock, limit);
  driver_ = Driver::kThread;
}

}  // namespace wiresum::engine
