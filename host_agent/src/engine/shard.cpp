#include "engine/shard.hpp"

#include <algorithm>
#include <cassert>
#include <optional>
#include <span>
#include <utility>

#include "engine/operation.hpp"

namespace wiresum::engine {
namespace {

using worker::Status;

/// The most bursts that are received before sending, so that neither direction starves the other.
constexpr int kReceiveBurstsMax = 4;
/// A nap delays sending, and so lasts only a part of the time in which the packets in flight come back.
constexpr TimeNs kNapNsMax = 1'000'000;
constexpr TimeNs kSlowNapNsMax = 4'000'000;  // with few packets; a call of this worker ends the nap
constexpr std::size_t kNapFlightDivisor = 4;
constexpr std::size_t kNapWorthMax = 64;

}  // namespace

Shard::Shard(const worker::WorkerConfig& config, wire::Endpoint switch_endpoint, const Clock& clock,
             transport::Transport& transport, Hooks hooks)
    : slots_(config.slots),
      clock_(clock),
      switch_endpoint_(switch_endpoint),
      transport_(transport),
      hooks_(std::move(hooks)),
      packet_bytes_max_(wire::kHeaderBytes + config.lanes * wire::kWordBytes),
      machine_(config),
      moderator_(kNapNsMax, kSlowNapNsMax) {}

// ---- Any thread ----

void Shard::reserve(std::size_t shares) {
  std::vector<worker::Collective> mail;
  mail.reserve(shares);
  schedule::ReservedQueue<worker::Collective> backlog;
  backlog.reserve(shares);
  const std::lock_guard lock(mail_mutex_);
  mail.assign(mail_.begin(), mail_.end());
  std::swap(mail_, mail);
  std::swap(larger_backlog_, backlog);
  has_larger_backlog_ = true;
}

void Shard::post(const worker::Collective& collective) {
  {
    const std::lock_guard lock(mail_mutex_);
    mail_.push_back(collective);
    assert(mail_.size() <= kOperationsMax);  // each operation has one share at a time for a thread
    has_mail_.store(true);
  }
  hooks_.on_mail();
}

void Shard::post_failure(Status status) noexcept {
  assert(status != Status::kOk);
  Status none = Status::kOk;
  failure_.compare_exchange_strong(none, status);
  has_mail_.store(true);
  hooks_.on_mail();
}

void Shard::post_halt() {
  post_order({.is_halt = true,
              .positions = std::vector<std::uint32_t>(slots_),
              .destination = {},
              .roles = {},
              .group = std::nullopt});
}

void Shard::post_move(Destination destination, std::vector<std::uint8_t> roles,
                      std::optional<transport::UdpSocket> group) {
  post_order({.is_halt = false,
              .positions = {},
              .destination = std::move(destination),
              .roles = std::move(roles),
              .group = std::move(group)});
}

void Shard::post_order(Order order) {
  {
    const std::lock_guard lock(mail_mutex_);
    order_ = std::move(order);
    has_mail_.store(true);
  }
  hooks_.on_mail();
}

TrafficStats Shard::stats() const {
  const std::lock_guard lock(stats_mutex_);
  return stats_;
}

// ---- Steps ----

bool Shard::take_mail() {
  if (!has_mail_.load(std::memory_order_relaxed)) return false;
  std::optional<Order> order;
  {
    const std::lock_guard lock(mail_mutex_);
    has_mail_.store(false);
    if (std::exchange(has_larger_backlog_, false)) {
      for (; !backlog_.empty(); backlog_.pop()) larger_backlog_.push(backlog_.front());
      std::swap(backlog_, larger_backlog_);
    }
    for (const worker::Collective& collective : mail_) {
      backlog_.push(collective);
      backlog_deadline_ = std::min(backlog_deadline_, collective.deadline);
    }
    mail_.clear();
    order = std::exchange(order_, std::nullopt);
  }
  assert(backlog_.size() <= kOperationsMax);
  if (const Status failure = failure_.load(); failure != Status::kOk) machine_.fail(failure);
  submit_backlog();
  if (order.has_value()) carry_out(std::move(*order));
  return true;
}

void Shard::carry_out(Order order) {
  if (order.is_halt) {
    machine_.halt();
    for (std::uint32_t slot = 0; slot < slots_; ++slot) order.positions[slot] = machine_.position(slot);
    hooks_.on_halted(std::move(order.positions));
    return;
  }
  hooks_.on_moved(move(order));
}

const char* Shard::move(Order& order) {
  if (!machine_.move(order.destination.lease, order.roles)) {
    return "it has not halted, or the roles are none for its positions";
  }
  const worker::Lease& lease = order.destination.lease;
  if (!transport_.serve(
          {.job = lease.job, .key = lease.key, .host = order.destination.host, .parent = order.destination.parent})) {
    return "its host's leaf cannot serve the other lease";
  }
  transport::UdpSocket* const group = order.group.has_value() ? &*order.group : nullptr;
  if (!transport_.hear(order.destination.peers, group)) return "its transport cannot hear the other switch";
  switch_endpoint_ = order.destination.switch_endpoint;
  // Errors of the lost switch's host are obsolete.
  static_cast<void>(transport_.take_error());
  const std::lock_guard lock(stats_mutex_);
  stats_.transport_error = 0;
  return nullptr;
}

void Shard::submit_backlog() {
  while (!backlog_.empty() && machine_.submit(backlog_.front())) backlog_.pop();
  if (backlog_.empty()) backlog_deadline_ = worker::kNever;
}

std::optional<worker::Completion> Shard::take_late() {
  if (backlog_deadline_ == worker::kNever) return std::nullopt;
  const TimeNs now = clock_.now();
  if (now < backlog_deadline_) return std::nullopt;
  backlog_deadline_ = worker::kNever;
  std::optional<worker::Completion> late;
  for (std::size_t left = backlog_.size(); left > 0; --left) {
    const worker::Collective next = backlog_.front();
    backlog_.pop();
    if (!late.has_value() && next.deadline <= now) {
      late = {.token = next.token, .status = Status::kTimedOut};
    } else {
      backlog_.push(next);
      backlog_deadline_ = std::min(backlog_deadline_, next.deadline);
    }
  }
  return late;
}

bool Shard::receive() noexcept {
  bool received = false;
  for (int burst = 0; burst < kReceiveBurstsMax; ++burst) {
    const std::size_t count = transport_.receive(datagrams_);
    if (count == 0) break;
    received = true;
    const TimeNs now = clock_.now();
    moderator_.on_datagrams(now, count, transport_.stats().messages_received);
    for (const transport::RxDatagram& datagram : std::span(datagrams_).first(count)) {
      by_group_ += datagram.port == kGroupPort ? 1 : 0;
      machine_.handle_datagram(now, datagram.bytes, datagram.marked, datagram.stays);
    }
  }
  return received;
}

bool Shard::transmit() noexcept {
  bool sent = false;
  const std::size_t burst = transport::whole_trains(kSendBurstMax, transport_.train_packets(packet_bytes_max_));
  for (std::size_t count = burst; count == burst;) {
    // A device that is behind has fewer buffers, or none; the next step sends the rest.
    count = machine_.poll_transmit(clock_.now(), transport_.buffers(burst));
    if (count != 0) {
      transport_.send(count, {&switch_endpoint_, 1}, 0, false);
      sent = true;
    }
  }
  return sent;
}

bool Shard::report() {
  bool reported = false;
  if (const std::optional<worker::Completion> late = take_late()) {
    // The failed collective comes before those of the state machine.
    hooks_.on_completion(*late);
    machine_.fail(Status::kTimedOut);
  }
  while (const std::optional<worker::Completion> completion = machine_.poll_completion()) {
    if (!reported) publish_stats();  // first: a caller that waits for the operation finds it counted
    reported = true;
    hooks_.on_completion(*completion);
    submit_backlog();
  }
  return reported;
}

void Shard::end() {
  machine_.fail(Status::kAborted);
  take_mail();
  report();
  assert(backlog_.empty());
}

TimeNs Shard::nap_ns(TimeNs now) noexcept {
  return moderator_.nap_ns(now, std::min<std::size_t>(machine_.in_flight() / kNapFlightDivisor, kNapWorthMax));
}

void Shard::publish_stats() {
  const transport::TransportStats& datagrams = transport_.stats();
  const int error = transport_.take_error();
  const std::lock_guard lock(stats_mutex_);
  static_cast<worker::WorkerStats&>(stats_) = machine_.stats();
  stats_.by_group = by_group_;
  stats_.send_calls = datagrams.send_calls;
  stats_.receive_calls = datagrams.receive_calls;
  stats_.send_failures = datagrams.send_failures;
  if (error != 0) stats_.transport_error = static_cast<std::uint64_t>(error);
}

}  // namespace wiresum::engine
