#include "transport/ethernet/checksum.hpp"

#include <array>
#include <bit>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

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

// Words may have 32 or 64 bits, since 2^32 - 1 and 2^64 - 1 are multiples of 2^16 - 1: halves may be added to each
// other, and a carry out of the sum counts as one.
#if defined(__SSE2__)

/// Adds the even and the odd words of 32 bits in lanes of 64, which do not overflow, on every x86-64.
std::uint64_t sum_steps(const std::byte* from, std::size_t steps) noexcept {
  static_assert(kStepBytes == 2 * sizeof(__m128i));
  const __m128i even = _mm_set1_epi64x(0xFFFF'FFFF);
  __m128i evens = _mm_setzero_si128();
  __m128i odds = _mm_setzero_si128();
  for (; steps != 0; --steps, from += kStepBytes) {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + sizeof first));
    evens = _mm_add_epi64(evens, _mm_add_epi64(_mm_and_si128(first, even), _mm_and_si128(second, even)));
    odds = _mm_add_epi64(odds, _mm_add_epi64(_mm_srli_epi64(first, 32), _mm_srli_epi64(second, 32)));
  }
  const __m128i sum = _mm_add_epi64(evens, odds);
  std::array<std::uint64_t, 2> lanes{};
  std::memcpy(lanes.data(), &sum, sizeof sum);
  return lanes[0] + lanes[1];
}

#else

/// Makes four sums that do not wait for each other.
std::uint64_t sum_steps(const std::byte* from, std::size_t steps) noexcept {
  std::array<std::uint64_t, 4> sums{};
  std::array<std::uint64_t, 4> carries{};
  for (; steps != 0; --steps, from += kStepBytes) {
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
  return total;
}

#endif

/// A sum may be made in either byte order if its words are swapped at last: RFC 1071, section 2 (B).
std::uint16_t network_order(std::uint16_t word) noexcept {
  if constexpr (std::endian::native == std::endian::little) {
    return static_cast<std::uint16_t>(word << 8 | word >> 8);
  }
  return word;
}

}  // namespace

PartialSum sum(std::span<const std::byte> bytes) noexcept {
  const std::byte* from = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t total = sum_steps(from, left / kStepBytes);
  from += left / kStepBytes * kStepBytes;
  left %= kStepBytes;
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
