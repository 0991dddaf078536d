// A transport into the simulated network, over a device that reads late: packets stay in the device's memory until it
// reads them, in any order, and must not change before. What arrives waits to be received.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "transport/transport.hpp"

namespace wiresum::sim {

using Datagram = std::vector<std::byte>;

class SimTransport final : public transport::Transport {
 public:
  /// When the device reads a packet: the simulation calls `read` at once or later, once for each packet.
  using DeviceModel = std::function<void(std::function<void()> read)>;

  SimTransport(std::size_t packets, std::size_t packet_bytes, DeviceModel device, std::function<void(Datagram)> carry)
      : memory_(packets, Datagram(packet_bytes)), device_(std::move(device)), carry_(std::move(carry)) {
    for (Datagram& place : memory_) free_.push_back(place);
  }

  void arrive(Datagram datagram) { arrived_.push_back(std::move(datagram)); }
  [[nodiscard]] bool has_buffer() const noexcept { return !free_.empty(); }

  [[nodiscard]] const char* name() const noexcept override { return "simulated"; }
  [[nodiscard]] std::size_t train_packets(std::size_t /*packet_bytes*/) const noexcept override { return 1; }

  std::size_t receive(std::span<transport::RxDatagram> out) noexcept override {
    lent_.clear();  // received datagrams are no longer valid
    for (; lent_.size() < out.size() && !arrived_.empty(); arrived_.pop_front()) {
      lent_.push_back(std::move(arrived_.front()));
    }
    for (std::size_t i = 0; i < lent_.size(); ++i) out[i] = {.bytes = lent_[i], .source = {}, .port = 0};
    stats_.datagrams_received += lent_.size();
    stats_.messages_received += lent_.size();
    return lent_.size();
  }

  std::span<wire::Packet> buffers(std::size_t wanted) noexcept override {
    offered_.clear();
    for (std::size_t i = 0; i < std::min(wanted, free_.size()); ++i) offered_.push_back({free_[i].data(), 0});
    return offered_;
  }

  void send(std::size_t count, std::span<const wire::Endpoint> /*to*/, std::uint8_t /*port*/) noexcept override {
    for (const wire::Packet& packet : std::span(offered_).first(count)) {
      const std::span<std::byte> place = free_.front();
      free_.pop_front();
      ++stats_.datagrams_sent;
      device_([this, place, sent = Datagram(packet.data, packet.data + packet.bytes)] { read(place, sent); });
    }
    offered_.clear();
  }

  void wait(std::int64_t /*timeout_ns*/) noexcept override {}
  void wake() noexcept override {}
  [[nodiscard]] const transport::TransportStats& stats() const noexcept override { return stats_; }
  int take_error() noexcept override { return 0; }

 private:
  static constexpr std::byte kPoison{0xDD};

  void read(std::span<std::byte> place, const Datagram& sent) {
    if (!std::equal(sent.begin(), sent.end(), place.begin())) {
      throw std::logic_error("a packet was written to while the device still had to read it");
    }
    carry_(sent);
    std::ranges::fill(place, kPoison);
    free_.push_back(place);
  }

  std::vector<Datagram> memory_;
  std::deque<std::span<std::byte>> free_;
  std::vector<wire::Packet> offered_;
  DeviceModel device_;
  std::function<void(Datagram)> carry_;
  std::deque<Datagram> arrived_;
  std::deque<Datagram> lent_;
  transport::TransportStats stats_;
};

}  // namespace wiresum::sim
