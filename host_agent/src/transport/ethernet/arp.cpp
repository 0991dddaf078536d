#include "transport/ethernet/arp.hpp"

#include <algorithm>

#include "wire/bytes.hpp"

namespace wiresum::transport::ethernet {
namespace {

using namespace wire::bytes;

// Offsets are in bytes from the start of the frame.
constexpr std::size_t kHardwareTypeAt = 14;
constexpr std::size_t kProtocolTypeAt = 16;
constexpr std::size_t kHardwareLengthAt = 18;
constexpr std::size_t kProtocolLengthAt = 19;
constexpr std::size_t kOperationAt = 20;
constexpr std::size_t kSenderMacAt = 22;
constexpr std::size_t kSenderAddressAt = 28;
constexpr std::size_t kTargetMacAt = 32;
constexpr std::size_t kTargetAddressAt = 38;
constexpr std::size_t kArpEnd = 42;

constexpr std::uint16_t kEtherTypeArp = 0x0806;
constexpr std::uint16_t kHardwareEthernet = 1;
constexpr std::uint8_t kMacBytes = 6;
constexpr std::uint8_t kAddressBytes = 4;

bool is_group(const MacAddress& mac) noexcept { return (mac.bytes[0] & 1) != 0; }

}  // namespace

bool parse_arp(std::span<const std::byte> frame, ArpPacket& out) noexcept {
  if (frame.size() < kArpEnd) return false;
  const std::byte* const from = frame.data();
  const std::uint16_t operation = load16(from, kOperationAt);
  const MacAddress sender = load_mac(from, kSenderMacAt);
  if (load16(from, kEtherTypeAt) != kEtherTypeArp || load16(from, kHardwareTypeAt) != kHardwareEthernet ||
      load16(from, kProtocolTypeAt) != kEtherTypeIpv4 || load8(from, kHardwareLengthAt) != kMacBytes ||
      load8(from, kProtocolLengthAt) != kAddressBytes || is_group(sender) ||
      (operation != static_cast<std::uint16_t>(ArpOperation::kRequest) &&
       operation != static_cast<std::uint16_t>(ArpOperation::kReply))) {
    return false;
  }
  out = {.operation = static_cast<ArpOperation>(operation),
         .sender_mac = sender,
         .sender_address = load32(from, kSenderAddressAt),
         .target_mac = load_mac(from, kTargetMacAt),
         .target_address = load32(from, kTargetAddressAt)};
  return true;
}

void write_arp(const ArpPacket& packet, std::span<std::byte, kFrameBytesMin> out) noexcept {
  std::fill(out.begin(), out.end(), std::byte{0});
  std::byte* const to = out.data();
  store_mac(to, kDestinationMacAt, packet.operation == ArpOperation::kRequest ? kBroadcast : packet.target_mac);
  store_mac(to, kSourceMacAt, packet.sender_mac);
  store16(to, kEtherTypeAt, kEtherTypeArp);
  store16(to, kHardwareTypeAt, kHardwareEthernet);
  store16(to, kProtocolTypeAt, kEtherTypeIpv4);
  store8(to, kHardwareLengthAt, kMacBytes);
  store8(to, kProtocolLengthAt, kAddressBytes);
  store16(to, kOperationAt, static_cast<std::uint16_t>(packet.operation));
  store_mac(to, kSenderMacAt, packet.sender_mac);
  store32(to, kSenderAddressAt, packet.sender_address);
  store_mac(to, kTargetMacAt, packet.target_mac);
  store32(to, kTargetAddressAt, packet.target_address);
}

ArpPacket reply_to(const ArpPacket& request, const MacAddress& own) noexcept {
  return {.operation = ArpOperation::kReply,
          .sender_mac = own,
          .sender_address = request.target_address,
          .target_mac = request.sender_mac,
          .target_address = request.sender_address};
}

}  // namespace wiresum::transport::ethernet
