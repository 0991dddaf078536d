#include "numeric/exact.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

namespace wiresum::numeric {
namespace {

// Special values add these numbers to their plane: each half of a word counts one sign of Inf. A NaN counts in both,
// since infinities of both signs sum to NaN.
constexpr std::uint32_t kPlusInf = 1U;
constexpr std::uint32_t kMinusInf = 1U << 16;
static_assert(wire::kJobWorkersMax < kMinusInf);

unsigned exponent_bits_of(Dtype dtype) noexcept {
  return dtype == Dtype::kE4M3 ? 4 : dtype == Dtype::kF16 || element_bytes(dtype) == 1 ? 5 : 8;
}

constexpr unsigned quotient_up(unsigned value, unsigned divisor) noexcept { return (value + divisor - 1) / divisor; }

__extension__ using UnsignedWide = unsigned __int128;

/// Bits of a sum; a division by the number of workers keeps many fewer.
constexpr unsigned kUpperBits = 64;
/// The most between the exponents of elements that are summed as one number.
constexpr unsigned kSpanMax = 127 - 24 - static_cast<unsigned>(std::bit_width(wire::kJobWorkersMax));

unsigned bit_width(UnsignedWide value) noexcept {
  const auto high = static_cast<std::uint64_t>(value >> 64);
  return static_cast<unsigned>(high != 0 ? 64 + std::bit_width(high)
                                         : std::bit_width(static_cast<std::uint64_t>(value)));
}

}  // namespace

ExactFormat::ExactFormat(Dtype dtype, unsigned workers) noexcept
    : dtype_(dtype),
      mantissa_bits_(static_cast<unsigned>(8 * element_bytes(dtype)) - 1 - exponent_bits_of(dtype)),
      exponent_max_((1U << exponent_bits_of(dtype)) - 1),
      sign_((exponent_max_ + 1) << mantissa_bits_),
      special_(dtype == Dtype::kE4M3 ? sign_ - 1 : exponent_max_ << mantissa_bits_),
      overflow_(dtype == Dtype::kE4M3 ? special_ - 1 : special_),
      limb_bits_(31 - static_cast<unsigned>(std::bit_width(workers - 1))),
      limbs_(quotient_up(((special_ - 1) >> mantissa_bits_) + mantissa_bits_, limb_bits_)) {
  assert(is_scaled(dtype) || is_fp8(dtype));
  assert(workers >= 1 && workers <= wire::kJobWorkersMax);
  assert(limbs_ <= kLimbsMax);
  LimbBit place;  // begins at exponent 1, whose scale subnormals have, too
  for (unsigned exponent = 1; exponent << mantissa_bits_ < special_; ++exponent) {
    places_[exponent] = place;
    if (++place.shift == limb_bits_) place = {.limb = static_cast<std::uint8_t>(place.limb + 1), .shift = 0};
  }
}

std::uint32_t ExactFormat::load(const std::byte* source, std::size_t index) const noexcept {
  if (dtype_ == Dtype::kF32) {
    std::uint32_t bits;
    std::memcpy(&bits, source + index * sizeof bits, sizeof bits);
    return bits;
  }
  if (is_fp8(dtype_)) return std::to_integer<std::uint32_t>(source[index]);
  std::uint16_t bits;
  std::memcpy(&bits, source + index * sizeof bits, sizeof bits);
  return bits;
}

void ExactFormat::store(std::byte* destination, std::size_t index, std::uint32_t bits) const noexcept {
  if (dtype_ == Dtype::kF32) {
    std::memcpy(destination + index * sizeof bits, &bits, sizeof bits);
    return;
  }
  if (is_fp8(dtype_)) {
    destination[index] = static_cast<std::byte>(bits);
    return;
  }
  const auto half = static_cast<std::uint16_t>(bits);
  std::memcpy(destination + index * sizeof half, &half, sizeof half);
}

template <class Take>
void ExactFormat::for_each_part(std::uint32_t bits, const Take& take) const noexcept {
  const bool negative = (bits & sign_) != 0;
  if ((bits & ~sign_) >= special_) {
    const bool is_nan = (bits & (hidden_bit() - 1)) != 0;
    take(limbs_, std::int64_t{is_nan ? kPlusInf | kMinusInf : negative ? kMinusInf : kPlusInf});
    return;
  }
  const LimbBit place = places_[bits >> mantissa_bits_ & exponent_max_];
  const std::uint64_t mask = (std::uint64_t{1} << limb_bits_) - 1;
  std::uint64_t rest = std::uint64_t{significand_of(bits)} << place.shift;
  for (unsigned limb = place.limb; rest != 0; ++limb, rest >>= limb_bits_) {
    const auto part = static_cast<std::int64_t>(rest & mask);
    if (part != 0) take(limb, negative ? -part : part);
  }
}

Planes ExactFormat::planes_of(const std::byte* source, std::size_t count) const noexcept {  // R5.3
  Planes planes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for_each_part(load(source, i), [&planes](unsigned plane, std::int64_t) { planes |= 1U << plane; });
  }
  return planes;
}

void ExactFormat::split(const std::byte* source, std::size_t count, Planes planes, std::int32_t* words) const noexcept {
  std::fill_n(words, count * static_cast<unsigned>(std::popcount(planes)), 0);
  std::array<std::size_t, kLimbsMax + 1> rows{};
  for (unsigned plane = 0; plane <= limbs_; ++plane) {
    rows[plane] = count * static_cast<unsigned>(std::popcount(planes & ((1U << plane) - 1)));
  }
  for (std::size_t i = 0; i < count; ++i) {
    for_each_part(load(source, i), [&](unsigned plane, std::int64_t part) {
      if ((planes >> plane & 1) != 0) words[rows[plane] + i] = static_cast<std::int32_t>(part);
    });
  }
}

void ExactFormat::join(const std::int32_t* words, std::size_t count, Planes planes, unsigned divisor,
                       std::byte* destination) const noexcept {
  // A single plane of limbs, which fp8 usually has, needs no parts, and so a third of the time.
  if (std::has_single_bit(planes) && planes >> limbs_ == 0) {
    const auto low = static_cast<int>(static_cast<unsigned>(std::countr_zero(planes)) * limb_bits_);
    for (std::size_t i = 0; i < count; ++i) {
      store(destination, i, rounded({.bits = words[i], .low = low, .fraction = false}, divisor));
    }
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    Parts sums{};
    std::size_t at = i;  // without planes there is no memory
    for (Planes rest = planes; rest != 0; rest &= rest - 1, at += count) {
      sums[static_cast<unsigned>(std::countr_zero(rest))] = words[at];
    }
    store(destination, i, rounded(sums, planes, divisor));
  }
}

void ExactFormat::add_up(const std::byte* contributions, std::size_t stride, unsigned workers, std::size_t count,
                         unsigned divisor, std::byte* destination) const noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    unsigned lowest = exponent_max_;
    std::uint32_t largest = 0;
    for (unsigned worker = 0; worker < workers; ++worker) {
      const std::uint32_t magnitude = load(contributions + worker * stride, i) & ~sign_;
      if (magnitude == 0) continue;
      // Subnormals have exponent 1's scale.
      lowest = std::min(lowest, std::max(magnitude >> mantissa_bits_, 1U));
      largest = std::max(largest, magnitude);
    }
    if (largest >= special_ || largest >> mantissa_bits_ > lowest + kSpanMax) {
      store(destination, i, sum_of_parts(contributions, stride, workers, i, divisor));
      continue;
    }
    Wide sum = 0;
    for (unsigned worker = 0; worker < workers; ++worker) {
      const std::uint32_t bits = load(contributions + worker * stride, i);
      const std::uint32_t exponent = bits >> mantissa_bits_ & exponent_max_;
      // Signs are nearly random: a branch would be mispredicted half of the time.
      const auto negative = -static_cast<std::int64_t>((bits & sign_) != 0);
      const std::int64_t significand = (static_cast<std::int64_t>(significand_of(bits)) ^ negative) - negative;
      sum += Wide{significand} << ((std::max(exponent, 1U) - lowest) & 127);  // any shift, if the significand is 0
    }
    store(destination, i, rounded({.bits = sum, .low = static_cast<int>(lowest) - 1, .fraction = false}, divisor));
  }
}

std::uint32_t ExactFormat::sum_of_parts(const std::byte* contributions, std::size_t stride, unsigned workers,
                                        std::size_t index, unsigned divisor) const noexcept {
  Parts sums{};
  Planes planes = 0;
  for (unsigned worker = 0; worker < workers; ++worker) {
    for_each_part(load(contributions + worker * stride, index), [&](unsigned plane, std::int64_t part) {
      sums[plane] += part;
      planes |= 1U << plane;
    });
  }
  return rounded(sums, planes, divisor);
}

std::uint32_t ExactFormat::special(std::uint32_t counts) const noexcept {
  const bool plus_inf = counts % kMinusInf != 0;
  const bool minus_inf = counts / kMinusInf != 0;
  if (plus_inf && minus_inf) return special_ | 1U << (mantissa_bits_ - 1);
  return plus_inf ? special_ : sign_ | special_;
}

std::uint32_t ExactFormat::rounded(const Parts& sums, Planes planes, unsigned divisor) const noexcept {
  if (sums[limbs_] != 0) return special(static_cast<std::uint32_t>(sums[limbs_]));
  const Planes limbs = planes & ((1U << limbs_) - 1);
  const unsigned first = static_cast<unsigned>(std::countr_zero(limbs));
  constexpr Wide kEnough = Wide{1} << kUpperBits;
  unsigned limb = static_cast<unsigned>(std::bit_width(limbs));
  Wide upper = 0;
  while (limb > first && -kEnough < upper && upper < kEnough) upper = (upper << limb_bits_) + sums[--limb];
  // The lower limbs give a carry, and possibly a fraction.
  const auto mask = (std::int64_t{1} << limb_bits_) - 1;
  std::int64_t carry = 0;
  bool fraction = false;
  for (unsigned below = first; below < limb; ++below) {
    const std::int64_t sum = sums[below] + carry;
    carry = sum >> limb_bits_;  // towards minus infinity
    fraction |= (sum & mask) != 0;
  }
  return rounded({.bits = upper + carry, .low = static_cast<int>(limb * limb_bits_), .fraction = fraction}, divisor);
}

std::uint32_t ExactFormat::rounded(const Upper& sum, unsigned divisor) const noexcept {
  if (sum.bits == 0) return 0;
  const bool negative = sum.bits < 0;
  // Without its sign, a negative number has 1 minus its fraction.
  auto magnitude = static_cast<UnsignedWide>(negative ? -sum.bits - (sum.fraction ? 1 : 0) : sum.bits);
  int low = sum.low;
  bool fraction = sum.fraction;
  if (divisor != 1) {
    // The quotient needs more bits than the significand. The remainder is a fraction again.
    const unsigned width = bit_width(magnitude);
    const unsigned shift = width < kUpperBits ? kUpperBits - width : 0;
    magnitude <<= shift;
    low -= static_cast<int>(shift);
    fraction |= magnitude % divisor != 0;
    magnitude /= divisor;
  }

  // The significand's lowest bit is bit `kept_low`; a subnormal number has fewer bits.
  const auto significand_bits = static_cast<int>(mantissa_bits_ + 1);
  const int kept_low = std::max(low + static_cast<int>(bit_width(magnitude)) - significand_bits, 0);
  std::uint64_t kept;
  if (kept_low <= low) {
    kept = static_cast<std::uint64_t>(magnitude) << (low - kept_low);
  } else {
    const int shift = kept_low - low;
    const UnsignedWide half = UnsignedWide{1} << (shift - 1);
    const UnsignedWide rest = magnitude & (2 * half - 1);
    kept = static_cast<std::uint64_t>(magnitude >> shift);
    kept += static_cast<std::uint64_t>(rest + (fraction || (kept & 1) != 0 ? 1 : 0) > half);
  }
  // The hidden bit adds 1 to the exponent, like a significand that was rounded up to the next power of two.
  const std::uint64_t bits = (static_cast<std::uint64_t>(kept_low) << mantissa_bits_) + kept;
  return (negative ? sign_ : 0) | static_cast<std::uint32_t>(std::min<std::uint64_t>(bits, overflow_));
}

}  // namespace wiresum::numeric
