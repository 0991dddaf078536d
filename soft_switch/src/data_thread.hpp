// One data thread of the software switch: its part of the ports, its own data plane, its mailbox.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "answer_batch.hpp"
#include "dataplane.hpp"
#include "transport/moderation.hpp"
#include "transport/open.hpp"
#include "transport/transport.hpp"

namespace wiresum::soft_switch {

class DataThread {
 public:
  /// `ports` has the switch's number of each port, by the transport's number. `name` names the thread in words. Throws
  /// std::system_error if the thread cannot be created.
  DataThread(const dataplane::SwitchSizes& sizes, transport::DataPath path, std::vector<std::uint8_t> ports,
             std::chrono::microseconds spin, std::chrono::milliseconds answer_max,
             const std::string& name = "a data thread of the switch");
  ~DataThread();
  DataThread(const DataThread&) = delete;
  DataThread& operator=(const DataThread&) = delete;

  /// Runs `action` between two bursts of this thread and waits for it; after stop(), runs it at once. One caller at a
  /// time. Throws what `action` throws, and std::runtime_error if the thread does not run it in time; then `action` is
  /// dropped.
  void run(const std::function<void()>& action);
  /// Runs `action` at some time before later requests, without waiting. `action` must not throw.
  void run_later(std::function<void()> action);
  void stop() noexcept;
  [[nodiscard]] const char* transport_name() const noexcept { return transport_.name(); }

  // The data plane and its statistics, for use only within run():
  [[nodiscard]] dataplane::Dataplane& plane() noexcept { return plane_; }
  [[nodiscard]] const transport::TransportStats& transport_stats() const noexcept { return transport_.stats(); }
  /// RESULTs without a buffer of the transport, and copies for workers whose address is unknown.
  [[nodiscard]] std::uint64_t results_lost() const noexcept { return unaddressed_ + batch_.lost(); }
  [[nodiscard]] double cpu_seconds() const noexcept;

 private:
  void serve() noexcept;
  void serve_burst(std::size_t count) noexcept;
  void handle(std::size_t count, bool answers) noexcept;
  [[nodiscard]] std::size_t receivers_of(const AnswerBatch::Route& route, std::size_t count,
                                         AnswerBatch::Receivers& receivers) noexcept;
  void idle(std::chrono::steady_clock::time_point busy_last) noexcept;
  [[nodiscard]] bool attend() noexcept;

  const std::vector<std::uint8_t> ports_;
  transport::DataPath path_;
  transport::Transport& transport_;  // the transport of path_
  dataplane::Dataplane plane_;
  const std::chrono::microseconds spin_;
  const std::chrono::milliseconds answer_max_;

  std::vector<transport::RxDatagram> burst_;
  std::vector<dataplane::Arrival> arrivals_;  // the arrivals of burst_
  transport::WakeModerator moderator_;
  AnswerBatch batch_;
  std::uint64_t unaddressed_ = 0;  // copies for workers whose address is unknown

  std::atomic<bool> attention_{false};  // a request was posted, or stop() was called
  std::mutex mutex_;
  std::condition_variable answered_;
  const std::function<void()>* action_ = nullptr;  // posted and not yet run
  std::exception_ptr thrown_;                      // thrown by the last action
  std::vector<std::function<void()>> later_;       // actions to run before action_
  bool stopping_ = false;
  double cpu_seconds_at_end_ = 0;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace wiresum::soft_switch
