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
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "session/failure.hpp"

namespace wiresum::c {
namespace {

using session::Failure;

/// The descriptor at which sidecar/process.py looks for its socket.
constexpr int kControlDescriptor = 3;
/// The sidecar's first lines. It forks before it has threads, to be no child of the program, and looks for no modules
/// in the program's current folder. If it cannot begin, it writes the reason, which start_problem() reads.
constexpr const char* kProgram =
    "import os, sys\n"
    "os.fork() and os._exit(0)\n"
    "sys.path[:] = [p for p in sys.path if p]\n"
    "try:\n"
    "  from wiresum.agent.sidecar import main\n"
    "except BaseException as error:\n"
    "  os.write(3, f'{type(error).__name__}: {error}'.encode(errors='replace')[:1000])\n"
    "  raise\n"
    "main()\n";
constexpr std::size_t kProblemBytesMax = 1000;
/// The pause between two looks at whether the sidecar has forked.
constexpr std::chrono::milliseconds kStartPeriod{1};

/// This process's sidecar, whose socket is open while it runs; `python` is its interpreter.
struct Process {
  std::mutex mutex;
  Descriptor control;
  std::string python;
  pid_t starter = 0;  // our child, which forks the sidecar and ends; 0 after that
};

Process& process() {
  // This object is never destroyed: sessions may be left after static objects are gone.
  static Process* const it = [] {
    auto* const made = new Process;
    // No other thread may hold the mutex at a fork, and the child's copy of the socket would outlive this process.
    pthread_atfork([] { process().mutex.lock(); }, [] { process().mutex.unlock(); },
                   [] {
                     process().control = Descriptor();
                     process().starter = 0;
                     process().mutex.unlock();
                   });
    return made;
  }();
  return *it;
}

/// Calls posix_spawnp(), with `control` at kControlDescriptor, and with the default handling of signals.
int spawn(const char* program, int control, const char* const* arguments, pid_t& child) {
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
  const int failure =
      posix_spawnp(&child, program, &actions, &attributes, const_cast<char* const*>(arguments), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return failure;
}

/// Throws Failure if the program does not start; after a later failure the sidecar is silent.
Descriptor start(const std::string& python, pid_t& starter) {
  SocketPair pair;
  // dup2 of a descriptor onto itself would leave its close-on-exec flag.
  const Descriptor theirs(fcntl(pair.theirs.get(), F_DUPFD_CLOEXEC, kControlDescriptor + 1));
  if (!theirs.valid()) throw std::system_error(errno, std::generic_category(), "cannot start the sidecar");
  const std::string of = std::to_string(getpid());
  // The last arguments are for people who look at a list of processes.
  const std::array<const char*, 7> arguments{python.c_str(), "-c",       kProgram, "wiresum-sidecar",
                                             "--of",         of.c_str(), nullptr};
  pid_t child = 0;
  if (const int failure = spawn(python.c_str(), theirs.get(), arguments.data(), child); failure != 0) {
    throw Failure(Failure::kSidecar, "cannot start the sidecar with '" + python + "' (" + std::strerror(failure) +
                                         "): WIRESUM_PYTHON must name the interpreter for which the Python package "
                                         "wiresum is installed");
  }
  starter = child;
  return std::move(pair.ours);
}

/// Sends the sidecar a session's socket; false if there is no sidecar.
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

/// Peeks at the socket: nullopt while the sidecar runs, else its problem, or "".
std::optional<std::string> last_words(int control) {
  std::string text(kProblemBytesMax, '\0');
  while (true) {
    const ssize_t count = recv(control, text.data(), text.size(), MSG_PEEK | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
    text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
    return text;
  }
}

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

}  // namespace

std::string interpreter_of(const std::string& python) { return python.empty() ? default_python() : python; }

std::string start_problem() {
  Process& one = process();
  const std::lock_guard lock(one.mutex);
  return one.control.valid() ? last_words(one.control.get()).value_or("") : "";
}

bool await_start(Channel::Deadline deadline) {
  Process& one = process();
  while (true) {
    {
      const std::lock_guard lock(one.mutex);
      // The child may be gone already: the program may ignore its children, or wait for them itself.
      if (one.starter == 0 || waitpid(one.starter, nullptr, WNOHANG) != 0) {
        one.starter = 0;
        return true;
      }
      if (std::chrono::steady_clock::now() >= deadline) {
        kill(one.starter, SIGKILL);
        while (waitpid(one.starter, nullptr, 0) < 0 && errno == EINTR) {
        }
        one.starter = 0;
        one.control = Descriptor();
        return false;
      }
    }
    // The mutex is free meanwhile: a fork() of another thread takes it.
    std::this_thread::sleep_for(kStartPeriod);
  }
}

Channel open_channel(const std::string& python) {
  Process& one = process();
  const std::lock_guard lock(one.mutex);
  SocketPair pair;
  const bool runs = one.control.valid() && !last_words(one.control.get());
  if (runs && !python.empty() && python != one.python) {
    throw Failure(Failure::kArgument, "WIRESUM_PYTHON is '" + python + "', but the sidecar of this process runs in '" +
                                          one.python +
                                          "' since its first session, and serves all of them: set WIRESUM_PYTHON "
                                          "before the first session, and do not change it");
  }
  if (runs && hand_over(one.control.get(), pair.theirs.get())) {
    return Channel(std::move(pair.ours));
  }
  one.python = interpreter_of(python);
  one.control = start(one.python, one.starter);
  hand_over(one.control.get(), pair.theirs.get());  // a sidecar that has ended is found by its silence
  return Channel(std::move(pair.ours));
}

}  // namespace wiresum::c
