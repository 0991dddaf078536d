// The parts that all threads of one configuration use: EAL's devices, the ports, pools for each thread, and ARP's news.
#pragma once

#include <rte_mempool.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/device_config.hpp"
#include "transport/dpdk/eal.hpp"
#include "transport/dpdk/neighbours.hpp"
#include "transport/dpdk/port.hpp"

namespace wiresum::transport::dpdk {

struct FreePool {
  void operator()(rte_mempool* pool) const noexcept { rte_mempool_free(pool); }
};
using Pool = std::unique_ptr<rte_mempool, FreePool>;

/// The claim of an ARP packet's sender: the arguments of Neighbours::claimed().
struct Claim {
  std::uint32_t address = 0;
  NextHop by;
  bool answer = false;
};

/// Claims that other threads have received. A claim without room is dropped, and its address asked for again.
class Claims {
 public:
  void put(const Claim& claim) noexcept {
    const std::lock_guard lock(mutex_);
    if (count_ != kClaimsMax) claims_[count_++] = claim;
    any_.store(true, std::memory_order_relaxed);
  }
  /// Calls `visit` with each claim, once.
  template <class Visit>
  void take(Visit visit) noexcept {
    if (!any_.load(std::memory_order_relaxed)) return;
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i != count_; ++i) visit(claims_[i]);
    count_ = 0;
    any_.store(false, std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t kClaimsMax = 64;

  std::mutex mutex_;
  std::array<Claim, kClaimsMax> claims_{};
  std::size_t count_ = 0;
  std::atomic<bool> any_{false};
};

/// The state that the threads of one configuration share.
struct Shared {
  /// Throws std::invalid_argument for a senseless configuration, std::runtime_error if DPDK refuses it.
  explicit Shared(const DeviceConfig& config);

  struct Pools {
    Pool receive;
    Pool send;
    Pool header;
  };

  DeviceConfig config;
  // The pools end last, after the devices that may still hold their buffers.
  std::vector<Pools> pools;  // by thread
  std::unique_ptr<Devices> devices;
  std::vector<std::unique_ptr<Port>> ports;
  std::vector<std::unique_ptr<Claims>> claims;  // by thread
  std::string name;
  std::size_t lent_max = 0;
};

}  // namespace wiresum::transport::dpdk
