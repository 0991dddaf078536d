// No wake-up is lost, whichever way a thread that goes to sleep and a thread that wakes it interleave. The first thread
// is stopped at one of its instructions, the second does everything that it does to wake it, and the first goes on;
// this is repeated for each instruction between one sleep and the next. Stopping the waking thread instead adds nothing
// as long as it leaves its message before it checks who sleeps, which the tests at the end show. A sleeper in these
// tests does not wake up by itself, so a lost wake-up is noticed.
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "around.hpp"
#include "data_thread.hpp"
#include "engine/engine.hpp"
#include "patience.hpp"
#include "server.hpp"
#include "stepping.hpp"

namespace wiresum::stress {
namespace {

using namespace std::chrono_literals;
using engine::AggregatorConfig;
using engine::Engine;
using engine::EngineConfig;
using engine::Operation;
using engine::Request;
using worker::Status;

constexpr std::uint32_t kLoopback = 0x7F000001;
constexpr std::uint16_t kLanes = 8;
constexpr std::uint32_t kSlots = 64;

/// True if this thread waits for a condition variable without a time limit, like the thread for tasks alone.
thread_local bool does_tasks = false;
std::atomic<std::uint64_t> waits{0};  // the number of such waits
/// The thread for tasks pauses before it takes a lock, and between its check for tasks and its sleep.
std::atomic<bool> dawdles{false};
std::atomic<std::uint64_t> dawdled{0};

void dawdle() {
  if (!does_tasks || !dawdles.load()) return;
  ++dawdled;
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// A sleep of an engine thread for a condition, which ends only by a wake-up.
struct Nap {
  std::atomic<pthread_cond_t*> condition{nullptr};
  pthread_mutex_t* mutex = nullptr;
  bool is_poked = false;
  std::function<void()> on_end{};
};
thread_local Nap* nap_without_end = nullptr;
/// This thread's action after it has ended another's nap.
thread_local std::function<void()> after_notify;

template <typename Condition>
[[nodiscard]] bool comes_true(const Condition& condition) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

/// A thread's transport that the test observes and controls.
class Watched final : public Around {
 public:
  using Around::Around;

  // Called by the test.
  [[nodiscard]] bool is_asleep() const { return asleep_.load() || is_napping(); }
  [[nodiscard]] std::uint64_t receives() const { return receives_.load(); }
  [[nodiscard]] bool is_napping() const { return nap_.condition.load() != nullptr; }
  /// True if the thread has reached the place from which its instructions are counted.
  [[nodiscard]] bool is_counted() const { return stop_after_.load() < 0; }
  /// The start of counting, which ends at the next receive() or the next sleep.
  enum class From : std::uint8_t {
    kWakeUp,      // until receive(): the thread takes its mail
    kReceive,     // from receive() until the thread sleeps
    kStatistics,  // from the statistics, which an engine thread writes before it sleeps, until the sleep
    kReport       // from the statistics before it reports operations that datagrams have completed
  };
  /// The thread is stopped after so many instructions from there, if it executes so many.
  void stop_after(std::int64_t steps, From from) {
    from_.store(from);
    stop_after_.store(steps);
  }
  /// Wakes the thread without a reason.
  void poke() noexcept {
    pthread_cond_t* const condition = nap_.condition.load();
    if (condition == nullptr) {
      Around::wake();
      return;
    }
    pthread_mutex_lock(nap_.mutex);  // until it sleeps
    nap_.is_poked = true;
    pthread_cond_broadcast(condition);
    pthread_mutex_unlock(nap_.mutex);
  }
  /// Makes wake() release the stopped thread.
  bool releases = false;
  /// Makes wake() return only when the thread sleeps again, or after a short time.
  bool dawdles = false;
  /// Delivers meaningless datagrams at a steady rate, so that the thread takes naps.
  void send_garbage() { garbage_.store(true); }

  // Called by the thread under test.
  [[nodiscard]] std::size_t receive(std::span<transport::RxDatagram> out) noexcept override {
    stepping::end();
    ++receives_;
    if (pthread_equal(pthread_self(), test_) == 0) {
      nap_.on_end = [this] { begin_to_step(From::kWakeUp); };
      nap_without_end = &nap_;
    }
    if (!garbage_.load()) {
      const std::size_t count = Around::receive(out);
      has_datagrams_ |= count != 0;
      begin_to_step(From::kReceive);
      return count;
    }
    const auto now = std::chrono::steady_clock::now();
    if (now < garbage_due_) return 0;
    garbage_due_ = now + 100us;
    static constexpr std::array<std::byte, 8> kGarbage{};
    for (transport::RxDatagram& datagram : out.first(kGarbageBurst)) datagram = {.bytes = kGarbage, .source = {}};
    garbage_stats_.messages_received += kGarbageBurst;
    return kGarbageBurst;
  }
  [[nodiscard]] const transport::TransportStats& stats() const noexcept override {
    return garbage_.load() ? garbage_stats_ : Around::stats();
  }
  /// The last call that a thread makes for its statistics.
  [[nodiscard]] int take_error() noexcept override {
    const int error = Around::take_error();
    begin_to_step(std::exchange(has_datagrams_, false) ? From::kReport : From::kStatistics);
    return error;
  }
  void wait(std::int64_t timeout_ns) noexcept override {
    stepping::end();
    if (garbage_.load()) return;
    asleep_.store(true);
    wait_without_looking_around(timeout_ns);
    asleep_.store(false);
    begin_to_step(From::kWakeUp);
  }
  void wake() noexcept override {
    const std::uint64_t receives_before = receives_.load();
    Around::wake();
    if (releases) stepping::released.store(true);
    if (dawdles) dawdle(receives_before);
  }
  /// Waits until the thread has received since, and sleeps again, or for a short time.
  void dawdle(std::uint64_t receives_before) const {
    const auto until = std::chrono::steady_clock::now() + 1ms;
    while ((receives_.load() == receives_before || !is_asleep()) && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
  }

 private:
  static constexpr std::size_t kGarbageBurst = 8;

  void begin_to_step(From from) {
    if (from != from_.load()) return;
    if (const std::int64_t steps = stop_after_.exchange(-1); steps >= 0) stepping::begin(steps);
  }

  bool has_datagrams_ = false;  // since the last statistics
  std::atomic<From> from_{From::kWakeUp};
  std::atomic<bool> asleep_{false};
  std::atomic<std::uint64_t> receives_{0};
  std::atomic<std::int64_t> stop_after_{-1};
  std::atomic<bool> garbage_{false};
  Nap nap_;
  const pthread_t test_ = pthread_self();  // a caller may drive, too
  std::chrono::steady_clock::time_point garbage_due_{};
  transport::TransportStats garbage_stats_;
};

using From = Watched::From;

#define WIRESUM_STEPS_OR_SKIP() \
  if (!stepping::kAvailable) GTEST_SKIP() << "a thread's instructions are not stepped through here"

/// Wakes the sleeping thread by `poke`, and stops it after so many instructions. Returns false if it executed fewer.
bool stop(Watched& watched, From from, std::int64_t steps, const std::function<void()>& poke) {
  EXPECT_TRUE(comes_true([&] { return watched.is_asleep(); }));
  const std::uint64_t receives = watched.receives();
  watched.stop_after(steps, from);
  stepping::stopped.store(false);
  poke();
  EXPECT_TRUE(comes_true([&] {
    return stepping::stopped.load() || (watched.receives() != receives && watched.is_asleep());
  })) << steps;
  return stepping::stopped.load();
}

/// Instruction counts at which to stop the thread, so that every instruction between the two places is tried, or the
/// first `steps_max` of them. Skips some if there are many.
std::vector<std::int64_t> moments(Watched& watched, From from, const std::function<void()>& poke,
                                  std::int64_t steps_max = INT64_MAX) {
  constexpr std::int64_t kMomentsMax = 250;
  EXPECT_FALSE(stop(watched, from, 0, poke));
  const std::int64_t way = std::min(steps_max, stepping::steps_taken.load());
  std::vector<std::int64_t> all;
  for (std::int64_t steps = 1; steps <= way; steps += 1 + way / kMomentsMax) all.push_back(steps);
  EXPECT_GT(all.size(), 5U);
  return all;
}

/// Stops the thread at each of these moments, at which another thread runs `act`.
void at_each_moment(Watched& watched, From from, const std::function<void()>& poke, const std::function<void()>& act,
                    std::int64_t steps_max = INT64_MAX) {
  std::size_t stops = 0;
  const std::vector<std::int64_t> all = moments(watched, from, poke, steps_max);
  for (const std::int64_t moment : all) {
    if (testing::Test::HasFailure()) return;
    if (!stop(watched, from, moment, poke)) continue;
    ++stops;
    act();
    stepping::released.store(true);
  }
  EXPECT_GT(stops, 5U);
}

class WakeUp : public testing::Test {
 protected:
  WakeUp() {
    stepping::install();
    overslept.store(0);
  }
  ~WakeUp() override { EXPECT_EQ(overslept.load(), 0); }
};

/// A job with one real worker, of one thread, and possibly others that do not exist.
class WakeUpOfAnEngine : public WakeUp {
 protected:
  void begin(std::uint8_t workers = 1) {
    engine_.reset();
    if (!server_) {
      soft_switch::ServerConfig config;
      config.local = {.address = kLoopback, .port = 0};
      config.ports = config.threads = 1;
      config.sizes = {.slots = kSlots, .lanes_max = kLanes, .jobs_max = 1};
      server_ = std::make_unique<soft_switch::SwitchServer>(config);
    }
    std::vector<std::vector<transport::UdpSocket>> sockets(1);
    sockets[0] = transport::bind_consecutive({.address = kLoopback, .port = 0}, 1);
    dataplane::JobEntry entry{
        .key = ++key_, .workers = workers, .lanes = kLanes, .slot_base = 0, .slots = kSlots, .endpoints = {}};
    for (std::uint8_t i = 0; i < workers; ++i) entry.endpoints[i] = sockets[0].front().local();
    server_->evict(0);
    server_->admit(entry);
    EngineConfig config;
    AggregatorConfig& at = config.aggregators.emplace_back();
    at.worker.key = key_;
    at.worker.workers = workers;
    at.worker.lanes = kLanes;
    at.worker.slots = kSlots;
    at.switch_endpoint = server_->local();
    config.transport.around = [this](std::unique_ptr<transport::Transport> inner) {
      auto watched = std::make_unique<Watched>(std::move(inner));
      watched_ = watched.get();
      return watched;
    };
    engine_ = std::make_unique<Engine>(config, std::move(sockets));
  }

  [[nodiscard]] std::shared_ptr<Operation> submit() { return engine_->submit(Request{}); }
  /// The request of a caller that drives while it waits.
  [[nodiscard]] Request waiting_request() {
    Request request;
    request.work.format = {.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone, .bits = 32};
    auto* const memory = reinterpret_cast<std::byte*>(&word_);
    request.work.regions = {{.source = memory, .destination = memory, .elements = 1}};
    request.caller_waits = true;
    return request;
  }

  std::unique_ptr<soft_switch::SwitchServer> server_;
  std::unique_ptr<Engine> engine_;
  Watched* watched_ = nullptr;
  std::uint32_t key_ = 0;
  std::int32_t word_ = 1;
};

void expect_end(const std::shared_ptr<Operation>& operation) {
  EXPECT_TRUE(operation->wait(kPatience)) << "its mail was lost";
  if (operation->done()) {
    EXPECT_EQ(operation->status(), Status::kOk);
  }
}

TEST_F(WakeUpOfAnEngine, MailAtAnyMomentBeforeASleepIsSeen) {
  WIRESUM_STEPS_OR_SKIP();
  begin();
  const auto poke = [&] { watched_->poke(); };
  at_each_moment(*watched_, From::kStatistics, poke, [&] { expect_end(submit()); });
}

TEST_F(WakeUpOfAnEngine, ACallerThatWaitsAtAnyMomentBeforeASleepDrivesOrIsServed) {
  WIRESUM_STEPS_OR_SKIP();
  begin();
  const auto poke = [&] { watched_->poke(); };
  at_each_moment(*watched_, From::kStatistics, poke, [&] { expect_end(engine_->submit(waiting_request())); });
}

TEST_F(WakeUpOfAnEngine, MailAtAnyMomentBeforeACallerHandsBackIsSeen) {
  WIRESUM_STEPS_OR_SKIP();
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "how many instructions a call takes varies with AddressSanitizer, and the last ones are tried";
#endif
  begin();
  constexpr std::int64_t kLast = 300;  // instructions; it hands back in some of them
  constexpr int kTries = 20;           // of each, since the other thread may be too late
  int in_time = 0;
  // Again if a call took more instructions when they were counted than it takes now.
  for (int attempt = 0; attempt < 10 && in_time <= 5 && !HasFailure(); ++attempt) {
    std::int64_t way = 0;
    for (int i = 0; i < 2; ++i) {  // the first time, the linker looks functions up
      ASSERT_TRUE(comes_true([&] { return watched_->is_napping(); }));
      watched_->stop_after(0, From::kReport);
      expect_end(engine_->submit(waiting_request()));
      way = stepping::end();
    }
    int tries = 0;
    for (std::int64_t steps = std::max<std::int64_t>(1, way - kLast); !HasFailure();) {
      ASSERT_TRUE(comes_true([&] { return watched_->is_napping(); }));
      stepping::stopped.store(false);
      std::shared_ptr<Operation> other;
      std::atomic<bool> is_back{false};
      std::thread poster([&] {
        ASSERT_TRUE(comes_true([&] { return stepping::stopped.load() || is_back.load(); }));
        other = submit();
        stepping::released.store(true);
      });
      watched_->stop_after(steps, From::kReport);
      const std::shared_ptr<Operation> own = engine_->submit(waiting_request());
      stepping::end();
      const bool has_stopped = stepping::stopped.load();
      const bool was_in_time = stepping::released.load();
      is_back.store(true);
      poster.join();
      expect_end(own);
      expect_end(other);
      in_time += was_in_time ? 1 : 0;
      if (!was_in_time && ++tries != kTries) continue;
      if (!has_stopped) break;  // each time: it takes fewer instructions
      tries = 0;
      ++steps;
    }
  }
  EXPECT_GT(in_time, 5);
}

TEST_F(WakeUpOfAnEngine, MailWhileOtherMailIsTakenIsSeen) {
  WIRESUM_STEPS_OR_SKIP();
  begin();
  std::shared_ptr<Operation> first;
  const auto act = [&] {
    const std::shared_ptr<Operation> second = submit();
    stepping::released.store(true);
    expect_end(first);
    expect_end(second);
  };
  // Handling the mail after it was taken is long and does not check for new mail, so it is not stepped through.
  constexpr std::int64_t kTakingMax = 400;
  at_each_moment(*watched_, From::kWakeUp, [&] { first = submit(); }, act, kTakingMax);
}

TEST_F(WakeUpOfAnEngine, AnEndAtAnyMomentBeforeASleepIsSeen) {
  WIRESUM_STEPS_OR_SKIP();
  begin();
  const auto poke = [&] { watched_->poke(); };
  for (const std::int64_t moment : moments(*watched_, From::kStatistics, poke)) {
    if (HasFailure() || overslept.load() != 0) break;
    begin();
    static_cast<void>(stop(*watched_, From::kStatistics, moment, poke));
    engine_->close();  // would not return if the wake-up were lost
  }
}

TEST_F(WakeUpOfAnEngine, MailAtAnyMomentBeforeANapEndsTheNap) {
  WIRESUM_STEPS_OR_SKIP();
  begin(2);
  std::vector<std::int32_t> values(std::size_t{kLanes} * kSlots, 1);
  Request large;
  large.work.format = {.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone, .bits = 32};
  auto* const memory = reinterpret_cast<std::byte*>(values.data());
  large.work.regions = {{.source = memory, .destination = memory, .elements = values.size()}};
  static_cast<void>(engine_->submit(large));  // the length of a nap depends on what is in flight
  watched_->send_garbage();
  watched_->poke();
  int stops = 0;
  int naps = 0;  // consecutive naps that began before so many instructions
  for (std::int64_t steps = 1; naps < 10 && !HasFailure();
       steps += 3 + steps / 100) {  // going to sleep takes fewer instructions
    stepping::stopped.store(false);
    watched_->stop_after(steps, From::kStatistics);
    std::uint64_t receives = watched_->receives();
    static_cast<void>(submit());  // ends the previous nap
    ASSERT_TRUE(comes_true([&] {
      const bool naps_again = watched_->is_counted() && watched_->receives() != receives && watched_->is_napping();
      return stepping::stopped.load() || naps_again;
    })) << steps;
    naps = stepping::stopped.load() ? 0 : naps + 1;
    stops += stepping::stopped.load() ? 1 : 0;
    receives = watched_->receives();
    static_cast<void>(submit());
    stepping::released.store(true);
    EXPECT_TRUE(comes_true([&] { return watched_->receives() != receives; }))
        << "the nap goes on; mail came after " << steps << " instructions";
  }
  EXPECT_GT(stops, 20);
  engine_->abort();
}

TEST_F(WakeUpOfAnEngine, ATaskThatComesJustAfterTheThreadHasFoundNoneIsDone) {
  const std::uint64_t waits_before = waits.load();
  begin();
  ASSERT_TRUE(comes_true([&] { return waits.load() != waits_before; }));  // the thread for tasks is waiting
  constexpr std::size_t kBlocks = 200;
  constexpr std::uint64_t kPlaces = 12;  // at most so many pauses between two sleeps
  std::vector<float> source(kBlocks * kLanes);
  std::fill_n(source.begin(), kLanes, 1.0F);
  std::vector<std::vector<float>> sums(2);
  // An empty union makes the engine clear the sum, which is a task.
  const auto submit_sparse = [&](std::vector<float>& sum) {
    sum.assign(source.size(), 2.0F);
    Request sparse;
    sparse.work.may_be_sparse = true;
    sparse.work.regions = {{.source = reinterpret_cast<const std::byte*>(source.data()),
                            .destination = reinterpret_cast<std::byte*>(sum.data()),
                            .elements = source.size()}};
    return engine_->submit(sparse);
  };
  dawdles.store(true);
  for (std::uint64_t i = 0; i < 10 * kPlaces && !HasFailure(); ++i) {
    const std::uint64_t before = dawdled.load();
    const auto first = submit_sparse(sums[0]);
    const auto until = std::chrono::steady_clock::now() + 20ms;  // the thread may pause less often
    while (dawdled.load() < before + i % kPlaces && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    const auto second = submit_sparse(sums[1]);  // no later request would wake the thread
    expect_end(first);
    expect_end(second);
    EXPECT_GT(dawdled.load(), before);
    if (HasFailure()) break;
    for (const std::vector<float>& sum : sums) EXPECT_EQ(sum, source);
  }
  dawdles.store(false);
  engine_->close();
}

/// An idle data thread of a switch.
class WakeUpOfADataThread : public WakeUp {
 protected:
  void SetUp() override {
    // With several sockets, receive() polls them, and may consume a wake-up.
    std::vector<transport::UdpSocket> sockets = transport::bind_consecutive({.address = kLoopback, .port = 0}, 2);
    transport::DataPath path = std::move(transport::open_for_threads({}, {}, std::move(sockets), 1).front());
    auto watched = std::make_unique<Watched>(std::move(path.transport));
    watched_ = watched.get();
    path.transport = std::move(watched);
    const dataplane::SwitchSizes sizes{.slots = 8, .lanes_max = kLanes, .jobs_max = 1};
    thread_ =
        std::make_unique<soft_switch::DataThread>(sizes, std::move(path), std::vector<std::uint8_t>{0, 1}, 0us, 10s);
  }

  void ask() {
    bool ran = false;
    EXPECT_NO_THROW(thread_->run([&] { ran = true; }));
    EXPECT_TRUE(ran);
  }

  Watched* watched_ = nullptr;
  std::unique_ptr<soft_switch::DataThread> thread_;
};

TEST_F(WakeUpOfADataThread, ARequestAtAnyMomentBeforeASleepIsSeen) {
  WIRESUM_STEPS_OR_SKIP();
  watched_->releases = true;
  const auto poke = [&] { watched_->poke(); };
  at_each_moment(*watched_, From::kReceive, poke, [&] { ask(); });
}

TEST_F(WakeUpOfADataThread, ARequestAtAnyMomentAfterAWakeUpIsSeen) {
  WIRESUM_STEPS_OR_SKIP();
  watched_->releases = true;
  const auto poke = [&] { watched_->poke(); };
  at_each_moment(*watched_, From::kWakeUp, poke, [&] { ask(); });
}

TEST_F(WakeUpOfADataThread, ARequestAtAnyMomentAfterAnotherOneIsSeen) {
  WIRESUM_STEPS_OR_SKIP();
  watched_->releases = true;
  at_each_moment(*watched_, From::kReceive, [&] { ask(); }, [&] { ask(); });
}

TEST_F(WakeUpOfADataThread, AnEndAtAnyMomentBeforeASleepIsSeen) {
  WIRESUM_STEPS_OR_SKIP();
  const auto poke = [&] { watched_->poke(); };
  for (const std::int64_t moment : moments(*watched_, From::kReceive, poke)) {
    if (HasFailure() || overslept.load() != 0) break;
    SetUp();
    static_cast<void>(stop(*watched_, From::kReceive, moment, poke));
    thread_.reset();  // would not return if the wake-up were lost
  }
}

TEST_F(WakeUpOfADataThread, TheRequestIsThereBeforeTheWakeUp) {
  watched_->dawdles = true;
  for (int i = 0; i < 50 && !HasFailure(); ++i) {
    ASSERT_TRUE(comes_true([&] { return watched_->is_asleep(); }));
    ask();
  }
}

TEST_F(WakeUpOfAnEngine, TheMailIsThereBeforeTheWakeUp) {
  begin();
  int notified = 0;
  for (int i = 0; i < 50 && !HasFailure(); ++i) {
    ASSERT_TRUE(comes_true([&] { return watched_->is_napping(); }));
    after_notify = [&, receives_before = watched_->receives()] {
      ++notified;
      watched_->dawdle(receives_before);
    };
    const std::shared_ptr<Operation> operation = submit();
    after_notify = nullptr;
    expect_end(operation);
  }
  EXPECT_EQ(notified, 50);
}

}  // namespace
}  // namespace wiresum::stress

// The linker substitutes these for the waits of std::condition_variable, with and without a time limit, its
// notify_one(), and the lock of std::mutex.
extern "C" int __real_pthread_cond_clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
extern "C" int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                             const timespec* until) {
  wiresum::stress::Nap* const nap = wiresum::stress::nap_without_end;
  if (nap == nullptr) return __real_pthread_cond_clockwait(condition, mutex, clock, until);
  wiresum::stress::stepping::end();
  timespec much_later = *until;
  much_later.tv_sec += 30;
  nap->mutex = mutex;
  nap->condition.store(condition);
  const int result = __real_pthread_cond_clockwait(condition, mutex, clock, &much_later);
  nap->condition.store(nullptr);
  if (result == ETIMEDOUT && !nap->is_poked) ++wiresum::stress::overslept;
  nap->is_poked = false;
  nap->on_end();
  return result;
}

extern "C" void __real__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable*,
                                                                                 std::unique_lock<std::mutex>*);
extern "C" void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable* condition,
                                                                                 std::unique_lock<std::mutex>* lock) {
  wiresum::stress::does_tasks = true;
  ++wiresum::stress::waits;
  wiresum::stress::dawdle();
  __real__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(condition, lock);
}

extern "C" void __real__ZNSt18condition_variable10notify_oneEv(std::condition_variable*);
extern "C" void __wrap__ZNSt18condition_variable10notify_oneEv(std::condition_variable* condition) {
  __real__ZNSt18condition_variable10notify_oneEv(condition);
  if (wiresum::stress::after_notify) wiresum::stress::after_notify();
}

extern "C" int __real_pthread_mutex_lock(pthread_mutex_t*);
extern "C" int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  wiresum::stress::dawdle();
  return __real_pthread_mutex_lock(mutex);
}
