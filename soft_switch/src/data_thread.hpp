// One data thread of the software switch: its share of the ports, its own data plane, its mailbox.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "dataplane.hpp"
#include "transport/moderation.hpp"
#include "transport/udp/udp.hpp"

namespace wiresum::soft_switch {

/// A port of the switch, and the job thread t that talks to it.
struct SwitchPort {
  transport::UdpSocket socket;
  std::uint8_t thread;
};

class DataThread {
 public:
  DataThread(const dataplane::Sizes& sizes, const transport::UdpConfig& udp, std::vector<SwitchPort> ports,
             std::chrono::microseconds spin);
  ~DataThread();
  DataThread(const DataThread&) = delete;
  DataThread& operator=(const DataThread&) = delete;

  /// Runs `action` between two bursts of this thread and waits for it; after stop(), runs it at once. One caller at a
  /// time. Throws std::runtime_error if the thread does not come to it in time; then `action` will not run.
  void run(const std::function<void()>& action);
  void stop() noexcept;

  // Only within run():
  [[nodiscard]] dataplane::Dataplane& plane() noexcept { return plane_; }
  [[nodiscard]] const transport::TransportStats& transport_stats() const noexcept { return transport_.stats(); }
  [[nodiscard]] double cpu_seconds() const noexcept;

 private:
  // RESULTs that wait to leave in one call: all of one job and one port, and all for the same receivers.
  struct Batch {
    std::uint16_t job = 0;
    std::uint8_t port = 0;
    std::uint8_t receiver = 0;  // a worker's index, or kEveryone
    std::size_t frames_max = 0;
    std::vector<transport::TxFrame> frames;
  };

  void serve() noexcept;
  void serve_burst(std::size_t count) noexcept;
  void queue(const dataplane::Outcome& outcome, std::uint8_t port) noexcept;
  void flush() noexcept;
  void idle(std::chrono::steady_clock::time_point busy_last) noexcept;
  [[nodiscard]] bool attend() noexcept;

  std::vector<std::uint8_t> job_threads_;  // by the transport's port number
  transport::UdpTransport transport_;
  dataplane::Dataplane plane_;
  const std::chrono::microseconds spin_;

  std::vector<transport::RxDatagram> burst_;
  transport::WakeModerator moderator_;
  Batch batch_;
  std::uint32_t batch_number_ = 1;
  std::vector<std::uint32_t> queued_in_;  // by frame: the number of the last batch that it was queued in

  std::atomic<bool> attention_{false};  // a request was posted, or stop() was called
  std::mutex mutex_;
  std::condition_variable answered_;
  const std::function<void()>* action_ = nullptr;  // posted and not yet run
  bool stopping_ = false;
  double cpu_seconds_at_end_ = 0;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace wiresum::soft_switch
