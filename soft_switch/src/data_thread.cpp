// Theory of operation
//
// The thread takes a burst of datagrams, gives each to the data plane, and sends what comes out. RESULTs of one job
// that were completed through one port, one after the other, leave in a single call, so that the kernel can cut them
// from one buffer (GSO) and a multicast costs a message for each receiver, not one for each packet. A batch never waits
// for more: it leaves at the end of the burst at the latest.
//
// A frame that is queued must not change before it is sent. A datagram of the same burst can change it: a duplicate
// gets its own tags into the header, a newer round overwrites the lanes. So the data plane is asked first which frame a
// datagram may touch; if it is in the batch, the batch leaves at once.
//
// Control requests (admit, evict, counters) are run by this thread itself, between bursts. That keeps locks away from
// the data path: all it looks at is one atomic flag.
//
// With nothing to do the thread polls for the spin budget and then sleeps in the transport, or, under a steady stream
// of single datagrams, for a fixed moment (transport/moderation.hpp). The flag is looked at after the last receive()
// and before the sleep: receive() may swallow a wake-up, and the request that it announced would otherwise wait for the
// sleep to end.
#include "data_thread.hpp"

#include <array>
#include <cassert>
#include <ctime>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

namespace wiresum::soft_switch {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kBurst = 512;
constexpr std::size_t kBatchMax = 64;
constexpr std::uint8_t kEveryone = 0xFF;
/// A nap delays every job, so it is short.
constexpr std::int64_t kNapNsMax = 300'000;
constexpr std::size_t kNapWorth = 256;
constexpr std::int64_t kSleepNsMax = 1'000'000'000;
constexpr std::chrono::seconds kAnswerMax{10};

std::vector<std::uint8_t> job_threads_of(const std::vector<SwitchPort>& ports) {
  std::vector<std::uint8_t> threads;
  for (const SwitchPort& port : ports) threads.push_back(port.thread);
  return threads;
}

std::vector<transport::UdpSocket> sockets_of(std::vector<SwitchPort> ports) {
  std::vector<transport::UdpSocket> sockets;
  for (SwitchPort& port : ports) sockets.push_back(std::move(port.socket));
  return sockets;
}

double thread_cpu_seconds() noexcept {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

std::int64_t nanoseconds_of(steady_clock::time_point time) noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

DataThread::DataThread(const dataplane::Sizes& sizes, const transport::UdpConfig& udp, std::vector<SwitchPort> ports,
                       std::chrono::microseconds spin)
    : job_threads_(job_threads_of(ports)),
      transport_(udp, sockets_of(std::move(ports))),
      plane_(sizes, transport_.frame_memory(), transport_.frame_stride()),
      spin_(spin),
      burst_(kBurst),
      moderator_(kNapNsMax),
      queued_in_(udp.frames) {
  batch_.frames.reserve(kBatchMax);
  thread_ = std::thread(&DataThread::serve, this);
}

DataThread::~DataThread() { stop(); }

void DataThread::run(const std::function<void()>& action) {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable()) {
    action();
    return;
  }
  action_ = &action;
  attention_.store(true, std::memory_order_release);
  transport_.wake();
  // The action runs with the mutex held, so after the wait it has run or has not begun.
  if (answered_.wait_for(lock, kAnswerMax, [this] { return action_ == nullptr; })) return;
  action_ = nullptr;
  throw std::runtime_error("a data thread of the switch has not answered for " + std::to_string(kAnswerMax.count()) +
                           " s: the machine is overloaded, or the process was suspended");
}

void DataThread::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    attention_.store(true, std::memory_order_release);
  }
  transport_.wake();
  if (thread_.joinable()) thread_.join();
}

double DataThread::cpu_seconds() const noexcept {
  return thread_.joinable() ? thread_cpu_seconds() : cpu_seconds_at_end_;
}

void DataThread::serve() noexcept {
  auto busy_last = steady_clock::now();
  for (;;) {
    const std::size_t count = transport_.receive(burst_);
    if (count != 0) {
      serve_burst(count);
      busy_last = steady_clock::now();
      moderator_.on_datagrams(nanoseconds_of(busy_last), count, transport_.stats().messages_received);
    }
    if (attention_.load(std::memory_order_acquire)) {
      if (!attend()) break;
    } else if (count == 0) {
      idle(busy_last);
    }
  }
  cpu_seconds_at_end_ = thread_cpu_seconds();
}

void DataThread::serve_burst(std::size_t count) noexcept {
  for (const transport::RxDatagram& datagram : std::span(burst_).first(count)) {
    const std::uint32_t touched = plane_.frame_touched(datagram.bytes);
    if (touched != dataplane::kNoFrame && queued_in_[touched] == batch_number_) flush();
    const dataplane::Outcome outcome = plane_.handle(datagram.source, job_threads_[datagram.port], datagram.bytes);
    if (outcome.verdict == dataplane::Verdict::kMulticast || outcome.verdict == dataplane::Verdict::kResend) {
      queue(outcome, datagram.port);
    }
  }
  flush();
}

void DataThread::queue(const dataplane::Outcome& outcome, std::uint8_t port) noexcept {
  const std::uint8_t receiver = outcome.verdict == dataplane::Verdict::kMulticast ? kEveryone : outcome.worker;
  assert(outcome.frame < queued_in_.size() && outcome.bytes <= transport_.frame_stride());
  assert(queued_in_[outcome.frame] != batch_number_);  // serve_burst() has sent what stood there
  const bool fits = batch_.job == outcome.job && batch_.port == port && batch_.receiver == receiver;
  if (!fits || batch_.frames.size() >= batch_.frames_max) flush();
  if (batch_.frames.empty()) {
    // The rest of a train would leave as a message of its own.
    batch_.frames_max = transport::whole_trains(kBatchMax, transport_.train_frames(outcome.bytes));
  }
  batch_.job = outcome.job;
  batch_.port = port;
  batch_.receiver = receiver;
  batch_.frames.push_back({.frame = outcome.frame, .bytes = outcome.bytes});
  queued_in_[outcome.frame] = batch_number_;
}

void DataThread::flush() noexcept {
  if (batch_.frames.empty()) return;
  assert(plane_.find(batch_.job) != nullptr);  // jobs go between bursts, when no batch is open
  const dataplane::JobEntry& job = *plane_.find(batch_.job);
  const std::uint32_t everyone = plane_.receivers(batch_.job);
  std::array<wire::Endpoint, wire::kWorkersMax> receivers{};
  std::size_t count = 0;
  const auto add = [&](wire::Endpoint base) {
    receivers[count++] = {base.address, static_cast<std::uint16_t>(base.port + job_threads_[batch_.port])};
  };
  if (batch_.receiver == kEveryone && job.results_group.port != 0) {
    add(job.results_group);
  } else {
    for (std::uint8_t worker = 0; worker < job.workers; ++worker) {
      const wire::Endpoint base = job.endpoints[worker];
      const bool wanted = batch_.receiver == kEveryone ? (everyone >> worker & 1u) != 0 : batch_.receiver == worker;
      if (wanted && base.port != 0) add(base);
    }
  }
  if (count != 0) transport_.send(batch_.frames, std::span(receivers).first(count), batch_.port);
  batch_.frames.clear();
  ++batch_number_;
}

void DataThread::idle(steady_clock::time_point busy_last) noexcept {
  const auto now = steady_clock::now();
  if (now - busy_last < spin_) {
    relax();
  } else if (const std::int64_t nap_ns = moderator_.nap_ns(nanoseconds_of(now), kNapWorth); nap_ns > 0) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(nap_ns));
  } else {
    transport_.wait(kSleepNsMax);
  }
}

/// Runs what was posted. False if the thread is to end.
bool DataThread::attend() noexcept {
  const std::lock_guard lock(mutex_);
  attention_.store(false, std::memory_order_relaxed);
  if (action_ != nullptr) {
    (*action_)();
    action_ = nullptr;
    answered_.notify_one();
  }
  return !stopping_;
}

}  // namespace wiresum::soft_switch
