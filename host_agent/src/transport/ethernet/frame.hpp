// Ethernet II, IPv4 (RFC 791) and UDP (RFC 768) around a payload, for transports that drive a network device
// themselves.
//
// Pure: no socket, no clock, no allocation.
//
//     0            14                 34          42
//     | Ethernet   | IPv4, no options | UDP       | payload ...                     | padding of short frames |
//
// Who computes the UDP checksum. No layer above would notice a flipped bit: the sum would be silently wrong. And
// Ethernet's own check does not cover errors inside a NIC, a switch or a bus. So a transport writes the checksum, here
// or in the device, whenever a frame leaves this machine's memory. Frames that never leave it may go without, which
// UDP over IPv4 permits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/ethernet/checksum.hpp"
#include "wire/packet.hpp"

namespace wiresum::transport::ethernet {

inline constexpr std::size_t kEthernetBytes = 14;
using wire::kIpv4Bytes;  // a header with options is refused
using wire::kUdpBytes;
inline constexpr std::size_t kHeadersBytes = kEthernetBytes + kIpv4Bytes + kUdpBytes;
/// The largest payload that IPv4's length field allows beside the headers.
inline constexpr std::size_t kPayloadBytesMax = wire::kUdpPayloadBytesMax;
/// A shorter frame is padded on the wire (without Ethernet's own check of 4 bytes).
inline constexpr std::size_t kFrameBytesMin = 60;

struct MacAddress {
  std::array<std::uint8_t, 6> bytes{};

  friend bool operator==(const MacAddress&, const MacAddress&) = default;
};
inline constexpr MacAddress kBroadcast{{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}};

// Offsets of the Ethernet header's fields, in bytes from the frame's start.
inline constexpr std::size_t kDestinationMacAt = 0;
inline constexpr std::size_t kSourceMacAt = 6;
inline constexpr std::size_t kEtherTypeAt = 12;
inline constexpr std::uint16_t kEtherTypeIpv4 = 0x0800;

[[nodiscard]] MacAddress load_mac(const std::byte* frame, std::size_t at) noexcept;
void store_mac(std::byte* frame, std::size_t at, const MacAddress& mac) noexcept;

/// The two ends of frames.
struct Path {
  MacAddress source_mac;
  MacAddress destination_mac;  // the next hop's address
  wire::Endpoint source;
  wire::Endpoint destination;
  bool marked = false;  // the frames are marked already (ECN); otherwise they may be on their way
};

enum class UdpChecksum : std::uint8_t {
  kWhole,   // computed here, over the whole datagram
  kPseudo,  // of the pseudo-header alone: the device adds the rest, as NICs expect
  kNone,    // 0: no checksum
};

/// The headers of one path. Their common parts are computed once, so a frame costs a copy and two folds.
class Headers {
 public:
  Headers() = default;  // without a path: not to be written
  explicit Headers(const Path& path) noexcept;

  /// Writes the headers of a frame with `payload_bytes` bytes, at most kPayloadBytesMax, whose sum is `payload`, which
  /// is computed once for several endpoints and used for kWhole only.
  void write(std::span<std::byte, kHeadersBytes> out, std::size_t payload_bytes, UdpChecksum kind,
             PartialSum payload) const noexcept;

 private:
  std::array<std::byte, kHeadersBytes> bytes_{};
  PartialSum ipv4_;    // sum of the IPv4 header without its length
  PartialSum pseudo_;  // sum of the pseudo-header without its length
  PartialSum ports_;
};

/// The reason why a frame is not a datagram for us. All but kChecksum and kIpv4Checksum may be well-formed frames for
/// others.
enum class FrameError : std::uint8_t {
  kNone,
  kTruncated,     // shorter than its headers, or than their lengths
  kNotIpv4,       // another EtherType (a VLAN tag is one), or another version in the header
  kIpv4Options,   // a header length other than 20 bytes
  kIpv4Checksum,  // the header's checksum is wrong
  kFragment,      // a part of a datagram
  kNotUdp,        // another protocol
  kUdpLength,     // UDP's length does not match IPv4's
  kUdpChecksum,   // UDP's checksum is wrong
};

/// The way to check a UDP checksum. 0, "none", is always accepted.
enum class ChecksumPolicy : std::uint8_t {
  kWhole,          // must be right
  kWholeOrPseudo,  // may also be the pseudo-header's alone: frames of a sender on this machine, who left it to a device
  kTrusted,        // not checked: the device has checked it
};

struct UdpFrame {
  MacAddress source_mac;
  MacAddress destination_mac;
  wire::Endpoint source;
  wire::Endpoint destination;
  bool marked = false;                 // a queue on its way was long (ECN)
  std::span<const std::byte> payload;  // a part of the frame, without its padding
};

/// Reads a received frame, whatever its bytes. On any error `out` is left as it was.
[[nodiscard]] FrameError parse(std::span<const std::byte> frame, ChecksumPolicy policy, UdpFrame& out) noexcept;

}  // namespace wiresum::transport::ethernet
