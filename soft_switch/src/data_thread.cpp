// Theory of operation
//
// The thread takes a burst of datagrams, gives each to the data plane, and sends the answers. Consecutive RESULTs of
// one job and one port leave in a single call (answer_batch.hpp), so that the kernel can cut them from one buffer (GSO)
// and a multicast costs a message for each receiver, not one for each packet. RESULTs with the ECN mark leave apart. A
// parent's packets in a burst are handled first, so that packets down to workers and packets up to the parent make two
// batches.
//
// The cells of a large lease are not in the near caches, so each datagram's cell is prefetched during the handling of
// earlier datagrams.
//
// This thread also runs control requests (admit, evict, counters), between bursts. The data path then needs no lock,
// and only reads one atomic flag.
//
// An idle thread polls for the spin budget and then sleeps in the transport, or, under a steady stream of single
// datagrams, for a fixed moment (transport/moderation.hpp). The flag is read after the last receive() and before the
// sleep: receive() may consume a wake-up, and the announced request would otherwise wait for the sleep to end.
#include "data_thread.hpp"

#include <cassert>
#include <ctime>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "process/thread.hpp"

namespace wiresum::soft_switch {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kBurst = 512;
/// Cells are prefetched this many packets ahead: about as long as memory takes.
constexpr std::size_t kPrefetchAhead = 4;
/// A nap delays every job, so it is short.
constexpr std::int64_t kNapNsMax = 300'000;
constexpr std::size_t kNapWorth = 256;
constexpr std::int64_t kSleepNsMax = 1'000'000'000;

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

DataThread::DataThread(const dataplane::SwitchSizes& sizes, transport::DataPath path, std::vector<std::uint8_t> ports,
                       std::chrono::microseconds spin, std::chrono::milliseconds answer_max, const std::string& name)
    : ports_(std::move(ports)),
      path_(std::move(path)),
      transport_(*path_.transport),
      plane_(sizes),
      spin_(spin),
      answer_max_(answer_max),
      burst_(kBurst),
      arrivals_(kBurst),
      moderator_(kNapNsMax, kNapNsMax),
      batch_(transport_, [this](const AnswerBatch::Route& route, std::size_t count, AnswerBatch::Receivers& receivers) {
        return receivers_of(route, count, receivers);
      }) {
  thread_ = process::start_thread(name, [this] { serve(); });
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
  if (answered_.wait_for(lock, answer_max_, [this] { return action_ == nullptr; })) {
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
    return;
  }
  action_ = nullptr;
  throw std::runtime_error("a data thread of the switch has not answered for " + std::to_string(answer_max_.count()) +
                           " ms: the machine is overloaded, or the process was suspended");
}

void DataThread::run_later(std::function<void()> action) {
  {
    const std::lock_guard lock(mutex_);
    later_.push_back(std::move(action));
    attention_.store(true, std::memory_order_release);
  }
  transport_.wake();
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
  bool any_answers = false;
  for (std::size_t i = 0; i < count; ++i) {
    arrivals_[i] = dataplane::read(burst_[i].source, ports_[burst_[i].port], burst_[i].bytes);
    any_answers |= dataplane::is_answer(arrivals_[i]);
  }
  if (any_answers) handle(count, true);
  handle(count, false);
  batch_.flush();
}

/// Handles the burst's answers of a parent, or all its other packets.
void DataThread::handle(std::size_t count, bool answers) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kPrefetchAhead < count) plane_.prefetch(arrivals_[i + kPrefetchAhead]);
    if (dataplane::is_answer(arrivals_[i]) != answers) continue;
    const dataplane::Decision decision = plane_.handle(arrivals_[i]);
    if (decision.verdict != dataplane::Verdict::kDrop && decision.verdict != dataplane::Verdict::kHold) {
      batch_.add(decision, burst_[i].port, burst_[i].marked);  // R3.22
    }
  }
}

std::size_t DataThread::receivers_of(const AnswerBatch::Route& route, std::size_t count,
                                     AnswerBatch::Receivers& receivers) noexcept {
  assert(plane_.find(route.job) != nullptr);  // jobs go between bursts, when no batch is open
  const dataplane::JobEntry& job = *plane_.find(route.job);
  const int thread = ports_[route.port] - job.port_offset;
  assert(thread >= 0 && thread < job.threads);  // the data plane admits no other
  const std::uint32_t everyone = plane_.receivers(route.job);
  std::size_t known = 0;
  const auto add = [&](wire::Endpoint base) {
    receivers[known++] = {base.address, static_cast<std::uint16_t>(base.port + thread)};  // R2.2, R3.27
  };
  if (route.receiver == wire::kParent) {
    add(job.uplink.parent);  // R8.1
  } else if (route.receiver == wire::kEveryone && job.results_group.port != 0) {
    add(job.results_group);  // R3.28
  } else {
    for (std::uint8_t worker = 0; worker < job.workers; ++worker) {
      const wire::Endpoint base = job.endpoints[worker];
      const bool wanted = route.receiver == wire::kEveryone ? (everyone >> worker & 1u) != 0 : route.receiver == worker;
      if (wanted && base.port != 0) add(base);
    }
    // Receivers without a known address get no copy.
    unaddressed_ += count * ((route.receiver == wire::kEveryone ? job.workers : std::size_t{1}) - known);
  }
  return known;
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

/// Runs the posted requests. False if the thread is to end.
bool DataThread::attend() noexcept {
  const std::lock_guard lock(mutex_);
  attention_.store(false, std::memory_order_relaxed);
  for (const std::function<void()>& action : later_) action();
  later_.clear();
  if (action_ != nullptr) {
    try {
      (*action_)();
    } catch (...) {
      thrown_ = std::current_exception();
    }
    action_ = nullptr;
    answered_.notify_one();
  }
  return !stopping_;
}

}  // namespace wiresum::soft_switch
