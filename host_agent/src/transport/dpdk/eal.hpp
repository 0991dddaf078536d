// DPDK's environment (EAL), which a process can start only once and, once it has ended it, never again.
//
// So it is started with the first transport, shared by all later ones of any session, and ended when the process exits.
// Only a transport's devices begin and end with it: they are plugged in when it is made and removed with it.
//
// A forked child has EAL's memory, but not its threads, and cannot start EAL again: it must not use EAL, and ends
// nothing of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/dpdk/arguments.hpp"

namespace wiresum::transport::dpdk {

/// The devices of one transport, and their ports.
class Devices {
 public:
  /// Starts EAL if this process has not, and plugs in the devices that `arguments` name, or all that EAL has found at
  /// its start if they name none. Throws std::runtime_error, with what to do, if EAL or a device does not start, if
  /// this process' EAL has been started with other arguments, if a device is another transport's, if the process is
  /// ending, or in a forked child of a process that has started EAL.
  Devices(const Arguments& arguments, std::size_t memory_bytes);
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  struct Port {
    std::uint16_t id = 0;
    std::string device;  // the device and its arguments, as given
  };
  [[nodiscard]] const std::vector<Port>& ports() const noexcept { return ports_; }

 private:
  void plug_in(const std::string& device);
  void take(std::uint16_t port, const std::string& device);
  void release() noexcept;

  std::vector<Port> ports_;
};

/// Calls `what`, which throws nothing, on EAL's interrupt thread, and waits; directly, once the interrupt thread is
/// kept out for good. net_memif opens and closes connections on that thread without a lock against starting, stopping
/// or removing a port: if both happen at once, EAL panics.
void on_interrupt_thread(const std::function<void()>& what) noexcept;

/// Keeps EAL's interrupt thread out while net_memif's rings are used. When a peer disconnects, the driver unmaps the
/// memory that the rings lie in, on that thread, without checking whether anybody reads it: a worker that is killed
/// would crash the switch. So that thread runs for a moment every kPauseNs, and only while nobody is inside; its
/// messages wait that long.
class MemifGate {
 public:
  /// Goes inside, without a wait. Returns false if the interrupt thread is at work.
  [[nodiscard]] static bool enter() noexcept;
  static void leave() noexcept;

  /// Starts the gate; called with each net_memif of the process. Throws std::runtime_error.
  static void start();
  /// Keeps the interrupt thread out for good: when EAL ends, it frees memory that this thread reads. Returns false if
  /// the thread does not stop within kStopNsMax.
  [[nodiscard]] static bool stop() noexcept;
  [[nodiscard]] static bool has_stopped() noexcept;

 private:
  static constexpr long kPauseNs = 1'000'000;
  static constexpr long kStopNsMax = 1'000'000'000;

  static void let_others_in(void*) noexcept;
};

/// True if on_interrupt_thread() must make a device's control calls.
[[nodiscard]] bool is_memif(std::string_view device);
/// True for a client, which connects once to a server that must be there.
[[nodiscard]] bool is_memif_client(std::string_view device);

/// Registers the calling thread with DPDK: it gets caches of buffers, without which taking one from a pool is an atomic
/// operation. Also makes its short sleeps precise (the kernel's usual slack is 50 us). Cheap if done already.
void adopt_thread() noexcept;

/// DPDK's last error as text.
[[nodiscard]] std::string last_error();

}  // namespace wiresum::transport::dpdk
