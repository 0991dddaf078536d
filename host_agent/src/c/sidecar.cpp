#include "c/sidecar.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>

#include "session/failure.hpp"

namespace wiresum::c {
namespace {

using session::Failure;

/// Where sidecar/process.py looks for its socket.
constexpr int kControlDescriptor = 3;
/// It forks, so that it is no child of the program's, before there are threads; and it does not look for modules in the
/// folder where the program happens to run.
constexpr const char* kProgram =
    "import os, sys; os.fork() and os._exit(0); sys.path[:] = [p for p in sys.path if p]; "
    "from wiresum.agent.sidecar import main; main()";

/// The one of this process; its socket is open while it runs.
struct Process {
  std::mutex mutex;
  Descriptor control;
  std::string python;
};

Process& process() {
  // Never destroyed: sessions may be left after static objects are gone.
  static Process* const it = [] {
    auto* const made = new Process;
    // Nobody else may hold the mutex in the child, and the child's copy of the socket would outlive us.
    pthread_atfork([] { process().mutex.lock(); }, [] { process().mutex.unlock(); },
                   [] {
                     process().control = Descriptor();
                     process().mutex.unlock();
                   });
    return made;
  }();
  return *it;
}

/// posix_spawnp(), with `control` where the sidecar looks for it, and signals as if nobody had changed them.
int spawn(const char* program, int control, const char* const* arguments) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, control, kControlDescriptor);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t child = -1;
  const int failure =
      posix_spawnp(&child, program, &actions, &attributes, const_cast<char* const*>(arguments), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  // It forks at once. If the program does not care for its children, there is nothing to wait for.
  while (failure == 0 && waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return failure;
}

/// Throws Failure if it does not start; what goes wrong later, its silence tells.
Descriptor start(const std::string& python) {
  SocketPair pair;
  // dup2 onto itself would leave it to be closed by exec().
  const Descriptor theirs(fcntl(pair.theirs.get(), F_DUPFD_CLOEXEC, kControlDescriptor + 1));
  if (!theirs.valid()) throw std::system_error(errno, std::generic_category(), "cannot start the sidecar");
  const std::string of = std::to_string(getpid());
  // The last arguments are for people who look at a list of processes.
  const std::array<const char*, 7> arguments{python.c_str(), "-c",       kProgram, "wiresum-sidecar",
                                             "--of",         of.c_str(), nullptr};
  if (const int failure = spawn(python.c_str(), theirs.get(), arguments.data()); failure != 0) {
    throw Failure(Failure::kSidecar, "cannot start the sidecar with '" + python + "' (" + std::strerror(failure) +
                                         "): WIRESUM_PYTHON must name the interpreter for which the Python package "
                                         "wiresum is installed");
  }
  return std::move(pair.ours);
}

/// False if nobody takes it.
bool hand_over(int control, int session) noexcept {
  char byte = 's';
  iovec part{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof session);
  std::memcpy(CMSG_DATA(header), &session, sizeof session);
  while (true) {
    const ssize_t sent = sendmsg(control, &message, MSG_NOSIGNAL);
    if (sent >= 0 || errno != EINTR) return sent == 1;
  }
}

}  // namespace

std::string default_python() {
#ifdef WIRESUM_SIDECAR_PYTHON
  return WIRESUM_SIDECAR_PYTHON;
#else
  // <environment>/lib/python3.x/site-packages/wiresum/agent/libwiresum.so.1
  constexpr int kLevels = 5;
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&default_python), &info) != 0 && info.dli_fname != nullptr) {
    std::filesystem::path folder = std::filesystem::absolute(info.dli_fname).lexically_normal().parent_path();
    for (int level = 0; level < kLevels; ++level) folder = folder.parent_path();
    const std::filesystem::path python = folder / "bin" / "python3";
    std::error_code ignored;
    if (std::filesystem::exists(python, ignored)) return python.string();
  }
  return "python3";
#endif
}

Channel open_channel(const std::string& python) {
  Process& one = process();
  const std::lock_guard lock(one.mutex);
  SocketPair pair;
  if (one.control.valid() && hand_over(one.control.get(), pair.theirs.get())) {
    return Channel(std::move(pair.ours));
  }
  one.control = start(python.empty() ? default_python() : python);
  hand_over(one.control.get(), pair.theirs.get());  // one that has ended already is found by its silence
  return Channel(std::move(pair.ours));
}

}  // namespace wiresum::c
