// Threads that the system really refuses to start.
#include "process/thread.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <functional>
#include <string>
#include <system_error>
#include <thread>

#include "few_threads.hpp"
#include "patience.hpp"

namespace wiresum::process {
namespace {

/// The text that `what` returns in a forked child, which is killed if it hangs.
std::string said_by_child(const std::function<std::string()>& what) {
  std::array<int, 2> channel{};
  EXPECT_EQ(pipe(channel.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(static_cast<unsigned>(kPatience.count()));
    const std::string text = what();
    _exit(write(channel[1], text.data(), text.size()) < 0 ? 2 : 0);
  }
  close(channel[1]);
  std::string text;
  std::array<char, 512> part{};
  for (ssize_t count = 0; (count = read(channel[0], part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(count));
  }
  close(channel[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return text;
}

TEST(StartThread, RunsTheFunction) {
  bool ran = false;
  start_thread("a thread", [&] { ran = true; }).join();
  EXPECT_TRUE(ran);
}

// Such a program blocks the signal only after it has joined, in its one thread.
TEST(StartThread, ASignalThatTheProgramBlocksAndWaitsForIsLeftToIt) {
  EXPECT_EQ(said_by_child([]() -> std::string {
              std::array<int, 2> end{};
              if (pipe(end.data()) != 0) return "no pipe";
              std::thread thread = start_thread("a thread", [&end] {
                char byte = 0;
                static_cast<void>(!read(end[0], &byte, 1));
              });
              sigset_t waited_for;
              sigemptyset(&waited_for);
              sigaddset(&waited_for, SIGTERM);
              pthread_sigmask(SIG_BLOCK, &waited_for, nullptr);
              kill(getpid(), SIGTERM);
              int signal = 0;
              sigwait(&waited_for, &signal);
              close(end[1]);
              thread.join();
              return signal == SIGTERM ? "it came" : "another one came";
            }),
            "it came");
}

TEST(StartThread, TheCallersSignalsAreAsTheyWere) {
  sigset_t before;
  sigset_t after;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  start_thread("a thread", [] {}).join();
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  for (int signal = 1; signal < NSIG; ++signal) {
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << signal;
  }
}

TEST(StartThread, NamesTheThreadThatCouldNotBeStartedAndTheLimits) {
  const std::string text = said_by_child([]() -> std::string {
    allow_threads(1);
    try {
      start_thread("engine thread 3 of 4", [] {}).join();
    } catch (const std::system_error& error) {
      return error.code().value() == EAGAIN ? error.what() : "another error";
    }
    return "it started";
  });
  for (const char* const part : {"cannot start engine thread 3 of 4", "this user may have 1 threads", "ulimit -u",
                                 "kernel.threads-max", "Resource temporarily"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
}

}  // namespace
}  // namespace wiresum::process
