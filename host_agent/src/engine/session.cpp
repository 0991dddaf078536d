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

transport::UdpConfig udp_config(const AggregatorConfig& aggregator, bool offload) {
  return {.datagram_bytes_max = wire::kHeaderBytes + std::size_t{aggregator.worker.lanes} * wire::kWordBytes,
          .frames = aggregator.worker.slots / aggregator.threads,
          .offload = offload};
}

worker::WorkerConfig share_of(const AggregatorConfig& aggregator, unsigned thread) {
  worker::WorkerConfig share = aggregator.worker;
  share.rto_min = kRtoMinNs;
  share.slots = aggregator.worker.slots / aggregator.threads;
  share.slot_first = aggregator.worker.slot_first + thread * share.slots;
  return share;
}

/// The configuration, if it makes sense. Throws std::invalid_argument.
SessionConfig checked(SessionConfig config, const std::vector<std::vector<transport::UdpSocket>>& sockets) {
  const std::vector<AggregatorConfig>& aggregators = config.aggregators;
  if (aggregators.empty() || aggregators.size() > kAggregatorsMax || sockets.size() != aggregators.size()) {
    throw std::invalid_argument("a session needs 1..8 aggregators, and sockets for each");
  }
  for (std::size_t i = 0; i < aggregators.size(); ++i) {
    const AggregatorConfig& aggregator = aggregators[i];
    if (aggregator.threads == 0 || aggregator.threads > wire::kThreadsMax ||
        aggregator.worker.slots % aggregator.threads != 0) {
      throw std::invalid_argument("threads must be 1..16 and divide the slots of the lease");
    }
    if (sockets[i].size() < aggregator.threads) {
      throw std::invalid_argument("a session needs a socket for each thread");
    }
    if (aggregator.worker.lanes != aggregators.front().worker.lanes) {
      throw std::invalid_argument("the packets of all aggregators must have the same number of lanes");
    }
  }
  return config;
}

schedule::SchedulerConfig scheduler_config(const SessionConfig& config) {
  const worker::WorkerConfig& first = config.aggregators.front().worker;
  schedule::SchedulerConfig scheduler{
      .threads = 0, .worker = first.worker, .workers = first.workers, .lanes = first.lanes, .vote_lag_chunks = 0};
  for (const AggregatorConfig& aggregator : config.aggregators) {
    scheduler.threads += aggregator.threads;
    scheduler.vote_lag_chunks += std::uint64_t{2} * aggregator.worker.slots;
  }
  return scheduler;
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

void add(TrafficStats& sum, const TrafficStats& more) noexcept {
  add(sum.worker, more.worker);
  sum.datagrams_sent += more.datagrams_sent;
  sum.datagrams_received += more.datagrams_received;
  sum.send_calls += more.send_calls;
  sum.receive_calls += more.receive_calls;
  sum.send_failures += more.send_failures;
  sum.transport_error = sum.transport_error != 0 ? sum.transport_error : more.transport_error;
}

}  // namespace

bool Operation::wait(std::chrono::nanoseconds timeout) const {
  std::unique_lock lock(mutex_);
  return done_changed_.wait_for(lock, timeout, [this] { return done(); });
}

/// Which of a session's threads one is.
struct Session::Place {
  unsigned index = 0;          // among all, in the order in which they are dealt to
  std::size_t aggregator = 0;  // that it talks to
  unsigned thread = 0;         // of that aggregator's
};

/// One engine thread: its state machine, its transport, its mailbox.
class Session::Thread {
  using Chore = schedule::Scheduler::Chore;

 public:
  Thread(Session& session, const Place& place, transport::UdpSocket socket)
      : Thread(session, place, session.config_.aggregators[place.aggregator], std::move(socket)) {}

  [[nodiscard]] std::size_t aggregator() const noexcept { return place_.aggregator; }

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

  [[nodiscard]] TrafficStats stats() const {
    const std::lock_guard lock(stats_mutex_);
    return stats_;
  }

 private:
  Thread(Session& session, const Place& place, const AggregatorConfig& aggregator, transport::UdpSocket socket)
      : session_(session),
        place_(place),
        switch_endpoint_(thread_port(aggregator.switch_endpoint, place.thread)),
        transport_(
            udp_config(aggregator, session.config_.offload),
            sockets_of(std::move(socket), switch_endpoint_, thread_port(aggregator.results_group, place.thread))),
        machine_(share_of(aggregator, place.thread), transport_.frame_memory(), transport_.frame_stride()) {}

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
      if (place_.index == 0 && now >= waiting_checked_at_ + kWaitingPeriodNs) {
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
    while (!chores_.empty()) do_piece_of_chore();  // somebody waits for what they are a part of
  }

  /// One turn: mail, packets in, packets out, completions, a piece of a chore. False if there was nothing to do.
  bool step() {
    bool worked = has_mail_.load(std::memory_order_relaxed) && take_mail();
    worked |= receive();
    worked |= transmit();
    report_completions();
    if (may_do_chore()) {
      do_piece_of_chore();
      worked = true;
    }
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
      moderator_.on_datagrams(now, count, transport_.stats().messages_received);
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
      session_.complete_share(place_.index, *completion);
      take_chores();
      submit_backlog();
    }
  }

  void take_chores() {
    while (std::optional<Chore> chore = session_.take_chore()) chores_.push_back(std::move(*chore));
    results_before_chore_ = machine_.stats().results;
  }

  /// Is there a chore, and the time for it? What has just been dealt goes out first.
  [[nodiscard]] bool may_do_chore() const noexcept {
    if (chores_.empty() || has_mail_.load(std::memory_order_relaxed)) return false;
    return !chores_.front().can_wait() || machine_.in_flight() == 0 || machine_.stats().results > results_before_chore_;
  }

  void do_piece_of_chore() {
    if (chores_.front().run()) {
      session_.complete_chore(chores_.front());
      chores_.pop_front();
      take_chores();  // one may lead to another; a collective has a bounded number of them
    }
    // Where workers share cores, another may have packets to send.
    std::this_thread::yield();
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
  Place place_;
  TimeNs waiting_checked_at_ = 0;
  wire::Endpoint switch_endpoint_;
  transport::UdpTransport transport_;
  worker::Worker machine_;
  transport::WakeModerator moderator_{kNapNsMax};
  std::deque<Chore> chores_;
  std::uint64_t results_before_chore_ = 0;
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
  TrafficStats stats_;
  const pid_t owner_ = getpid();
  std::thread thread_;
};

Session::Session(const SessionConfig& config, std::vector<std::vector<transport::UdpSocket>> sockets)
    : config_(checked(config, sockets)), scheduler_(scheduler_config(config_)) {
  // A collective of few chunks is dealt to few threads, so neighbours are at different aggregators.
  for (unsigned thread = 0; thread < wire::kThreadsMax; ++thread) {
    for (std::size_t i = 0; i < config.aggregators.size(); ++i) {
      if (thread < config.aggregators[i].threads) {
        const Place place{.index = static_cast<unsigned>(threads_.size()), .aggregator = i, .thread = thread};
        threads_.push_back(std::make_unique<Thread>(*this, place, std::move(sockets[i][thread])));
      }
    }
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
  if (const std::uint64_t chunks = scheduler_.expects_look(work, survey); chunks != 0) {
    // Reading a tensor takes a while: not under the lock.
    lock.unlock();
    schedule::look(survey, work, config_.aggregators.front().worker.lanes, chunks);
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

void Session::complete_chore(const schedule::Scheduler::Chore& chore) {
  const std::lock_guard lock(mutex_);
  scheduler_.complete(chore);
  dispatch();
}

std::optional<schedule::Scheduler::Chore> Session::take_chore() {
  const std::lock_guard lock(mutex_);
  return scheduler_.poll_chore();
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
  SessionStats sum;
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    const TrafficStats more = threads_[i]->stats();
    if (i < config_.aggregators.size()) {
      sum.aggregators.push_back(more);  // the first threads are the first ones of each aggregator
    } else {
      add(sum.aggregators[threads_[i]->aggregator()], more);
    }
  }
  static_cast<TrafficStats&>(sum) = sum.aggregators.front();
  for (std::size_t i = 1; i < sum.aggregators.size(); ++i) {
    add(sum, sum.aggregators[i]);
  }
  const std::lock_guard lock(mutex_);
  sum.sparse = scheduler_.stats();
  return sum;
}

}  // namespace wiresum::engine
