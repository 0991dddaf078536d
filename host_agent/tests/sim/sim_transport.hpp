// A transport into the simulated network: what is sent is carried off at once, what arrives waits to be received.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "transport/transport.hpp"

namespace wiresum::sim {

using Datagram = std::vector<std::byte>;

class SimTransport final : public transport::Transport {
 public:
  SimTransport(std::size_t frames, std::size_t frame_bytes, std::function<void(Datagram)> carry)
      : frame_bytes_(frame_bytes), memory_(frames * frame_bytes), carry_(std::move(carry)) {}

  void arrive(Datagram datagram) { arrived_.push_back(std::move(datagram)); }

  std::byte* frame_memory() noexcept override { return memory_.data(); }
  [[nodiscard]] std::size_t frame_stride() const noexcept override { return frame_bytes_; }
  [[nodiscard]] std::size_t train_frames(std::size_t /*frame_bytes*/) const noexcept override { return 1; }

  std::size_t receive(std::span<transport::RxDatagram> out) noexcept override {
    lent_.clear();  // what was lent may not be looked at any more
    for (; lent_.size() < out.size() && !arrived_.empty(); arrived_.pop_front()) {
      lent_.push_back(std::move(arrived_.front()));
    }
    for (std::size_t i = 0; i < lent_.size(); ++i) out[i] = {.bytes = lent_[i], .source = {}, .port = 0};
    stats_.datagrams_received += lent_.size();
    stats_.messages_received += lent_.size();
    return lent_.size();
  }

  void send(std::span<const transport::TxFrame> frames, std::span<const wire::Endpoint> /*to*/,
            std::uint8_t /*port*/) noexcept override {
    for (const transport::TxFrame& frame : frames) {
      const std::byte* const bytes = memory_.data() + frame.frame * frame_bytes_;
      carry_(Datagram(bytes, bytes + frame.bytes));
      ++stats_.datagrams_sent;
    }
  }

  void wait(std::int64_t /*timeout_ns*/) noexcept override {}
  void wake() noexcept override {}
  [[nodiscard]] const transport::TransportStats& stats() const noexcept override { return stats_; }
  int take_error() noexcept override { return 0; }

 private:
  std::size_t frame_bytes_;
  std::vector<std::byte> memory_;
  std::function<void(Datagram)> carry_;
  std::deque<Datagram> arrived_;
  std::deque<Datagram> lent_;
  transport::TransportStats stats_;
};

}  // namespace wiresum::sim
