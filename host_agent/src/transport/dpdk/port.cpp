#include "transport/dpdk/port.hpp"

#include <net/if.h>
#include <rte_cycles.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_pause.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <stdexcept>

namespace wiresum::transport::dpdk {
namespace {

/// The wait for a full ring, which a polling peer empties sooner.
constexpr std::uint64_t kSendWaitUsMax = 100;
/// The wait for a full ring with MemifGate. The interrupt thread needs microseconds, once it has a core.
constexpr std::uint64_t kGateWaitUsMax = 100'000;
constexpr std::int64_t kLookNs = 200'000'000;
constexpr std::uint64_t kRxChecksums = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM;

template <std::size_t kCount>
bool is_one_of(std::string_view driver, const std::array<std::string_view, kCount>& drivers) {
  return std::find(drivers.begin(), drivers.end(), driver) != drivers.end();
}

/// Drivers that pass memory on, in any number of pieces: they have no limit, whatever MTU they report.
constexpr std::array<std::string_view, 2> kWithoutMtu{"net_memif", "net_ring"};
/// Drivers over an interface of the kernel's, whose MTU they do not report.
constexpr std::array<std::string_view, 3> kKernelInterfaces{"net_af_packet", "net_af_xdp", "net_tap"};

void check(int result, const std::string& what) {
  if (result < 0) throw std::runtime_error(what + ": " + rte_strerror(-result));
}

/// The kernel's MTU of an interface; 0 if there is none.
std::size_t kernel_mtu(unsigned index) {
  ifreq request{};
  const int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool known = any >= 0 && if_indextoname(index, static_cast<char*>(request.ifr_name)) != nullptr &&
                     ioctl(any, SIOCGIFMTU, &request) == 0;
  if (any >= 0) close(any);
  return known ? static_cast<std::size_t>(request.ifr_mtu) : 0;
}

}  // namespace

Port::Port(const Devices::Port& port, const PortConfig& config)
    : id_(port.id), is_memif_(is_memif(port.device)), connects_(is_memif_client(port.device)) {
  std::exception_ptr thrown;
  const auto set_up = [&] {
    try {
      configure(config, port.device);
    } catch (...) {
      thrown = std::current_exception();
    }
  };
  is_memif_ ? on_interrupt_thread(set_up) : set_up();
  if (thrown) std::rethrow_exception(thrown);
  const int result = start();
  if (!connects_) check(result, "cannot start the DPDK port " + driver_);
  if (queues_.receive > 1) {
    has_rules_ = steer(id_, config.address, config.udp_ports, queues_.receive);
  }
}

const char* Port::steering() const noexcept {
  if (has_rules_) return "flow rules";
  return queues_.receive > 1 ? "queues without rules" : "one queue";
}

Port::~Port() {
  if (started_) stop();
}

int Port::start() {
  int result = 0;
  const auto call = [&] { result = rte_eth_dev_start(id_); };
  is_memif_ ? on_interrupt_thread(call) : call();
  started_ = result == 0;
  if (started_ && is_memif_ && !connects_) {
    // A stopped server still accepts clients, with queues that no longer exist: those clients must connect again.
    stop();
    on_interrupt_thread(call);
    started_ = result == 0;
  }
  return result;
}

void Port::stop() {
  const auto call = [this] { static_cast<void>(rte_eth_dev_stop(id_)); };
  is_memif_ ? on_interrupt_thread(call) : call();
  started_ = false;
}

void Port::configure(const PortConfig& config, const std::string& device) {
  rte_eth_dev_info info{};
  check(rte_eth_dev_info_get(id_, &info), "cannot ask a DPDK port what it is");
  driver_ = info.driver_name;
  const std::string who = "the DPDK port " + driver_;
  rte_eth_conf wanted;
  std::memset(&wanted, 0, sizeof wanted);
  sends_segments_ = (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) != 0;
  sends_checksums_ = (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_UDP_CKSUM) != 0;
  checks_ = (info.rx_offload_capa & kRxChecksums) == kRxChecksums;
  kernel_sends_ = is_one_of(driver_, kKernelInterfaces);
  if (sends_segments_) wanted.txmode.offloads |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
  if (sends_checksums_) wanted.txmode.offloads |= RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
  if (checks_) wanted.rxmode.offloads |= kRxChecksums;
  const auto threads = static_cast<unsigned>(config.receive_pools.size());
  // A packet to a queue that a net_memif's peer does not have would be written over those of the first.
  queues_ = queues_for(threads, info.max_rx_queues, info.max_tx_queues, !is_memif_);
  if (queues_.receive > 1 && info.flow_type_rss_offloads != 0) {
    wanted.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
    wanted.rx_adv_conf.rss_conf.rss_hf = info.flow_type_rss_offloads & (RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP);
  }
  check(rte_eth_dev_configure(id_, queues_.receive, queues_.send, &wanted), "cannot configure " + who);
  allow_size(config, device);
  std::uint16_t receive_descriptors = config.descriptors;
  std::uint16_t send_descriptors = config.descriptors;
  check(rte_eth_dev_adjust_nb_rx_tx_desc(id_, &receive_descriptors, &send_descriptors), "no ring sizes for " + who);
  const auto socket = static_cast<unsigned>(rte_eth_dev_socket_id(id_));
  for (std::uint16_t queue = 0; queue != queues_.receive; ++queue) {
    check(rte_eth_rx_queue_setup(id_, queue, receive_descriptors, socket, nullptr, config.receive_pools[queue]),
          "no receive queue at " + who);
  }
  for (std::uint16_t queue = 0; queue != queues_.send; ++queue) {
    check(rte_eth_tx_queue_setup(id_, queue, send_descriptors, socket, nullptr), "no send queue at " + who);
  }
  rte_ether_addr mac{};
  check(rte_eth_macaddr_get(id_, &mac), "no Ethernet address at " + who);
  std::memcpy(mac_.bytes.data(), static_cast<const std::uint8_t*>(mac.addr_bytes), mac_.bytes.size());
}

/// Throws if datagrams are too large for the port, which would drop them silently.
void Port::allow_size(const PortConfig& config, const std::string& device) {
  const std::size_t ip_bytes_max = config.ip_bytes_max;
  const std::string what = "the DPDK port " + driver_ + " cannot carry packets of " + std::to_string(ip_bytes_max) +
                           " bytes (IPv4 and UDP headers included): ";
  const std::size_t frame_bytes = ip_bytes_max + ethernet::kEthernetBytes;
  // A frame of its ring also holds the kernel's header; the rest must fit one of our buffers.
  constexpr std::size_t kOfKernelsMax = 64;
  constexpr std::size_t kOfKernelsMin = 32;
  const std::size_t ring_frame = device_number(device, "framesz", 2048);
  if (driver_ == "net_af_packet" &&
      (frame_bytes + kOfKernelsMax > ring_frame || ring_frame > config.buffer_bytes + kOfKernelsMin)) {
    throw std::runtime_error(what + "give its device framesz=" + std::to_string(config.buffer_bytes) +
                             ",blocksz=" + std::to_string(2 * config.buffer_bytes) + ", or use other lanes");
  }
  // net_memif would split larger frames, but version 22.11 joins the pieces wrongly after its ring has wrapped around.
  if (is_memif_ && frame_bytes > device_number(device, "bsize", 2048)) {
    throw std::runtime_error(what + "give the devices of both ends bsize=" +
                             std::to_string(std::bit_ceil(frame_bytes)) + ", or use fewer lanes");
  }
  std::uint16_t mtu = 0;
  check(rte_eth_dev_get_mtu(id_, &mtu), "no MTU at the DPDK port " + driver_);
  rte_eth_dev_info info{};
  check(rte_eth_dev_info_get(id_, &info), "cannot ask a DPDK port what it is");
  const std::size_t kernels = info.if_index != 0 ? kernel_mtu(info.if_index) : 0;
  if (ip_bytes_max <= (kernels != 0 ? kernels : mtu) || is_one_of(driver_, kWithoutMtu)) return;
  const int result = rte_eth_dev_set_mtu(id_, static_cast<std::uint16_t>(ip_bytes_max));
  if (result == 0) return;
  throw std::runtime_error(what + "its MTU is " + std::to_string(kernels != 0 ? kernels : mtu) +
                           ", and it takes no larger one (" + rte_strerror(-result) + "); use fewer lanes" +
                           (kernels != 0 ? ", or set the interface's MTU" : ""));
}

bool Port::look_after_link(std::int64_t now_ns) noexcept {
  if (now_ns < next_look_ns_) return false;
  const bool first = next_look_ns_ == 0;
  next_look_ns_ = now_ns + kLookNs;
  const bool was_up = link_up_;
  rte_eth_link link{};
  link_up_ = started_ && rte_eth_link_get_nowait(id_, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
  // A port is not restarted at the first look, since its link is still shaking hands.
  if (!link_up_ && connects_ && !first) {
    if (started_) stop();
    static_cast<void>(start());
  }
  return link_up_ && !was_up;
}

ethernet::ChecksumPolicy Port::policy(const rte_mbuf& packet) const noexcept {
  if (checks_ && (packet.ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) == RTE_MBUF_F_RX_L4_CKSUM_GOOD) {
    return ethernet::ChecksumPolicy::kTrusted;
  }
  // A sender on this machine leaves the checksum to the interface, and a virtual interface does not compute it.
  return kernel_sends_ ? ethernet::ChecksumPolicy::kWholeOrPseudo : ethernet::ChecksumPolicy::kWhole;
}

bool Port::found_wrong(const rte_mbuf& packet) const noexcept {
  return checks_ && ((packet.ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) == RTE_MBUF_F_RX_L4_CKSUM_BAD ||
                     (packet.ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK) == RTE_MBUF_F_RX_IP_CKSUM_BAD);
}

std::size_t Port::receive(std::uint16_t queue, std::span<rte_mbuf*> out) noexcept {
  if (!started_) return 0;
  if (is_memif_ && !MemifGate::enter()) {
    sched_yield();  // the interrupt thread may work on this core
    return 0;
  }
  const std::size_t count = rte_eth_rx_burst(id_, queue, out.data(), static_cast<std::uint16_t>(out.size()));
  if (is_memif_) MemifGate::leave();
  return count;
}

std::size_t Port::send(unsigned thread, std::span<rte_mbuf*> packets) noexcept {
  if (queues_.send > 1) return send_by(static_cast<std::uint16_t>(thread), packets);
  const std::lock_guard lock(shared_queue_);
  return send_by(0, packets);
}

std::size_t Port::send_by(std::uint16_t queue, std::span<rte_mbuf*> packets) noexcept {
  const auto all = static_cast<std::uint16_t>(packets.size());
  // Drivers differ in the headers that they want for packets to which they add a checksum.
  const std::size_t good = !started_ ? 0 : sends_checksums_ ? rte_eth_tx_prepare(id_, queue, packets.data(), all) : all;
  std::size_t sent = 0;
  std::uint64_t give_up = 0;
  std::uint64_t gate_give_up = 0;
  while (sent != good) {
    const auto left = static_cast<std::uint16_t>(good - sent);
    if (is_memif_ && !MemifGate::enter()) {
      const std::uint64_t now = rte_get_timer_cycles();
      if (gate_give_up == 0) gate_give_up = now + rte_get_timer_hz() / 1'000'000 * kGateWaitUsMax;
      if (now > gate_give_up) break;
      sched_yield();  // the interrupt thread may work on this core
      continue;
    }
    const std::uint16_t taken = rte_eth_tx_burst(id_, queue, &packets[sent], left);
    if (is_memif_) MemifGate::leave();
    sent += taken;
    if (taken == left) break;
    if (taken != 0) continue;
    const std::uint64_t now = rte_get_timer_cycles();
    if (give_up == 0) {
      rte_eth_link link{};
      if (rte_eth_link_get_nowait(id_, &link) == 0 && link.link_status == RTE_ETH_LINK_DOWN) break;
      give_up = now + rte_get_timer_hz() / 1'000'000 * kSendWaitUsMax;
    } else if (now > give_up) {
      break;
    }
    rte_pause();
  }
  rte_pktmbuf_free_bulk(&packets[sent], static_cast<unsigned>(packets.size() - sent));
  return sent;
}

}  // namespace wiresum::transport::dpdk
