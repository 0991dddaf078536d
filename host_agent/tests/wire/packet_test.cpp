#include "wire/packet.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

namespace wiresum::wire {
namespace {

// Every field has different bytes, so that swapped fields are noticed.
constexpr Header kSample{.kind = Kind::kMeta,
                         .flags = 0x21,
                         .job = 0x3132,
                         .key = 0x41424344,
                         .worker = 0x51,
                         .exponent = 0x61,
                         .cell = 0x7172,
                         .round = 0x81828384,
                         .tensor = 0x91929394,
                         .chunk = 0xA1A2A3A4};
constexpr std::array<std::uint8_t, kHeaderBytes> kSampleBytes{0x13, 0x21, 0x31, 0x32, 0x41, 0x42, 0x43, 0x44,
                                                              0x51, 0x61, 0x71, 0x72, 0x81, 0x82, 0x83, 0x84,
                                                              0x91, 0x92, 0x93, 0x94, 0xA1, 0xA2, 0xA3, 0xA4};

std::vector<std::byte> datagram_of(const Header& header, std::size_t payload_bytes) {
  std::vector<std::byte> datagram(kHeaderBytes + payload_bytes);
  encode(header, std::span<std::byte, kHeaderBytes>(datagram.data(), kHeaderBytes));
  return datagram;
}

TEST(Packet, EncodesTheBytesOfTheSpecification) {  // R2.14
  std::array<std::byte, kHeaderBytes> out{};
  encode(kSample, out);
  for (std::size_t i = 0; i < kHeaderBytes; ++i)
    EXPECT_EQ(std::to_integer<int>(out[i]), kSampleBytes[i]) << "byte " << i;
}

TEST(Packet, DecodesTheBytesOfTheSpecification) {  // R2.14
  std::array<std::byte, kHeaderBytes> in{};
  std::transform(kSampleBytes.begin(), kSampleBytes.end(), in.begin(), [](std::uint8_t b) { return std::byte{b}; });
  Header header;
  ASSERT_EQ(decode(in, header), ParseError::kNone);
  EXPECT_EQ(header, kSample);
}

TEST(Packet, EveryKindSurvivesTheRoundTrip) {
  for (const Kind kind : {Kind::kData, Kind::kEmpty, Kind::kResult, Kind::kMeta}) {
    Header header = kSample;
    header.kind = kind;
    Header back;
    ASSERT_EQ(decode(datagram_of(header, 0), back), ParseError::kNone);
    EXPECT_EQ(back, header);
  }
}

TEST(Packet, RandomHeadersSurviveTheRoundTrip) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100'000; ++i) {
    const std::uint64_t a = random();
    const std::uint64_t b = random();
    const std::uint64_t c = random();
    const Header header{.kind = static_cast<Kind>(c & 3),
                        .flags = static_cast<std::uint8_t>(c >> 8),
                        .job = static_cast<std::uint16_t>(c >> 16),
                        .key = static_cast<std::uint32_t>(a),
                        .worker = static_cast<std::uint8_t>(c >> 32),
                        .exponent = static_cast<std::uint8_t>(c >> 40),
                        .cell = static_cast<std::uint16_t>(c >> 48),
                        .round = static_cast<std::uint32_t>(a >> 32),
                        .tensor = static_cast<std::uint32_t>(b),
                        .chunk = static_cast<std::uint32_t>(b >> 32)};
    Header back;
    ASSERT_EQ(decode(datagram_of(header, 0), back), ParseError::kNone);
    ASSERT_EQ(back, header);
  }
}

TEST(Packet, RefusesEveryLengthShorterThanAHeader) {
  const std::vector<std::byte> datagram = datagram_of(kSample, 0);
  for (std::size_t bytes = 0; bytes < kHeaderBytes; ++bytes) {
    Header header;
    EXPECT_EQ(decode(std::span(datagram).first(bytes), header), ParseError::kTruncated) << bytes << " bytes";
    EXPECT_EQ(header, Header{});
  }
}

TEST(Packet, RefusesEveryOtherVersion) {  // R2.15
  std::vector<std::byte> datagram = datagram_of(kSample, 0);
  for (unsigned version = 0; version < 16; ++version) {
    datagram[0] = static_cast<std::byte>(version << 4 | static_cast<unsigned>(Kind::kMeta));
    Header header;
    EXPECT_EQ(decode(datagram, header), version == kWireVersion ? ParseError::kNone : ParseError::kUnknownVersion);
  }
}

TEST(Packet, RefusesEveryUnknownKind) {  // R2.15
  std::vector<std::byte> datagram = datagram_of(kSample, 0);
  for (unsigned kind = 0; kind < 16; ++kind) {
    datagram[0] = static_cast<std::byte>(kWireVersion << 4 | kind);
    Header header;
    EXPECT_EQ(decode(datagram, header), kind <= 5 ? ParseError::kNone : ParseError::kUnknownKind) << "kind " << kind;
  }
}

TEST(Packet, RefusesAPayloadThatIsNoWholeNumberOfWords) {  // R2.15
  for (const Kind kind : {Kind::kData, Kind::kResult}) {
    Header header = kSample;
    header.kind = kind;
    for (std::size_t bytes = 0; bytes <= 3 * kWordBytes; ++bytes) {
      Header back;
      const ParseError error = decode(datagram_of(header, bytes), back);
      EXPECT_EQ(error, bytes % kWordBytes == 0 ? ParseError::kNone : ParseError::kPayload) << bytes << " bytes";
      EXPECT_EQ(back, error == ParseError::kNone ? header : Header{});
    }
  }
}

TEST(Packet, RefusesAPayloadOnAKindThatHasNone) {  // R2.15
  for (const Kind kind : {Kind::kEmpty, Kind::kMeta}) {
    Header header = kSample;
    header.kind = kind;
    for (std::size_t bytes = 1; bytes <= 2 * kWordBytes; ++bytes) {
      Header back;
      EXPECT_EQ(decode(datagram_of(header, bytes), back), ParseError::kPayload) << bytes << " bytes";
      EXPECT_EQ(back, Header{});
    }
  }
}

// If decode() accepts the bytes, encode() gives the same ones; if it refuses them, the header is unchanged.
TEST(Packet, RandomBytesAreRefusedOrEncodedBackExactly) {
  std::mt19937_64 random(2);
  std::uniform_int_distribution<std::size_t> any_size(0, 2 * kHeaderBytes);
  int accepted = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::vector<std::byte> bytes(any_size(random));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (!bytes.empty() && i % 2 == 0) bytes[0] = static_cast<std::byte>(0x10 | (random() & 0x07));
    Header header = kSample;
    if (decode(bytes, header) != ParseError::kNone) {
      ASSERT_EQ(header, kSample);
      continue;
    }
    ++accepted;
    std::array<std::byte, kHeaderBytes> again{};
    encode(header, again);
    ASSERT_TRUE(std::equal(again.begin(), again.end(), bytes.begin()));
  }
  EXPECT_GT(accepted, 1000);
}

TEST(Packet, NewerFollowsSerialNumberArithmetic) {
  EXPECT_TRUE(newer(1, 0));
  EXPECT_FALSE(newer(0, 1));
  EXPECT_FALSE(newer(7, 7));
  EXPECT_TRUE(newer(0, 0xFFFFFFFF));
  EXPECT_FALSE(newer(0xFFFFFFFF, 0));
  EXPECT_TRUE(newer(0x7FFFFFFF, 0));
  // Half the number space apart there is no order, so neither is newer.
  EXPECT_FALSE(newer(0x80000000, 0));
  EXPECT_FALSE(newer(0, 0x80000000));
}

TEST(Packet, TheLaterCollectiveHasTheLaterNumberWhateverTheSignatures) {  // R2.21
  EXPECT_TRUE(is_later_collective(0x00000008, 0x7FFF0007));
  EXPECT_FALSE(is_later_collective(0x7FFF0007, 0x00000008));
  EXPECT_FALSE(is_later_collective(0x00010007, 0xFFFF0007)) << "the same number";
  EXPECT_TRUE(is_later_collective(0x12340000, 0xABCDFFFF)) << "0 follows the largest";
  EXPECT_FALSE(is_later_collective(0xABCDFFFF, 0x12340000));
  EXPECT_TRUE(is_later_collective(0x7FFF, 0));
  // Half the number space apart there is no order, so neither is later.
  EXPECT_FALSE(is_later_collective(0x8000, 0));
  EXPECT_FALSE(is_later_collective(0, 0x8000));
}

TEST(Packet, TheLaterOfTwoTagsMayBeMissing) {
  EXPECT_EQ(later_of(0, 0), 0u);
  EXPECT_EQ(later_of(1 + 0xFFFF, 0), 1u + 0xFFFF) << "0 is no tag, though the collective 0 is the later one";
  EXPECT_EQ(later_of(0, 1 + 0xFFFF), 1u + 0xFFFF);
  EXPECT_EQ(later_of(1 + std::uint64_t{0xABCDFFFF}, 1 + std::uint64_t{0x12340000}), 1u + 0x12340000);
  EXPECT_EQ(later_of(1 + std::uint64_t{0x12340000}, 1 + std::uint64_t{0xABCDFFFF}), 1u + 0x12340000);
}

TEST(Packet, CellAlternatesWithTheRound) {
  EXPECT_EQ(cell_of(0, 0), 0);
  EXPECT_EQ(cell_of(0, 1), 1);
  EXPECT_EQ(cell_of(5, 8), 10);
  EXPECT_EQ(cell_of(5, 0xFFFFFFFF), 11);
  EXPECT_EQ(cell_of(32767, 1), 65535);
}

}  // namespace
}  // namespace wiresum::wire
