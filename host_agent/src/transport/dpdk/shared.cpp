#include "transport/dpdk/shared.hpp"

#include <rte_mbuf.h>

#include <algorithm>
#include <cassert>
#include <stdexcept>

#include "transport/dpdk/arguments.hpp"
#include "transport/ethernet/frame.hpp"

namespace wiresum::transport::dpdk {
namespace {

using ethernet::kEthernetBytes;
using ethernet::kHeadersBytes;

/// The start of a payload in a buffer to send: aligned to a cache line, with place in front for the headers, and for a
/// driver's own headers before them.
constexpr std::size_t kPayloadAt = RTE_PKTMBUF_HEADROOM;
static_assert(kPayloadAt >= kHeadersBytes + 64);

constexpr unsigned kCachePackets = 128;        // buffers in a thread's cache of a pool
constexpr std::size_t kBufferBytesMin = 2048;  // drivers expect as much
constexpr std::size_t kSlackBytes = 64;        // net_af_packet wants some
constexpr std::size_t kBufferBytesMax = UINT16_MAX - RTE_PKTMBUF_HEADROOM;
constexpr std::size_t kHeaderBufferBytes = RTE_PKTMBUF_HEADROOM + 64;

std::size_t frame_bytes(const DeviceConfig& config) { return config.datagram_bytes_max + kHeadersBytes; }

/// The numbers and sizes of a transport's packets and descriptors.
struct PoolSizes {
  PoolSizes(const DeviceConfig& config, std::size_t ports)
      : buffer(std::min((frame_bytes(config) + kSlackBytes + kBufferBytesMin - 1) / kBufferBytesMin * kBufferBytesMin,
                        kBufferBytesMax)),
        spare(std::clamp(kPoolBytesMax / buffer, kSpareMin, kSpareMax)),
        descriptors(std::clamp(2 * spare / ports, kDescriptorsMin, kDescriptorsMax)),
        packets(descriptors * ports + spare) {}

  /// The bytes of a --no-huge memory for each thread.
  [[nodiscard]] std::size_t memory_bytes() const { return packets * (2 * buffer + kHeaderBufferBytes + kOverhead); }

  std::size_t buffer;       // bytes of a packet's buffer
  std::size_t spare;        // packets each way that may be lent, offered, or in a thread's cache
  std::size_t descriptors;  // descriptors of a port's ring
  std::size_t packets;      // packets each way

 private:
  static constexpr std::size_t kPoolBytesMax = 8u << 20;
  static constexpr std::size_t kSpareMin = 512;
  static constexpr std::size_t kSpareMax = 2048;
  static constexpr std::size_t kDescriptorsMax = 1024;
  static constexpr std::size_t kDescriptorsMin = 64;
  static constexpr std::size_t kOverhead = 1024;  // bytes of three buffers' structures
};

DeviceConfig checked(const DeviceConfig& config) {
  assert(config.threads != 0 && config.threads <= wire::kThreadsMax);
  if (config.ports.empty() || config.ports.size() > wire::kThreadsMax) {
    throw std::invalid_argument("a DPDK transport serves 1 to 16 UDP ports");
  }
  if (frame_bytes(config) > kBufferBytesMax) {
    throw std::invalid_argument("datagrams of " + std::to_string(config.datagram_bytes_max) +
                                " bytes do not fit a buffer of DPDK's: at most " +
                                std::to_string(kBufferBytesMax - kHeadersBytes));
  }
  return config;
}

/// Makes a pool with a unique name.
rte_mempool* new_pool(std::size_t packets, std::size_t buffer_bytes) {
  static std::atomic<unsigned> made{0};
  const std::string name = "wiresum_" + std::to_string(made.fetch_add(1));
  rte_mempool* const pool = rte_pktmbuf_pool_create(name.c_str(), static_cast<unsigned>(packets), kCachePackets, 0,
                                                    static_cast<std::uint16_t>(buffer_bytes), SOCKET_ID_ANY);
  if (pool == nullptr) {
    throw std::runtime_error("no memory for " + std::to_string(packets) + " packets of " +
                             std::to_string(buffer_bytes) + " bytes in DPDK: " + last_error() +
                             "; give it more (hugepages, or -m MEGABYTES with --no-huge)");
  }
  return pool;
}

}  // namespace

Shared::Shared(const DeviceConfig& settings) : config(checked(settings)) {
  const Arguments arguments = parse_arguments(config.device);
  const std::size_t ports_expected = std::max<std::size_t>(arguments.devices.size(), 1);
  devices = std::make_unique<Devices>(arguments, config.threads * PoolSizes(config, ports_expected).memory_bytes());
  const PoolSizes sizes(config, devices->ports().size());
  lent_max = sizes.spare / 2;
  std::vector<rte_mempool*> receive_pools;
  for (unsigned thread = 0; thread != config.threads; ++thread) {
    pools.push_back({.receive = Pool(new_pool(sizes.packets, RTE_PKTMBUF_HEADROOM + sizes.buffer)),
                     .send = Pool(new_pool(sizes.packets, kPayloadAt + sizes.buffer)),
                     .header = Pool(new_pool(sizes.packets, kHeaderBufferBytes))});
    receive_pools.push_back(pools.back().receive.get());
    claims.push_back(std::make_unique<Claims>());
  }
  for (const Devices::Port& port : devices->ports()) {
    ports.push_back(
        std::make_unique<Port>(port, PortConfig{.address = config.address,
                                                .udp_ports = config.ports,
                                                .ip_bytes_max = frame_bytes(config) - kEthernetBytes,
                                                .buffer_bytes = sizes.buffer,
                                                .descriptors = static_cast<std::uint16_t>(sizes.descriptors),
                                                .receive_pools = receive_pools}));
    const std::string& driver = ports.back()->driver();
    if (name.find(driver) == std::string::npos) name += (name.empty() ? "" : ", ") + driver;
    if (config.threads > 1) name += std::string(", ") + ports.back()->steering();
  }
  name = "dpdk (" + name + ")";
}

}  // namespace wiresum::transport::dpdk
