#include "namespace.hpp"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace wiresum::transport::testing {
namespace {

/// Calls `what` on a new thread, which may change its namespace.
void on_a_thread(const std::function<void()>& what) {
  std::exception_ptr thrown;
  std::thread([&] {
    try {
      what();
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown) std::rethrow_exception(thrown);
}

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

std::string no_namespaces() {
  std::string why;
  on_a_thread([&] {
    if (unshare(CLONE_NEWNET) != 0) why = "network namespaces need root (CAP_SYS_ADMIN)";
  });
  if (why.empty() && std::system("command -v ip >/dev/null") != 0) why = "there is no ip (iproute2)";
  return why;
}

Namespace::Namespace() {
  on_a_thread([this] {
    if (unshare(CLONE_NEWNET) != 0) fail("unshare");
    descriptor_ = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) fail("/proc/thread-self/ns/net");
  });
  command("ip link set lo up");
}

Namespace::~Namespace() { close(descriptor_); }

void Namespace::enter(const std::function<void()>& what) const {
  on_a_thread([&] {
    if (setns(descriptor_, CLONE_NEWNET) != 0) fail("setns");
    what();
  });
}

void Namespace::command(const std::string& line) const {
  enter([&] {
    if (std::system(line.c_str()) != 0) throw std::runtime_error("failed: " + line);
  });
}

std::string Namespace::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(descriptor_);
}

VethPair::VethPair(std::size_t mtu, std::size_t queues) {
  const std::string each = " mtu " + std::to_string(mtu) + " numrxqueues " + std::to_string(queues) + " numtxqueues " +
                           std::to_string(queues);
  left.command(std::string("ip link add ") + kInterface + each + " type veth peer name " + kInterface + each +
               " netns " + right.path());
  left.command(std::string("ip address add 10.77.0.1/24 dev ") + kInterface);
  right.command(std::string("ip address add 10.77.0.2/24 dev ") + kInterface);
  for (const Namespace* side : {&left, &right}) {
    side->command(std::string("ip link set ") + kInterface + " up");
  }
}

}  // namespace wiresum::transport::testing
