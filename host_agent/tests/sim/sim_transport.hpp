// A transport into the simulated network, over a device that reads late: packets stay in the device's memory until it
// reads them, in any order, and must not change before. What arrives waits to be received.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "packet.hpp"
#include "transport/transport.hpp"

namespace wiresum::sim {

/// Memory of a network device, for packets that it has to read.
class DeviceMemory {
 public:
  DeviceMemory(std::size_t packets, std::size_t packet_bytes) : packet_bytes_(packet_bytes) {
    for (std::size_t i = 0; i < packets; ++i) {
      memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(packet_bytes));
      free_.push_back({memory_.back().get(), 0});
    }
  }

  [[nodiscard]] bool has_buffer() const noexcept { return !free_.empty(); }
  /// Nobody keeps them: who sends gets them again, with take().
  [[nodiscard]] std::span<wire::Packet> offer(std::size_t wanted) noexcept {
    // The last ones that were freed: they are in the near caches.
    return std::span(free_).last(std::min(wanted, free_.size()));
  }
  /// Sets `taken` to the first `count` of the `offered` ones that offer() gave last.
  void take(std::size_t count, std::size_t offered, std::vector<wire::Packet>& taken) {
    const auto first = free_.end() - static_cast<std::ptrdiff_t>(offered);
    taken.assign(first, first + static_cast<std::ptrdiff_t>(count));
    free_.erase(first, first + static_cast<std::ptrdiff_t>(count));
  }
  void free(std::byte* place) {
    std::memset(place, kPoison, packet_bytes_);
    free_.push_back({place, 0});
  }

 private:
  static constexpr int kPoison = 0xDD;

  std::size_t packet_bytes_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<wire::Packet> free_;
};

class SimTransport final : public transport::Transport {
 public:
  using Place = std::byte*;
  /// The device has been given a packet: the simulation calls read() with the same arguments, at once or later.
  using DeviceModel = std::function<void(Place place, const Packet& sent, wire::Endpoint to)>;

  /// `memory`: others may have the same if their devices read at once.
  SimTransport(DeviceMemory& memory, PacketPool& pool, DeviceModel device,
               std::function<void(const Packet&, wire::Endpoint to)> carry)
      : memory_(memory), pool_(pool), device_(std::move(device)), carry_(std::move(carry)) {}

  void arrive(const Packet& packet, wire::Endpoint source = {}) { arrived_.emplace_back(packet, source); }
  [[nodiscard]] bool has_buffer() const noexcept { return memory_.has_buffer(); }

  /// The device reads a packet that is `sent`.
  void read(Place place, const Packet& sent, wire::Endpoint to) {
    if (std::memcmp(sent.bytes().data(), place, sent.size()) != 0) {
      throw std::logic_error("a packet was written to while the device still had to read it");
    }
    carry_(sent, to);
    memory_.free(place);
  }

  [[nodiscard]] const char* name() const noexcept override { return "simulated"; }
  [[nodiscard]] std::size_t train_packets(std::size_t /*packet_bytes*/) const noexcept override { return 1; }

  std::size_t receive(std::span<transport::RxDatagram> out) noexcept override {
    lent_.clear();  // received datagrams are no longer valid
    for (; lent_.size() < out.size() && !arrived_.empty(); arrived_.pop_front()) {
      lent_.push_back(std::move(arrived_.front()));
    }
    for (std::size_t i = 0; i < lent_.size(); ++i) {
      const auto& [packet, source] = lent_[i];
      out[i] = {.bytes = packet.bytes(), .source = source, .port = 0, .marked = packet.marked()};
    }
    stats_.datagrams_received += lent_.size();
    stats_.messages_received += lent_.size();
    return lent_.size();
  }

  std::span<wire::Packet> buffers(std::size_t wanted) noexcept override {
    const std::span<wire::Packet> offered = memory_.offer(wanted);
    offered_ = offered.size();
    return offered;
  }

  void send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t /*port*/,
            bool /*marked*/) noexcept override {
    memory_.take(count, std::exchange(offered_, 0), sent_);
    stats_.datagrams_sent += count;
    for (const wire::Packet& packet : sent_) device_(packet.data, pool_.copy({packet.data, packet.bytes}), to.front());
  }

  bool hear(std::span<const wire::Endpoint> /*peers*/, transport::UdpSocket* /*group*/) noexcept override {
    return true;  // keys tell old packets from new ones
  }
  void wait(std::int64_t /*timeout_ns*/) noexcept override {}
  void wake() noexcept override {}
  [[nodiscard]] const transport::TransportStats& stats() const noexcept override { return stats_; }
  int take_error() noexcept override { return 0; }

 private:
  DeviceMemory& memory_;
  PacketPool& pool_;
  std::size_t offered_ = 0;
  std::vector<wire::Packet> sent_;
  DeviceModel device_;
  std::function<void(const Packet&, wire::Endpoint)> carry_;
  using Arrived = std::pair<Packet, wire::Endpoint>;
  std::deque<Arrived> arrived_;
  std::vector<Arrived> lent_;
  transport::TransportStats stats_;
};

}  // namespace wiresum::sim
