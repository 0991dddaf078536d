// One thread of an engine over a socket that receives nothing.
#include "engine/engine_thread.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "around.hpp"
#include "rig.hpp"
#include "transport/open.hpp"
#include "transport/udp/socket.hpp"

namespace wiresum::engine {
namespace {

using namespace std::chrono_literals;

/// True if the calling thread's SSE unit rounds to nearest: fegetround() tells of the x87 unit.
bool rounds_to_nearest() {
  const volatile float one = 1;
  const volatile float little = 0x1p-30F;
  return one + little == one && -one - little == -one;
}

/// The test's view of the driver.
struct Seen {
  std::atomic<int> looks{0};     // looks at the transport
  std::atomic<pid_t> thread{0};  // the last thread that looked
  std::atomic<bool> rounds_to_nearest{false};
};

class Watching final : public stress::Around {
 public:
  Watching(std::unique_ptr<transport::Transport> inner, Seen& seen, TimeNs untended_ns_max)
      : Around(std::move(inner)), seen_(seen), untended_ns_max_(untended_ns_max) {}
  [[nodiscard]] std::int64_t untended_ns_max() const noexcept override { return untended_ns_max_; }
  [[nodiscard]] std::size_t receive(std::span<transport::RxDatagram> out) noexcept override {
    seen_.thread.store(gettid());
    seen_.rounds_to_nearest.store(rounds_to_nearest());
    ++seen_.looks;
    return Around::receive(out);
  }

 private:
  Seen& seen_;
  const TimeNs untended_ns_max_;
};

/// The number of times that a thread of this process has gone to sleep.
long sleeps_of(pid_t thread) {
  std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
  const std::string name = "voluntary_ctxt_switches:";
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) return std::stol(line.substr(name.size()));
  }
  return 0;
}

struct Stopping {
  void operator()(EngineThread* thread) const {
    thread->stop();
    delete thread;
  }
};
using Started = std::unique_ptr<EngineThread, Stopping>;

class EngineThreadTest : public testing::Test {
 protected:
  Started start(std::int64_t park_ns_max) {
    transport::Spec spec;
    spec.around = [=, this](auto inner) { return std::make_unique<Watching>(std::move(inner), seen_, park_ns_max); };
    transport::PathConfig place;
    place.address = kLoopback;
    std::vector<transport::DataPath> paths =
        transport::open_for_threads(spec, place, transport::bind_consecutive({.address = kLoopback, .port = 0}, 1), 1);
    EngineThreadConfig config;
    config.name = "the thread";
    Started thread(new EngineThread(
        std::move(config), std::move(paths.front()),
        EngineThread::Hooks{.on_completion = [](const worker::Completion&) {}, .on_look_around = nullptr}));
    thread->start();
    return thread;
  }

  /// Waits until the transport is looked at again, unless the time is over.
  void await_look() const {
    const int before = seen_.looks.load();
    while (seen_.looks.load() == before && !is_over()) std::this_thread::sleep_for(100us);
  }

  /// Calls drive(submit) until the thread is parked and lets the caller drive.
  static void drive_once(EngineThread& thread, const std::function<std::shared_ptr<Operation>()>& submit) {
    while (thread.drive(submit) == nullptr) std::this_thread::yield();
  }

  static std::shared_ptr<Operation> done() {
    auto operation = std::make_shared<Operation>(1, 1, true);
    EXPECT_TRUE(operation->end(worker::Status::kOk));
    return operation;
  }

  [[nodiscard]] bool is_over() const { return std::chrono::steady_clock::now() > until_; }

  /// More than a thread can have in the time if it parks for a second each time.
  static constexpr int kLooks = 50;
  static constexpr TimeNs kParkNs = 1'000'000;
  static constexpr TimeNs kParkForEverNs = 3'600'000'000'000;
  Seen seen_;
  const std::chrono::steady_clock::time_point until_ = std::chrono::steady_clock::now() + kPatience;
};

TEST_F(EngineThreadTest, LooksAtItsTransportAgainAfterTheLongestParking) {
  const Started thread = start(kParkNs);
  for (int i = 0; i != kLooks; ++i) await_look();
  EXPECT_FALSE(is_over());
}

TEST_F(EngineThreadTest, LooksAtItsTransportSoonAfterACallerHasDriven) {
  const Started thread = start(kParkNs);
  const std::shared_ptr<Operation> operation_done = done();
  for (int driven = 0; driven != kLooks && !is_over();) {
    const auto operation = thread->drive([&] {
      std::this_thread::sleep_for(5ms);  // the thread waits for the caller meanwhile
      return operation_done;
    });
    if (operation == nullptr) continue;
    await_look();
    ++driven;
  }
  EXPECT_FALSE(is_over());
}

TEST_F(EngineThreadTest, LeavesItsShardToACallerAlsoWhenItsParkingEnds) {
  const Started thread = start(kParkNs);
  await_look();
  const pid_t driver = seen_.thread.load();
  drive_once(*thread, [&] {
    const int looks = seen_.looks.load();
    // The driver sleeps again each time that its parking ends.
    const long sleeps = sleeps_of(driver);
    while (sleeps_of(driver) < sleeps + 3 && !is_over()) std::this_thread::yield();
    EXPECT_EQ(seen_.looks.load(), looks) << "the shard is the caller's";
    return done();
  });
  EXPECT_FALSE(is_over());
}

TEST_F(EngineThreadTest, DoesWhatWasPostedWhileACallerDrove) {
  const Started thread = start(kParkForEverNs);
  drive_once(*thread, [&] {
    thread->post_halt();
    return done();  // the caller hands back without a look at the mail
  });
  EXPECT_EQ(thread->await_positions().size(), worker::WorkerConfig{}.slots);
}

TEST_F(EngineThreadTest, ACallerDrivesInTheDefaultFloatingPointEnvironment) {
  const Started thread = start(kParkForEverNs);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  drive_once(*thread, [&] {
    EXPECT_TRUE(rounds_to_nearest()) << "while it submits";
    thread->post_halt();
    return std::make_shared<Operation>(1, 1, true);  // there is mail, and it is not done
  });
  EXPECT_FALSE(rounds_to_nearest()) << "its mode is as it was";
  ASSERT_EQ(std::fesetround(FE_TONEAREST), 0);
  EXPECT_EQ(thread->await_positions().size(), worker::WorkerConfig{}.slots);
  EXPECT_EQ(seen_.thread.load(), gettid());
  EXPECT_TRUE(seen_.rounds_to_nearest.load()) << "while it drives";
}

}  // namespace
}  // namespace wiresum::engine
