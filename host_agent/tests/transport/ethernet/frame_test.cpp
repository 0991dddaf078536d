#include "transport/ethernet/frame.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace wiresum::transport::ethernet {
namespace {

constexpr MacAddress kOurs{{0x02, 0x00, 0x00, 0x00, 0x00, 0x0A}};
constexpr MacAddress kTheirs{{0x02, 0x00, 0x00, 0x00, 0x00, 0x0B}};
constexpr Path kPath{.source_mac = kOurs,
                     .destination_mac = kTheirs,
                     .source = {.address = 0xC0A80001, .port = 0x1234},
                     .destination = {.address = 0xC0A800C7, .port = 0xA9E0}};

std::vector<std::byte> random_payload(std::size_t bytes, std::uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<std::byte> payload(bytes);
  for (std::byte& byte : payload) byte = static_cast<std::byte>(random());
  return payload;
}

std::vector<std::byte> frame_of(const std::vector<std::byte>& payload, UdpChecksum kind = UdpChecksum::kWhole,
                                const Path& path = kPath) {
  std::vector<std::byte> frame(kHeadersBytes + payload.size());
  Headers(path).write(std::span(frame).first<kHeadersBytes>(), payload.size(), kind, sum(payload));
  std::copy(payload.begin(), payload.end(), frame.begin() + kHeadersBytes);
  return frame;
}

std::uint16_t word_at(const std::vector<std::byte>& frame, std::size_t at) {
  return static_cast<std::uint16_t>(std::to_integer<unsigned>(frame[at]) << 8 |
                                    std::to_integer<unsigned>(frame[at + 1]));
}

FrameError parse_into(const std::vector<std::byte>& frame, UdpFrame& out,
                      ChecksumPolicy policy = ChecksumPolicy::kWhole) {
  return parse(frame, policy, out);
}

FrameError error_of(const std::vector<std::byte>& frame, ChecksumPolicy policy = ChecksumPolicy::kWhole) {
  UdpFrame out;
  const FrameError error = parse(frame, policy, out);
  EXPECT_TRUE(error == FrameError::kNone || out.payload.data() == nullptr) << "touched on an error";
  return error;
}

/// Changes a byte of the IPv4 header and corrects its checksum, so that only that byte is wrong.
std::vector<std::byte> with_ipv4_byte(std::size_t at, std::uint8_t value) {
  std::vector<std::byte> frame = frame_of(random_payload(100));
  frame[kEthernetBytes + at] = std::byte{value};
  frame[kEthernetBytes + 10] = frame[kEthernetBytes + 11] = std::byte{0};
  const std::uint16_t right = checksum(sum(std::span(frame).subspan(kEthernetBytes, kIpv4Bytes)));
  frame[kEthernetBytes + 10] = static_cast<std::byte>(right >> 8);
  frame[kEthernetBytes + 11] = static_cast<std::byte>(right & 0xFF);
  return frame;
}

TEST(Frame, WritesTheIpv4HeaderOfAKnownPacket) {  // R4.12
  const std::vector<std::byte> frame = frame_of(random_payload(0x73 - kIpv4Bytes - kUdpBytes));
  const std::vector<std::uint16_t> known{0x4502, 0x0073, 0x0000, 0x4000, 0x4011,
                                         0xB85F, 0xC0A8, 0x0001, 0xC0A8, 0x00C7};
  for (std::size_t i = 0; i < known.size(); ++i) {
    EXPECT_EQ(word_at(frame, kEthernetBytes + 2 * i), known[i]) << "word " << i;
  }
  const std::vector<std::uint16_t> ethernet{0x0200, 0x0000, 0x000B, 0x0200, 0x0000, 0x000A, 0x0800};
  for (std::size_t i = 0; i < ethernet.size(); ++i) {
    EXPECT_EQ(word_at(frame, 2 * i), ethernet[i]) << "word " << i;
  }
  EXPECT_EQ(word_at(frame, 34), 0x1234);
  EXPECT_EQ(word_at(frame, 36), 0xA9E0);
  EXPECT_EQ(word_at(frame, 38), 0x73 - kIpv4Bytes);
}

TEST(Frame, WritesTheUdpChecksumOfTheRfc) {  // R2.13
  for (const std::size_t bytes : {0u, 1u, 24u, 25u, 1464u, 8972u}) {
    const std::vector<std::byte> payload = random_payload(bytes);
    const std::vector<std::byte> frame = frame_of(payload);
    // Over pseudo-header, UDP header and payload, the sum of all words is all ones.
    std::uint64_t words = 17 + kUdpBytes + bytes;
    for (std::size_t at = 26; at < frame.size(); at += 2) {
      words += at + 1 < frame.size() ? word_at(frame, at) : std::to_integer<unsigned>(frame[at]) << 8;
    }
    EXPECT_EQ((words - 1) % 0xFFFF + 1, 0xFFFF) << bytes << " bytes";
    EXPECT_NE(word_at(frame, 40), 0);
  }
}

TEST(Frame, AChecksumThatComesOutAs0IsWrittenAsAllOnes) {  // R2.13
  // Two bytes of payload that make the sum all ones.
  std::vector<std::byte> payload(2);
  const std::uint16_t first = word_at(frame_of(payload), 40);
  payload[0] = static_cast<std::byte>(first >> 8);
  payload[1] = static_cast<std::byte>(first & 0xFF);
  const std::vector<std::byte> frame = frame_of(payload);
  EXPECT_EQ(word_at(frame, 40), 0xFFFF);
  EXPECT_EQ(error_of(frame), FrameError::kNone);
}

TEST(Frame, AWrittenPacketIsReadBack) {  // R2.9
  for (const std::size_t bytes : {0u, 1u, 17u, 24u, 1464u, 8972u, 65507u}) {
    const std::vector<std::byte> payload = random_payload(bytes);
    for (const UdpChecksum kind : {UdpChecksum::kWhole, UdpChecksum::kNone}) {
      const std::vector<std::byte> frame = frame_of(payload, kind);
      UdpFrame read;
      ASSERT_EQ(parse_into(frame, read), FrameError::kNone) << bytes << " bytes";
      EXPECT_EQ(read.source, kPath.source);
      EXPECT_EQ(read.destination, kPath.destination);
      EXPECT_EQ(read.source_mac, kOurs);
      EXPECT_EQ(read.destination_mac, kTheirs);
      EXPECT_TRUE(std::equal(read.payload.begin(), read.payload.end(), payload.begin(), payload.end()));
    }
  }
}

TEST(Frame, AMarkIsReadBack) {  // R3.22
  for (const bool marked : {false, true}) {
    Path path = kPath;
    path.marked = marked;
    UdpFrame read;
    ASSERT_EQ(parse_into(frame_of(random_payload(24), UdpChecksum::kWhole, path), read), FrameError::kNone);
    EXPECT_EQ(read.marked, marked);
  }
}

TEST(Frame, PaddingIsNotPayload) {  // R2.11
  std::vector<std::byte> frame = frame_of(random_payload(3));
  frame.resize(kFrameBytesMin, std::byte{0xEE});
  UdpFrame read;
  ASSERT_EQ(parse_into(frame, read), FrameError::kNone);
  EXPECT_EQ(read.payload.size(), 3);
}

TEST(Frame, EveryFlippedBitOfADatagramIsNoticed) {  // R2.8
  const std::vector<std::byte> good = frame_of(random_payload(61));
  for (std::size_t bit = kEthernetBytes * 8; bit != good.size() * 8; ++bit) {
    std::vector<std::byte> frame = good;
    frame[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    EXPECT_NE(error_of(frame), FrameError::kNone) << "bit " << bit;
  }
}

TEST(Frame, EveryShorterFrameIsRefused) {  // R2.7
  const std::vector<std::byte> good = frame_of(random_payload(61));
  for (std::size_t length = 0; length != good.size(); ++length) {
    // An exact copy, so that a sanitizer detects a read beyond it.
    EXPECT_EQ(error_of({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)}), FrameError::kTruncated);
  }
}

TEST(Frame, ForeignFramesAreRefusedWithTheirReason) {  // R2.10
  std::vector<std::byte> tagged = frame_of(random_payload(61));
  tagged[12] = std::byte{0x81};
  EXPECT_EQ(error_of(tagged), FrameError::kNotIpv4);
  EXPECT_EQ(error_of(with_ipv4_byte(0, 0x65)), FrameError::kNotIpv4);
  EXPECT_EQ(error_of(with_ipv4_byte(0, 0x46)), FrameError::kIpv4Options);
  EXPECT_EQ(error_of(with_ipv4_byte(0, 0x44)), FrameError::kIpv4Options);
  EXPECT_EQ(error_of(with_ipv4_byte(6, 0x20)), FrameError::kFragment);  // more fragments
  EXPECT_EQ(error_of(with_ipv4_byte(6, 0x1F)), FrameError::kFragment);  // an offset, upper bits
  EXPECT_EQ(error_of(with_ipv4_byte(7, 0x01)), FrameError::kFragment);  // an offset, lower bits
  EXPECT_EQ(error_of(with_ipv4_byte(9, 6)), FrameError::kNotUdp);
  EXPECT_EQ(error_of(with_ipv4_byte(3, 27)), FrameError::kTruncated);  // no room for UDP's header
  EXPECT_EQ(error_of(with_ipv4_byte(2, 0x40)), FrameError::kTruncated);
  EXPECT_EQ(error_of(with_ipv4_byte(6, 0)), FrameError::kNone);  // may be fragmented, but is not
  EXPECT_EQ(error_of(with_ipv4_byte(8, 1)), FrameError::kNone);  // the time to live ends here
}

TEST(Frame, AUdpLengthOtherThanIpv4sIsRefused) {  // R2.7
  for (const int length : {0, 7, 8, 107, 109}) {
    std::vector<std::byte> frame = frame_of(random_payload(100), UdpChecksum::kNone);
    frame[39] = static_cast<std::byte>(length);
    EXPECT_EQ(error_of(frame), FrameError::kUdpLength) << length;
  }
}

TEST(Frame, AWrongChecksumIsRefusedUnlessTheDeviceHasVerifiedIt) {  // R2.8
  std::vector<std::byte> frame = frame_of(random_payload(100));
  frame.back() ^= std::byte{1};
  EXPECT_EQ(error_of(frame, ChecksumPolicy::kWhole), FrameError::kUdpChecksum);
  EXPECT_EQ(error_of(frame, ChecksumPolicy::kWholeOrPseudo), FrameError::kUdpChecksum);
  EXPECT_EQ(error_of(frame, ChecksumPolicy::kTrusted), FrameError::kNone);
}

TEST(Frame, APartialChecksumIsAcceptedOnlyIfADeviceWouldHaveCompletedIt) {
  const std::vector<std::byte> frame = frame_of(random_payload(100), UdpChecksum::kPseudo);
  EXPECT_EQ(error_of(frame, ChecksumPolicy::kWhole), FrameError::kUdpChecksum);
  EXPECT_EQ(error_of(frame, ChecksumPolicy::kWholeOrPseudo), FrameError::kNone);
}

}  // namespace
}  // namespace wiresum::transport::ethernet
