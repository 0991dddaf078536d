// An engine in its process: in a forked child, and with too few threads.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "few_threads.hpp"
#include "rig.hpp"
#include "sleeping.hpp"

namespace wiresum::engine {
namespace {

using worker::Status;

#ifdef __SANITIZE_THREAD__
// ThreadSanitizer has its own thread, and allows no threads in forked children.
constexpr bool kMayCountThreads = false;
#else
constexpr bool kMayCountThreads = true;
#endif

/// Forks a child that exits normally with the status that `in_child` returns, and is killed if it hangs.
pid_t forked(const std::function<int()>& in_child) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(static_cast<unsigned>(kPatience.count()));
    std::exit(in_child());
  }
  return child;
}

/// The child's exit status; negative: the number of the signal that killed it.
int status_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

template <typename Call>
bool refuses(const Call& call) {
  try {
    call();
  } catch (const std::runtime_error&) {
    return true;
  }
  return false;
}

std::size_t entries_of(const char* folder) {
  DIR* const open = opendir(folder);
  std::size_t count = 0;
  while (readdir(open) != nullptr) ++count;
  closedir(open);
  return count;
}

// The parent's threads wait in every way that they can meanwhile.
TEST(EngineInAForkedChild, InheritedObjectsAreRefusedAndDestroyedWhileTheParentGoesOn) {
  auto job = std::make_unique<Job>(2, 2);
  std::vector<std::int32_t> values(100'000, 1);
  std::vector<std::int32_t> others(100'000, 2);
  std::shared_ptr<Operation> lonely = submit_sum((*job)[0], values);  // the other worker submits later
  std::atomic<int> ready{0};
  std::thread taker([&] {
    ++ready;
    static_cast<void>((*job)[1].take_completed(kPatience));
  });
  std::thread waiter([&ready, operation = lonely.get()] {
    ++ready;
    EXPECT_TRUE(operation->wait(kPatience));
  });
  while (ready.load() != 2) std::this_thread::yield();
  process::await_sleep_of_other_threads();

  const pid_t child = forked([&] {
    Engine& engine = (*job)[0];
    const bool refused = refuses([&] { static_cast<void>(submit_sum(engine, values)); }) &&
                         refuses([&] { static_cast<void>(engine.stats()); }) &&
                         refuses([&] { static_cast<void>(lonely->wait(kPatience)); }) && !engine.is_usable();
    engine.abort();
    engine.close();
    lonely.reset();
    job.reset();
    return refused ? 0 : 1;
  });
  EXPECT_EQ(status_of(child), 0);

  const auto last = submit_sum((*job)[1], others);
  ASSERT_TRUE(last->wait(kPatience));
  EXPECT_EQ(last->status(), Status::kOk);
  taker.join();
  waiter.join();
  EXPECT_EQ(values, std::vector<std::int32_t>(values.size(), 3));
}

TEST(EngineInAForkedChild, ANewEngineMayBeMade) {
  if (!kMayCountThreads) GTEST_SKIP() << "ThreadSanitizer counts among the threads";
  const Job job(1, 1);
  // A lock of AddressSanitizer's allocator that some thread holds during the fork stays locked in the child, where
  // starting a thread allocates.
  process::await_sleep_of_other_threads();
  EXPECT_EQ(status_of(forked([] {
              Job own(1, 2);
              std::vector<std::int32_t> values(1000, 1);
              const auto sum = submit_sum(own[0], values);
              return sum->wait(kPatience) && sum->status() == Status::kOk ? 0 : 1;
            })),
            0);
}

/// The error of `make` in a process that may have this many more threads, or an empty string.
std::string refusal(rlim_t threads, const std::function<void()>& make) {
  std::array<int, 2> channel{};
  EXPECT_EQ(pipe(channel.data()), 0);
  const pid_t child = forked([&]() -> int {
    process::allow_threads(1 + threads);
    const std::size_t descriptors = entries_of("/proc/self/fd");
    std::string text;
    try {
      make();
    } catch (const std::system_error& error) {
      text = error.what();
    }
    if (entries_of("/proc/self/fd") != descriptors) text += " (descriptors are left)";
    if (entries_of("/proc/self/task") != 3) text += " (threads are left)";  // this thread, ".", ".."
    // Skips the leak check at exit, which needs a thread.
    _exit(write(channel[1], text.data(), text.size()) < 0 ? 2 : 0);
  });
  close(channel[1]);
  std::string text;
  std::array<char, 1024> part{};
  for (ssize_t count = 0; (count = read(channel[0], part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(count));
  }
  close(channel[0]);
  EXPECT_EQ(status_of(child), 0) << "with " << threads << " threads";
  return text;
}

/// `make` starts these threads in turn: without one of them it names that one, and leaves nothing behind.
void expect_refusals(const std::vector<std::string>& names, const std::function<void()>& make) {
  for (std::size_t threads = 0; threads < names.size(); ++threads) {
    const std::string text = refusal(threads, make);
    EXPECT_NE(text.find("cannot start " + names[threads]), std::string::npos) << text;
    EXPECT_NE(text.find("this user may have " + std::to_string(threads + 1) + " threads"), std::string::npos) << text;
    EXPECT_EQ(text.find("are left"), std::string::npos) << text;
  }
  EXPECT_EQ(refusal(names.size(), make), "");
}

TEST(EngineWithFewThreads, NamesTheThreadThatItCouldNotStartAndLeavesNone) {
  if (!kMayCountThreads) GTEST_SKIP() << "ThreadSanitizer counts among the threads";
  constexpr unsigned kThreads = 4;
  const auto make = [] {
    EngineConfig config;
    AggregatorConfig& aggregator = config.aggregators.emplace_back();
    aggregator.threads = kThreads;
    aggregator.worker.lanes = kLanes;
    aggregator.worker.slots = kSlots;
    aggregator.switch_endpoint = {.address = kLoopback, .port = 9};
    std::vector<std::vector<transport::UdpSocket>> sockets;
    sockets.push_back(transport::bind_consecutive({.address = kLoopback, .port = 0}, kThreads));
    const Engine engine(config, std::move(sockets));
  };
  expect_refusals({"engine thread 1 of 4", "engine thread 2 of 4", "engine thread 3 of 4", "engine thread 4 of 4",
                   "the thread for tasks"},
                  make);
}

TEST(SwitchServerWithFewThreads, NamesTheThreadThatItCouldNotStartAndLeavesNone) {
  if (!kMayCountThreads) GTEST_SKIP() << "ThreadSanitizer counts among the threads";
  constexpr unsigned kThreads = 3;
  const auto make = [] {
    const soft_switch::SwitchServer server({.local = {.address = kLoopback, .port = 0},
                                            .ports = kThreads,
                                            .threads = kThreads,
                                            .sizes = {.slots = 64, .lanes_max = kLanes, .jobs_max = 8},
                                            .transport = {}});
  };
  expect_refusals(
      {"data thread 1 of 3 of the switch", "data thread 2 of 3 of the switch", "data thread 3 of 3 of the switch"},
      make);
}

}  // namespace
}  // namespace wiresum::engine
