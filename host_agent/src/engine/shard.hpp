// One thread's part of an engine: a mailbox, a state machine (worker/) and a transport, joined in steps.
//
// It has no thread and no clock. An engine thread (engine.cpp) or the simulation calls the steps in any order, all from
// one thread; only post...() and stats() may be called from others.
//
//   take_mail   what the dispatcher has issued, a failure, and the orders of a move
//   receive     packets in
//   transmit    packets out
//   report      what is complete goes to the dispatcher, which may post again
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/counters.hpp"
#include "schedule/reserved_queue.hpp"
#include "transport/moderation.hpp"
#include "transport/transport.hpp"
#include "transport/udp/socket.hpp"
#include "worker/worker.hpp"

namespace wiresum::engine {

using worker::TimeNs;

/// A clock in nanoseconds that never goes back.
class Clock {
 public:
  virtual ~Clock() = default;
  Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  [[nodiscard]] virtual TimeNs now() const noexcept = 0;
};

/// The lease at which a shard's part of a job continues.
struct Destination {
  worker::Lease lease;
  /// The host's number, for Transport::serve().
  std::uint8_t host = 0;
  wire::Endpoint parent{};
  wire::Endpoint switch_endpoint;
  /// The switch's endpoints, for Transport::hear().
  std::vector<wire::Endpoint> peers;
};

class Shard {
 public:
  /// Callbacks of a shard. A thread that posts calls `on_mail` after there is mail; report() calls `on_completion`, and
  /// take_mail() the others.
  struct Hooks {
    std::function<void()> on_mail;
    std::function<void(const worker::Completion&)> on_completion;
    /// Called with the position of each slot, when the shard sends and accepts nothing any more.
    std::function<void(std::vector<std::uint32_t>)> on_halted = nullptr;
    /// Called after a move: null, or the reason why the shard cannot move.
    std::function<void(const char*)> on_moved = nullptr;
  };

  /// The transport must have room for a header and config.lanes words. Throws std::invalid_argument for a senseless
  /// configuration.
  Shard(const worker::WorkerConfig& config, wire::Endpoint switch_endpoint, const Clock& clock,
        transport::Transport& transport, Hooks hooks);

  // Any thread
  /// Reserves memory, so that neither post() nor a step allocates while no more shares than these are here. (Exact sums
  /// do, and fail without memory: worker.hpp.)
  void reserve(std::size_t shares);
  /// Queues a share of a collective. The order of posts must be the same at all workers.
  void post(const worker::Collective& collective);
  /// Ends pending and later work. The first failure stays.
  void post_failure(worker::Status status) noexcept;
  /// Orders Worker::halt(), or Worker::move() with `roles`, as the next step, and then the hook. The last one counts of
  /// several orders that have not been taken.
  void post_halt();
  void post_move(Destination destination, std::vector<std::uint8_t> roles,
                 std::optional<transport::UdpSocket> group = std::nullopt);
  [[nodiscard]] bool has_mail() const noexcept { return has_mail_.load(); }
  /// Counters at the last publish_stats().
  [[nodiscard]] TrafficStats stats() const;

  // Steps, in the driver's thread. Each returns true if there was anything to do.
  bool take_mail();
  bool receive() noexcept;
  bool transmit() noexcept;
  bool report();
  /// Ends pending work and mail, reports it, and is the last step. Nothing may be posted any more.
  void end();

  /// The time of the next work if no datagram and no mail comes; kNever without one.
  [[nodiscard]] TimeNs next_timeout() const noexcept { return std::min(machine_.next_timeout(), backlog_deadline_); }
  /// How long to let datagrams come before they are taken in (moderation.hpp); 0: until the first.
  [[nodiscard]] TimeNs nap_ns(TimeNs now) noexcept;
  void publish_stats();

 private:
  static constexpr std::size_t kReceiveBurst = 256;
  static constexpr std::size_t kSendBurstMax = 64;
  /// The transport's ports: 0 is the thread's own, and 1 the group's.
  static constexpr std::uint8_t kGroupPort = 1;

  /// An order, with all the memory that its execution takes.
  struct Order {
    bool is_halt = false;
    std::vector<std::uint32_t> positions;
    Destination destination;
    std::vector<std::uint8_t> roles;
    std::optional<transport::UdpSocket> group;
  };
  void post_order(Order order);
  void carry_out(Order order);
  /// Returns null after the move, or the reason why the shard cannot move.
  [[nodiscard]] const char* move(Order& order);
  void submit_backlog();
  /// Takes out of the backlog a share whose deadline has passed. The state machine watches deadlines only of shares
  /// that it has.
  [[nodiscard]] std::optional<worker::Completion> take_late();

  const std::uint32_t slots_;
  const Clock& clock_;
  wire::Endpoint switch_endpoint_;
  transport::Transport& transport_;
  Hooks hooks_;
  const std::size_t packet_bytes_max_;
  worker::Worker machine_;
  transport::WakeModerator moderator_;
  schedule::ReservedQueue<worker::Collective> backlog_;  // shares that the state machine has not taken yet
  TimeNs backlog_deadline_ = worker::kNever;  // no later than the backlog's first deadline; kNever without one
  std::array<transport::RxDatagram, kReceiveBurst> datagrams_{};
  std::uint64_t by_group_ = 0;

  std::mutex mail_mutex_;
  std::vector<worker::Collective> mail_;
  schedule::ReservedQueue<worker::Collective> larger_backlog_;  // the driver exchanges its own backlog for this one
  bool has_larger_backlog_ = false;
  std::optional<Order> order_;
  std::atomic<bool> has_mail_{false};
  std::atomic<worker::Status> failure_{worker::Status::kOk};

  mutable std::mutex stats_mutex_;
  TrafficStats stats_;
};

}  // namespace wiresum::engine
