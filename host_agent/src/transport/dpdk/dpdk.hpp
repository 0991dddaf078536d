// Bursts over DPDK: the process drives the ports itself, and answers ARP for them, since no kernel does.
//
// All ports that EAL finds for the transport are its own: a worker has one; a switch may have many, with other workers
// behind each. Packets leave by the port behind which the neighbour was found (neighbours.hpp).
//
// Several threads may drive them, each through a transport of its own. Ports and EAL's devices are shared; steering.hpp
// says which queues a thread has. Each thread has pools and a table of neighbours of its own. Answers to its ARP
// requests may come in by another thread's queue, so a thread that receives ARP tells all.
//
// Who owns a buffer (mbuf) at each moment. buffers() offers the data areas of buffers that are ours. send() puts the
// headers in front (for several endpoints, in a buffer of its own for each) and gives them to the driver, which frees
// what it has read. A freed buffer returns to its pool when nobody refers to it any more, and only from there can it be
// offered again: so a buffer that a device still reads is never written to.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "process/home.hpp"
#include "transport/device_config.hpp"
#include "transport/dpdk/eal.hpp"
#include "transport/dpdk/neighbours.hpp"
#include "transport/dpdk/port.hpp"
#include "transport/ethernet/arp.hpp"
#include "transport/transport.hpp"

namespace wiresum::transport::dpdk {

struct FreePool {
  void operator()(rte_mempool* pool) const noexcept;
};
using Pool = std::unique_ptr<rte_mempool, FreePool>;

/// What an ARP packet says of its sender's address: the arguments of Neighbours::claimed().
struct Claim {
  std::uint32_t address = 0;
  NextHop by;
  bool answer = false;
};

/// Claims that other threads have received. One that does not fit is dropped, and asked for again.
class Claims {
 public:
  void put(const Claim& claim) noexcept;
  /// Calls `visit` with each, once.
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

/// What the threads of one configuration share.
struct Shared {
  /// Throws std::invalid_argument on a configuration that makes no sense, std::runtime_error if DPDK refuses it.
  explicit Shared(const DeviceConfig& config);

  struct Pools {
    Pool receive;
    Pool send;
    Pool header;
  };

  DeviceConfig config;
  // Ended last, after the devices that may still hold their buffers.
  std::vector<Pools> pools;  // by thread
  std::unique_ptr<Devices> devices;
  std::vector<std::unique_ptr<Port>> ports;
  std::vector<std::unique_ptr<Claims>> claims;  // by thread
  std::string name;
  std::size_t lent_max = 0;
};

class DpdkTransport final : public Transport {
 public:
  /// A transport for each of the configuration's threads. Throws std::invalid_argument on a configuration that makes no
  /// sense, std::runtime_error if DPDK refuses it.
  [[nodiscard]] static std::vector<std::unique_ptr<Transport>> open(const DeviceConfig& config);
  ~DpdkTransport() override;

  const char* name() const noexcept override { return shared_->name.c_str(); }
  std::size_t receive(std::span<RxDatagram> out) noexcept override;
  std::span<wire::Packet> buffers(std::size_t wanted) noexcept override;
  std::size_t train_packets(std::size_t) const noexcept override { return 1; }
  void send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t port) noexcept override;
  void wait(std::int64_t timeout_ns) noexcept override;
  void wake() noexcept override { woken_.store(true); }
  const TransportStats& stats() const noexcept override { return stats_; }
  int take_error() noexcept override { return error_.exchange(0, std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kBurst = 64;        // packets asked of a port, or given to it, at once
  static constexpr std::size_t kBuffersMax = 256;  // packets that are offered
  static constexpr std::size_t kLentMax = 1024;    // datagrams that are lent

  /// A queue that this thread takes packets from.
  struct Source {
    std::size_t port;
    std::uint16_t queue;
  };

  DpdkTransport(std::shared_ptr<const Shared> shared, unsigned thread);

  std::size_t poll(std::span<RxDatagram> out, std::span<rte_mbuf*> buffers) noexcept;
  void look() noexcept;
  bool accept(rte_mbuf& packet, std::size_t port, RxDatagram& out) noexcept;
  void answer(std::span<const std::byte> frame, std::size_t port) noexcept;
  void ask() noexcept;
  void announce(std::size_t port) noexcept;
  void send_arp(const ethernet::ArpPacket& packet, const ethernet::MacAddress& to, std::size_t port) noexcept;
  void send_to(std::span<rte_mbuf*> payloads, const wire::Endpoint& to, std::uint8_t port) noexcept;
  void send_copies(std::span<rte_mbuf*> payloads, std::span<const wire::Endpoint> to, std::uint8_t port) noexcept;
  const NextHop* next_hop(std::uint32_t address) noexcept;
  ethernet::Headers headers_to(const NextHop& hop, const wire::Endpoint& to, std::uint8_t port) const noexcept;
  static void write_headers(const ethernet::Headers& headers, rte_mbuf& packet, std::size_t payload_bytes,
                            ethernet::PartialSum payload, const Port& by) noexcept;
  void give(std::span<rte_mbuf*> packets, std::size_t port) noexcept;

  process::Home home_;
  std::shared_ptr<const Shared> shared_;  // left alone in a forked child, too
  const DeviceConfig& config_;
  const std::vector<std::unique_ptr<Port>>& ports_;
  unsigned thread_;
  rte_mempool* send_pool_;
  rte_mempool* header_pool_;
  std::vector<Source> sources_;
  Neighbours neighbours_;
  TimeNs now_ = 0;  // when the clock was last read
  std::size_t next_source_ = 0;

  std::array<rte_mbuf*, kBuffersMax> mbufs_{};
  std::array<wire::Packet, kBuffersMax> packets_{};
  std::size_t offered_ = 0;

  std::array<rte_mbuf*, kLentMax> lent_{};
  std::size_t lent_count_ = 0;
  std::array<rte_mbuf*, kBurst> ready_buffers_{};  // what wait() has found, for the next receive()
  std::array<RxDatagram, kBurst> ready_{};
  std::size_t ready_next_ = 0;
  std::size_t ready_count_ = 0;

  TransportStats stats_;
  std::atomic<int> error_{0};
  std::atomic<bool> woken_{false};
};

}  // namespace wiresum::transport::dpdk
