#include "process/thread.hpp"

#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <system_error>
#include <utility>

namespace wiresum::process {
namespace {

constexpr int kCgroupsMax = 64;  // nested groups

std::string first_word(const std::filesystem::path& file) {
  std::string word;
  std::ifstream(file) >> word;
  return word;
}

/// The place of this process's group in the hierarchy that counts processes, of version 2 or 1.
std::optional<std::filesystem::path> cgroup_of_process() {
  std::ifstream groups("/proc/self/cgroup");
  std::optional<std::filesystem::path> found;
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers == "pids") return "/sys/fs/cgroup/pids" + path;
    if (controllers.empty()) found = "/sys/fs/cgroup" + path;
  }
  return found;
}

/// The limit of the innermost group that has one.
std::string cgroup_limit() {
  std::filesystem::path group = cgroup_of_process().value_or("");
  for (int level = 0; level < kCgroupsMax && group.has_relative_path(); ++level, group = group.parent_path()) {
    const std::string most = first_word(group / "pids.max");
    if (most.empty() || most == "max") continue;
    return "its control group may have " + most + " and has " + first_word(group / "pids.current") + " (" +
           (group / "pids.max").string() + ")";
  }
  return "";
}

std::string resource_limit(__rlimit_resource resource, rlim_t unit, const std::string& before,
                           const std::string& after) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return before + std::to_string(limit.rlim_cur / unit) + after;
}

/// Blocks the calling thread's signals for the object's lifetime, except those of the thread's own faults.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t signals;
    sigfillset(&signals);
    for (const int fault : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP}) sigdelset(&signals, fault);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

std::string thread_limits() {
  constexpr rlim_t kMebibyte = rlim_t{1} << 20;
  const std::string in_system = first_word("/proc/sys/kernel/threads-max");
  std::string text;
  for (const std::string& limit :
       {resource_limit(RLIMIT_NPROC, 1, "this user may have ", " threads in all processes (ulimit -u)"), cgroup_limit(),
        resource_limit(RLIMIT_AS, kMebibyte, "this process may have ",
                       " MiB of addresses (ulimit -v), of which each thread's stack takes some (ulimit -s)"),
        in_system.empty() ? "" : "the system may have " + in_system + " (kernel.threads-max)"}) {
    if (!limit.empty()) text += (text.empty() ? "" : "; ") + limit;
  }
  return text;
}

std::thread start_thread(const std::string& what, std::function<void()> run) {
  const SignalsBlocked inherited;
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    throw std::system_error(error.code(), "cannot start " + what + ". Limits of threads: " + thread_limits() +
                                              ". Raise the one that is reached, or ask for fewer threads. The system "
                                              "says");
  }
}

}  // namespace wiresum::process
