// Limits the threads of a process with the kernel's real limit.
#pragma once

#include <grp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <stdexcept>

namespace wiresum::process {

/// For a forked child that has one thread: limits its threads from now on. Root is exempt from the limit, so the child
/// becomes a user with no other processes.
inline void allow_threads(rlim_t threads) {
  constexpr uid_t kNobodyElses = 1'900'000'000;
  const rlimit limit{.rlim_cur = threads, .rlim_max = threads};
  const uid_t user = kNobodyElses + static_cast<uid_t>(getpid());
  if (getuid() == 0 && (setgroups(0, nullptr) != 0 || setresgid(user, user, user) != 0)) {
    throw std::runtime_error("cannot change the group");
  }
  if (setrlimit(RLIMIT_NPROC, &limit) != 0 || (getuid() == 0 && setresuid(user, user, user) != 0)) {
    throw std::runtime_error("cannot limit the threads");
  }
}

}  // namespace wiresum::process
