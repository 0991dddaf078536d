// With arbitrary bytes in a frame parse() and parse_arp() read nothing beyond the frame, change nothing if they refuse
// it, and accept only the writer's frames. The first byte of the input selects the policy of checksums.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "transport/ethernet/arp.hpp"
#include "transport/ethernet/frame.hpp"
#include "wire/bytes.hpp"

namespace {

using namespace wiresum::wire::bytes;
using namespace wiresum::transport::ethernet;

constexpr std::size_t kUdpChecksumAt = 40;

void require(bool holds) {
  if (!holds) std::abort();
}

/// Writing the datagram again gives the addresses, lengths and checksum that were read. The time to live and similar
/// fields are the sender's choice.
void write_again(std::span<const std::byte> frame, ChecksumPolicy policy, const UdpFrame& read) {
  require(read.payload.data() == frame.data() + kHeadersBytes);
  require(kHeadersBytes + read.payload.size() <= frame.size());
  const Headers headers({.source_mac = read.source_mac,
                         .destination_mac = read.destination_mac,
                         .source = read.source,
                         .destination = read.destination});
  std::vector<std::byte> again(kHeadersBytes + read.payload.size());
  const std::uint16_t field = load16(frame.data(), kUdpChecksumAt);
  const auto written = std::span(again).first<kHeadersBytes>();
  headers.write(written, read.payload.size(), field == 0 ? UdpChecksum::kNone : UdpChecksum::kWhole, sum(read.payload));
  std::copy(read.payload.begin(), read.payload.end(), again.begin() + kHeadersBytes);
  const auto same = [&](std::size_t at, std::size_t bytes) {
    return std::equal(again.begin() + static_cast<std::ptrdiff_t>(at),
                      again.begin() + static_cast<std::ptrdiff_t>(at + bytes),
                      frame.begin() + static_cast<std::ptrdiff_t>(at));
  };
  require(same(0, kEthernetBytes + 1) && same(16, 2) && same(26, kUdpChecksumAt - 26));
  if (policy == ChecksumPolicy::kWhole) {
    require(same(kUdpChecksumAt, 2));
  }
  UdpFrame back;
  require(parse(again, ChecksumPolicy::kWhole, back) == FrameError::kNone);
  require(back.source == read.source && back.destination == read.destination);
  require(std::equal(back.payload.begin(), back.payload.end(), read.payload.begin(), read.payload.end()));
}

void try_datagram(std::span<const std::byte> frame, ChecksumPolicy policy) {
  UdpFrame read;
  if (parse(frame, policy, read) == FrameError::kNone) {
    write_again(frame, policy, read);
  } else {
    require(read.payload.data() == nullptr && read.source.port == 0 && read.destination.address == 0);
  }
}

void try_arp(std::span<const std::byte> frame) {
  ArpPacket read;
  if (!parse_arp(frame, read)) {
    require(read == ArpPacket{});
    return;
  }
  std::array<std::byte, kFrameBytesMin> again{};
  write_arp(read, again);
  require(std::equal(again.begin() + kEthernetBytes, again.begin() + 42, frame.begin() + kEthernetBytes));
}

/// A mutated frame hardly ever has right checksums, so they are corrected for a second attempt.
void repair(std::vector<std::byte>& frame) {
  if (frame.size() < kHeadersBytes) return;
  store16(frame.data(), kEthernetBytes + 10, 0);
  store16(frame.data(), kEthernetBytes + 10, checksum(sum({frame.data() + kEthernetBytes, kIpv4Bytes})));
  const std::size_t udp_bytes = std::min<std::size_t>(load16(frame.data(), 38), frame.size() - 34);
  store16(frame.data(), kUdpChecksumAt, 0);
  const PartialSum whole = sum({frame.data() + 26, 8}) + sum(std::uint16_t{17}) +
                           sum(static_cast<std::uint16_t>(udp_bytes)) + sum({frame.data() + 34, udp_bytes});
  const std::uint16_t right = checksum(whole);
  store16(frame.data(), kUdpChecksumAt, right == 0 ? 0xFFFF : right);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto policy = static_cast<ChecksumPolicy>(data[0] % 3);
  // An exact copy, so that the sanitizer detects a read beyond the frame.
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data + 1, size - 1));
  std::vector<std::byte> frame(bytes.begin(), bytes.end());
  try_datagram(frame, policy);
  try_arp(frame);
  repair(frame);
  try_datagram(frame, policy);
  return 0;
}
