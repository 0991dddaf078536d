// One thread of an engine over a socket to which nobody sends.
#include "engine/engine_thread.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
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

class Counting final : public stress::Around {
 public:
  Counting(std::unique_ptr<transport::Transport> inner, std::atomic<int>& looks)
      : Around(std::move(inner)), looks_(looks) {}
  [[nodiscard]] std::size_t receive(std::span<transport::RxDatagram> out) noexcept override {
    ++looks_;
    return Around::receive(out);
  }

 private:
  std::atomic<int>& looks_;
};

class EngineThreadTest : public testing::Test {
 protected:
  std::unique_ptr<EngineThread> start(std::int64_t park_ns_max) {
    transport::Spec spec;
    spec.around = [this](auto inner) { return std::make_unique<Counting>(std::move(inner), looks_); };
    transport::PathConfig place;
    place.address = kLoopback;
    std::vector<transport::DataPath> paths =
        transport::open_for_threads(spec, place, transport::bind_consecutive({.address = kLoopback, .port = 0}, 1), 1);
    EngineThreadConfig config;
    config.name = "the thread";
    config.park_ns_max = park_ns_max;
    auto thread = std::make_unique<EngineThread>(
        std::move(config), std::move(paths.front()),
        EngineThread::Hooks{.on_completion = [](const worker::Completion&) {}, .on_look_around = nullptr});
    thread->start();
    return thread;
  }

  /// Waits until the transport is looked at again, unless the time is over.
  void await_look() const {
    const int before = looks_.load();
    while (looks_.load() == before && !is_over()) std::this_thread::sleep_for(100us);
  }

  [[nodiscard]] bool is_over() const { return std::chrono::steady_clock::now() > until_; }

  /// More than a thread can have in the time if it parks for a second each time.
  static constexpr int kLooks = 50;
  static constexpr TimeNs kParkNs = 1'000'000;
  std::atomic<int> looks_{0};
  const std::chrono::steady_clock::time_point until_ = std::chrono::steady_clock::now() + kPatience;
};

TEST_F(EngineThreadTest, LooksAtItsTransportAgainAfterTheLongestParking) {
  const std::unique_ptr<EngineThread> thread = start(kParkNs);
  for (int i = 0; i != kLooks; ++i) await_look();
  EXPECT_FALSE(is_over());
  thread->stop();
}

TEST_F(EngineThreadTest, LooksAtItsTransportSoonAfterACallerHasDriven) {
  const std::unique_ptr<EngineThread> thread = start(kParkNs);
  const auto done = std::make_shared<Operation>(1, 1, true);
  ASSERT_TRUE(done->end(worker::Status::kOk));
  for (int driven = 0; driven != kLooks && !is_over();) {
    const auto operation = thread->drive([&] {
      std::this_thread::sleep_for(5ms);  // the thread waits for the caller meanwhile
      return done;
    });
    if (operation == nullptr) continue;
    await_look();
    ++driven;
  }
  EXPECT_FALSE(is_over());
  thread->stop();
}

TEST(Parking, OverADeviceIsForMomentsAndOnlyForAThreadThatHasItToItself) {
  using transport::TransportKind;
  for (const unsigned threads : {1U, 2U, 8U}) EXPECT_GE(park_ns_max(TransportKind::kUdp, threads), 1'000'000'000);
  for (const TransportKind device : {TransportKind::kXdp, TransportKind::kDpdk}) {
    EXPECT_GT(park_ns_max(device, 1), 0);
    EXPECT_LE(park_ns_max(device, 1), 10'000'000) << "the first repetition of an ARP request";
    EXPECT_EQ(park_ns_max(device, 2), 0);
  }
}

}  // namespace
}  // namespace wiresum::engine
