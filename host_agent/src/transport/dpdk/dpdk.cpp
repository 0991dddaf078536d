// Bursts over DPDK: the process drives the ports itself, and answers ARP for them in place of a kernel.
//
// All ports that EAL finds for the transport are its own: a worker has one; a switch may have many, with other workers
// behind each. Packets leave by the port behind which the neighbour was found (neighbours.hpp).
//
// Several threads may drive the ports, each through its own transport. Ports and EAL's devices are shared; steering.hpp
// says which queues a thread has. Each thread has its own pools and table of neighbours. Answers to its ARP requests
// may come in by another thread's queue, so a thread that receives ARP tells all.
//
// Buffers (mbufs) change owners. buffers() offers the data areas of our buffers. send() puts the headers in front (for
// several endpoints, in one more buffer for each) and gives the buffers to the driver, which frees those it has read. A
// freed buffer returns to its pool after the last reference, and is offered again only from there: a buffer that a
// device still reads is never written to.
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_ip.h>
#include <rte_mbuf.h>
#include <rte_pause.h>
#include <rte_prefetch.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "process/home.hpp"
#include "transport/dpdk/neighbours.hpp"
#include "transport/dpdk/port.hpp"
#include "transport/dpdk/shared.hpp"
#include "transport/ethernet/arp.hpp"
#include "transport/ethernet/checksum.hpp"
#include "transport/plugin.hpp"

namespace wiresum::transport::dpdk {
namespace {

constexpr std::size_t kPrefetch = 4;  // packets ahead

using ethernet::kEthernetBytes;
using ethernet::kHeadersBytes;

constexpr std::size_t kRoundMax = 1024;  // frames that one receive() examines, ours or not

// The times for which wait() polls, and then sleeps. A worker that waits for a chunk should not sleep; an idle worker
// should not take a core.
constexpr TimeNs kPauseNs = 5'000;  // other threads may use the core after this time
constexpr TimeNs kSpinNs = 50'000;
constexpr TimeNs kSleepNsMin = 1'000;
constexpr TimeNs kSleepNsMax = 50'000;

TimeNs clock_now() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

std::span<std::byte> data_of(rte_mbuf& packet) noexcept {
  return {rte_pktmbuf_mtod(&packet, std::byte*), rte_pktmbuf_data_len(&packet)};
}

void set_length(rte_mbuf& packet, std::size_t bytes) noexcept {
  packet.data_len = static_cast<std::uint16_t>(bytes);
  packet.pkt_len = static_cast<std::uint32_t>(bytes);
}

class DpdkTransport final : public Transport {
 public:
  DpdkTransport(std::shared_ptr<const Shared> shared, unsigned thread)
      : shared_(std::move(shared)),
        config_(shared_->config),
        peers_(config_.peers),
        ports_(shared_->ports),
        thread_(thread),
        send_pool_(shared_->pools[thread].send.get()),
        header_pool_(shared_->pools[thread].header.get()),
        now_(clock_now()) {
    for (std::size_t port = 0; port != ports_.size(); ++port) {
      const std::uint16_t queues = ports_[port]->receive_queues();
      for (std::uint16_t queue = 0; queue != queues; ++queue) {
        if (takes(thread, config_.threads, port, queue, queues)) sources_.push_back({.port = port, .queue = queue});
      }
    }
  }

  ~DpdkTransport() override {
    if (!home_.is_here()) return;  // a forked child shares the pools with the parent, which uses them
    rte_pktmbuf_free_bulk(lent_.data(), static_cast<unsigned>(lent_count_));
    rte_pktmbuf_free_bulk(&ready_buffers_[ready_next_], static_cast<unsigned>(ready_count_ - ready_next_));
    rte_pktmbuf_free_bulk(mbufs_.data(), static_cast<unsigned>(offered_));
  }

  const char* name() const noexcept override { return shared_->name.c_str(); }
  std::size_t train_packets(std::size_t) const noexcept override { return 1; }
  void wake() noexcept override { woken_.store(true); }
  [[nodiscard]] std::int64_t untended_ns_max() const noexcept override { return kDeviceUntendedNsMax; }
  const TransportStats& stats() const noexcept override { return stats_; }
  int take_error() noexcept override { return error_.exchange(0, std::memory_order_relaxed); }

  bool hear(std::span<const wire::Endpoint> peers, UdpSocket* group) noexcept override {
    if (peers.size() != peers_.size() || group != nullptr) return false;
    std::ranges::copy(peers, peers_.begin());
    return true;
  }

  std::size_t receive(std::span<RxDatagram> out) noexcept override {
    adopt_first_thread();
    ++stats_.receive_calls;
    rte_pktmbuf_free_bulk(lent_.data(), static_cast<unsigned>(lent_count_));
    lent_count_ = 0;
    out = out.first(std::min({out.size(), kLentMax, shared_->lent_max}));
    std::size_t count = 0;
    for (; ready_next_ != ready_count_ && count != out.size(); ++ready_next_, ++count) {
      out[count] = ready_[ready_next_];
      lent_[count] = ready_buffers_[ready_next_];
    }
    if (count == 0) count = poll(out, lent_);
    lent_count_ = count;
    stats_.datagrams_received += count;
    if (count != 0) ++stats_.messages_received;  // a burst counts as a message: datagrams that come together
    return count;
  }

  std::span<wire::Packet> buffers(std::size_t wanted) noexcept override {
    adopt_first_thread();
    wanted = std::min(wanted, kBuffersMax);
    if (offered_ < wanted &&
        rte_pktmbuf_alloc_bulk(send_pool_, &mbufs_[offered_], static_cast<unsigned>(wanted - offered_)) == 0) {
      for (; offered_ != wanted; ++offered_) {
        packets_[offered_] = {.data = rte_pktmbuf_mtod(mbufs_[offered_], std::byte*), .bytes = 0};
      }
    }
    return std::span(packets_).first(std::min(offered_, wanted));
  }

  void send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t port, bool marked) noexcept override {
    assert(count <= offered_ && port < config_.ports.size());
    for (std::size_t i = 0; i != count; ++i) {
      assert(packets_[i].bytes <= config_.datagram_bytes_max);
      set_length(*mbufs_[i], packets_[i].bytes);
    }
    for (std::size_t first = 0; first < count; first += kBurst) {
      const std::span<rte_mbuf*> burst = std::span(mbufs_).subspan(first, std::min(kBurst, count - first));
      if (to.size() == 1) {
        send_to(burst, to.front(), port, marked);
      } else {
        send_copies(burst, to, port, marked);
      }
    }
    // Buffers that were offered and not sent are offered again.
    std::move(&mbufs_[count], &mbufs_[offered_], mbufs_.begin());
    std::move(&packets_[count], &packets_[offered_], packets_.begin());
    offered_ -= count;
  }

  // The thread polls, since there are no interrupts. After the last packet it polls as fast as it can for kSpinNs,
  // because an answer is a few microseconds away. Then it sleeps between polls, longer each time, up to kSleepNsMax: an
  // idle thread takes some percent of a core, and notices the first packet after a pause, or another thread's wake-up,
  // at most kSleepNsMax late.
  void wait(std::int64_t timeout_ns) noexcept override {
    if (ready_next_ != ready_count_) return;
    adopt_first_thread();
    const TimeNs start = clock_now();
    for (TimeNs sleep_ns = kSleepNsMin;;) {
      if (woken_.exchange(false)) return;
      look();
      const TimeNs waited_ns = now_ - start;
      if (ready_count_ != 0 || (timeout_ns >= 0 && waited_ns >= timeout_ns)) return;
      if (waited_ns < kSpinNs) {
        waited_ns < kPauseNs ? rte_pause() : static_cast<void>(sched_yield());
        continue;
      }
      const TimeNs left_ns = timeout_ns < 0 ? sleep_ns : timeout_ns - waited_ns;
      const timespec nap{.tv_sec = 0, .tv_nsec = std::min(sleep_ns, left_ns)};
      clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, nullptr);
      sleep_ns = std::min(2 * sleep_ns, kSleepNsMax);
    }
  }

 private:
  /// Gives the first thread a cache of buffers, since it drives most of the time. Other threads drive for a single sum:
  /// a cache for each would leave no buffers for later threads.
  void adopt_first_thread() noexcept {
    if (!std::exchange(has_first_thread_, true)) adopt_thread();
  }

  static constexpr std::size_t kBurst = 64;        // packets asked of a port, or given to it, at once
  static constexpr std::size_t kBuffersMax = 256;  // packets that are offered
  static constexpr std::size_t kLentMax = 1024;    // datagrams that are lent

  /// A queue that this thread takes packets from.
  struct Source {
    std::size_t port;
    std::uint16_t queue;
  };

  // ---- Receiving ----

  /// Takes datagrams from the thread's queues, and handles ARP and timers that are due.
  std::size_t poll(std::span<RxDatagram> out, std::span<rte_mbuf*> buffers) noexcept {
    now_ = clock_now();
    for (std::size_t port = 0; thread_ == 0 && port != ports_.size(); ++port) {
      if (ports_[port]->look_after_link(now_)) announce(port);
    }
    shared_->claims[thread_]->take(
        [this](const Claim& claim) { neighbours_.claimed(claim.address, claim.by, claim.answer, now_); });
    std::size_t count = 0;
    std::size_t idle = 0;
    // The first queue is the last next time, so that none starves the others.
    for (std::size_t looked = 0; looked < kRoundMax && idle != sources_.size() && count != out.size();) {
      const auto [port, queue] = sources_[next_source_];
      next_source_ = (next_source_ + 1) % sources_.size();
      std::array<rte_mbuf*, kBurst> burst{};
      const std::size_t wanted = std::min(kBurst, out.size() - count);
      const std::size_t taken = ports_[port]->receive(queue, std::span(burst).first(wanted));
      idle = taken == 0 ? idle + 1 : 0;
      looked += taken;
      for (std::size_t i = 0; i != std::min(kPrefetch, taken); ++i) rte_prefetch0(rte_pktmbuf_mtod(burst[i], void*));
      for (std::size_t i = 0; i != taken; ++i) {
        if (i + kPrefetch < taken) rte_prefetch0(rte_pktmbuf_mtod(burst[i + kPrefetch], void*));
        if (accept(*burst[i], port, out[count])) {
          buffers[count++] = burst[i];
        } else {
          rte_pktmbuf_free(burst[i]);
        }
      }
    }
    ask();
    return count;
  }

  /// Reads one frame. False if it is not a datagram for the caller.
  bool accept(rte_mbuf& packet, std::size_t port, RxDatagram& out) noexcept {
    // Devices that deliver memory in pieces deliver large frames as chains.
    if (packet.nb_segs > 1 && rte_pktmbuf_linearize(&packet) != 0) return false;
    const std::span<const std::byte> frame = data_of(packet);
    ethernet::UdpFrame udp;
    const ethernet::FrameError error = ethernet::parse(frame, ports_[port]->policy(packet), udp);
    if (error == ethernet::FrameError::kNotIpv4) answer(frame, port);
    if (error != ethernet::FrameError::kNone || ports_[port]->found_wrong(packet)) return false;
    if (udp.destination_mac != ports_[port]->mac() || udp.destination.address != config_.address) return false;  // R2.6
    const auto ours = std::find(config_.ports.begin(), config_.ports.end(), udp.destination.port);
    const auto number = static_cast<std::size_t>(ours - config_.ports.begin());
    if (ours == config_.ports.end() || !hears(peers_, number, udp.source)) return false;
    neighbours_.heard(udp.source.address, {.mac = udp.source_mac, .port = static_cast<std::uint8_t>(port)}, now_);
    out = {.bytes = udp.payload, .source = udp.source, .port = static_cast<std::uint8_t>(number), .marked = udp.marked};
    return true;
  }

  // ---- Neighbours ----

  /// Handles a frame that may be an ARP packet.
  void answer(std::span<const std::byte> frame, std::size_t port) noexcept {
    ethernet::ArpPacket packet;
    if (!ethernet::parse_arp(frame, packet)) return;
    // A sender that speaks for another address, or for ours, is not believed.
    const ethernet::MacAddress sender = ethernet::load_mac(frame.data(), ethernet::kSourceMacAt);
    if (sender != packet.sender_mac || packet.sender_address == config_.address) return;
    const bool to_us = packet.target_address == config_.address;
    const bool reply = packet.operation == ethernet::ArpOperation::kReply;
    const Claim claim{.address = packet.sender_address,
                      .by = {.mac = packet.sender_mac, .port = static_cast<std::uint8_t>(port)},
                      .answer = reply && to_us && packet.target_mac == ports_[port]->mac()};
    neighbours_.claimed(claim.address, claim.by, claim.answer, now_);
    for (unsigned other = 0; other != config_.threads; ++other) {
      if (other != thread_) shared_->claims[other]->put(claim);
    }
    if (to_us && !reply) send_arp(ethernet::reply_to(packet, ports_[port]->mac()), packet.sender_mac, port);
  }

  /// Sends the ARP requests that are due.
  void ask() noexcept {
    // The peers' addresses are requested before the first packet to them.
    for (const wire::Endpoint& peer : peers_) static_cast<void>(neighbours_.find(peer.address, now_));
    for (Neighbours::Question question; neighbours_.poll_question(now_, question);) {
      for (std::size_t port = 0; port != ports_.size(); ++port) {
        if (!question.everybody && port != question.to.port) continue;
        const ethernet::ArpPacket request{.operation = ethernet::ArpOperation::kRequest,
                                          .sender_mac = ports_[port]->mac(),
                                          .sender_address = config_.address,
                                          .target_mac = {},
                                          .target_address = question.address};
        send_arp(request, question.everybody ? ethernet::kBroadcast : question.to.mac, port);
      }
    }
  }

  /// Announces our Ethernet address to a port's neighbours: some would go on sending to an older one.
  void announce(std::size_t port) noexcept {
    send_arp({.operation = ethernet::ArpOperation::kRequest,
              .sender_mac = ports_[port]->mac(),
              .sender_address = config_.address,
              .target_mac = {},
              .target_address = config_.address},
             ethernet::kBroadcast, port);
  }

  void send_arp(const ethernet::ArpPacket& packet, const ethernet::MacAddress& to, std::size_t port) noexcept {
    rte_mbuf* buffer = rte_pktmbuf_alloc(header_pool_);
    if (buffer == nullptr) return;
    set_length(*buffer, ethernet::kFrameBytesMin);
    const std::span<std::byte> frame = data_of(*buffer);
    ethernet::write_arp(packet, frame.first<ethernet::kFrameBytesMin>());
    ethernet::store_mac(frame.data(), ethernet::kDestinationMacAt, to);
    static_cast<void>(ports_[port]->send(thread_, {&buffer, 1}));
  }

  // ---- Sending ----

  /// Gives payloads away to one endpoint, each with its headers in front.
  void send_to(std::span<rte_mbuf*> payloads, const wire::Endpoint& to, std::uint8_t port, bool marked) noexcept {
    const NextHop* const hop = next_hop(to.address);
    if (hop == nullptr) {
      stats_.send_failures += payloads.size();
      rte_pktmbuf_free_bulk(payloads.data(), static_cast<unsigned>(payloads.size()));
      return;
    }
    const Port& by = *ports_[hop->port];
    const ethernet::Headers headers = headers_to(*hop, to, port, marked);
    for (rte_mbuf* const packet : payloads) {
      const std::span<const std::byte> payload = data_of(*packet);
      const ethernet::PartialSum sum = by.sends_checksums() ? ethernet::PartialSum{} : ethernet::sum(payload);
      static_cast<void>(rte_pktmbuf_prepend(packet, kHeadersBytes));
      write_headers(headers, *packet, payload.size(), sum, by);
    }
    give(payloads, hop->port);
  }

  /// Gives payloads away to any number of endpoints: the same payload to all, behind headers for each.
  void send_copies(std::span<rte_mbuf*> payloads, std::span<const wire::Endpoint> to, std::uint8_t port,
                   bool marked) noexcept {
    std::array<ethernet::PartialSum, kBurst> sums{};
    for (std::size_t i = 0; i != payloads.size(); ++i) sums[i] = ethernet::sum(data_of(*payloads[i]));
    for (const wire::Endpoint& endpoint : to) {
      const NextHop* const hop = next_hop(endpoint.address);
      if (hop == nullptr) {
        stats_.send_failures += payloads.size();
        continue;
      }
      const Port& by = *ports_[hop->port];
      rte_mempool* const pool = by.sends_segments() ? header_pool_ : send_pool_;
      std::array<rte_mbuf*, kBurst> packets{};
      const std::span<rte_mbuf*> burst = std::span(packets).first(payloads.size());
      if (rte_pktmbuf_alloc_bulk(pool, burst.data(), static_cast<unsigned>(burst.size())) != 0) {
        stats_.send_failures += payloads.size();
        continue;
      }
      const ethernet::Headers headers = headers_to(*hop, endpoint, port, marked);
      for (std::size_t i = 0; i != burst.size(); ++i) {
        const std::span<const std::byte> payload = data_of(*payloads[i]);
        set_length(*packets[i], kHeadersBytes);
        write_headers(headers, *packets[i], payload.size(), sums[i], by);
        if (by.sends_segments()) {
          rte_mbuf_refcnt_update(payloads[i], 1);
          static_cast<void>(rte_pktmbuf_chain(packets[i], payloads[i]));
        } else {
          set_length(*packets[i], kHeadersBytes + payload.size());
          std::memcpy(&data_of(*packets[i])[kHeadersBytes], payload.data(), payload.size());
        }
      }
      give(burst, hop->port);
    }
    rte_pktmbuf_free_bulk(payloads.data(), static_cast<unsigned>(payloads.size()));
  }

  /// The next hop of packets to `address`; while it is unknown, null, and a request is broadcast.
  const NextHop* next_hop(std::uint32_t address) noexcept {
    const NextHop* hop = neighbours_.find(address, now_);
    if (hop != nullptr) return hop;
    // The answer may have arrived already, and a thread that only sends would never see it.
    look();
    hop = neighbours_.find(address, now_);
    if (hop == nullptr && neighbours_.silent(address)) error_.store(EHOSTUNREACH, std::memory_order_relaxed);
    return hop;
  }

  /// Takes in packets for the next receive(), unless some are waiting already.
  void look() noexcept {
    if (ready_next_ != ready_count_) return;
    ready_next_ = 0;
    ready_count_ = poll(ready_, ready_buffers_);
  }

  ethernet::Headers headers_to(const NextHop& hop, const wire::Endpoint& to, std::uint8_t port,
                               bool marked) const noexcept {
    return ethernet::Headers({.source_mac = ports_[hop.port]->mac(),
                              .destination_mac = hop.mac,
                              .source = {.address = config_.address, .port = config_.ports[port]},
                              .destination = to,
                              .marked = marked});
  }

  /// Writes the headers at the start of a packet's data. Over shared memory (net_memif) there is a checksum, too, of
  /// some 50 ns at each end: a virtual switch at the other end may send the packet on over a wire without adding a
  /// checksum.
  static void write_headers(const ethernet::Headers& headers, rte_mbuf& packet, std::size_t payload_bytes,
                            ethernet::PartialSum payload, const Port& by) noexcept {
    const std::span<std::byte> data = data_of(packet);
    const bool offload = by.sends_checksums();
    headers.write(data.first<kHeadersBytes>(), payload_bytes,
                  offload ? ethernet::UdpChecksum::kPseudo : ethernet::UdpChecksum::kWhole, payload);
    if (offload) {
      packet.ol_flags |= RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_UDP_CKSUM;
      packet.l2_len = kEthernetBytes;
      packet.l3_len = ethernet::kIpv4Bytes;
      packet.l4_len = ethernet::kUdpBytes;
    }
  }

  void give(std::span<rte_mbuf*> packets, std::size_t port) noexcept {
    const std::size_t sent = ports_[port]->send(thread_, packets);
    ++stats_.send_calls;
    stats_.datagrams_sent += sent;
    stats_.send_failures += packets.size() - sent;
  }

  process::Home home_;
  std::shared_ptr<const Shared> shared_;  // left alone in a forked child, too
  const DeviceConfig& config_;
  std::vector<wire::Endpoint> peers_;  // by port; empty: all senders are heard
  const std::vector<std::unique_ptr<Port>>& ports_;
  unsigned thread_;
  rte_mempool* send_pool_;
  rte_mempool* header_pool_;
  std::vector<Source> sources_;
  Neighbours neighbours_;
  TimeNs now_ = 0;  // the last reading of the clock
  std::size_t next_source_ = 0;

  std::array<rte_mbuf*, kBuffersMax> mbufs_{};
  std::array<wire::Packet, kBuffersMax> packets_{};
  std::size_t offered_ = 0;

  std::array<rte_mbuf*, kLentMax> lent_{};
  std::size_t lent_count_ = 0;
  std::array<rte_mbuf*, kBurst> ready_buffers_{};  // wait() has found them for the next receive()
  std::array<RxDatagram, kBurst> ready_{};
  std::size_t ready_next_ = 0;
  std::size_t ready_count_ = 0;

  bool has_first_thread_ = false;
  TransportStats stats_;
  std::atomic<int> error_{0};
  std::atomic<bool> woken_{false};
};

std::vector<std::unique_ptr<Transport>> open(const DeviceConfig& config) {
  const std::shared_ptr<const Shared> shared(new Shared(config), process::DeleteAtHome());
  std::vector<std::unique_ptr<Transport>> transports;
  for (unsigned thread = 0; thread != config.threads; ++thread) {
    transports.emplace_back(new DpdkTransport(shared, thread));
  }
  return transports;
}

}  // namespace
}  // namespace wiresum::transport::dpdk

extern "C" [[gnu::visibility("default")]] const wiresum::transport::PluginEntry wiresum_transport_plugin{
    wiresum::transport::kTransportAbi, &wiresum::transport::dpdk::open};
