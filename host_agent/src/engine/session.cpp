#include "engine/session.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "numeric/codec.hpp"
#include "transport/moderation.hpp"
#include "transport/udp/udp.hpp"

namespace wiresum::engine {
namespace {

using worker::Status;
using worker::TimeNs;

constexpr std::size_t kReceiveBurst = 256;
constexpr std::size_t kSendBurstMax = 64;
/// Bursts taken in before it is time to send, so that neither direction starves the other.
constexpr int kReceiveBurstsMax = 4;
/// Loop rounds between publications of statistics while busy.
constexpr unsigned kStatsPeriod = 64;
/// A datagram waits for other processes at both ends to give up a core: less than this is no sign of a loss.
constexpr TimeNs kRtoMinNs = 5'000'000;
/// A nap delays what this worker sends, so it may last only as long as a part of what is in flight takes to come back.
constexpr TimeNs kNapNsMax = 1'000'000;
constexpr std::size_t kNapFlightShare = 4;
constexpr std::size_t kNapWorthMax = 64;
/// How often somebody looks whether requests that wait to be dealt are past their deadlines.
constexpr TimeNs kWaitingPeriodNs = 100'000'000;
/// Longest sleep, so that a thread looks around even if an event were missed.
constexpr TimeNs kSleepMaxNs = 1'000'000'000;

TimeNs now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

transport::UdpConfig udp_config(const SessionConfig& config) {
  return {.datagram_bytes_max = wire::kHeaderBytes + std::size_t{config.worker.lanes} * wire::kWordBytes,
          .frames = config.worker.slots / config.threads + worker::Worker::kSpareFrames,
          .offload = config.offload};
}

worker::WorkerConfig share_of(const SessionConfig& config, unsigned thread) {
  worker::WorkerConfig share = config.worker;
  share.rto_min = kRtoMinNs;
  share.slots = config.worker.slots / config.threads;
  share.slot_first = config.worker.slot_first + thread * share.slots;
  return share;
}

void add(worker::WorkerStats& sum, const worker::WorkerStats& more) noexcept {
  sum.packets_sent += more.packets_sent;
  sum.bytes_sent += more.bytes_sent;
  sum.retransmissions += more.retransmissions;
  sum.questions += more.questions;
  sum.results += more.results;
  sum.bytes_received += more.bytes_received;
  sum.duplicates += more.duplicates;
  sum.rejected += more.rejected;
  if (wire::newer(more.round_newest, sum.round_newest)) {
    sum.round_newest = more.round_newest;
  }
}

}  // namespace

bool Operation::wait(std::chrono::nanoseconds timeout) const {
  std::unique_lock lock(mutex_);
  return done_changed_.wait_for(lock, timeout, [this] { return done(); });
}

/// One engine thread: its state machine, its transport, its mailbox.
class Session::Thread {
 public:
  Thread(Session& session, unsigned index, transport::UdpSocket socket)
      : session_(session),
        index_(index),
        switch_endpoint_(thread_port(session.config_.switch_endpoint, index)),
        transport_(udp_config(session.config_),
                   sockets_of(std::move(socket), switch_endpoint_, thread_port(session.config_.results_group, index))),
        machine_(share_of(session.config_, index), transport_.frame_memory(), transport_.frame_stride()) {}

  void start() {
    thread_ = std::thread([this] { run(); });
  }

  void stop() noexcept {
    stopping_.store(true);
    transport_.wake();
    if (!thread_.joinable()) {
      return;
    }
    if (getpid() == owner_) {
      thread_.join();
    } else {
      thread_.detach();  // a forked child has the object, but not the thread
    }
  }

  void post(const worker::Collective& collective) {
    {
      const std::lock_guard lock(mail_mutex_);
      mail_.push_back(collective);
    }
    notify();
  }

  /// The first failure stays.
  void post_failure(Status status) noexcept {
    Status none = Status::kOk;
    failure_.compare_exchange_strong(none, status);
    notify();
  }

  [[nodiscard]] SessionStats stats() const {
    const std::lock_guard lock(stats_mutex_);
    return stats_;
  }

 private:
  /// Of thread `index`; port 0 stands for no endpoint.
  static wire::Endpoint thread_port(wire::Endpoint base, unsigned index) {
    return {.address = base.address, .port = static_cast<std::uint16_t>(base.port == 0 ? 0 : base.port + index)};
  }

  /// The thread's own socket, which all packets leave by, and one in the group if there is one. They hear the switch
  /// alone.
  static std::vector<transport::UdpSocket> sockets_of(transport::UdpSocket own, wire::Endpoint peer,
                                                      wire::Endpoint group) {
    own.connect(peer);
    const std::uint32_t interface = own.local().address;
    std::vector<transport::UdpSocket> sockets;
    sockets.push_back(std::move(own));
    if (group.port != 0) {
      sockets.push_back(transport::UdpSocket::in_group(group, interface));
      sockets.back().connect(peer);
    }
    return sockets;
  }

  /// Pairs with sleep(): either the sleeper sees the mail, or we see that it sleeps.
  void notify() noexcept {
    has_mail_.store(true);
    if (sleeping_.load()) {
      transport_.wake();
    }
  }

  void run() {
    numeric::set_default_float_environment();
    TimeNs busy_at = now_ns();
    for (unsigned round = 0; !stopping_.load(std::memory_order_relaxed); ++round) {
      const bool worked = step();
      const TimeNs now = now_ns();
      if (index_ == 0 && now >= waiting_checked_at_ + kWaitingPeriodNs) {
        waiting_checked_at_ = now;
        session_.check_waiting(now);
      }
      if (worked) {
        busy_at = now;
        if (round % kStatsPeriod == 0) {
          publish_stats();
        }
      } else if (now - busy_at >= session_.config_.spin_ns) {
        sleep(now);
      }
    }
    machine_.fail(Status::kAborted);
    take_mail();
    report_completions();
  }

  /// One turn: mail, packets in, packets out, completions. False if there was nothing to do.
  bool step() {
    bool worked = has_mail_.load(std::memory_order_relaxed) && take_mail();
    worked |= receive();
    worked |= transmit();
    report_completions();
    return worked;
  }

  bool take_mail() {
    has_mail_.store(false);
    {
      const std::lock_guard lock(mail_mutex_);
      backlog_.insert(backlog_.end(), mail_.begin(), mail_.end());
      mail_.clear();
    }
    if (const Status failure = failure_.load(); failure != Status::kOk) {
      machine_.fail(failure);
    }
    submit_backlog();
    return true;
  }

  void submit_backlog() {
    while (!backlog_.empty() && machine_.submit(backlog_.front())) {
      backlog_.pop_front();
    }
  }

  bool receive() noexcept {
    bool received = false;
    for (int burst = 0; burst < kReceiveBurstsMax; ++burst) {
      const std::size_t count = transport_.receive(datagrams_);
      if (count == 0) {
        break;
      }
      received = true;
      const TimeNs now = now_ns();
      moderator_.on_datagrams(now, count);
      for (const transport::RxDatagram& datagram : std::span(datagrams_).first(count)) {
        machine_.handle_datagram(now, datagram.bytes);
      }
    }
    return received;
  }

  bool transmit() noexcept {
    bool sent = false;
    const std::size_t burst =
        transport::whole_trains(kSendBurstMax, transport_.train_frames(transport_.frame_stride()));
    for (std::size_t count = burst; count == burst;) {
      count = machine_.poll_transmit(now_ns(), std::span(transmits_).first(burst));
      for (std::size_t i = 0; i < count; ++i) {
        frames_[i] = {.frame = transmits_[i].frame, .bytes = transmits_[i].bytes};
      }
      if (count != 0) {
        transport_.send(std::span(frames_).first(count), {&switch_endpoint_, 1}, 0);
        sent = true;
      }
    }
    return sent;
  }

  void report_completions() {
    bool published = false;
    while (const std::optional<worker::Completion> completion = machine_.poll_completion()) {
      if (!published) {
        publish_stats();  // first, so that whoever waits for the operation finds it counted
        published = true;
      }
      session_.complete_share(index_, *completion);
      submit_backlog();
    }
  }

  void sleep(TimeNs now) {
    publish_stats();
    sleeping_.store(true);
    if (!has_mail_.load() && !stopping_.load()) {
      const TimeNs due = machine_.next_timeout();
      const TimeNs limit = due == worker::kNever ? kSleepMaxNs : std::clamp<TimeNs>(due - now, 0, kSleepMaxNs);
      const std::size_t worth = std::min<std::size_t>(machine_.in_flight() / kNapFlightShare, kNapWorthMax);
      const TimeNs nap = std::min(limit, moderator_.nap_ns(now, worth));
      if (nap > 0) {
        std::this_thread::sleep_for(std::chrono::nanoseconds(nap));
      } else {
        transport_.wait(limit);
      }
    }
    sleeping_.store(false);
  }

  void publish_stats() {
    const transport::TransportStats& datagrams = transport_.stats();
    const int error = transport_.take_error();
    const std::lock_guard lock(stats_mutex_);
    stats_.worker = machine_.stats();
    stats_.datagrams_sent = datagrams.datagrams_sent;
    stats_.datagrams_received = datagrams.datagrams_received;
    stats_.send_calls = datagrams.send_calls;
    stats_.receive_calls = datagrams.receive_calls;
    stats_.send_failures = datagrams.send_failures;
    if (error != 0) {
      stats_.transport_error = error;
    }
  }

  Session& session_;
  unsigned index_;
  TimeNs waiting_checked_at_ = 0;
  wire::Endpoint switch_endpoint_;
  transport::UdpTransport transport_;
  worker::Worker machine_;
  transport::WakeModerator moderator_{kNapNsMax};
  std::deque<worker::Collective> backlog_;  // taken from the mailbox, not yet taken by the state machine
  std::array<transport::RxDatagram, kReceiveBurst> datagrams_{};
  std::array<worker::Transmit, kSendBurstMax> transmits_{};
  std::array<transport::TxFrame, kSendBurstMax> frames_{};

  std::mutex mail_mutex_;
  std::vector<worker::Collective> mail_;
  std::atomic<bool> has_mail_{false};
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<Status> failure_{Status::kOk};

  mutable std::mutex stats_mutex_;
  SessionStats stats_;
  const pid_t owner_ = getpid();
  std::thread thread_;
};

Session::Session(const SessionConfig& config, std::vector<transport::UdpSocket> sockets)
    : config_(config),
      scheduler_({.threads = config.threads,
                  .lanes = config.worker.lanes,
                  .vote_lag_chunks = std::uint64_t{2} * config.worker.slots}) {
  if (config.threads == 0 || config.threads > wire::kThreadsMax || config.worker.slots % config.threads != 0) {
    throw std::invalid_argument("threads must be 1..16 and divide the slots of the lease");
  }
  if (sockets.size() < config.threads) {
    throw std::invalid_argument("a session needs a socket for each thread");
  }
  for (unsigned i = 0; i < config.threads; ++i) {
    threads_.push_back(std::make_unique<Thread>(*this, i, std::move(sockets[i])));
  }
  for (const auto& thread : threads_) {
    thread->start();
  }
}

Session::~Session() { close(); }

std::shared_ptr<Operation> Session::submit(Request request) {
  schedule::Request& work = request.work;
  if (request.timeout_ns >= 0) {
    work.deadline = now_ns() + request.timeout_ns;
  }
  std::unique_lock lock(mutex_);
  const std::uint64_t salt = submissions_++;
  lock.unlock();
  schedule::Survey survey = scheduler_.survey(work, salt);
  lock.lock();
  if (scheduler_.expects_scan(work, survey)) {
    // Reading a whole tensor takes a while: not under the lock.
    lock.unlock();
    survey.scans = schedule::scan_blocks(work, config_.worker.lanes, survey.chunks);
    lock.lock();
  }
  auto operation = std::make_shared<Operation>();
  operation->notify_ = request.notify;
  const schedule::Ticket ticket = scheduler_.submit(std::move(work), std::move(survey));
  operation->token_ = ticket.token;
  operation->tensor_ = ticket.tensor;
  pending_.emplace(ticket.token, operation);
  dispatch();
  return operation;
}

void Session::dispatch() {
  while (const std::optional<schedule::Share> share = scheduler_.poll_share()) {
    threads_[share->thread]->post(share->work);
  }
  while (const std::optional<schedule::Finished> finished = scheduler_.poll_finished()) {
    retire(*finished);
  }
}

void Session::complete_share(unsigned thread, const worker::Completion& completion) {
  if (completion.status != Status::kOk) {
    fail_threads(completion.status);
  }
  const std::lock_guard lock(mutex_);
  scheduler_.complete(thread, completion);
  dispatch();
}

void Session::check_waiting(TimeNs now) {
  const std::lock_guard lock(mutex_);
  if (scheduler_.waiting_deadline() <= now) {
    fail_threads(Status::kTimedOut);
  }
}

void Session::retire(const schedule::Finished& finished) {
  const auto found = pending_.find(finished.token);
  const std::shared_ptr<Operation> operation = found->second;
  pending_.erase(found);
  {
    const std::lock_guard lock(operation->mutex_);
    operation->status_ = finished.status;
    operation->done_.store(true, std::memory_order_release);
    operation->done_changed_.notify_all();
  }
  if (operation->notify_) {
    completed_.push_back(operation);
    completed_changed_.notify_all();
  }
}

void Session::fail_threads(Status status) noexcept {
  for (const auto& thread : threads_) {
    thread->post_failure(status);
  }
}

std::vector<std::shared_ptr<Operation>> Session::take_completed(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  completed_changed_.wait_for(lock, timeout, [this] { return !completed_.empty() || closed_; });
  std::vector<std::shared_ptr<Operation>> taken(completed_.begin(), completed_.end());
  completed_.clear();
  return taken;
}

void Session::abort() noexcept { fail_threads(Status::kAborted); }

void Session::close() noexcept {
  const std::lock_guard closing(close_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      return;
    }
    closed_ = true;
    scheduler_.fail(Status::kAborted);
    dispatch();
    completed_changed_.notify_all();
  }
  fail_threads(Status::kAborted);
  for (const auto& thread : threads_) {
    thread->stop();
  }
}

SessionStats Session::stats() const {
  SessionStats sum = threads_.front()->stats();
  for (std::size_t i = 1; i < threads_.size(); ++i) {
    const SessionStats more = threads_[i]->stats();
    add(sum.worker, more.worker);
    sum.datagrams_sent += more.datagrams_sent;
    sum.datagrams_received += more.datagrams_received;
    sum.send_calls += more.send_calls;
    sum.receive_calls += more.receive_calls;
    sum.send_failures += more.send_failures;
    sum.transport_error = sum.transport_error != 0 ? sum.transport_error : more.transport_error;
  }
  const std::lock_guard lock(mutex_);
  sum.sparse = scheduler_.stats();
  return sum;
}

}  // namespace wiresum::engine
