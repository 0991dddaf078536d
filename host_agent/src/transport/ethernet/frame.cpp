#include "transport/ethernet/frame.hpp"

#include <cassert>
#include <cstring>

#include "wire/bytes.hpp"

namespace wiresum::transport::ethernet {
namespace {

using namespace wire::bytes;

// Offsets are in bytes from the start of the frame.
constexpr std::size_t kIpv4At = kEthernetBytes;
constexpr std::size_t kVersionLengthAt = kIpv4At;  // version in the high half of the byte, length in words in the low
constexpr std::size_t kTypeOfServiceAt = kIpv4At + 1;  // DSCP in the upper 6 bits, ECN in the others
constexpr std::size_t kTotalLengthAt = kIpv4At + 2;
constexpr std::size_t kFragmentAt = kIpv4At + 6;  // flags in the upper 3 bits, the fragment's offset in the others
constexpr std::size_t kTimeToLiveAt = kIpv4At + 8;
constexpr std::size_t kProtocolAt = kIpv4At + 9;
constexpr std::size_t kIpv4ChecksumAt = kIpv4At + 10;
constexpr std::size_t kSourceAddressAt = kIpv4At + 12;
constexpr std::size_t kDestinationAddressAt = kIpv4At + 16;
constexpr std::size_t kUdpAt = kIpv4At + kIpv4Bytes;
constexpr std::size_t kSourcePortAt = kUdpAt;
constexpr std::size_t kDestinationPortAt = kUdpAt + 2;
constexpr std::size_t kUdpLengthAt = kUdpAt + 4;
constexpr std::size_t kUdpChecksumAt = kUdpAt + 6;
static_assert(kUdpChecksumAt + 2 == kHeadersBytes);

constexpr std::uint8_t kVersion4 = 4;
constexpr std::uint8_t kVersion4NoOptions = kVersion4 << 4 | kIpv4Bytes / 4;
constexpr std::uint16_t kDontFragment = 0x4000;
constexpr std::uint16_t kFragmentMask = 0x3FFF;  // "more fragments", and the offset
constexpr std::uint8_t kTimeToLive = 64;
constexpr std::uint8_t kProtocolUdp = 17;

PartialSum pseudo_header(const std::byte* frame) noexcept {
  return sum({frame + kSourceAddressAt, 8}) + sum(kProtocolUdp);
}

bool good_checksum(const std::byte* frame, std::size_t udp_bytes, ChecksumPolicy policy) noexcept {
  const std::uint16_t field = load16(frame, kUdpChecksumAt);
  if (field == 0 || policy == ChecksumPolicy::kTrusted) return true;  // R2.9
  const PartialSum pseudo = pseudo_header(frame) + sum(static_cast<std::uint16_t>(udp_bytes));
  if (fold(pseudo + sum({frame + kUdpAt, udp_bytes})) == 0xFFFF) return true;
  return policy == ChecksumPolicy::kWholeOrPseudo && field == fold(pseudo);
}

}  // namespace

MacAddress load_mac(const std::byte* frame, std::size_t at) noexcept {
  MacAddress mac;
  std::memcpy(mac.bytes.data(), frame + at, mac.bytes.size());
  return mac;
}

void store_mac(std::byte* frame, std::size_t at, const MacAddress& mac) noexcept {
  std::memcpy(frame + at, mac.bytes.data(), mac.bytes.size());
}

Headers::Headers(const Path& path) noexcept {
  std::byte* const out = bytes_.data();
  store_mac(out, kDestinationMacAt, path.destination_mac);
  store_mac(out, kSourceMacAt, path.source_mac);
  store16(out, kEtherTypeAt, kEtherTypeIpv4);
  store8(out, kVersionLengthAt, kVersion4NoOptions);
  store8(out, kTypeOfServiceAt, path.marked ? wire::kEcnMarked : wire::kEcnCapable);  // R3.22, R4.12
  store16(out, kFragmentAt, kDontFragment);  // the identification stays 0: RFC 6864
  store8(out, kTimeToLiveAt, kTimeToLive);
  store8(out, kProtocolAt, kProtocolUdp);
  store32(out, kSourceAddressAt, path.source.address);
  store32(out, kDestinationAddressAt, path.destination.address);
  store16(out, kSourcePortAt, path.source.port);
  store16(out, kDestinationPortAt, path.destination.port);
  ipv4_ = sum({out + kIpv4At, kIpv4Bytes});
  pseudo_ = pseudo_header(out);
  ports_ = sum({out + kSourcePortAt, 4});
}

void Headers::write(std::span<std::byte, kHeadersBytes> out, std::size_t payload_bytes, UdpChecksum kind,
                    PartialSum payload) const noexcept {
  assert(payload_bytes <= kPayloadBytesMax);
  const auto udp_bytes = static_cast<std::uint16_t>(kUdpBytes + payload_bytes);
  const auto total_bytes = static_cast<std::uint16_t>(kIpv4Bytes + udp_bytes);
  std::byte* const to = out.data();
  std::memcpy(to, bytes_.data(), bytes_.size());
  store16(to, kTotalLengthAt, total_bytes);
  store16(to, kIpv4ChecksumAt, checksum(ipv4_ + sum(total_bytes)));
  store16(to, kUdpLengthAt, udp_bytes);
  const PartialSum pseudo = pseudo_ + sum(udp_bytes);
  switch (kind) {
    case UdpChecksum::kWhole: {
      // The length is in the pseudo-header and in the UDP header.
      const std::uint16_t whole = checksum(pseudo + ports_ + sum(udp_bytes) + payload);
      // 0 would stand for no checksum; 0xFFFF is the same number in ones' complement.
      store16(to, kUdpChecksumAt, whole == 0 ? 0xFFFF : whole);  // R2.13
      break;
    }
    case UdpChecksum::kPseudo:
      store16(to, kUdpChecksumAt, fold(pseudo));
      break;
    case UdpChecksum::kNone:
      break;
  }
}

FrameError parse(std::span<const std::byte> frame, ChecksumPolicy policy, UdpFrame& out) noexcept {
  const std::byte* const from = frame.data();
  if (frame.size() < kEthernetBytes) return FrameError::kTruncated;
  if (load16(from, kEtherTypeAt) != kEtherTypeIpv4) return FrameError::kNotIpv4;
  if (frame.size() < kEthernetBytes + kIpv4Bytes) return FrameError::kTruncated;
  const std::uint8_t version_length = load8(from, kVersionLengthAt);
  if (version_length >> 4 != kVersion4) return FrameError::kNotIpv4;
  if (version_length != kVersion4NoOptions) return FrameError::kIpv4Options;                // R2.10
  if (fold(sum({from + kIpv4At, kIpv4Bytes})) != 0xFFFF) return FrameError::kIpv4Checksum;  // R2.8
  if ((load16(from, kFragmentAt) & kFragmentMask) != 0) return FrameError::kFragment;       // R2.10
  if (load8(from, kProtocolAt) != kProtocolUdp) return FrameError::kNotUdp;
  const std::size_t total_bytes = load16(from, kTotalLengthAt);
  if (total_bytes < kIpv4Bytes + kUdpBytes || kEthernetBytes + total_bytes > frame.size()) {
    return FrameError::kTruncated;
  }
  const std::size_t udp_bytes = load16(from, kUdpLengthAt);
  if (udp_bytes != total_bytes - kIpv4Bytes) return FrameError::kUdpLength;      // R2.7
  if (!good_checksum(from, udp_bytes, policy)) return FrameError::kUdpChecksum;  // R2.8
  out = {.source_mac = load_mac(from, kSourceMacAt),
         .destination_mac = load_mac(from, kDestinationMacAt),
         .source = {.address = load32(from, kSourceAddressAt), .port = load16(from, kSourcePortAt)},
         .destination = {.address = load32(from, kDestinationAddressAt), .port = load16(from, kDestinationPortAt)},
         .marked = wire::is_marked(load8(from, kTypeOfServiceAt)),
         .payload = frame.subspan(kHeadersBytes, udp_bytes - kUdpBytes)};  // R2.11
  return FrameError::kNone;
}

}  // namespace wiresum::transport::ethernet
