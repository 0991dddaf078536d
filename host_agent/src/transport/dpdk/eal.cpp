#include "transport/dpdk/eal.hpp"

#include <rte_alarm.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_interrupts.h>
#include <rte_lcore.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <semaphore>
#include <stdexcept>

#include "process/home.hpp"
#include "process/thread.hpp"

namespace wiresum::transport::dpdk {
namespace {

/// The process's state of DPDK.
struct Environment {
  process::Home home;
  std::mutex mutex;
  bool started = false;
  bool exiting = false;                        // end() has been called
  std::vector<std::string> given;              // the first transport's arguments, without its devices
  std::vector<std::string> found;              // devices that EAL found by itself, if the first transport named none
  std::vector<std::uint16_t> taken;            // ports of transports that are open
  std::map<std::string, std::string> plugged;  // present devices, by name, with their arguments
};

Environment& environment();

/// Runs in the process's exit, before or after the handlers in which sessions are left.
void end() noexcept {
  Environment& all = environment();
  if (!all.home.is_here()) return;
  const std::unique_lock lock(all.mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;  // a transport is being opened or closed, perhaps where DPDK itself calls exit()
  all.exiting = true;
  const bool is_quiet = MemifGate::stop();
  // If a transport is still open, its thread may be using DPDK's memory, and the kernel cleans up.
  if (all.started && all.taken.empty() && is_quiet) static_cast<void>(rte_eal_cleanup());
}

Environment& environment() {
  // The object is never destroyed: transports may be closed after static objects are gone.
  static Environment* const the_only = [] {
    auto* const made = new Environment;
    static_cast<void>(std::atexit(end));
    return made;
  }();
  return *the_only;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

/// Free hugepages, of /proc/meminfo; 0 if it has no such line.
long free_hugepages() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string word; meminfo >> word;) {
    long pages = 0;
    if (word == "HugePages_Free:" && meminfo >> pages) return pages;
  }
  return 0;
}

int allowed_core(const cpu_set_t& cores) {
  const int here = sched_getcpu();
  if (here >= 0 && CPU_ISSET(here, &cores)) return here;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &cores)) return core;
  }
  return 0;
}

/// Calls `visit` with each port, and its device.
template <class Visit>
void for_each_port(Visit visit) {
  for (std::uint16_t port = 0; port < RTE_MAX_ETHPORTS; ++port) {
    rte_eth_dev_info info{};
    if (rte_eth_dev_is_valid_port(port) != 0 && rte_eth_dev_info_get(port, &info) == 0) visit(port, *info.device);
  }
}

std::vector<std::uint16_t> ports_of(const std::string& device) {
  std::vector<std::uint16_t> found;
  const std::string name = device_name(device);
  for_each_port([&](std::uint16_t port, const rte_device& of) {
    if (name == rte_dev_name(&of)) found.push_back(port);
  });
  return found;
}

void start(Environment& all, const Arguments& arguments, std::size_t memory_bytes) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  static_cast<void>(sched_getaffinity(0, sizeof cores, &cores));
  std::vector<std::string> words = with_defaults(arguments, memory_bytes, allowed_core(cores), getpid());
  words.insert(words.begin(), "wiresum");
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int result = rte_eal_init(static_cast<int>(words.size()), argv.data());
  // EAL pins the calling thread, which may be an interpreter's: all its later threads would share one core.
  static_cast<void>(sched_setaffinity(0, sizeof cores, &cores));
  if (result < 0) {
    std::string what = "cannot start DPDK (EAL) with '" + joined({words.begin() + 1, words.end()}) +
                       "': " + last_error() + "; its own messages are on standard error";
    if (rte_errno == EAGAIN) what += ". Limits of threads: " + process::thread_limits();
    if (arguments.huge && free_hugepages() == 0) {
      what += ". No hugepages are free: reserve some (sysctl vm.nr_hugepages=256), or do without (--no-huge)";
    }
    throw std::runtime_error(what);
  }
  // EAL makes a folder even for no files. The removal of a folder with files fails, as it should.
  static_cast<void>(rmdir(rte_eal_get_runtime_dir()));
  all.started = true;
  all.given = arguments.eal;
  for_each_port([&](std::uint16_t, const rte_device& of) {
    const std::string name = rte_dev_name(&of);
    if (std::find(all.found.begin(), all.found.end(), name) == all.found.end()) all.found.push_back(name);
  });
  if (!arguments.huge) {
    std::fputs("wiresum: DPDK runs without hugepages (--no-huge): more TLB misses, and no hardware device\n", stderr);
  }
}

constexpr unsigned long kTimerSlackNs = 1'000;

/// Gives the thread's number back when the thread ends.
struct Adoption {
  process::Home home;
  bool tried = false;
  bool adopted = false;
  ~Adoption() {
    if (adopted && home.is_here()) rte_thread_unregister();
  }
};

/// The time between looks at whether the interrupt thread has stopped.
constexpr std::chrono::milliseconds kLook{1};

void pause(long nanoseconds) noexcept {
  const timespec length{.tv_sec = 0, .tv_nsec = nanoseconds};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &length, nullptr);
}

}  // namespace

Devices::Devices(const Arguments& arguments, std::size_t memory_bytes) {
  Environment& all = environment();
  if (!all.home.is_here()) {
    throw std::runtime_error(
        "the parent of this process has started DPDK, which a forked child can neither use nor start again: start "
        "processes that need DPDK of their own with exec (spawn), or fork before the first transport is opened");
  }
  const std::lock_guard lock(all.mutex);
  if (all.exiting) throw std::runtime_error("this process is ending, and DPDK takes no new devices then");
  if (!all.started) {
    start(all, arguments, memory_bytes);
  } else if (!arguments.eal.empty() && arguments.eal != all.given) {
    throw std::runtime_error("a process starts DPDK only once: this one has with '" + joined(all.given) +
                             "', so it cannot with '" + joined(arguments.eal) +
                             "'; give the same arguments, each transport with devices (--vdev, -a) of its own");
  }
  try {
    for (const std::string& device : arguments.devices.empty() ? all.found : arguments.devices) plug_in(device);
    if (ports_.empty()) {
      throw std::runtime_error(
          "DPDK has found no port. Name a device (--vdev=..., -a PCI-ADDRESS) among the EAL arguments; a network card "
          "must be bound to a driver that DPDK can use (dpdk-devbind.py --status)");
    }
  } catch (...) {
    release();
    throw;
  }
}

Devices::~Devices() {
  const std::lock_guard lock(environment().mutex);
  release();
}

void Devices::plug_in(const std::string& device) {
  std::map<std::string, std::string>& plugged = environment().plugged;
  const std::string name = device_name(device);
  if (const auto there = plugged.find(name); there != plugged.end() && there->second != device) {
    throw std::runtime_error("this process has a DPDK device '" + there->second + "' already, so none '" + device +
                             "': give it another name");
  }
  if (is_memif(device)) MemifGate::start();
  int result = 0;
  const auto probe = [&] { result = rte_dev_probe(device.c_str()); };
  if (ports_of(device).empty()) is_memif(device) ? on_interrupt_thread(probe) : probe();
  const std::vector<std::uint16_t> found = ports_of(device);
  if (found.empty()) {
    throw std::runtime_error("DPDK cannot use the device '" + device +
                             "': " + (result != 0 ? rte_strerror(-result) : "it has no port") +
                             "; its own messages are on standard error");
  }
  for (const std::uint16_t port : found) take(port, device);
  plugged[name] = device;
}

void Devices::take(std::uint16_t port, const std::string& device) {
  std::vector<std::uint16_t>& taken = environment().taken;
  if (std::find(taken.begin(), taken.end(), port) != taken.end()) {
    throw std::runtime_error("the DPDK device '" + device +
                             "' is in use by another transport of this process: each session needs a device of its "
                             "own");
  }
  taken.push_back(port);
  ports_.push_back({.id = port, .device = device});
}

void Devices::release() noexcept {
  std::vector<std::uint16_t>& taken = environment().taken;
  for (const Port& port : ports_) {
    taken.erase(std::find(taken.begin(), taken.end(), port.id));
    rte_eth_dev_info info{};
    // A device with two ports goes with the first.
    if (rte_eth_dev_is_valid_port(port.id) == 0 || rte_eth_dev_info_get(port.id, &info) != 0) continue;
    // Servers stay until the process ends: net_memif frees a listening socket without telling EAL's interrupt thread,
    // which would use it when the next client comes.
    if (is_memif(port.device) && !is_memif_client(port.device)) continue;
    environment().plugged.erase(device_name(port.device));
    const auto remove = [&] {
      static_cast<void>(rte_eth_dev_close(port.id));
      static_cast<void>(rte_dev_remove(const_cast<rte_device*>(info.device)));
    };
    is_memif(port.device) ? on_interrupt_thread(remove) : remove();
  }
  ports_.clear();
}

void on_interrupt_thread(const std::function<void()>& what) noexcept {
  if (MemifGate::has_stopped()) return what();
  /// The first to claim the call makes it: the alarm, or the caller.
  struct Call {
    explicit Call(const std::function<void()>& work) noexcept : what(work) {}
    const std::function<void()>& what;
    std::atomic<bool> claimed{false};
    std::binary_semaphore done{0};
  };
  const auto call = std::make_shared<Call>(what);
  const auto run = [](void* given) {
    const std::unique_ptr<std::shared_ptr<Call>> held(static_cast<std::shared_ptr<Call>*>(given));
    Call& the_call = **held;
    if (the_call.claimed.exchange(true)) return;
    the_call.what();
    the_call.done.release();
  };
  auto* const held = std::make_unique<std::shared_ptr<Call>>(call).release();  // the alarm's
  if (rte_eal_alarm_set(1, run, held) != 0) {
    delete held;
    return what();
  }
  // If another thread ends the process meanwhile, the interrupt thread stops, and no alarm comes.
  while (!call->done.try_acquire_for(kLook)) {
    if (MemifGate::has_stopped() && !call->claimed.exchange(true)) return what();
  }
}

namespace {

/// The process has one gate. The interrupt thread is "at work" whenever it is not in let_others_in().
struct GateState {
  std::atomic<int> inside{0};
  std::atomic<bool> at_work{false};
  std::atomic<bool> ends{false};
  std::atomic<bool> ended{false};
  int always_ready = -1;  // an always-readable descriptor, so EAL calls let_others_in() in every poll iteration
} gate;

}  // namespace

bool MemifGate::enter() noexcept {
  gate.inside.fetch_add(1);
  if (!gate.at_work.load()) return true;
  gate.inside.fetch_sub(1);
  return false;
}

void MemifGate::leave() noexcept { gate.inside.fetch_sub(1); }

void MemifGate::start() {
  if (gate.always_ready >= 0) return;
  gate.always_ready = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
  rte_intr_handle* const handle = rte_intr_instance_alloc(RTE_INTR_INSTANCE_F_PRIVATE);
  // EAL keeps a copy of the handle.
  const bool watched = gate.always_ready >= 0 && handle != nullptr && rte_intr_fd_set(handle, gate.always_ready) == 0 &&
                       rte_intr_type_set(handle, RTE_INTR_HANDLE_EXT) == 0 &&
                       rte_intr_callback_register(handle, &let_others_in, nullptr) == 0;
  rte_intr_instance_free(handle);
  if (!watched) throw std::runtime_error("cannot watch DPDK's interrupt thread: " + last_error());
}

bool MemifGate::stop() noexcept {
  if (gate.always_ready < 0) return true;
  gate.ends.store(true);
  for (long waited_ns = 0; !gate.ended.load() && waited_ns < kStopNsMax; waited_ns += kPauseNs) pause(kPauseNs);
  return gate.ended.load();
}

bool MemifGate::has_stopped() noexcept { return gate.ended.load(); }

void MemifGate::let_others_in(void*) noexcept {
  gate.at_work.store(false);
  do {
    pause(kPauseNs);
    gate.ended.store(gate.ends.load());
  } while (gate.ended.load());
  gate.at_work.store(true);
  while (gate.inside.load() != 0) sched_yield();
}

bool is_memif_client(std::string_view device) {
  return is_memif(device) && device.find("role=server") == std::string_view::npos &&
         device.find("role=master") == std::string_view::npos;
}

bool is_memif(std::string_view device) { return device_name(device).starts_with("net_memif"); }

void adopt_thread() noexcept {
  thread_local Adoption adoption;
  if (adoption.tried) return;
  adoption.tried = true;
  adoption.adopted = rte_lcore_id() == LCORE_ID_ANY && rte_thread_register() == 0;
  static_cast<void>(prctl(PR_SET_TIMERSLACK, kTimerSlackNs));
}

std::string last_error() { return rte_strerror(rte_errno); }

}  // namespace wiresum::transport::dpdk
