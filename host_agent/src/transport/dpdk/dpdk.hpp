// Bursts over DPDK: the process drives the ports itself, and answers for them, since no kernel does.
//
// All ports that EAL finds for the transport are its own: a worker has one; a switch may have many, with other workers
// behind each. Packets leave by the port behind which the neighbour was found (neighbours.hpp).
//
// Who owns a buffer (mbuf) at each moment. room() offers the data rooms of buffers that are ours; send() puts the
// headers in front, or before them in a buffer of its own for each endpoint, and gives them to the driver, which frees
// what it has read. A freed buffer goes back to its pool when nobody refers to it any more, and only from there can it
// be offered again: a buffer that a device still reads cannot be written to.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/device_config.hpp"
#include "transport/dpdk/eal.hpp"
#include "transport/dpdk/neighbours.hpp"
#include "transport/dpdk/port.hpp"
#include "transport/ethernet/arp.hpp"
#include "transport/transport.hpp"

namespace wiresum::transport::dpdk {

class DpdkTransport final : public Transport {
 public:
  /// Throws std::invalid_argument on a configuration that makes no sense, std::runtime_error if DPDK refuses it.
  explicit DpdkTransport(const DeviceConfig& config);
  ~DpdkTransport() override;

  const char* name() const noexcept override { return name_.c_str(); }
  std::size_t receive(std::span<RxDatagram> out) noexcept override;
  std::span<wire::Packet> room(std::size_t wanted) noexcept override;
  std::size_t train_packets(std::size_t) const noexcept override { return 1; }
  void send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t port) noexcept override;
  void wait(std::int64_t timeout_ns) noexcept override;
  void wake() noexcept override { woken_.store(true); }
  const TransportStats& stats() const noexcept override { return stats_; }
  int take_error() noexcept override { return error_.exchange(0, std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kBurst = 64;      // packets asked of a port, or given to it, at once
  static constexpr std::size_t kRoomMax = 256;   // packets that are offered
  static constexpr std::size_t kLentMax = 1024;  // datagrams that are lent

  struct FreePool {
    void operator()(rte_mempool* pool) const noexcept;
  };
  using Pool = std::unique_ptr<rte_mempool, FreePool>;

  DpdkTransport(const DeviceConfig& config, const Arguments& arguments);

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

  DeviceConfig config_;
  // Ended last, after the devices that may still hold their buffers.
  Pool receive_pool_;
  Pool send_pool_;
  Pool header_pool_;
  Devices devices_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::string name_;
  Neighbours neighbours_;
  TimeNs now_ = 0;  // as of the last call that looked
  std::size_t next_port_ = 0;

  std::array<rte_mbuf*, kRoomMax> room_{};
  std::array<wire::Packet, kRoomMax> packets_{};
  std::size_t offered_ = 0;

  std::array<rte_mbuf*, kLentMax> lent_{};
  std::size_t lent_count_ = 0;
  std::size_t lent_max_ = 0;
  std::array<rte_mbuf*, kBurst> ready_buffers_{};  // what wait() has found, for the next receive()
  std::array<RxDatagram, kBurst> ready_{};
  std::size_t ready_next_ = 0;
  std::size_t ready_count_ = 0;

  TransportStats stats_;
  std::atomic<int> error_{0};
  std::atomic<bool> woken_{false};
};

}  // namespace wiresum::transport::dpdk
