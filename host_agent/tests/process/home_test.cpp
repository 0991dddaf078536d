#include "process/home.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "patience.hpp"

namespace wiresum::process {
namespace {

/// Runs `in_child` in a forked child, which is killed if it hangs. Returns its exit status; negative: the number of the
/// signal that killed it.
int forked(const std::function<int()>& in_child) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(static_cast<unsigned>(kPatience.count()));
    _exit(in_child());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

struct Counted {
  explicit Counted(int& destroyed) : destroyed_(destroyed) {}
  ~Counted() { ++destroyed_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  int& destroyed_;
};

TEST(Home, IsHereInTheProcessThatMadeItOnly) {
  const Home home;
  EXPECT_TRUE(home.is_here());
  EXPECT_EQ(forked([&] {
              const Home own;
              const int grandchild = forked([&] { return home.is_here() || own.is_here() ? 1 : 0; });
              return home.is_here() || !own.is_here() || grandchild != 0 ? 1 : 0;
            }),
            0);
  EXPECT_TRUE(home.is_here()) << "the parent is unchanged";
}

TEST(Owned, IsDestroyedInItsProcessAndNotInAForkedChild) {
  int destroyed = 0;
  Owned<Counted> owned(new Counted(destroyed));
  EXPECT_EQ(forked([&] {
              owned.reset();
              return destroyed;
            }),
            0);
  owned.reset();
  EXPECT_EQ(destroyed, 1);
}

TEST(AtHome, AForkedChildSurvivesDroppingAConditionVariableThatTheParentWaitsFor) {
  auto condition = std::make_unique<AtHome<std::condition_variable>>();
  std::mutex mutex;
  bool waits = false;
  bool over = false;
  std::thread waiter([&] {
    std::unique_lock lock(mutex);
    waits = true;
    (*condition)->wait(lock, [&] { return over; });
  });
  for (bool ready = false; !ready; std::this_thread::yield()) {
    const std::lock_guard lock(mutex);
    ready = waits;
  }
  EXPECT_EQ(forked([&] {
              condition.reset();  // would wait for the waiter for ever, if it were destroyed
              return 0;
            }),
            0);
  {
    const std::lock_guard lock(mutex);
    over = true;
  }
  (*condition)->notify_all();
  waiter.join();
}

}  // namespace
}  // namespace wiresum::process
