// DPDK's environment (EAL), which a process can start only once and, once it has ended it, never again.
//
// So it is started with the first transport, shared by all that come later, whichever session they are of, and ended
// when the process exits. What begins and ends with a transport are its devices: they are plugged in when it is made
// and removed with it.
//
// A forked child has EAL's memory, but not its threads, and it cannot start another: there it may not be used, and
// nothing of it is ended.
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
  /// this process' EAL has been started with other arguments, if a device is another transport's, or in a forked child
  /// of a process that has started EAL.
  Devices(const Arguments& arguments, std::size_t memory_bytes);
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  struct Port {
    std::uint16_t id = 0;
    std::string device;  // as it was given, with its arguments
  };
  [[nodiscard]] const std::vector<Port>& ports() const noexcept { return ports_; }

 private:
  void plug_in(const std::string& device);
  void take(std::uint16_t port, const std::string& device);
  void release() noexcept;

  std::vector<Port> ports_;
};

/// Calls `what`, which throws nothing, on EAL's interrupt thread, and waits. net_memif's connections come and go on
/// that thread, without a lock towards whoever starts, stops or removes a port: two at once, and EAL panics.
void on_interrupt_thread(const std::function<void()>& what) noexcept;

/// Keeps EAL's interrupt thread out while net_memif's rings are used. When a peer goes, the driver unmaps the memory
/// they lie in, on that thread, without asking whether somebody reads it: a worker that is killed would take the switch
/// with it. So that thread runs for a moment every kPauseNs, and only while nobody is inside; its messages wait that
/// long.
class MemifGate {
 public:
  /// Goes inside, if the interrupt thread is not at work; if it is, does not wait.
  [[nodiscard]] static bool enter() noexcept;
  static void leave() noexcept;

  /// From now on. Called with each net_memif of the process. Throws std::runtime_error.
  static void start();
  /// Keeps the interrupt thread out for good: when EAL ends, it takes away memory that this thread looks at. False if
  /// it does not stop for kStopNsMax.
  [[nodiscard]] static bool stop() noexcept;

 private:
  static constexpr long kPauseNs = 1'000'000;
  static constexpr long kStopNsMax = 1'000'000'000;

  static void let_others_in(void*) noexcept;
};

/// Whether a device's control calls must be made by on_interrupt_thread().
[[nodiscard]] bool is_memif(std::string_view device);
/// A client connects, once, to a server that has to be there.
[[nodiscard]] bool is_memif_client(std::string_view device);

/// Gives the calling thread, if it is not DPDK's own, what DPDK keeps for each of its own: caches of buffers, without
/// which taking one from a pool is an atomic operation; and short sleeps that are as short as they say (the kernel's
/// usual slack is 50 us). Cheap when it is done already.
void adopt_thread() noexcept;

/// What DPDK's last failure was, in words.
[[nodiscard]] std::string last_error();

}  // namespace wiresum::transport::dpdk
