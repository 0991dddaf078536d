// Scales, and the codec's functions on top of the kernels.
//
// Block floating point. All workers agree on m, the largest biased exponent of a chunk over elements and
// workers. Let L = ceil(log2 N), b the lane width and q = 2^((m - 127) - (b - 2 - L)) the *quantum*; a lane is
// x / q, rounded to nearest even. Every |x| < 2^(m - 126), so |x / q| < 2^(b - 1 - L), and the sum of N <= 2^L of them
// is below 2^(b - 1). Rounding changes these bounds:
//
//   b = 32: x has 24 significant bits, so |x / q| <= 2^(31 - L) - 2^(7 - L). With L <= 7 (at most 128 workers)
//     that is an integer: the largest lane does not round at all, no lane rounds to 2^(31 - L), and N lanes sum
//     to at most 2^31 - 128. No element needs the clamp at this value. The clamp only keeps sums from wrapping
//     when an owner changes its tensor during a collective. With more workers the clamp is at 2^(31 - L) - 1, and
//     needed as for narrower lanes.
//   b = 16, 8: an element just below 2^(m - 126) would round to 2^(b - 1 - L), and N = 2^L of them to 2^(b - 1),
//     which is no b-bit number. Therefore lanes are clamped to 2^(b - 1 - L) - 1, at an error below one quantum.
//
// There are two factors. Scaling by 1 / q = 2^s, a power of two, is exact, but with m = 1 and b = 32 the power is
// 2^(156 - L), and fp32 ends below 2^128. A second factor has what exceeds 2^126. The elements of so small a block are
// below 2^-95, so the first product, a power of two times an fp32 number that may be subnormal, is below 2^31 and
// exact. (For s < 0 a product may be subnormal and lose bits, but then its lane is 0 either way.) On the way back q may
// be below 2^-126, as an fp32 number subnormal or zero. An integer times 2^-126 is a normal number and exact; only the
// second product may become subnormal and round. Normal results are therefore rounded exactly once, when the integer
// sum becomes an fp32 number. docs/numerics.md, "How exact it is", bounds the error of a sum.
//
// With a fixed scale f: lanes are x * f rounded to fp32 and then to an integer, clamped to a range that N workers can
// add.
//
// The floating-point environment. A thread begins with rounding to nearest even, and subnormals as numbers, unless its
// creator has changed them, as torch.set_flush_denormal does (Linux hands MXCSR down). Kernels only promise results in
// the default environment: every thread that drives a shard has a DefaultFloatEnvironment, since saving and restoring
// MXCSR around every short chunk would take time.
#include "numeric/codec.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "numeric/kernels.hpp"

namespace wiresum::numeric {
namespace {

constexpr int kExponentBias = 127;
/// The bytes at a block's start that a scan reads first (its "head"): four floats, which lie in one cache line if the
/// tensor is aligned like heap memory.
constexpr std::size_t kGlanceBytes = 16;
/// The distance at which the heads of a tensor's next blocks are prefetched.
constexpr std::size_t kGlanceBlocksAhead = 64;

int ceil_log2(unsigned workers) noexcept { return workers <= 1 ? 0 : static_cast<int>(std::bit_width(workers - 1)); }

/// 2^exponent, for -126..127.
float power_of_two(int exponent) noexcept {
  assert(exponent >= -126 && exponent <= 127);
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + kExponentBias) << 23);
}

/// The largest fp32 number not above `limit`: 24 significant bits, the rest cut. (A conversion would round 2^31 - 1 to
/// 2^31, which is no int32.)
std::int32_t cut_to_float(std::int32_t limit) noexcept {
  const int excess = static_cast<int>(std::bit_width(static_cast<std::uint32_t>(limit))) - 24;
  return excess <= 0 ? limit : (limit >> excess) << excess;
}

std::int32_t largest_of(unsigned bits) noexcept { return static_cast<std::int32_t>(0x7FFFFFFFU >> (32 - bits)); }

/// The index into Kernels' tables.
std::size_t lane_index(unsigned bits) noexcept { return bits == 32 ? 0 : bits == 16 ? 1 : 2; }

std::uint8_t exponent_of_half(std::uint32_t magnitude) noexcept {
  const std::uint32_t exponent = magnitude >> 10;
  if (exponent == 31) return kExponentNotFinite;
  if (exponent > 0) return static_cast<std::uint8_t>(exponent + 112U);
  // A subnormal fp16, mantissa * 2^-24, is a normal fp32 number.
  return magnitude == 0 ? kExponentZero
                        : static_cast<std::uint8_t>(102U + static_cast<unsigned>(std::bit_width(magnitude)));
}

/// The exponent in the largest magnitude's bits.
std::uint8_t exponent_of(Dtype dtype, std::uint32_t magnitude) noexcept {
  switch (dtype) {
    case Dtype::kF32:
      return static_cast<std::uint8_t>(magnitude >> 23);
    case Dtype::kF16:
      return exponent_of_half(magnitude);
    case Dtype::kBF16:
      return static_cast<std::uint8_t>(magnitude >> 7);
    case Dtype::kE4M3:
    case Dtype::kE5M2:
    case Dtype::kI32:
    case Dtype::kRaw:
      return kExponentZero;
  }
  return kExponentZero;
}

/// For chunks with Inf or NaN. They are rare, so elements are read once more, one by one.
Exponents exponents_of_finite(Dtype dtype, const std::byte* source, std::size_t count) noexcept {
  Exponents exponents{.not_finite = true};
  for (std::size_t i = 0; i < count; ++i) {
    const MagnitudeRange range =
        kKernelsScalar.magnitudes[static_cast<std::size_t>(dtype)](source + i * element_bytes(dtype), 1);
    const std::uint8_t exponent = exponent_of(dtype, range.largest);
    if (exponent == kExponentZero || exponent == kExponentNotFinite) continue;
    exponents.largest = std::max(exponents.largest, exponent);
    const bool is_first = exponents.smallest == kExponentZero;
    exponents.smallest = is_first ? exponent : std::min(exponents.smallest, exponent);
  }
  return exponents;
}

template <class Bits>
void fill_elements(std::byte* destination, std::size_t count, Bits bits) noexcept {
  for (std::size_t i = 0; i < count; ++i) std::memcpy(destination + i * sizeof bits, &bits, sizeof bits);
}

void fill_nan(Dtype dtype, std::byte* destination, std::size_t count) noexcept {
  switch (dtype) {
    case Dtype::kF32:
      return fill_elements<std::uint32_t>(destination, count, 0x7FC00000U);
    case Dtype::kF16:
      return fill_elements<std::uint16_t>(destination, count, 0x7E00U);
    case Dtype::kBF16:
      return fill_elements<std::uint16_t>(destination, count, 0x7FC0U);
    case Dtype::kE4M3:
    case Dtype::kE5M2:
    case Dtype::kI32:
    case Dtype::kRaw:
      return;  // these types have no scale that is not finite
  }
}

/// The bits of a 32-bit word in which elements that are not zero differ from zeros: all but the signs of floats.
std::uint32_t magnitude_bits(Dtype dtype) noexcept {
  return !is_scaled(dtype) ? 0xFFFFFFFFU : dtype == Dtype::kF32 ? 0x7FFFFFFFU : 0x7FFF7FFFU;
}

bool has_bits(const std::byte* glance, std::uint32_t wanted) noexcept {
  std::uint64_t halves[kGlanceBytes / 8];
  std::memcpy(halves, glance, kGlanceBytes);
  return ((halves[0] | halves[1]) & (std::uint64_t{wanted} << 32 | wanted)) != 0;
}

/// Only the head of a dense block is read. In a large tensor the read waits for a page table and for a line of memory;
/// the fewer instructions lie between two heads, the more lines a processor waits for at a time.
///
/// Hardware does not prefetch after so few bytes of each block. This function does, as if the next blocks were like
/// this one. If only heads are read, they are fetched into the second-level cache, which can wait for more lines than
/// the first. If blocks are read to their ends, the hardware prefetches, best after first lines in the first-level
/// cache.
[[gnu::always_inline]] inline BlockScan scan_bytes(const Kernels& kernels, const std::byte* source, std::size_t bytes,
                                                   std::uint32_t magnitude) noexcept {
  const std::byte* const ahead = source + kGlanceBlocksAhead * bytes;
  if (bytes >= kGlanceBytes && has_bits(source, magnitude)) {
    __builtin_prefetch(ahead, 0, 2);
    return {.present = true};
  }
  __builtin_prefetch(ahead, 0, 3);
  const std::uint32_t bits = kernels.scan(source, bytes, magnitude);
  const bool present = (bits & magnitude) != 0;
  return {.present = present, .negative_zero = !present && bits != 0};
}

}  // namespace

Scale block_scale(unsigned workers, std::uint8_t exponent, unsigned bits, float divisor) noexcept {
  assert(workers >= 1 && workers <= workers_max(bits));
  Scale scale;
  scale.divisor = divisor;
  if (exponent == kExponentNotFinite) {
    scale.not_finite = true;
    return scale;
  }
  const int width = static_cast<int>(bits);
  const int log2_workers = ceil_log2(workers);  // R8.14
  const int unbiased = (exponent == 0 ? 1 : exponent) - kExponentBias;
  const int shift = width - 2 - log2_workers - unbiased;  // -127..156 (R5.8)
  const int first = std::clamp(shift, -126, 126);         // 2^first and 2^-first are both normal
  scale.up[0] = power_of_two(first);
  scale.up[1] = power_of_two(shift - first);
  scale.down[0] = power_of_two(-first);
  scale.down[1] = power_of_two(first - shift);
  scale.limit = cut_to_float(largest_of(bits) >> log2_workers);
  return scale;
}

Scale fixed_scale(unsigned workers, float scale, unsigned bits, float divisor) noexcept {
  assert(workers >= 1 && workers <= workers_max(bits));
  Scale result;
  result.divisor = divisor;
  if (!(scale > 0.0F) || !std::isfinite(scale)) {
    result.not_finite = true;  // there is no correct sum: NaN shows that
    return result;
  }
  // 1 / scale is (1 / fraction) * 2^-exponent with fraction in [0.5, 1), rounded once, in the reciprocal, though
  // 1 / scale may lie beyond fp32. The first factor has what does not fit the second.
  int exponent = 0;
  const float fraction = std::frexp(scale, &exponent);
  const int second = exponent < -127 ? 127 : exponent > 126 ? -126 : -exponent;
  result.up[0] = scale;
  result.down[0] = std::ldexp(1.0F / fraction, -exponent - second);
  result.down[1] = power_of_two(second);
  result.limit = cut_to_float(largest_of(bits) / static_cast<std::int32_t>(workers));
  return result;
}

Exponents exponents_of(Dtype dtype, const std::byte* source, std::size_t count, const Kernels& kernels) noexcept {
  if (!is_scaled(dtype)) return {};
  const MagnitudeRange range = kernels.magnitudes[static_cast<std::size_t>(dtype)](source, count);
  const std::uint8_t largest = exponent_of(dtype, range.largest);
  if (largest == kExponentNotFinite) return exponents_of_finite(dtype, source, count);
  return {.largest = largest, .smallest = exponent_of(dtype, range.smallest)};
}

unsigned exponent_gap_max(unsigned workers) noexcept {
  const auto log2_workers = static_cast<unsigned>(ceil_log2(workers));
  return std::max(28 - log2_workers, 17 + log2_workers);
}

BlockScan scan_block(Dtype dtype, const std::byte* source, std::size_t count, const Kernels& kernels) noexcept {
  assert(dtype != Dtype::kRaw);
  return scan_bytes(kernels, source, count * element_bytes(dtype), magnitude_bits(dtype));
}

void scan_blocks(Dtype dtype, const std::byte* source, std::size_t count, std::size_t step, BlockScan* scans,
                 const Kernels& kernels) noexcept {
  assert(dtype != Dtype::kRaw && step > 0);
  const std::uint32_t magnitude = magnitude_bits(dtype);
  const std::size_t block_bytes = step * element_bytes(dtype);
  std::size_t left = count * element_bytes(dtype);
  for (; left >= block_bytes; left -= block_bytes, source += block_bytes) {
    *scans++ = scan_bytes(kernels, source, block_bytes, magnitude);
  }
  if (left > 0) *scans = scan_bytes(kernels, source, left, magnitude);
}

namespace {

QuantiseFactors quantise_factors(const Scale& scale) noexcept {
  return {{scale.up[0], scale.up[1]}, static_cast<float>(cut_to_float(scale.limit))};
}

DequantiseFactors dequantise_factors(const Scale& scale) noexcept {
  return {{scale.down[0], scale.down[1]}, scale.divisor};
}

}  // namespace

void quantise(Format format, const Scale& scale, const std::byte* source, std::size_t count, std::byte* payload,
              std::size_t words, const Kernels& kernels) noexcept {
  assert(valid(format) && count <= words * elements_per_word(format));
  if (format.dtype == Dtype::kRaw) {
    if (count > 0) std::memcpy(payload, source, count);
    if (4 * words > count) std::memset(payload + count, 0, 4 * words - count);  // R2.19
    return;
  }
  if (is_scaled(format.dtype) && scale.not_finite) {
    if (words > 0) std::memset(payload, 0, 4 * words);
    return;
  }
  // R5.9
  kernels.quantise[static_cast<std::size_t>(format.dtype)][lane_index(format.bits)](quantise_factors(scale), source,
                                                                                    count, payload, words);
}

void dequantise(Format format, const Scale& scale, const std::byte* payload, std::size_t words, std::byte* destination,
                std::size_t count, const Kernels& kernels) noexcept {
  assert(valid(format) && count <= words * elements_per_word(format));
  if (format.dtype == Dtype::kRaw) {
    if (count > 0) std::memcpy(destination, payload, count);
    return;
  }
  if (is_scaled(format.dtype) && scale.not_finite) return fill_nan(format.dtype, destination, count);
  kernels.dequantise[static_cast<std::size_t>(format.dtype)][lane_index(format.bits)](
      dequantise_factors(scale), payload, words, destination, count);
}

void to_integers(Dtype dtype, const Scale& scale, const std::byte* source, std::size_t count, std::int32_t* integers,
                 const Kernels& kernels) noexcept {
  assert(dtype != Dtype::kRaw);
  if (is_scaled(dtype) && scale.not_finite) {
    std::fill_n(integers, count, 0);
    return;
  }
  kernels.to_integers[static_cast<std::size_t>(dtype)](quantise_factors(scale), source, count,
                                                       reinterpret_cast<std::byte*>(integers), count);
}

void from_integers(Dtype dtype, const Scale& scale, const std::int32_t* integers, std::byte* destination,
                   std::size_t count, const Kernels& kernels) noexcept {
  assert(dtype != Dtype::kRaw);
  if (is_scaled(dtype) && scale.not_finite) return fill_nan(dtype, destination, count);
  kernels.from_integers[static_cast<std::size_t>(dtype)](
      dequantise_factors(scale), reinterpret_cast<const std::byte*>(integers), count, destination, count);
}

void pack_lanes(unsigned bits, const std::int32_t* integers, std::size_t count, std::uint32_t* packed,
                std::size_t words, const Kernels& kernels) noexcept {
  assert(count <= words * (32 / bits));
  kernels.pack[lane_index(bits)]({}, reinterpret_cast<const std::byte*>(integers), count,  // R5.17, R5.18
                                 reinterpret_cast<std::byte*>(packed), words);
}

void unpack_lanes(unsigned bits, const std::uint32_t* packed, std::size_t words, std::int32_t* integers,
                  std::size_t count, const Kernels& kernels) noexcept {
  assert(count <= words * (32 / bits));
  kernels.unpack[lane_index(bits)]({}, reinterpret_cast<const std::byte*>(packed), words,
                                   reinterpret_cast<std::byte*>(integers), count);
}

void set_default_float_environment() noexcept {  // R5.19
#if defined(__x86_64__)
  _mm_setcsr(0x1F80);  // all exceptions masked, nearest even, no FTZ, no DAZ
#else
  std::fesetenv(FE_DFL_ENV);
#endif
}

DefaultFloatEnvironment::DefaultFloatEnvironment() noexcept {
  static_cast<void>(std::fegetenv(&before_));
  set_default_float_environment();
}

DefaultFloatEnvironment::~DefaultFloatEnvironment() { static_cast<void>(std::fesetenv(&before_)); }

}  // namespace wiresum::numeric
