// Bursts over AF_XDP: packets between the memory of this process and a network interface, past the kernel's stack.
//
// Theory of operation
//
// Threads. All threads use the interface and its XDP program; each has a part of the queues, and memory of its own.
// Nothing else is shared.
//
// Receiving. The XDP program has put whole datagrams for our ports into chunks of our memory (rings.hpp shows a chunk's
// owners). receive() checks each datagram as a whole and lends good ones in place; the next receive() gives all these
// chunks back to the kernel. A jumbo frame lies in several chunks, and is copied together.
//
// Sending. buffers() offers places of our memory that no device reads. send() writes headers in front of each payload
// and puts the place into the transmit ring; for several endpoints, a copy for each but the last. The kernel puts
// places that have been read into the completion ring, in any order; then they are free. A burst costs one system call
// if the kernel wants to be told (need_wakeup), and in copy mode, where the call sends, another for each 32 packets.
// The ring has room for all places: a packet that the kernel does not take at once leaves with the next burst, or
// during our sleep. A packet is lost, and counted, only without a place for its copy or a known way to its endpoint.
//
// Checksums. Devices do not compute UDP's checksum for AF_XDP, so we compute it, and verify it on receipt. Packets of
// ordinary sockets on this machine carry only the pseudo-header's sum: the kernel leaves the rest to a device, and a
// veth pair, macvlan or bridge never computes it. The kernel accepts such packets, but does not mark them. Therefore,
// if packets may come from this machine (on veth, and with the program outside a driver), the pseudo-header's sum is
// accepted, too. One more broken packet in 2^16 then passes. Drivers of NICs show whole checksums to XDP.
//
// Trains. For the same reason a train of datagrams (UDP GSO) from a peer on this machine may arrive as one packet if
// the program is outside a driver. The train cannot be cut apart here, goes to the kernel's socket, and is lost: such a
// peer has to do without offloads. Before a veth pair with the program in its driver, the kernel cuts trains itself.
#include <linux/if_xdp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "process/descriptor.hpp"
#include "process/home.hpp"
#include "transport/ethernet/frame.hpp"
#include "transport/plugin.hpp"
#include "transport/transport.hpp"
#include "transport/xdp/device.hpp"
#include "transport/xdp/filter.hpp"
#include "transport/xdp/filter_config.h"
#include "transport/xdp/neighbours.hpp"
#include "transport/xdp/rings.hpp"

namespace wiresum::transport {
namespace {

using xdp::Queue;

static_assert(WIRESUM_FILTER_PORTS == wire::kThreadsMax);

constexpr std::size_t kBuffersMax = 256;
/// The most datagrams that are lent, so that the kernel always has chunks to receive into.
constexpr std::size_t kReceiveMax = 256;
/// The endpoints whose headers are made at a time.
constexpr std::size_t kEndpointsAtOnce = wire::kSwitchWorkersMax;
/// The packets that the kernel sends in one system call, in copy mode.
constexpr std::size_t kPacketsEachCall = 32;
/// The most tries after a refusal.
constexpr int kRefusalsMax = 8;
constexpr std::chrono::milliseconds kPatience{1000};
constexpr std::chrono::milliseconds kPatienceStep{5};
/// A descriptor's flag: the packet goes on in the next one. Headers before Linux 6.6 do not have it.
constexpr std::uint32_t kContinued = 1u << 0;
constexpr std::size_t kIpv4AndUdpBytes = ethernet::kIpv4Bytes + ethernet::kUdpBytes;

void check(const DeviceConfig& config, const xdp::InterfaceInfo& device) {
  if (config.ports.empty() || config.ports.size() > WIRESUM_FILTER_PORTS) {
    throw std::invalid_argument("an AF_XDP transport serves 1 to 16 ports");
  }
  if (config.threads == 0 || config.threads > device.queues) {
    throw std::runtime_error("the network interface " + device.name + " receives by " + std::to_string(device.queues) +
                             (device.queues == 1 ? " queue" : " queues") + ", too few for " +
                             std::to_string(config.threads) + " threads: more queues (ethtool -L " + device.name +
                             " combined ..., or for veth ip link add ... numrxqueues ...), or fewer threads");
  }
  if (config.datagram_bytes_max + kIpv4AndUdpBytes > device.mtu) {
    throw std::runtime_error("datagrams of " + std::to_string(config.datagram_bytes_max) + " bytes need an MTU of " +
                             std::to_string(config.datagram_bytes_max + kIpv4AndUdpBytes) + ", and that of " +
                             device.name + " is " + std::to_string(device.mtu) + ": fewer lanes, or ip link set " +
                             device.name + " mtu ...");
  }
}

ethernet::ChecksumPolicy policy_for(const xdp::InterfaceInfo& device, bool native) noexcept {
  const bool from_this_machine = device.driver == "veth" || !native;
  return from_this_machine ? ethernet::ChecksumPolicy::kWholeOrPseudo : ethernet::ChecksumPolicy::kWhole;
}

/// The parts that the threads of one configuration share.
struct Interface {
  explicit Interface(const DeviceConfig& settings)
      : config(settings),
        device(xdp::query_interface(settings.device, settings.address)),
        layout(checked_layout()),
        filter(device, config.address, config.ports, kIpv4AndUdpBytes + config.datagram_bytes_max),
        policy(policy_for(device, filter.native())) {}

  [[nodiscard]] xdp::Layout checked_layout() const {
    check(config, device);
    return xdp::layout_for(config.datagram_bytes_max);
  }

  [[nodiscard]] std::vector<std::uint32_t> queues_of(unsigned thread) const {
    std::vector<std::uint32_t> queues;
    for (std::uint32_t number = thread; number < device.queues; number += config.threads) queues.push_back(number);
    return queues;
  }

  const DeviceConfig config;
  const xdp::InterfaceInfo device;
  const xdp::Layout layout;
  const xdp::Filter filter;
  const ethernet::ChecksumPolicy policy;
};

/// A thread's transport. It gets its datagrams from every queue, and before sockets that are bound to its ports.
class XdpTransport final : public Transport {
 public:
  /// Waits, for kPatience each at most, until the kernel knows the ways to the peers.
  XdpTransport(std::shared_ptr<const Interface> interface, unsigned thread)
      : shared(std::move(interface)),
        rings(new xdp::Rings(device, shared->queues_of(thread), layout, filter.native())),
        neighbours(new xdp::Neighbours(device.name, device.index)),
        woken(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!woken.valid()) {
      throw std::system_error(errno, std::generic_category(), "cannot create an event");
    }
    label = std::string("xdp (") + (filter.native() ? "native" : "generic") +
            (rings->zero_copy() ? ", zero copy)" : ", copy)");
    free.reserve(layout.places);
    for (std::size_t i = layout.places; i != 0; --i) {
      free.push_back(rings->memory() + (i - 1) * layout.place_bytes());
    }
    unread.resize(layout.places);
    lent.resize(rings->queues().size());
    for (std::vector<std::uint64_t>& chunks : lent) {
      chunks.reserve(layout.chunks_received);
    }
    if (layout.several_chunks()) {
      gathered.resize(kReceiveMax * layout.place_bytes());
    }
    events.push_back({.fd = woken.get(), .events = POLLIN, .revents = 0});
    for (const Queue& queue : rings->queues()) {
      events.push_back({.fd = queue.descriptor, .events = POLLIN, .revents = 0});
      if (const int error = xsk_socket__update_xskmap(queue.socket.get(), filter.sockets_map()); error != 0) {
        throw std::system_error(-error, std::generic_category(), "cannot give an AF_XDP socket to the XDP program");
      }
    }
    for (const wire::Endpoint& peer : peers) {
      find(peer.address);
    }
  }

  bool hear(std::span<const wire::Endpoint> others, UdpSocket* group) noexcept override {
    if (others.size() != peers.size() || group != nullptr) {
      return false;
    }
    std::ranges::copy(others, peers.begin());
    // The kernel looks for the peers; packets before it has found them are lost, and sent again.
    ethernet::MacAddress mac;
    for (const wire::Endpoint& peer : peers) {
      static_cast<void>(neighbours->find(peer.address, mac));
    }
    return true;
  }

  const char* name() const noexcept override { return label.c_str(); }
  std::size_t train_packets(std::size_t) const noexcept override { return 1; }
  const TransportStats& stats() const noexcept override { return statistics; }
  int take_error() noexcept override {
    const int error = last_error.exchange(0, std::memory_order_relaxed);
    return error != 0 ? error : neighbours->take_error();
  }
  [[nodiscard]] std::int64_t untended_ns_max() const noexcept override { return kDeviceUntendedNsMax; }
  [[nodiscard]] int wake_event() const noexcept override { return woken.get(); }
  void wake() noexcept override {
    const std::uint64_t one = 1;
    static_cast<void>(!write(woken.get(), &one, sizeof one));
  }

  // ---- receiving ---------------------------------------------------------------------------------------------------

  std::size_t receive(std::span<RxDatagram> out) noexcept override {
    ++statistics.receive_calls;
    if (left_behind) {
      kick();
    }
    std::vector<Queue>& queues = rings->queues();
    std::size_t count = 0;
    for (std::size_t i = 0; i != queues.size(); ++i) {
      const std::size_t number = (first_queue + i) % queues.size();
      give_back(number);
      count += take(number, out.subspan(count, std::min(out.size(), kReceiveMax) - count), count);
    }
    first_queue = (first_queue + 1) % queues.size();
    statistics.datagrams_received += count;
    statistics.messages_received += count;
    return count;
  }

  /// Returns the lent chunks of a queue to the kernel.
  void give_back(std::size_t number) noexcept {
    Queue& queue = rings->queues()[number];
    std::vector<std::uint64_t>& chunks = lent[number];
    if (!chunks.empty()) {
      std::uint32_t at = 0;
      const auto count = static_cast<std::uint32_t>(chunks.size());
      const std::uint32_t reserved = xsk_ring_prod__reserve(&queue.fill, count, &at);
      assert(reserved == count);  // the ring has room for more than its queue's chunks (rings.cpp)
      static_cast<void>(reserved);
      for (std::uint32_t i = 0; i != count; ++i) {
        *xsk_ring_prod__fill_addr(&queue.fill, at + i) = chunks[i];
      }
      xsk_ring_prod__submit(&queue.fill, count);
      chunks.clear();
    }
    if (xsk_ring_prod__needs_wakeup(&queue.fill) != 0) {
      static_cast<void>(recvfrom(queue.descriptor, nullptr, 0, MSG_DONTWAIT, nullptr, nullptr));
    }
  }

  /// Reads a queue's receive ring until `out` is full; `taken` datagrams are in it already, of other queues.
  std::size_t take(std::size_t number, std::span<RxDatagram> out, std::size_t taken) noexcept {
    Queue& queue = rings->queues()[number];
    std::uint32_t at = 0;
    const std::uint32_t available =
        xsk_ring_cons__peek(&queue.received, static_cast<std::uint32_t>(layout.chunks_received), &at);
    std::uint32_t used = 0;
    std::size_t count = 0;
    while (used != available && count != out.size()) {
      const std::uint32_t pieces = pieces_of_frame(queue, at + used, available - used);
      const std::span<const std::byte> frame = join(queue, at + used, pieces, taken + count);
      for (std::uint32_t i = 0; i != pieces; ++i) {
        const std::uint64_t address = xsk_ring_cons__rx_desc(&queue.received, at + used + i)->addr;
        lent[number].push_back(address - address % layout.chunk_bytes);
      }
      used += pieces;
      if (accept(frame, out[count])) {
        ++count;
      }
    }
    xsk_ring_cons__cancel(&queue.received, available - used);
    xsk_ring_cons__release(&queue.received, used);
    return count;
  }

  /// The number of the `available` descriptors that the first frame takes. The kernel shows only whole frames; a frame
  /// without an end is refused like any broken one.
  [[nodiscard]] static std::uint32_t pieces_of_frame(const Queue& queue, std::uint32_t at,
                                                     std::uint32_t available) noexcept {
    std::uint32_t pieces = 1;
    while (pieces != available &&
           (xsk_ring_cons__rx_desc(&queue.received, at + pieces - 1)->options & kContinued) != 0) {
      ++pieces;
    }
    return pieces;
  }

  /// The frame of `pieces` descriptors as one stretch of memory: in place, or put together at place `index`. Empty if
  /// longer than our frames.
  [[nodiscard]] std::span<const std::byte> join(const Queue& queue, std::uint32_t at, std::uint32_t pieces,
                                                std::size_t index) noexcept {
    if (pieces == 1) {
      return piece(queue, at);
    }
    if (gathered.empty()) {
      return {};
    }
    std::byte* const to = gathered.data() + index * layout.place_bytes();
    std::size_t bytes = 0;
    for (std::uint32_t i = 0; i != pieces; ++i) {
      const std::span<const std::byte> part = piece(queue, at + i);
      if (bytes + part.size() > layout.place_bytes()) {
        return {};
      }
      std::memcpy(to + bytes, part.data(), part.size());
      bytes += part.size();
    }
    return {to, bytes};
  }

  [[nodiscard]] std::span<const std::byte> piece(const Queue& queue, std::uint32_t at) const noexcept {
    const xdp_desc* const descriptor = xsk_ring_cons__rx_desc(&queue.received, at);
    return {rings->memory() + descriptor->addr, descriptor->len};
  }

  /// True for a datagram to us from one of our peers. A switch that floods shows us frames to others, too.
  [[nodiscard]] bool accept(std::span<const std::byte> frame, RxDatagram& out) const noexcept {
    ethernet::UdpFrame datagram;
    if (ethernet::parse(frame, shared->policy, datagram) != ethernet::FrameError::kNone ||
        datagram.destination_mac != shared->device.mac || datagram.destination.address != config.address) {  // R2.6
      return false;
    }
    const auto found = std::find(config.ports.begin(), config.ports.end(), datagram.destination.port);
    const auto port = static_cast<std::size_t>(found - config.ports.begin());
    if (found == config.ports.end() || !hears(peers, port, datagram.source)) {
      return false;
    }
    out = {.bytes = datagram.payload,
           .source = datagram.source,
           .port = static_cast<std::uint8_t>(port),
           .marked = datagram.marked};
    return true;
  }

  // ---- sending -----------------------------------------------------------------------------------------------------

  [[nodiscard]] Queue& sender() noexcept { return rings->queues().front(); }

  std::span<wire::Packet> buffers(std::size_t wanted) noexcept override {
    wanted = std::min(wanted, kBuffersMax);
    if (offered < wanted && free.size() < wanted - offered) {
      reap();
      if (free.size() < wanted - offered && left_behind) {
        kick();
        reap();
      }
    }
    while (offered < wanted && !free.empty()) {
      packets[offered++] = {.data = free.back() + xdp::kPayloadAt, .bytes = 0};
      free.pop_back();
    }
    return std::span(packets).first(std::min(wanted, offered));
  }

  void send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t port, bool marked) noexcept override {
    assert(count <= offered && port < config.ports.size() && !to.empty());
    while (to.size() > kEndpointsAtOnce) {
      send_to(count, to.first(kEndpointsAtOnce), {.port = port, .marked = marked, .last = false});
      to = to.subspan(kEndpointsAtOnce);
    }
    send_to(count, to, {.port = port, .marked = marked, .last = true});
    std::copy(packets.begin() + static_cast<std::ptrdiff_t>(count),
              packets.begin() + static_cast<std::ptrdiff_t>(offered), packets.begin());
    offered -= count;
    flush();
  }

  struct Manner {
    std::uint8_t port = 0;
    bool marked = false;
    bool last = true;  // for the last endpoints the places themselves are sent
  };
  /// Queues the first `count` packets for each endpoint.
  void send_to(std::size_t count, std::span<const wire::Endpoint> to, Manner manner) noexcept {
    std::size_t ways = 0;
    for (const wire::Endpoint& endpoint : to) {
      ethernet::Path path{.source_mac = device.mac,
                          .destination_mac = {},
                          .source = {.address = config.address, .port = config.ports[manner.port]},
                          .destination = endpoint,
                          .marked = manner.marked};
      if (neighbours->find(endpoint.address, path.destination_mac)) {
        headers[ways++] = ethernet::Headers(path);
      } else {
        statistics.send_failures += count;
      }
    }
    for (const wire::Packet& packet : std::span(packets).first(count)) {
      assert(packet.bytes <= config.datagram_bytes_max);
      std::byte* const place = packet.data - xdp::kPayloadAt;
      const ethernet::PartialSum sum = ethernet::sum({packet.data, packet.bytes});
      const std::size_t copies = manner.last && ways != 0 ? ways - 1 : ways;
      for (std::size_t i = 0; i != copies; ++i) {
        if (std::byte* const copy = take_place(); copy != nullptr) {
          std::memcpy(copy + xdp::kPayloadAt, packet.data, packet.bytes);
          queue_frame(copy, packet.bytes, headers[i], sum);
        } else {
          ++statistics.send_failures;
        }
      }
      if (!manner.last) {
        continue;
      }
      if (ways != 0) {
        queue_frame(place, packet.bytes, headers[ways - 1], sum);
      } else {
        free.push_back(place);
      }
    }
  }

  /// Takes a free place; null if the device reads all.
  [[nodiscard]] std::byte* take_place() noexcept {
    if (free.empty()) {
      flush();
      reap();
    }
    if (free.empty()) {
      return nullptr;
    }
    std::byte* const place = free.back();
    free.pop_back();
    return place;
  }

  /// Puts a packet into the transmit ring, which has room for all places; flush() tells the kernel.
  void queue_frame(std::byte* place, std::uint32_t payload_bytes, const ethernet::Headers& with,
                   ethernet::PartialSum sum) noexcept {
    std::byte* const start = place + xdp::kPayloadAt - ethernet::kHeadersBytes;
    with.write(std::span<std::byte, ethernet::kHeadersBytes>(start, ethernet::kHeadersBytes), payload_bytes,
               ethernet::UdpChecksum::kWhole, sum);
    auto address = static_cast<std::uint64_t>(start - rings->memory());
    auto left = static_cast<std::uint32_t>(ethernet::kHeadersBytes + payload_bytes);
    while (left != 0) {
      const auto in_chunk = static_cast<std::uint32_t>(layout.chunk_bytes - address % layout.chunk_bytes);
      const std::uint32_t bytes = std::min(left, in_chunk);
      std::uint32_t at = 0;
      const std::uint32_t reserved = xsk_ring_prod__reserve(&sender().transmit, 1, &at);
      assert(reserved == 1);
      static_cast<void>(reserved);
      left -= bytes;
      *xsk_ring_prod__tx_desc(&sender().transmit, at) = {
          .addr = address, .len = bytes, .options = left != 0 ? kContinued : 0};
      address += bytes;
      ++queued;
      ++unread[place_number(place)];
    }
    ++statistics.datagrams_sent;
  }

  void flush() noexcept {
    if (queued != 0) {
      xsk_ring_prod__submit(&sender().transmit, queued);
      queued = 0;
      kick();
    }
  }

  /// True if the kernel has left descriptors in the transmit ring.
  [[nodiscard]] bool unsent() noexcept {
    const xsk_ring_prod& ring = sender().transmit;
    return __atomic_load_n(ring.consumer, __ATOMIC_ACQUIRE) != __atomic_load_n(ring.producer, __ATOMIC_RELAXED);
  }

  /// Makes the kernel send from the transmit ring, as much as it takes without blocking.
  void kick() noexcept {
    Queue& queue = sender();
    int refusals = 0;
    left_behind = false;
    for (std::size_t call = 0; call != kCallsMax && xsk_ring_prod__needs_wakeup(&queue.transmit) != 0; ++call) {
      const std::uint32_t before = __atomic_load_n(queue.transmit.consumer, __ATOMIC_ACQUIRE);
      ++statistics.send_calls;
      if (sendto(queue.descriptor, nullptr, 0, MSG_DONTWAIT, nullptr, 0) >= 0) {
        return;
      }
      const int error = errno;
      left_behind = unsent();
      if (error != EAGAIN && error != EBUSY && error != ENOBUFS && error != EINTR) {
        note_error(error);
        return;
      }
      // In copy mode a call sends kPacketsEachCall packets, and returns EAGAIN if there are more.
      const bool moved = __atomic_load_n(queue.transmit.consumer, __ATOMIC_ACQUIRE) != before;
      if (!left_behind || (!moved && ++refusals > kRefusalsMax)) {
        return;
      }
    }
  }

  /// Takes back the places that have been read.
  void reap() noexcept {
    Queue& queue = sender();
    std::uint32_t at = 0;
    const std::uint32_t count = xsk_ring_cons__peek(&queue.completed, queue.completed.size, &at);
    for (std::uint32_t i = 0; i != count; ++i) {
      const std::uint64_t address = *xsk_ring_cons__comp_addr(&queue.completed, at + i);
      // The chunks of a jumbo frame come back one by one.
      std::byte* const place = rings->memory() + address - address % layout.place_bytes();
      assert(unread[place_number(place)] != 0);
      if (--unread[place_number(place)] == 0) {
        free.push_back(place);
      }
    }
    xsk_ring_cons__release(&queue.completed, count);
  }

  [[nodiscard]] std::size_t place_number(const std::byte* place) const noexcept {
    return static_cast<std::size_t>(place - rings->memory()) / layout.place_bytes();
  }

  // ---- sleeping ----------------------------------------------------------------------------------------------------

  void wait(std::int64_t timeout_ns) noexcept override {
    timespec timeout{.tv_sec = timeout_ns / 1'000'000'000, .tv_nsec = timeout_ns % 1'000'000'000};
    // In copy mode this also sends packets left in the transmit ring.
    const int count = ppoll(events.data(), events.size(), timeout_ns < 0 ? nullptr : &timeout, nullptr);
    if (count <= 0) {
      return;
    }
    if (events.front().revents != 0) {
      std::uint64_t wakes = 0;
      static_cast<void>(!read(woken.get(), &wakes, sizeof wakes));
    }
  }

 private:
  /// Finds the switch's MAC address, so that a worker's first packets are not lost.
  void find(std::uint32_t address) {
    ethernet::MacAddress mac;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!neighbours->find(address, mac) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kPatienceStep);
    }
  }

  void note_error(int error) noexcept { last_error.store(error, std::memory_order_relaxed); }

  static constexpr std::size_t kCallsMax = 2048 / kPacketsEachCall + kRefusalsMax;

  std::shared_ptr<const Interface> shared;
  const DeviceConfig& config{shared->config};
  std::vector<wire::Endpoint> peers{config.peers};  // by port; empty: all senders are heard
  const xdp::InterfaceInfo& device{shared->device};
  const xdp::Layout& layout{shared->layout};
  const xdp::Filter& filter{shared->filter};
  process::Owned<xdp::Rings> rings;  // a forked child leaves these two alone
  process::Owned<xdp::Neighbours> neighbours;
  process::Descriptor woken;
  std::string label;
  TransportStats statistics;
  std::atomic<int> last_error{0};

  std::vector<std::vector<std::uint64_t>> lent;  // each queue's chunks
  std::vector<std::byte> gathered;               // jumbo frames that were put together
  std::size_t first_queue = 0;                   // the next one to read

  std::vector<std::byte*> free;      // places that are ours
  std::vector<std::uint8_t> unread;  // chunks of each place that the device has not read yet
  std::array<wire::Packet, kBuffersMax> packets{};
  std::size_t offered = 0;  // number of `packets`
  std::array<ethernet::Headers, kEndpointsAtOnce> headers{};
  std::uint32_t queued = 0;  // descriptors that the kernel has not been told of
  bool left_behind = false;  // the kernel was told, and did not take all descriptors

  std::vector<pollfd> events;
};

std::vector<std::unique_ptr<Transport>> open(const DeviceConfig& config) {
  const auto shared = std::make_shared<const Interface>(config);
  std::vector<std::unique_ptr<Transport>> transports;
  for (unsigned thread = 0; thread != config.threads; ++thread) {
    transports.push_back(std::make_unique<XdpTransport>(shared, thread));
  }
  return transports;
}

}  // namespace
}  // namespace wiresum::transport

extern "C" [[gnu::visibility("default")]] const wiresum::transport::PluginEntry wiresum_transport_plugin{
    wiresum::transport::kTransportAbi, &wiresum::transport::open};
