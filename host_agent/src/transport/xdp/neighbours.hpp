// Where the next hops are: their MAC addresses, as the kernel knows them.
//
// Theory of operation. The sending thread calls find(), which never waits: for a known address it reads one word. A
// background thread keeps these words up to date. It asks the kernel for the route and then for the neighbour
// (rtnetlink, which may wait for the kernel's locks), and it is notified of changes. Where the kernel has no answer, or
// an old one, the thread sends an empty UDP datagram from an ordinary socket to the discard port, since only the
// kernel's own packets make it send ARP requests. So ARP, its time-outs and its limits remain the kernel's.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "process/descriptor.hpp"
#include "transport/ethernet/frame.hpp"

namespace wiresum::transport::xdp {

/// The most addresses that may be asked for in a transport's life: 32 workers of many jobs.
inline constexpr std::size_t kNeighboursMax = 4096;

class Neighbours {
 public:
  /// Serves packets that leave by the interface `name`, number `index`. Throws std::system_error.
  Neighbours(const std::string& name, int index);
  ~Neighbours();
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  /// Finds the MAC address for packets to `address`. Returns false, and starts a question, while the address is
  /// unknown. One thread may ask.
  [[nodiscard]] bool find(std::uint32_t address, ethernet::MacAddress& mac) noexcept;

  /// The reason why find() knows nothing, an errno: ENETUNREACH (no route, or not by this interface), EHOSTUNREACH
  /// (nobody answers); 0: not known yet. Reading clears it. Any thread may ask.
  [[nodiscard]] int take_error() noexcept { return error_.exchange(0, std::memory_order_relaxed); }

 private:
  struct Neighbour {
    std::atomic<std::uint32_t> address{0};  // 0: not used; written by the asking thread
    std::atomic<std::uint64_t> mac{0};      // kKnown and six bytes, or 0; written by the background thread
  };

  class Netlink;

  [[nodiscard]] Neighbour* entry_for(std::uint32_t address) noexcept;
  void keep() noexcept;
  /// True if the kernel's answer is new enough to leave it for a while.
  [[nodiscard]] bool refresh(Neighbour& entry) noexcept;
  void provoke(std::uint32_t address) const noexcept;

  int index_;
  process::Descriptor provoker_;
  process::Descriptor changes_;       // rtnetlink's notifications
  process::Descriptor asked_;         // an eventfd: find() has a new address, or it is time to stop
  std::unique_ptr<Netlink> netlink_;  // the background thread's
  std::vector<std::byte> news_;
  std::array<Neighbour, kNeighboursMax> entries_;
  std::atomic<int> error_{0};
  std::atomic<bool> stopping_{false};
  std::thread keeper_;
};

}  // namespace wiresum::transport::xdp
