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
/// What IPv4's length field has room for beside the headers.
inline constexpr std::size_t kPayloadBytesMax = wire::kUdpPayloadBytesMax;
/// A shorter frame is padded on the wire (without Ethernet's own check of 4 bytes).
inline constexpr std::size_t kFrameBytesMin = 60;

struct MacAddress {
  std::array<std::uint8_t, 6> bytes{};

  friend bool operator==(const MacAddress&, const MacAddress&) = default;
};
inline constexpr MacAddress kBroadcast{{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}};

// Where a frame's Ethernet header has its fields, in bytes from its start.
inline constexpr std::size_t kDestinationMacAt = 0;
inline constexpr std::size_t kSourceMacAt = 6;
inline constexpr std::size_t kEtherTypeAt = 12;
inline constexpr std::uint16_t kEtherTypeIpv4 = 0x0800;

[[nodiscard]] MacAddress load_mac(const std::byte* frame, std::size_t at) noexcept;
void store_mac(std::byte* frame, std::size_t at, const MacAddress& mac) noexcept;

/// Between whom frames go.
struct Path {
  MacAddress source_mac;
  MacAddress destination_mac;  // the next hop's
  wire::Endpoint source;
  wire::Endpoint destination;
  bool marked = false;  // the frames are marked already (ECN); otherwise they may be on their way
};

enum class UdpChecksum : std::uint8_t {
  kWhole,   // computed here
  kPseudo,  // of the pseudo-header alone: the device adds the rest, as NICs want it
  kNone,    // 0: there is none
};

/// The headers of one path. What its frames have in common is computed once, so a frame costs a copy and two folds.
class Headers {
 public:
  Headers() = default;  // of no path: not to be written
  explicit Headers(const Path& path) noexcept;

  /// Writes the headers of a frame with `payload_bytes` bytes, at most kPayloadBytesMax, whose sum is `payload`: so a
  /// payload that goes to several endpoints is summed once. `payload` is used for kWhole only.
  void write(std::span<std::byte, kHeadersBytes> out, std::size_t payload_bytes, UdpChecksum kind,
             PartialSum payload) const noexcept;

 private:
  std::array<std::byte, kHeadersBytes> bytes_{};
  PartialSum ipv4_;    // of the IPv4 header without its length
  PartialSum pseudo_;  // of the pseudo-header without its length
  PartialSum ports_;
};

/// Why a frame is not a datagram of ours to read. All but kChecksum and kIpv4Checksum may be well-formed frames that
/// are simply somebody else's.
enum class FrameError : std::uint8_t {
  kNone,
  kTruncated,     // shorter than its headers, or than they say
  kNotIpv4,       // another EtherType (a VLAN tag is one), or another version in the header
  kIpv4Options,   // a header of another length than 20 bytes
  kIpv4Checksum,  // its header's checksum is wrong
  kFragment,      // part of a datagram
  kNotUdp,        // another protocol
  kUdpLength,     // UDP's length is not what IPv4's leaves for it
  kUdpChecksum,   // wrong
};

/// How a UDP checksum is checked. 0, "none", is accepted in each case.
enum class ChecksumPolicy : std::uint8_t {
  kWhole,          // has to be right
  kWholeOrPseudo,  // or that of the pseudo-header alone: frames of a sender on this machine, who left it to a device
  kTrusted,        // not looked at: the device has
};

struct UdpFrame {
  MacAddress source_mac;
  MacAddress destination_mac;
  wire::Endpoint source;
  wire::Endpoint destination;
  bool marked = false;                 // a queue on its way was long (ECN)
  std::span<const std::byte> payload;  // within the frame, without its padding
};

/// Reads a received frame, whatever its bytes. On any error `out` is left as it was.
[[nodiscard]] FrameError parse(std::span<const std::byte> frame, ChecksumPolicy policy, UdpFrame& out) noexcept;

}  // namespace wiresum::transport::ethernet
