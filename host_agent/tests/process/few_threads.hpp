// A process that may not have more threads than it has, for real.
#pragma once

#include <grp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <stdexcept>

namespace wiresum::process {

/// For a child of the test that has one thread: from now on it may have only so many. Root is not bound by such a
/// limit, so it becomes a user that nobody else is.
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
