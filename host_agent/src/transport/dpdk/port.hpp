// One port of DPDK, with its queues.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>

#include "transport/dpdk/eal.hpp"
#include "transport/dpdk/steering.hpp"
#include "transport/ethernet/frame.hpp"

struct rte_mbuf;
struct rte_mempool;

namespace wiresum::transport::dpdk {

struct PortConfig {
  std::uint32_t address = 0;  // the address that the threads serve, each at every so many of these UDP ports
  std::span<const std::uint16_t> udp_ports;
  std::size_t ip_bytes_max = 0;                 // size of a datagram with its IPv4 and UDP headers
  std::size_t buffer_bytes = 0;                 // size of a pool's buffer, without its headroom
  std::uint16_t descriptors = 1024;             // descriptors of each queue
  std::span<rte_mempool* const> receive_pools;  // a pool for each thread; a queue receives into its first thread's pool
};

class Port {
 public:
  /// Configures and starts a port. Throws std::runtime_error if the port refuses, or cannot carry packets of that size.
  Port(const Devices::Port& port, const PortConfig& config);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  [[nodiscard]] const std::string& driver() const noexcept { return driver_; }
  [[nodiscard]] const ethernet::MacAddress& mac() const noexcept { return mac_; }
  /// True if the port takes packets that lie in several buffers.
  [[nodiscard]] bool sends_segments() const noexcept { return sends_segments_; }
  /// True if the port computes the checksum of UDP for packets that ask for it.
  [[nodiscard]] bool sends_checksums() const noexcept { return sends_checksums_; }

  /// A description of how packets reach their threads.
  [[nodiscard]] const char* steering() const noexcept;
  /// The number of receive queues: one, or as many as there are threads.
  [[nodiscard]] std::uint16_t receive_queues() const noexcept { return queues_.receive; }

  /// Checks the link from time to time; called by one thread only. Connects again where the driver tries only once
  /// (net_memif as a client). Returns true if the link has come up since.
  [[nodiscard]] bool look_after_link(std::int64_t now_ns) noexcept;

  /// The policy for the checksum of a received packet, by what the device has found.
  [[nodiscard]] ethernet::ChecksumPolicy policy(const rte_mbuf& packet) const noexcept;
  [[nodiscard]] bool found_wrong(const rte_mbuf& packet) const noexcept;

  /// Takes at most out.size() packets from a queue of the device; called by one thread only. Returns how many.
  [[nodiscard]] std::size_t receive(std::uint16_t queue, std::span<rte_mbuf*> out) noexcept;

  /// Gives packets to the device, all of them if it takes them within a bounded time; the rest is freed. Returns how
  /// many it took. Threads share a queue, in turns, where there are not enough.
  [[nodiscard]] std::size_t send(unsigned thread, std::span<rte_mbuf*> packets) noexcept;

 private:
  int start();
  void stop();
  void configure(const PortConfig& config, const std::string& device);
  void allow_size(const PortConfig& config, const std::string& device);

  [[nodiscard]] std::size_t send_by(std::uint16_t queue, std::span<rte_mbuf*> packets) noexcept;

  std::uint16_t id_;
  QueueCounts queues_;
  bool has_rules_ = false;   // the port has flow rules
  std::mutex shared_queue_;  // for sending where threads share a queue
  bool is_memif_;
  bool connects_;  // connects to a peer that may come later, or go and come again
  std::string driver_;
  ethernet::MacAddress mac_;
  bool sends_segments_ = false;
  bool sends_checksums_ = false;
  bool checks_ = false;  // the port checks received checksums
  bool kernel_sends_ = false;
  std::atomic<bool> started_{false};
  bool link_up_ = false;
  std::int64_t next_look_ns_ = 0;
};

}  // namespace wiresum::transport::dpdk
