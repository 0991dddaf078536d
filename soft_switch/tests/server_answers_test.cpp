// Jobs when a data thread of the switch does not answer in time. The thread is really stopped, by a signal that threads
// do not block, whose handler waits.
#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "server.hpp"

namespace wiresum::soft_switch {
namespace {

using dataplane::JobEntry;

constexpr unsigned kThreads = 3;
constexpr std::uint16_t kLanes = 16;
constexpr std::uint16_t kJob = 1;
constexpr std::chrono::milliseconds kAnswerMax{300};

std::array<int, 2> release_channel{-1, -1};
std::atomic<int> stopped{0};

void wait_for_release(int /*signal*/) {
  stopped.fetch_add(1);
  char byte = 0;
  while (read(release_channel[0], &byte, 1) != 1) {
  }
}

std::set<pid_t> threads_of_process() {
  std::set<pid_t> found;
  DIR* const open = opendir("/proc/self/task");
  while (const dirent* const entry = readdir(open)) {
    if (const pid_t id = std::atoi(static_cast<const char*>(entry->d_name)); id != 0) found.insert(id);
  }
  closedir(open);
  return found;
}

class UnansweredSwitch : public testing::Test {
 protected:
  UnansweredSwitch() {
    EXPECT_EQ(pipe(release_channel.data()), 0);
    struct sigaction action{};
    action.sa_handler = &wait_for_release;
    sigaction(SIGTRAP, &action, nullptr);
    const std::set<pid_t> before = threads_of_process();
    ServerConfig config;
    config.local = {.address = 0x7F000001, .port = 0};
    config.ports = kThreads;
    config.threads = kThreads;
    config.sizes = {.slots = 64, .lanes_max = kLanes, .jobs_max = 4};
    config.answer_max = kAnswerMax;
    server_ = std::make_unique<SwitchServer>(config);
    for (const pid_t id : threads_of_process()) {
      if (!before.contains(id)) threads_.push_back(id);
    }
    EXPECT_EQ(threads_.size(), kThreads);
    entry_.job = kJob;
    entry_.key = 7;
    entry_.workers = 2;
    entry_.threads = 2;
    entry_.lanes = kLanes;
    entry_.slots = 16;
    for (std::uint16_t i = 0; i < 2; ++i) {
      entry_.endpoints[i] = {.address = 0x7F000001, .port = static_cast<std::uint16_t>(9 + 16 * i)};
      admission_.sources[i] = entry_.endpoints[i];
    }
    for (unsigned thread = 0; thread < entry_.threads; ++thread) admission_.contributors[thread] = 0b11;
    admission_.receivers = 0b11;
  }
  ~UnansweredSwitch() override {
    release();
    server_.reset();
    for (const int end : release_channel) close(end);
  }

  /// Stops data thread number `index` until release().
  void stop(std::size_t index) {
    const int before = stopped.load();
    ASSERT_EQ(syscall(SYS_tgkill, getpid(), threads_[index], SIGTRAP), 0);
    while (stopped.load() == before) std::this_thread::yield();
    ++unreleased_;
  }
  void release() {
    for (; unreleased_ > 0; --unreleased_) EXPECT_EQ(write(release_channel[1], "r", 1), 1);
  }

  template <typename Call>
  static std::string error_of(const Call& call) {
    try {
      call();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }

  std::unique_ptr<SwitchServer> server_;
  std::vector<pid_t> threads_;
  JobEntry entry_;
  dataplane::Admission admission_;
  int unreleased_ = 0;
};

TEST_F(UnansweredSwitch, AnAdmissionIsTakenBackFromAllThreadsIfOneDoesNotAnswer) {
  for (std::size_t silent = 0; silent < kThreads; ++silent) {
    stop(silent);
    EXPECT_NE(error_of([&] { server_->admit(entry_); }).find("has not answered"), std::string::npos);
    release();
    EXPECT_FALSE(server_->evict(kJob)) << "some thread has it, though " << silent << " was silent";
  }
  server_->admit(entry_);
  EXPECT_TRUE(server_->evict(kJob));
}

TEST_F(UnansweredSwitch, AChangedJobIsRemovedFromAllThreadsIfOneDoesNotAnswer) {
  for (std::size_t silent = 0; silent < kThreads; ++silent) {
    server_->configure(entry_, admission_);
    stop(silent);
    EXPECT_NE(error_of([&] { server_->configure(entry_, admission_); }).find("has not answered"), std::string::npos);
    release();
    const bool is_kept = silent == 0;  // thread 0 is asked first whether the change is valid, so nothing was changed
    EXPECT_EQ(server_->evict(kJob), is_kept) << "silent: " << silent;
  }
}

TEST_F(UnansweredSwitch, AThreadThatStopsDuringAnAdmissionForgetsTheJobLater) {
  stop(2);
  std::string error;
  std::thread caller([&] { error = error_of([&] { server_->admit(entry_); }); });
  std::this_thread::sleep_for(kAnswerMax / 3);  // long enough for the other threads to get the job, most likely
  stop(1);
  caller.join();
  EXPECT_NE(error.find("has not answered"), std::string::npos) << error;
  EXPECT_NE(error.find("the others forget it"), std::string::npos) << error;
  release();
  EXPECT_FALSE(server_->evict(kJob));
}

TEST_F(UnansweredSwitch, AnEvictedJobIsRemovedFromAllThreadsEvenIfOneDoesNotAnswer) {
  for (std::size_t silent = 0; silent < kThreads; ++silent) {
    server_->admit(entry_);
    stop(silent);
    EXPECT_NE(error_of([&] { static_cast<void>(server_->evict(kJob)); }).find("has not answered"), std::string::npos);
    release();
    EXPECT_FALSE(server_->evict(kJob)) << "some thread has it, though " << silent << " was silent";
  }
}

}  // namespace
}  // namespace wiresum::soft_switch
