#include "transport/ethernet/checksum.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace wiresum::transport::ethernet {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);
constexpr std::size_t kStepBytes = 4 * kWordBytes;

std::uint64_t load64(const std::byte* from) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}

std::uint64_t halves(std::uint64_t word) noexcept { return (word & 0xFFFF'FFFF) + (word >> 32); }

/// The sum may be made in either byte order, as long as its words are swapped at last: RFC 1071, section 2 (B).
std::uint16_t network_order(std::uint16_t word) noexcept {
  if constexpr (std::endian::native == std::endian::little) {
    return static_cast<std::uint16_t>(word << 8 | word >> 8);
  }
  return word;
}

}  // namespace

PartialSum sum(std::span<const std::byte> bytes) noexcept {
  // Words of 64 bits, since 2^64 - 1 is a multiple of 2^16 - 1: what they lose by running over counts as one each.
  // Four sums that do not wait for each other.
  std::array<std::uint64_t, 4> sums{};
  std::array<std::uint64_t, 4> carries{};
  const std::byte* from = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= kStepBytes; left -= kStepBytes, from += kStepBytes) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::uint64_t word = load64(from + i * kWordBytes);
      sums[i] += word;
      carries[i] += sums[i] < word ? 1 : 0;
    }
  }
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    total += halves(sums[i]) + carries[i];
  }
  for (; left >= kWordBytes; left -= kWordBytes, from += kWordBytes) {
    total += halves(load64(from));
  }
  if (left != 0) {
    std::array<std::byte, kWordBytes> last{};
    std::memcpy(last.data(), from, left);
    total += halves(load64(last.data()));
  }
  return {.words = total};
}

PartialSum sum(std::uint16_t word) noexcept { return {.words = network_order(word)}; }

std::uint16_t fold(PartialSum sum) noexcept {
  std::uint64_t words = halves(sum.words);
  while (words >> 16 != 0) {
    words = (words & 0xFFFF) + (words >> 16);
  }
  return network_order(static_cast<std::uint16_t>(words));
}

}  // namespace wiresum::transport::ethernet
