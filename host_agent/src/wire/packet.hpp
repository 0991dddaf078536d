// The 24-byte Wiresum header, with which every packet between worker and switch begins.
//
// Pure: no socket, no clock, no allocation. docs/protocol.md, section 2, is the reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/constants.hpp"

namespace wiresum::wire {

struct Header {
  Kind kind = Kind::kData;
  std::uint8_t flags = 0;
  std::uint16_t job = 0;
  std::uint32_t key = 0;
  std::uint8_t worker = 0;
  std::uint8_t exponent = 0;
  std::uint16_t cell = 0;  // local to the lease: 2 * slot + (round & 1)
  std::uint32_t round = 0;
  std::uint32_t tensor = 0;
  std::uint32_t chunk = 0;

  friend bool operator==(const Header&, const Header&) = default;
};

enum class ParseError : std::uint8_t {
  kNone,
  kTruncated,  // shorter than a header
  kUnknownVersion,
  kUnknownKind,
  kPayload,  // a payload of no whole number of words, or of a kind without payload
};

/// Writes `header` in network byte order.
void encode(const Header& header, std::span<std::byte, kHeaderBytes> out) noexcept;

/// Reads the header of one UDP payload. On any error `header` stays unchanged. The caller checks whether the datagram's
/// length fits the job.
[[nodiscard]] ParseError decode(std::span<const std::byte> datagram, Header& header) noexcept;

/// True if round `a` is newer than `b`, by the serial number arithmetic of RFC 1982.
[[nodiscard]] constexpr bool newer(std::uint32_t a, std::uint32_t b) noexcept {
  return static_cast<std::int32_t>(a - b) > 0;
}

/// True if tag `a` is of a later collective than tag `b`. The low 16 bits of a tag are the collective's number, a
/// serial number too; the signature above them says nothing about the order.
[[nodiscard]] constexpr bool is_later_collective(std::uint32_t a, std::uint32_t b) noexcept {
  return static_cast<std::int16_t>(static_cast<std::uint16_t>(a - b)) > 0;
}

/// The later one of two tags; each is given plus 1, or as 0 for none.
[[nodiscard]] constexpr std::uint64_t later_of(std::uint64_t a, std::uint64_t b) noexcept {
  if (a == 0 || b == 0) return a == 0 ? b : a;
  return is_later_collective(static_cast<std::uint32_t>(b - 1), static_cast<std::uint32_t>(a - 1)) ? b : a;
}

[[nodiscard]] constexpr std::uint16_t cell_of(std::uint32_t slot, std::uint32_t round) noexcept {
  return static_cast<std::uint16_t>(2 * slot + (round & 1));
}

/// ECN (RFC 3168), in the lower two bits of the second byte of an IPv4 header: a queue may mark the packet instead of
/// dropping it, or has marked it.
inline constexpr std::uint8_t kEcnCapable = 2;  // ECT(0)
inline constexpr std::uint8_t kEcnMarked = 3;   // CE

/// True if this second byte of a header marks the packet.
[[nodiscard]] constexpr bool is_marked(std::uint8_t type_of_service) noexcept {
  return (type_of_service & kEcnMarked) == kEcnMarked;
}

/// A packet that is being made: a buffer, with another owner, and its used bytes.
struct Packet {
  std::byte* data = nullptr;
  std::uint32_t bytes = 0;
};

/// An IPv4 address and a UDP port, both in host byte order.
struct Endpoint {
  std::uint32_t address = 0;
  std::uint16_t port = 0;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

}  // namespace wiresum::wire
