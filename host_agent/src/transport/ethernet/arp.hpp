// ARP for IPv4 over Ethernet (RFC 826): for a transport whose device the kernel does not see, so that it does not
// answer ARP requests for it.
//
// Pure: no socket, no clock, no allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/ethernet/frame.hpp"

namespace wiresum::transport::ethernet {

enum class ArpOperation : std::uint16_t { kRequest = 1, kReply = 2 };

struct ArpPacket {
  ArpOperation operation = ArpOperation::kRequest;
  MacAddress sender_mac;
  std::uint32_t sender_address = 0;  // in host byte order, as all addresses here
  MacAddress target_mac;             // zero in a request, which asks for it
  std::uint32_t target_address = 0;

  friend bool operator==(const ArpPacket&, const ArpPacket&) = default;
};

/// Reads a received frame, whatever its bytes. Returns false, and leaves `out` as it was, if the frame is no ARP
/// request or reply for IPv4 over Ethernet, or if its sender has a group's address.
[[nodiscard]] bool parse_arp(std::span<const std::byte> frame, ArpPacket& out) noexcept;

/// Writes a frame: a request to everybody, a reply to its target. Padded to the least length of a frame.
void write_arp(const ArpPacket& packet, std::span<std::byte, kFrameBytesMin> out) noexcept;

/// The reply to a request, from the owner of the requested address.
[[nodiscard]] ArpPacket reply_to(const ArpPacket& request, const MacAddress& own) noexcept;

}  // namespace wiresum::transport::ethernet
