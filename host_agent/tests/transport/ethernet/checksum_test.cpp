#include "transport/ethernet/checksum.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace wiresum::transport::ethernet {
namespace {

/// RFC 1071 literally: word by word, each carry added at once.
std::uint16_t reference(const std::vector<std::byte>& bytes) {
  std::uint32_t words = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 2) {
    const auto high = std::to_integer<std::uint32_t>(bytes[i]);
    const auto low = i + 1 < bytes.size() ? std::to_integer<std::uint32_t>(bytes[i + 1]) : 0;
    words += high << 8 | low;
    words = (words & 0xFFFF) + (words >> 16);
  }
  return static_cast<std::uint16_t>(words);
}

std::vector<std::byte> random_bytes(std::size_t count, std::mt19937& random) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Checksum, AddsTheExampleOfTheRfc) {
  const std::vector<std::byte> bytes{std::byte{0x00}, std::byte{0x01}, std::byte{0xF2}, std::byte{0x03},
                                     std::byte{0xF4}, std::byte{0xF5}, std::byte{0xF6}, std::byte{0xF7}};
  EXPECT_EQ(fold(sum(bytes)), 0xDDF2);
  EXPECT_EQ(checksum(sum(bytes)), 0x220D);
}

TEST(Checksum, IsThatOfTheRfcAtEveryLength) {
  std::mt19937 random(1);
  for (std::size_t length = 0; length != 2100; ++length) {
    const std::vector<std::byte> bytes = random_bytes(length, random);
    ASSERT_EQ(fold(sum(bytes)), reference(bytes)) << length << " bytes";
  }
}

TEST(Checksum, AddsAllCarriesOfWordsOfOnes) {
  for (const std::size_t length : {32u, 64u, 1464u, 9000u, 65507u}) {
    const std::vector<std::byte> bytes(length, std::byte{0xFF});
    EXPECT_EQ(fold(sum(bytes)), reference(bytes)) << length << " bytes";
  }
}

TEST(Checksum, OfPartsAddsUpToThatOfTheWhole) {
  std::mt19937 random(2);
  const std::vector<std::byte> bytes = random_bytes(1501, random);
  const std::span<const std::byte> whole(bytes);
  for (std::size_t cut = 0; cut < bytes.size(); cut += 2) {
    ASSERT_EQ(fold(sum(whole.first(cut)) + sum(whole.subspan(cut))), reference(bytes)) << "cut at " << cut;
  }
}

TEST(Checksum, OfANumberEqualsThatOfItsBytesInNetworkOrder) {
  EXPECT_EQ(fold(sum(std::uint16_t{0x1234})), 0x1234);
  EXPECT_EQ(fold(sum(std::uint16_t{0xFFFF}) + sum(std::uint16_t{2})), 2);
}

}  // namespace
}  // namespace wiresum::transport::ethernet
