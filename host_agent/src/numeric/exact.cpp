#include "numeric/exact.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <span>

namespace wiresum::numeric {
namespace {

// What a special value adds to its plane: each half of a word counts one sign of Inf. A NaN counts in both, since
// infinities of both signs sum to NaN.
constexpr std::uint32_t kPlusInf = 1U;
constexpr std::uint32_t kMinusInf = 1U << 16;
static_assert(wire::kJobWorkersMax < kMinusInf);

/// Enough of a sum's leading bits to round to 24: the bits below only say whether the leading ones are exact.
constexpr int kLeadingBits = 33;

unsigned mantissa_bits_of(Dtype dtype) noexcept { return dtype == Dtype::kF32 ? 23 : dtype == Dtype::kF16 ? 10 : 7; }

constexpr unsigned quotient_up(unsigned value, unsigned divisor) noexcept { return (value + divisor - 1) / divisor; }

/// The digits of a sum's magnitude, of `bits` bits, from the lowest, and its sign.
struct SignedDigits {
  std::array<std::uint32_t, ExactFormat::kLimbsMax + 2> digits{};
  unsigned count = 0;
  bool negative = false;
};

/// Propagates carries, so that each digit is below 2^bits.
SignedDigits magnitude_of(std::span<const std::int64_t> limbs, unsigned bits) noexcept {
  SignedDigits magnitude;
  const std::int64_t base = std::int64_t{1} << bits;
  std::array<std::int64_t, ExactFormat::kLimbsMax + 1> digits{};
  std::int64_t carry = 0;
  for (std::size_t i = 0; i < limbs.size(); ++i) {
    const std::int64_t sum = limbs[i] + carry;
    carry = sum >> bits;  // towards minus infinity
    digits[i] = sum - carry * base;
  }
  digits[limbs.size()] = carry;  // the only one that may be negative, and then the sum is
  magnitude.negative = carry < 0;
  if (magnitude.negative) {
    std::int64_t borrow = 0;
    for (std::size_t i = 0; i < limbs.size(); ++i) {
      const std::int64_t digit = -digits[i] - borrow;
      borrow = digit < 0 ? 1 : 0;
      digits[i] = digit + borrow * base;
    }
    digits[limbs.size()] = -carry - borrow;
  }
  magnitude.count = static_cast<unsigned>(limbs.size()) + 1;
  std::ranges::transform(digits, magnitude.digits.begin(),
                         [](auto digit) { return static_cast<std::uint32_t>(digit); });
  return magnitude;
}

/// Divides, with one more digit below the others for the fraction. The remainder after that does not affect rounding:
/// the dividend is an integer, so a fraction that is neither 0 nor 1/2 differs from both by at least 1 / 2 divisor, and
/// that shows in the digit.
void divide(SignedDigits& magnitude, unsigned bits, unsigned divisor) noexcept {
  std::uint64_t remainder = 0;
  for (unsigned i = magnitude.count + 1; i-- > 0;) {
    const std::uint64_t dividend = remainder << bits | (i == 0 ? 0 : magnitude.digits[i - 1]);
    magnitude.digits[i] = static_cast<std::uint32_t>(dividend / divisor);
    remainder = dividend % divisor;
  }
  ++magnitude.count;
}

}  // namespace

ExactFormat::ExactFormat(Dtype dtype, unsigned workers) noexcept
    : dtype_(dtype),
      mantissa_bits_(mantissa_bits_of(dtype)),
      exponent_max_(dtype == Dtype::kF16 ? 31 : 255),
      sign_((exponent_max_ + 1) << mantissa_bits_),
      limb_bits_(31 - static_cast<unsigned>(std::bit_width(workers - 1))),
      limbs_(quotient_up(exponent_max_ - 2 + mantissa_bits_ + 1, limb_bits_)) {
  assert(dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16);
  assert(workers >= 1 && workers <= wire::kJobWorkersMax);
  assert(limbs_ <= kLimbsMax);
  for (unsigned exponent = 0; exponent < exponent_max_; ++exponent) {
    const unsigned position = exponent == 0 ? 0 : exponent - 1;  // subnormals have exponent 1's scale
    places_[exponent] = {.limb = static_cast<std::uint8_t>(position / limb_bits_),
                         .shift = static_cast<std::uint8_t>(position % limb_bits_)};
  }
}

std::uint32_t ExactFormat::load(const std::byte* source, std::size_t index) const noexcept {
  if (dtype_ == Dtype::kF32) {
    std::uint32_t bits;
    std::memcpy(&bits, source + index * sizeof bits, sizeof bits);
    return bits;
  }
  std::uint16_t bits;
  std::memcpy(&bits, source + index * sizeof bits, sizeof bits);
  return bits;
}

void ExactFormat::store(std::byte* destination, std::size_t index, std::uint32_t bits) const noexcept {
  if (dtype_ == Dtype::kF32) {
    std::memcpy(destination + index * sizeof bits, &bits, sizeof bits);
    return;
  }
  const auto half = static_cast<std::uint16_t>(bits);
  std::memcpy(destination + index * sizeof half, &half, sizeof half);
}

template <class Take>
void ExactFormat::for_each_part(std::uint32_t bits, const Take& take) const noexcept {
  const std::uint32_t exponent = bits >> mantissa_bits_ & exponent_max_;
  const std::uint32_t mantissa = bits & ((1U << mantissa_bits_) - 1);
  const bool negative = (bits & sign_) != 0;
  if (exponent == exponent_max_) {
    take(limbs_, std::int64_t{mantissa != 0 ? kPlusInf | kMinusInf : negative ? kMinusInf : kPlusInf});
    return;
  }
  const LimbBit place = places_[exponent];
  const std::uint64_t mask = (std::uint64_t{1} << limb_bits_) - 1;
  std::uint64_t rest = std::uint64_t{exponent == 0 ? mantissa : mantissa | 1U << mantissa_bits_} << place.shift;
  for (unsigned limb = place.limb; rest != 0; ++limb, rest >>= limb_bits_) {
    const auto part = static_cast<std::int64_t>(rest & mask);
    if (part != 0) take(limb, negative ? -part : part);
  }
}

Planes ExactFormat::planes_of(const std::byte* source, std::size_t count) const noexcept {
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
  for (std::size_t i = 0; i < count; ++i) {
    Parts sums{};
    const std::int32_t* word = words + i;
    for (Planes rest = planes; rest != 0; rest &= rest - 1, word += count) {
      sums[static_cast<unsigned>(std::countr_zero(rest))] = *word;
    }
    store(destination, i, rounded(sums, planes, divisor));
  }
}

void ExactFormat::add_up(const std::byte* contributions, std::size_t stride, unsigned workers, std::size_t count,
                         unsigned divisor, std::byte* destination) const noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    Parts sums{};
    Planes planes = 0;
    for (unsigned worker = 0; worker < workers; ++worker) {
      for_each_part(load(contributions + worker * stride, i), [&](unsigned plane, std::int64_t part) {
        sums[plane] += part;
        planes |= 1U << plane;
      });
    }
    store(destination, i, rounded(sums, planes, divisor));
  }
}

std::uint32_t ExactFormat::special(std::uint32_t counts) const noexcept {
  const bool plus_inf = counts % kMinusInf != 0;
  const bool minus_inf = counts / kMinusInf != 0;
  if (plus_inf && minus_inf) return infinity() | 1U << (mantissa_bits_ - 1);
  return plus_inf ? infinity() : sign_ | infinity();
}

std::uint32_t ExactFormat::rounded(const Parts& sums, Planes planes, unsigned divisor) const noexcept {
  if (sums[limbs_] != 0) return special(static_cast<std::uint32_t>(sums[limbs_]));
  // Only limbs of the given planes count, but a quotient may need all the digits below them.
  const unsigned end = static_cast<unsigned>(std::bit_width(planes & ((1U << limbs_) - 1)));
  if (end == 0) return 0;
  const unsigned first = divisor == 1 ? static_cast<unsigned>(std::countr_zero(planes)) : 0;
  SignedDigits magnitude = magnitude_of(std::span(sums).subspan(first, end - first), limb_bits_);
  if (divisor != 1) divide(magnitude, limb_bits_, divisor);
  const unsigned unit = divisor != 1 ? limb_bits_ : 0;  // the bit that counts the format's smallest subnormals

  // The first digits as one number, whose lowest bit is bit `low`.
  unsigned digit = magnitude.count;
  while (digit > 0 && magnitude.digits[digit - 1] == 0) --digit;
  std::uint64_t leading = 0;
  while (digit > 0 && std::bit_width(leading) < kLeadingBits) {
    leading = leading << limb_bits_ | magnitude.digits[--digit];
  }
  const unsigned low = (first + digit) * limb_bits_;
  bool inexact = false;
  while (digit > 0) inexact |= magnitude.digits[--digit] != 0;
  if (leading == 0) return 0;

  // The significand's lowest bit is bit `kept_low`; a subnormal has fewer bits than others.
  const unsigned width = low + static_cast<unsigned>(std::bit_width(leading));
  const unsigned kept_low = std::max(width, unit + mantissa_bits_ + 1) - (mantissa_bits_ + 1);
  std::uint64_t kept;
  if (kept_low <= low) {
    kept = leading << (low - kept_low);
  } else {
    const unsigned shift = kept_low - low;
    assert(shift < 64);
    const std::uint64_t rest = leading & ((std::uint64_t{1} << shift) - 1);
    const std::uint64_t half = std::uint64_t{1} << (shift - 1);
    kept = leading >> shift;
    if (rest > half || (rest == half && (inexact || (kept & 1) != 0))) ++kept;
  }
  // The hidden bit is 1 more in the exponent, and so is a significand that was rounded up to the next power of two.
  const std::uint64_t bits = (std::uint64_t{kept_low - unit} << mantissa_bits_) + kept;
  return (magnitude.negative ? sign_ : 0) | static_cast<std::uint32_t>(std::min<std::uint64_t>(bits, infinity()));
}

}  // namespace wiresum::numeric
