// One thread of an engine: drives a shard, and sleeps where there is nothing to do.
//
// While nothing is in flight, a thread *parks*: then nobody drives the shard, and a caller that waits for a small
// collective may take over for a while. It sends and receives itself, wakes no thread, and is woken by none. A thread
// over a device parks for moments only, since others may ask something of the device (ARP).
//
// Whoever drives sleeps in the transport, where datagrams and wake() end the sleep, or on a condition, where only
// rouse() does: in a nap (moderation.hpp), or parked.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/operation.hpp"
#include "engine/shard.hpp"
#include "transport/open.hpp"
#include "worker/worker.hpp"

namespace wiresum::engine {

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimeNs now() const noexcept override;
};

struct EngineThreadConfig {
  std::string name;            // name in errors
  std::size_t aggregator = 0;  // the aggregator that the thread talks to
  worker::WorkerConfig worker;
  wire::Endpoint switch_endpoint;
  std::int64_t spin_ns = 0;  // busy polling before sleep
};

class EngineThread {
 public:
  struct Hooks {
    std::function<void(const worker::Completion&)> on_completion;
    /// Called now and then, with the time; null for threads without such work.
    std::function<void(TimeNs)> on_look_around;
  };

  EngineThread(EngineThreadConfig config, transport::DataPath path, Hooks hooks);
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  [[nodiscard]] std::size_t aggregator() const noexcept { return config_.aggregator; }
  [[nodiscard]] Shard& shard() noexcept { return shard_; }
  [[nodiscard]] TrafficStats stats() const { return shard_.stats(); }
  [[nodiscard]] transport::Transport& transport() const noexcept { return *path_.transport; }

  /// Throws std::system_error if the thread cannot be created.
  void start();
  void stop() noexcept;

  /// Calls `submit` if the thread is parked, and drives until the returned operation is done, or for some milliseconds.
  /// Returns null, without a call of `submit`, if the thread is not parked. Any thread may call.
  [[nodiscard]] std::shared_ptr<Operation> drive(const std::function<std::shared_ptr<Operation>()>& submit);

  // Orders of a move; each is answered before the next.
  void post_halt();
  void post_move(Destination destination, std::vector<std::uint8_t> roles, std::optional<transport::UdpSocket> group);
  /// Throws std::runtime_error if there is no answer in time.
  [[nodiscard]] std::vector<std::uint32_t> await_positions() { return await(positions_, "halted"); }
  void await_moved();

 private:
  enum class Sleep : std::uint8_t { kNone, kInTransport, kOnCondition };
  enum class Driver : std::uint8_t { kThread, kNobody, kCaller };

  void forget_answer();
  template <class Answer>
  [[nodiscard]] Answer await(std::optional<Answer>& answer, const char* done);

  [[nodiscard]] bool take_over() noexcept;
  void hand_back() noexcept;
  void rouse() noexcept;
  [[nodiscard]] bool is_wanted() const noexcept { return shard_.has_mail() || stopping_.load(); }
  /// True if there is mail or a timeout to come. Only the driver may ask.
  [[nodiscard]] bool has_work() const noexcept { return shard_.has_mail() || shard_.next_timeout() != worker::kNever; }
  void run();
  /// Steps until `is_over(now)`, and sleeps meanwhile, but not beyond `until`.
  template <class IsOver>
  void drive_until(TimeNs until, IsOver is_over);
  void sleep(TimeNs now, TimeNs until);
  void park();

  const EngineThreadConfig config_;
  const Hooks hooks_;
  const SteadyClock clock_;
  TimeNs looked_around_at_ = 0;
  transport::DataPath path_;
  const TimeNs park_ns_max_;  // the longest time without a driver; 0: the thread never parks
  std::atomic<bool> stopping_{false};
  std::atomic<Sleep> sleep_{Sleep::kNone};  // the driver's sleep
  std::mutex nap_mutex_;
  std::condition_variable nap_over_;  // notified before the nap's time is over, since there is mail
  Driver driver_ = Driver::kThread;   // protected by nap_mutex_; the driver owns the shard
  std::mutex answer_mutex_;           // protects the answer to the last order
  std::condition_variable answered_;
  std::optional<std::vector<std::uint32_t>> positions_;
  std::optional<const char*> objection_;
  bool stopped_ = false;
  Shard shard_;
  std::thread thread_;
};

}  // namespace wiresum::engine
