// Packets whose contents follow from their numbers: how the tests of transports send, receive and compare them.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "patience.hpp"
#include "transport/transport.hpp"

namespace wiresum::transport::testing {

using Clock = std::chrono::steady_clock;

inline constexpr std::chrono::milliseconds kQuiet{100};  // the silence after which no more packets are expected
inline constexpr std::int64_t kSliceNs = 5'000'000;
inline constexpr std::size_t kBytesMin = 24;
/// So many packets that no rig loses one while all are in flight.
inline constexpr std::uint32_t kBurst = 64;

inline std::byte filling(std::uint32_t number, std::size_t at) {
  return static_cast<std::byte>(number * 31 + at * 7 + 1);
}

/// Fills a packet with content that follows from its number.
inline void write(wire::Packet& packet, std::uint32_t number, std::size_t bytes) {
  packet.bytes = static_cast<std::uint32_t>(bytes);
  std::memcpy(packet.data, &number, sizeof number);
  for (std::size_t i = sizeof number; i < bytes; ++i) packet.data[i] = filling(number, i);
}

inline std::uint32_t number_of(std::span<const std::byte> bytes) {
  std::uint32_t number = 0;
  if (bytes.size() >= sizeof number) std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

inline bool intact(std::span<const std::byte> bytes) {
  const std::uint32_t number = number_of(bytes);
  for (std::size_t i = sizeof number; i < bytes.size(); ++i) {
    if (bytes[i] != filling(number, i)) return false;
  }
  return bytes.size() >= sizeof number;
}

struct Taken {
  std::uint32_t number;
  std::size_t bytes;
  bool intact;
  wire::Endpoint source;
  std::uint8_t port;
  bool marked;
};

/// Appends all received datagrams, without waiting.
inline std::size_t drain(Transport& transport, std::vector<Taken>& taken, std::size_t burst = kBurst) {
  std::vector<RxDatagram> datagrams(burst);
  std::size_t total = 0;
  while (const std::size_t count = transport.receive(datagrams)) {
    for (const RxDatagram& datagram : std::span(datagrams).first(count)) {
      taken.push_back({.number = number_of(datagram.bytes),
                       .bytes = datagram.bytes.size(),
                       .intact = intact(datagram.bytes),
                       .source = datagram.source,
                       .port = datagram.port,
                       .marked = datagram.marked});
    }
    total += count;
  }
  return total;
}

/// Receives until `count` datagrams have arrived or the time limit has passed.
inline std::vector<Taken> take(Transport& transport, std::size_t count) {
  std::vector<Taken> taken;
  const auto deadline = Clock::now() + kPatience;
  while (taken.size() < count && Clock::now() < deadline) {
    if (drain(transport, taken) == 0) transport.wait(kSliceNs);
  }
  return taken;
}

/// Receives until nothing more arrives.
inline std::vector<Taken> take_rest(Transport& transport) {
  std::vector<Taken> taken;
  auto deadline = Clock::now() + kQuiet;
  while (Clock::now() < deadline) {
    if (drain(transport, taken) != 0) deadline = Clock::now() + kQuiet;
    transport.wait(kSliceNs);
  }
  return taken;
}

/// Sends packets first, first + 1, ... while there is room. Returns how many.
inline std::size_t send_some(Transport& transport, std::span<const wire::Endpoint> to, std::uint32_t first,
                             std::size_t count, std::size_t bytes, std::uint8_t port = 0, bool marked = false) {
  const std::span<wire::Packet> buffers = transport.buffers(count);
  EXPECT_LE(buffers.size(), count);
  for (std::size_t i = 0; i < buffers.size(); ++i) write(buffers[i], first + static_cast<std::uint32_t>(i), bytes);
  if (!buffers.empty()) transport.send(buffers.size(), to, port, marked);
  return buffers.size();
}

/// Sends all packets, and waits for room if necessary. Returns whether there was room in time.
inline bool send_all(Transport& transport, std::span<const wire::Endpoint> to, std::uint32_t first, std::size_t count,
                     std::size_t bytes, std::uint8_t port = 0) {
  const auto deadline = Clock::now() + kPatience;
  for (std::size_t sent = 0; sent < count;) {
    const std::size_t now =
        send_some(transport, to, first + static_cast<std::uint32_t>(sent), count - sent, bytes, port);
    if (now == 0) {
      if (Clock::now() > deadline) return false;
      transport.wait(kSliceNs);
    }
    sent += now;
  }
  return true;
}

inline bool send_all(Transport& transport, wire::Endpoint to, std::uint32_t first, std::size_t count, std::size_t bytes,
                     std::uint8_t port = 0) {
  return send_all(transport, std::span(&to, 1), first, count, bytes, port);
}

inline void expect_run(const std::vector<Taken>& taken, std::uint32_t first, std::size_t count, std::size_t bytes) {
  ASSERT_EQ(taken.size(), count);
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(taken[i].number, first + i) << "out of order";
    ASSERT_EQ(taken[i].bytes, bytes) << "packet " << i;
    ASSERT_TRUE(taken[i].intact) << "packet " << i;
  }
}

}  // namespace wiresum::transport::testing
