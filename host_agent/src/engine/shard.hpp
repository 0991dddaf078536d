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

/// Nanoseconds that never go back.
class Clock {
 public:
  virtual ~Clock() = default;
  Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  [[nodiscard]] virtual TimeNs now() const noexcept = 0;
};

/// Where a shard's part of a job goes on.
struct Destination {
  worker::Lease lease;
  /// For Transport::serve().
  std::uint8_t host = 0;
  wire::Endpoint parent{};
  wire::Endpoint switch_endpoint;
  /// For Transport::hear().
  std::vector<wire::Endpoint> peers;
};

class Shard {
 public:
  /// `on_mail` is called, from whoever posts, after there is mail; `on_completion` by report(); the others by
  /// take_mail().
  struct Hooks {
    std::function<void()> on_mail;
    std::function<void(const worker::Completion&)> on_completion;
    /// Nothing is sent or accepted any more. With the position of each slot.
    std::function<void(std::vector<std::uint32_t>)> on_halted = nullptr;
    /// It has moved; or cannot, for the reason given: null if it has.
    std::function<void(const char*)> on_moved = nullptr;
  };

  /// The transport has room for a header and config.lanes words. Throws std::invalid_argument on a configuration that
  /// makes no sense.
  Shard(const worker::WorkerConfig& config, wire::Endpoint switch_endpoint, const Clock& clock,
        transport::Transport& transport, Hooks hooks);

  // Any thread
  /// From now on neither post() nor a step allocates, as long as no more shares than these are here. (Exact sums do,
  /// and fail without memory: worker.hpp.)
  void reserve(std::size_t shares);
  /// Queues a share of a collective. The order of posts must be the same at all workers.
  void post(const worker::Collective& collective);
  /// Ends what is pending, and whatever comes later. The first failure stays.
  void post_failure(worker::Status status) noexcept;
  /// The next steps: Worker::halt() or Worker::move() with `roles`, and then the hook. Of several orders that have not
  /// been taken, the last one counts.
  void post_halt();
  void post_move(Destination destination, std::vector<std::uint8_t> roles,
                 std::optional<transport::UdpSocket> group = std::nullopt);
  [[nodiscard]] bool has_mail() const noexcept { return has_mail_.load(); }
  /// As of the last publish_stats().
  [[nodiscard]] TrafficStats stats() const;

  // The driver's thread. Each says whether there was anything to do.
  bool take_mail();
  bool receive() noexcept;
  bool transmit() noexcept;
  bool report();
  /// The last step: ends what is pending, or in the mail, and reports it. Nothing may be posted any more.
  void end();

  /// When there is something to do if no datagram and no mail comes; kNever if never.
  [[nodiscard]] TimeNs next_timeout() const noexcept { return std::min(machine_.next_timeout(), backlog_deadline_); }
  /// How long to let datagrams come before they are taken in (moderation.hpp); 0: until the first.
  [[nodiscard]] TimeNs nap_ns(TimeNs now) noexcept;
  void publish_stats();

 private:
  static constexpr std::size_t kReceiveBurst = 256;
  static constexpr std::size_t kSendBurstMax = 64;
  /// Of the transport's ports: the first is the thread's own, and the only other the group's.
  static constexpr std::uint8_t kGroupPort = 1;

  /// With all the memory that it takes to carry it out.
  struct Order {
    bool is_halt = false;
    std::vector<std::uint32_t> positions;
    Destination destination;
    std::vector<std::uint8_t> roles;
    std::optional<transport::UdpSocket> group;
  };
  void post_order(Order order);
  void carry_out(Order order);
  /// Null if it has moved.
  [[nodiscard]] const char* move(Order& order);
  void submit_backlog();
  /// Takes one out of the backlog whose deadline has passed. The state machine watches only those of what it has.
  [[nodiscard]] std::optional<worker::Completion> take_late();

  const std::uint32_t slots_;
  const Clock& clock_;
  wire::Endpoint switch_endpoint_;
  transport::Transport& transport_;
  Hooks hooks_;
  const std::size_t packet_bytes_max_;
  worker::Worker machine_;
  transport::WakeModerator moderator_;
  schedule::ReservedQueue<worker::Collective> backlog_;  // taken from the mailbox, not yet taken by the state machine
  TimeNs backlog_deadline_ = worker::kNever;             // not later than the first of those; none: kNever
  std::array<transport::RxDatagram, kReceiveBurst> datagrams_{};
  std::uint64_t by_group_ = 0;

  std::mutex mail_mutex_;
  std::vector<worker::Collective> mail_;
  schedule::ReservedQueue<worker::Collective> larger_backlog_;  // for the driver to take its own's place
  bool has_larger_backlog_ = false;
  std::optional<Order> order_;
  std::atomic<bool> has_mail_{false};
  std::atomic<worker::Status> failure_{worker::Status::kOk};

  mutable std::mutex stats_mutex_;
  TrafficStats stats_;
};

}  // namespace wiresum::engine
