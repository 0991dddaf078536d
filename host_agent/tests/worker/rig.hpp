// A Worker with memory for its packets, and hand-made RESULT datagrams for it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "wire/packet.hpp"
#include "worker/worker.hpp"

namespace wiresum::worker {

inline constexpr TimeNs kMillisecond = 1'000'000;
inline constexpr numeric::Format kInt32{numeric::Dtype::kI32, numeric::Scaling::kNone, 32};
inline constexpr numeric::Format kFloat32{numeric::Dtype::kF32, numeric::Scaling::kBlockExponent, 32};

inline WorkerConfig small_config(std::uint32_t slots = 4) {
  WorkerConfig config;
  config.job = 7;
  config.key = 0xC0FFEE;
  config.worker = 1;
  config.workers = 2;
  config.lanes = 4;
  config.slots = slots;
  config.window_initial = 32;
  return config;
}

/// A packet that the worker sent.
struct Sent {
  std::uint32_t slot = 0;
  wire::Header header;
  std::vector<std::byte> bytes;

  [[nodiscard]] std::int32_t lane(std::size_t i) const {
    const std::byte* word = bytes.data() + wire::kHeaderBytes + i * wire::kWordBytes;
    std::uint32_t value = 0;
    for (std::size_t b = 0; b < wire::kWordBytes; ++b) value = value << 8 | std::to_integer<std::uint32_t>(word[b]);
    return static_cast<std::int32_t>(value);
  }
};

inline std::vector<std::int32_t> lanes_of(const Sent& sent) {
  std::vector<std::int32_t> lanes;
  for (std::size_t i = 0; i < (sent.bytes.size() - wire::kHeaderBytes) / wire::kWordBytes; ++i) {
    lanes.push_back(sent.lane(i));
  }
  return lanes;
}

class Rig {
 public:
  explicit Rig(WorkerConfig config = small_config())
      : config_(config),
        stride_(wire::kHeaderBytes + config.lanes * wire::kWordBytes),
        memory_(stride_ * kBurst),
        worker_(config) {}

  Worker& worker() { return worker_; }
  TimeNs now = 0;

  /// Everything that the worker sends now.
  std::vector<Sent> poll() {
    std::vector<Sent> sent;
    for (std::size_t n = kBurst; n == kBurst;) {
      std::array<wire::Packet, kBurst> burst{};
      for (std::size_t i = 0; i < kBurst; ++i) burst[i].data = memory_.data() + i * stride_;
      std::ranges::fill(memory_, std::byte{0xDD});  // packets must not depend on earlier contents
      n = worker_.poll_transmit(now, burst);
      for (std::size_t i = 0; i < n; ++i) {
        Sent packet;
        packet.bytes.assign(burst[i].data, burst[i].data + burst[i].bytes);
        EXPECT_EQ(wire::decode(packet.bytes, packet.header), wire::ParseError::kNone);
        packet.slot = packet.header.cell / 2U - config_.slot_first;
        sent.push_back(std::move(packet));
      }
    }
    return sent;
  }

  std::vector<Sent> poll_at(TimeNs at) {
    now = at;
    return poll();
  }

  /// The RESULT for `sent`, with these lanes (none for a META).
  static std::vector<std::byte> result(const Sent& sent, const std::vector<std::int32_t>& lanes, int exponent = -1) {
    wire::Header header = sent.header;
    header.kind = wire::Kind::kResult;
    if (exponent >= 0) header.exponent = static_cast<std::uint8_t>(exponent);
    return datagram(header, lanes);
  }

  static std::vector<std::byte> datagram(const wire::Header& header, const std::vector<std::int32_t>& lanes) {
    std::vector<std::byte> bytes(wire::kHeaderBytes + lanes.size() * wire::kWordBytes);
    wire::encode(header, std::span<std::byte, wire::kHeaderBytes>(bytes.data(), wire::kHeaderBytes));
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      for (unsigned b = 0; b < wire::kWordBytes; ++b) {
        bytes[wire::kHeaderBytes + i * wire::kWordBytes + b] =
            static_cast<std::byte>(static_cast<std::uint32_t>(lanes[i]) >> (24 - 8 * b));
      }
    }
    return bytes;
  }

  void deliver(const std::vector<std::byte>& bytes) { worker_.handle_datagram(now, bytes); }
  void answer(const Sent& sent, const std::vector<std::int32_t>& lanes, int exponent = -1) {
    deliver(result(sent, lanes, exponent));
  }
  /// Delivers the switch's answer to a question: the contribution is missing.
  void miss(const Sent& question) {
    wire::Header header = question.header;
    header.kind = wire::Kind::kMissing;
    header.flags = header.exponent = 0;
    deliver(datagram(header, {}));
  }
  /// Delivers the RESULT for `sent` as if all peers had contributed zeros (or META).
  void echo(const Sent& sent) {
    std::vector<std::int32_t> lanes(sent.header.kind == wire::Kind::kMeta ? 0 : config_.lanes);
    if (sent.header.kind == wire::Kind::kData) {
      for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = sent.lane(i);
    }
    answer(sent, lanes);
  }
  /// Delivers that RESULT as worker 0's late packet completes it.
  void complete(Sent sent) {
    sent.header.worker = 0;
    echo(sent);
  }
  /// Answers all packets until the worker sends no more. Returns how many packets that took.
  std::size_t run() {
    std::size_t packets = 0;
    for (std::vector<Sent> sent = poll(); !sent.empty(); sent = poll()) {
      packets += sent.size();
      for (const Sent& packet : sent) echo(packet);
    }
    return packets;
  }

 private:
  static constexpr std::size_t kBurst = 3;  // smaller than what is sent, so that bursts are split

  WorkerConfig config_;
  std::size_t stride_;
  std::vector<std::byte> memory_;
  Worker worker_;
};

/// 1, 2, 3, ...
inline std::vector<std::int32_t> iota(std::size_t count) {
  std::vector<std::int32_t> values(count);
  std::iota(values.begin(), values.end(), 1);
  return values;
}

/// An in-place all-reduce of `values`, entirely in this thread's share.
template <class Element>
struct InPlace {
  explicit InPlace(std::vector<Element> initial, const WorkerConfig& config = small_config())
      : values(std::move(initial)) {
    auto* bytes = reinterpret_cast<std::byte*>(values.data());
    region = {.source = bytes, .destination = bytes, .elements = values.size()};
    work.format = std::is_same_v<Element, float> ? kFloat32 : kInt32;
    work.regions = {&region, 1};
    work.chunk_end = static_cast<std::uint32_t>(chunks_of(values.size(), work.format, config.lanes));
    work.tensor = 1;
  }
  InPlace(const InPlace&) = delete;

  std::vector<Element> values;
  Region region;
  Collective work;
};

using Integers = InPlace<std::int32_t>;
using Floats = InPlace<float>;

}  // namespace wiresum::worker
