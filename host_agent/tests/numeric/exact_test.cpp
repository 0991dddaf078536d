// Exact sums are rounded once, whatever the other elements are; both ways of sending them give the same bits; nothing
// overflows.
#include "numeric/exact.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "numeric_testing.hpp"

namespace wiresum::numeric::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16, Dtype::kE4M3, Dtype::kE5M2};

/// What the tests know of a format by themselves.
struct Layout {
  unsigned mantissa_bits;
  unsigned exponents;  // of finite numbers, from 0
  std::uint32_t sign;
  std::uint32_t overflow;  // what a sum beyond the finite numbers becomes
};

constexpr Layout layout_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return {23, 255, 0x80000000, 0x7F800000};
    case Dtype::kF16:
      return {10, 31, 0x8000, 0x7C00};
    case Dtype::kBF16:
      return {7, 255, 0x8000, 0x7F80};
    case Dtype::kE4M3:
      return {3, 16, 0x80, 0x7E};
    default:
      return {2, 31, 0x80, 0x7C};
  }
}

using Contributions = std::vector<std::vector<std::uint32_t>>;  // the bits of the elements, by worker

Buffer stored(Dtype dtype, const std::vector<std::uint32_t>& elements) {
  Buffer buffer(elements.size() * element_bytes(dtype), 1);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    std::memcpy(buffer.data() + i * element_bytes(dtype), &elements[i], element_bytes(dtype));
  }
  return buffer;
}

/// Sums planes with the switch's adder.
Buffer split_and_join(Dtype dtype, const Contributions& contributions, unsigned divisor) {
  const ExactFormat format(dtype, static_cast<unsigned>(contributions.size()));
  const std::size_t count = contributions.front().size();
  Planes planes = 0;
  for (const auto& elements : contributions) planes |= format.planes_of(stored(dtype, elements).data(), count);
  const std::size_t words = count * static_cast<unsigned>(std::popcount(planes));
  std::vector<std::uint32_t> sums(words, 0);
  std::vector<std::int64_t> exact(words, 0);
  for (const auto& elements : contributions) {
    std::vector<std::int32_t> mine(words, 0x5A5A5A5A);
    format.split(stored(dtype, elements).data(), count, planes, mine.data());
    for (std::size_t i = 0; i < words; ++i) {
      sums[i] += static_cast<std::uint32_t>(mine[i]);
      exact[i] += mine[i];
    }
  }
  std::vector<std::int32_t> words_back(words);
  for (std::size_t i = 0; i < words; ++i) {
    words_back[i] = static_cast<std::int32_t>(sums[i]);
    EXPECT_EQ(exact[i], words_back[i]) << "a sum of words overflowed";
  }
  Buffer result(count * element_bytes(dtype), 3);
  format.join(words_back.data(), count, planes, divisor, result.data());
  return result;
}

Buffer added_up(Dtype dtype, const Contributions& contributions, unsigned divisor) {
  const ExactFormat format(dtype, static_cast<unsigned>(contributions.size()));
  const std::size_t count = contributions.front().size();
  const std::size_t stride = count * element_bytes(dtype) + 5;
  Buffer all(stride * contributions.size());
  for (std::size_t worker = 0; worker < contributions.size(); ++worker) {
    const Buffer mine = stored(dtype, contributions[worker]);
    std::memcpy(all.data() + worker * stride, mine.data(), mine.size());
  }
  Buffer result(count * element_bytes(dtype));
  format.add_up(all.data(), stride, static_cast<unsigned>(contributions.size()), count, divisor, result.data());
  return result;
}

/// The sum of one fp32 element, which must be the same in both ways.
float sum(const std::vector<float>& terms, unsigned divisor = 1) {
  Contributions contributions;
  for (const float term : terms) contributions.push_back({std::bit_cast<std::uint32_t>(term)});
  const Buffer split = split_and_join(Dtype::kF32, contributions, divisor);
  EXPECT_TRUE(split == added_up(Dtype::kF32, contributions, divisor));
  float value;
  std::memcpy(&value, split.data(), sizeof value);
  return value;
}

TEST(ExactSum, RoundsOnceToNearestEven) {
  EXPECT_EQ(sum({1.0F, 0x1p-24F}), 1.0F);                      // a tie: to even
  EXPECT_EQ(sum({0x1.000002p0F, 0x1p-24F}), 0x1.000004p0F);    // a tie: to even
  EXPECT_EQ(sum({1.0F, 0x1p-24F, 0x1p-149F}), 0x1.000002p0F);  // slightly above a tie
  EXPECT_EQ(sum({1.0F, 0x1p-24F, -0x1p-149F}), 1.0F);
  EXPECT_EQ(sum({-1.0F, -0x1p-24F, -0x1p-149F}), -0x1.000002p0F);
  EXPECT_EQ(sum({0x1.fffffep127F, 1.0F, -0x1.fffffep127F}), 1.0F);
  EXPECT_EQ(sum({0x1.fffffep127F, -0x1.fffffep127F, 0x1p-149F}), 0x1p-149F);
  EXPECT_EQ(sum({0x1.fffffep0F, 0x1p-24F}), 2.0F);  // rounds up to the next power of two
}

TEST(ExactSum, OverflowsToInfinityOnlyAtTheEnd) {
  constexpr float kMax = std::numeric_limits<float>::max();
  EXPECT_EQ(sum({kMax, kMax}), kInf);
  EXPECT_EQ(sum({-kMax, -kMax, -kMax}), -kInf);
  EXPECT_EQ(sum({kMax, kMax, -kMax}), kMax);
  EXPECT_EQ(sum({kMax, kMax, kMax, kMax}, 4), kMax);
  EXPECT_EQ(sum({kMax, 0x1p102F}), kMax);
  EXPECT_EQ(sum({kMax, 0x1p103F}), kInf);  // a tie between the largest number and 2^128
}

TEST(ExactSum, AveragesAreRoundedOnceToo) {
  EXPECT_EQ(sum({1.0F, 0.0F, 0.0F}, 3), 1.0F / 3.0F);
  EXPECT_EQ(sum({0x1p-149F, 0.0F}, 2), 0.0F);  // half of the smallest subnormal: to even
  EXPECT_EQ(sum({0x1p-148F, 0x1p-149F}, 2), 0x1p-148F);
  EXPECT_EQ(sum({0x1p-149F, 0x1p-149F, 0.0F}, 3), 0x1p-149F);
  EXPECT_EQ(sum({-0x1p-149F, -0x1p-149F, 0.0F}, 3), -0x1p-149F);
  EXPECT_EQ(sum({0x1p24F, 3.0F}, 2), 0x1p23F + 2.0F);  // 2^23 + 1.5: a tie to even, although 2^24 + 3 is no fp32 number
  EXPECT_EQ(sum({0x1p25F, 1.0F, 0.0F, 0.0F}, 4), 0x1p23F);
  // 2^84, 2^60 and 1/3 of the smallest subnormals: only the last term makes it more than a tie.
  EXPECT_EQ(sum({0x1.8p-64F, 0x1.8p-88F, 0x1p-149F}, 3), 0x1.000002p-65F);
  EXPECT_EQ(sum({0x1.8p-64F, 0x1.8p-88F, 0.0F}, 3), 0x1p-65F);
  for (const unsigned workers : {31U, 32U, 127U, 1024U, 4096U}) {
    std::vector<float> terms(workers, 0.0F);
    for (terms[0] = 1.0F; terms[0] < 0x1p30F; terms[0] *= 3.0F) {
      EXPECT_EQ(sum(terms, workers), terms[0] / static_cast<float>(workers)) << workers;
    }
  }
}

TEST(ExactSum, NanAndInfinityStayInTheirElement) {  // R5.3
  EXPECT_EQ(sum({kInf, 1.0F}), kInf);
  EXPECT_EQ(sum({-kInf, -kInf, 5.0F}), -kInf);
  EXPECT_TRUE(std::isnan(sum({kInf, -kInf})));
  EXPECT_TRUE(std::isnan(sum({1.0F, kNan, kInf})));
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  const Contributions contributions{{bits(kInf), bits(1.0F), bits(kNan)}, {bits(1.0F), bits(2.0F), bits(1.0F)}};
  float result[3];
  std::memcpy(result, split_and_join(Dtype::kF32, contributions, 1).data(), sizeof result);
  EXPECT_EQ(result[0], kInf);
  EXPECT_EQ(result[1], 3.0F);
  EXPECT_TRUE(std::isnan(result[2]));
}

TEST(ExactSum, ZeroIsPositive) {
  EXPECT_FALSE(std::signbit(sum({-0.0F, -0.0F})));
  EXPECT_FALSE(std::signbit(sum({1.5F, -1.5F})));
}

TEST(ExactSum, HalfPrecisionIsRoundedOnce) {
  // 1 + 2^-11 is a tie, which the third term breaks although it is too small for fp32 beside 1.
  const Contributions half{{0x3C00}, {0x1000}, {0x0001}};
  std::uint16_t result;
  std::memcpy(&result, split_and_join(Dtype::kF16, half, 1).data(), sizeof result);
  EXPECT_EQ(result, 0x3C01);
  const Contributions bfloat{{0x3F80}, {0x3B80}, {0x0001}};  // 1 + 2^-8 + 2^-133
  std::memcpy(&result, split_and_join(Dtype::kBF16, bfloat, 1).data(), sizeof result);
  EXPECT_EQ(result, 0x3F81);
}

/// The number that a byte is in a format of fp8, by the definition of OCP's OFP8.
double value_of_fp8(Dtype dtype, std::uint32_t bits) {
  const auto [mantissa_bits, exponents, sign, overflow] = layout_of(dtype);
  const std::uint32_t magnitude = bits & 0x7F;
  if (dtype == Dtype::kE4M3 && magnitude == 0x7F) return kNan;
  if (dtype == Dtype::kE5M2 && magnitude >= 0x7C) return magnitude > 0x7C ? kNan : bits < 0x80 ? kInf : -kInf;
  const int bias = dtype == Dtype::kE4M3 ? 7 : 15;
  const auto exponent = static_cast<int>(magnitude >> mantissa_bits);
  const double mantissa = std::ldexp(magnitude & ((1U << mantissa_bits) - 1), -static_cast<int>(mantissa_bits));
  const double value = exponent == 0 ? std::ldexp(mantissa, 1 - bias) : std::ldexp(1 + mantissa, exponent - bias);
  return (bits & sign) != 0 ? -value : value;
}

/// The byte nearest to a number, found among all; -1 stands for any NaN.
int nearest_fp8(Dtype dtype, double number) {
  if (std::isnan(number)) return -1;
  if (number == 0) return 0;
  const Layout layout = layout_of(dtype);
  const double magnitude = std::abs(number);
  // The first number beyond the finite ones, as if there were one more.
  const double beyond = dtype == Dtype::kE4M3 ? 480 : 65536;
  std::uint32_t nearest = 0;
  double distance = magnitude;
  for (std::uint32_t bits = 1; bits <= 0x7F; ++bits) {
    const bool is_beyond = bits > layout.overflow || !std::isfinite(value_of_fp8(dtype, bits));
    const double apart = std::abs(magnitude - (is_beyond ? beyond : value_of_fp8(dtype, bits)));
    if (apart < distance || (apart == distance && bits % 2 == 0)) {
      nearest = bits;
      distance = apart;
    }
    if (is_beyond) break;
  }
  if (magnitude > beyond) nearest = 0x7F;
  return static_cast<int>(std::min(nearest, layout.overflow) | (number < 0 ? layout.sign : 0));
}

TEST(ExactSum, OfTwoNumbersOfFp8IsTheNearestOfAll) {  // R5.29
  for (const Dtype dtype : {Dtype::kE4M3, Dtype::kE5M2}) {
    for (std::uint32_t pair = 0; pair < 0x10000; ++pair) {
      const std::uint32_t one = pair & 0xFF;
      const std::uint32_t other = pair >> 8;
      for (const unsigned divisor : {1U, 3U}) {
        const Buffer split = split_and_join(dtype, {{one}, {other}}, divisor);
        ASSERT_TRUE(split == added_up(dtype, {{one}, {other}}, divisor)) << name_of(dtype);
        const double sum = value_of_fp8(dtype, one) + value_of_fp8(dtype, other);
        const auto bits = std::to_integer<std::uint32_t>(*split.data());
        const int found = std::isnan(value_of_fp8(dtype, bits)) ? -1 : static_cast<int>(bits);
        // A third is no double, but the double is on the same side of each number in the middle of two.
        ASSERT_EQ(found, nearest_fp8(dtype, sum / divisor))
            << name_of(dtype) << ": " << one << " and " << other << ", divided by " << divisor;
      }
    }
  }
}

TEST(ExactSum, OfFp8WhereItIsBeyondTheFormat) {  // R5.29
  const auto sum = [](Dtype dtype, const Contributions& contributions, unsigned divisor = 1) {
    return std::to_integer<std::uint32_t>(*split_and_join(dtype, contributions, divisor).data());
  };
  EXPECT_EQ(sum(Dtype::kE4M3, {{0x7E}, {0x58}}), 0x7E);  // 448 + 16: a tie with 480, which is none of its numbers
  EXPECT_EQ(sum(Dtype::kE4M3, {{0x7E}, {0x7E}, {0x7E}}), 0x7E);
  EXPECT_EQ(sum(Dtype::kE4M3, {{0xFE}, {0xFE}}), 0xFE);
  EXPECT_EQ(sum(Dtype::kE4M3, {{0x7E}, {0x7E}, {0xFE}}), 0x7E);
  EXPECT_EQ(sum(Dtype::kE4M3, {{0x7E}, {0x7E}}, 2), 0x7E);
  EXPECT_EQ(sum(Dtype::kE4M3, {{0x7E}, {0xFF}, {0x00}}), 0x7F);  // NaN
  EXPECT_EQ(sum(Dtype::kE5M2, {{0x7B}, {0x68}}), 0x7B);          // 57344 + 2048
  EXPECT_EQ(sum(Dtype::kE5M2, {{0x7B}, {0x6C}}), 0x7C);          // 57344 + 4096: a tie with 65536
  EXPECT_EQ(sum(Dtype::kE5M2, {{0x7B}, {0x7B}, {0xFB}}), 0x7B);
  EXPECT_EQ(sum(Dtype::kE5M2, {{0xFC}, {0x7B}}), 0xFC);
  EXPECT_EQ(sum(Dtype::kE5M2, {{0xFC}, {0x7C}}), 0x7E);
  EXPECT_EQ(sum(Dtype::kE4M3, {{0x81}, {0x80}}, 2), 0x80);  // half of the smallest subnormal
  EXPECT_EQ(sum(Dtype::kE4M3, {{0x81}, {0x01}}), 0x00);
}

TEST(ExactSum, OfE4M3HasOneLimbInAnyJob) {
  EXPECT_EQ(ExactFormat(Dtype::kE4M3, 2).planes(), 2U);
  EXPECT_EQ(ExactFormat(Dtype::kE4M3, wire::kJobWorkersMax).planes(), 2U);
  EXPECT_EQ(ExactFormat(Dtype::kE5M2, 2).planes(), 3U);
}

TEST(ExactSum, BothWaysGiveTheSameBitsForAnyElementsAndWorkers) {  // R5.2, R5.3
  std::mt19937_64 random(1);
  for (const Dtype dtype : kDtypes) {
    for (const unsigned workers : {1U, 2U, 3U, 8U, 31U, 32U, 33U, 127U, 1024U, 4096U}) {
      Contributions contributions(workers, std::vector<std::uint32_t>(workers < 1000 ? 200 : 40));
      for (auto& elements : contributions) {
        for (auto& element : elements) element = static_cast<std::uint32_t>(random());
      }
      for (const unsigned divisor : {1U, workers}) {
        EXPECT_TRUE(split_and_join(dtype, contributions, divisor) == added_up(dtype, contributions, divisor))
            << name_of(dtype) << ", " << workers << " workers";
      }
    }
  }
}

/// One element's quotient in long division, bit by bit: digit k counts 2^(32 k - 64) of the smallest subnormals.
class LongDivision {
 public:
  explicit LongDivision(Dtype dtype) : layout_(layout_of(dtype)), mantissa_bits_(layout_.mantissa_bits) {}

  /// Adds a finite element, or takes it away.
  void add(std::uint32_t bits) {
    const unsigned exponent = (bits & (layout_.sign - 1)) >> mantissa_bits_;
    const std::uint64_t mantissa = bits & ((1U << mantissa_bits_) - 1);
    const unsigned position = 64 + std::max(exponent, 1U) - 1;
    const std::uint64_t shifted = (exponent == 0 ? mantissa : mantissa | 1U << mantissa_bits_) << position % 32;
    const int sign = (bits & layout_.sign) != 0 ? -1 : 1;
    digits_[position / 32] += sign * static_cast<std::int64_t>(shifted & 0xFFFFFFFF);
    digits_[position / 32 + 1] += sign * static_cast<std::int64_t>(shifted >> 32);
  }

  [[nodiscard]] std::uint32_t rounded(unsigned divisor) {
    carry();
    const bool negative = digits_.back() < 0;
    if (negative) {
      for (std::int64_t& digit : digits_) digit = -digit;
      carry();
    }
    std::uint64_t rest = 0;
    for (std::size_t i = digits_.size(); i-- > 0;) {
      const std::uint64_t dividend = rest << 32 | static_cast<std::uint64_t>(digits_[i]);
      digits_[i] = static_cast<std::int64_t>(dividend / divisor);
      rest = dividend % divisor;
    }
    unsigned top = 32 * static_cast<unsigned>(digits_.size());
    while (top > 0 && bit(top - 1) == 0) --top;
    const unsigned low = std::max(top, 64 + mantissa_bits_ + 1) - (mantissa_bits_ + 1);
    std::uint32_t kept = 0;
    for (unsigned i = low + mantissa_bits_ + 1; i-- > low;) kept = kept << 1 | bit(i);
    bool above_half = rest != 0;
    for (unsigned i = 0; i < low - 1; ++i) above_half |= bit(i) != 0;
    if (bit(low - 1) != 0 && (above_half || kept % 2 == 1)) ++kept;
    const std::uint32_t magnitude = std::min(((low - 64) << mantissa_bits_) + kept, layout_.overflow);
    return negative ? magnitude | layout_.sign : magnitude;
  }

 private:
  void carry() {
    for (std::size_t i = 0; i + 1 < digits_.size(); ++i) {
      digits_[i + 1] += digits_[i] >> 32;
      digits_[i] &= 0xFFFFFFFF;
    }
  }
  [[nodiscard]] std::uint32_t bit(unsigned i) const { return digits_[i / 32] >> i % 32 & 1; }

  const Layout layout_;
  const unsigned mantissa_bits_;
  std::array<std::int64_t, 14> digits_{};
};

/// Finite elements with exponents in a range of a random width, many of which cancel, and with short mantissas.
Contributions finite_elements(Dtype dtype, unsigned workers, std::size_t count, std::mt19937_64& random) {
  const auto [mantissa_bits, exponents, sign, overflow] = layout_of(dtype);
  const std::uint64_t width = std::vector<unsigned>{2, 40, 100, exponents}[random() % 4];
  const std::uint64_t lowest = random() % 2 == 0 ? 0 : random() % exponents;
  Contributions contributions(workers, std::vector<std::uint32_t>(count));
  for (unsigned worker = 0; worker < workers; ++worker) {
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t& element = contributions[worker][i];
      if (worker > 0 && random() % 4 == 0) {
        element = contributions[worker - 1][i] ^ sign;
        continue;
      }
      const auto exponent = static_cast<std::uint32_t>((lowest + random() % width) % exponents);
      const auto mantissa =
          static_cast<std::uint32_t>(random() & ((1U << mantissa_bits) - 1) & (~0U << random() % (mantissa_bits + 1)));
      element = exponent << mantissa_bits | mantissa;
      if (dtype == Dtype::kE4M3 && element == sign - 1) element = overflow;
      if (random() % 2 == 0) element |= sign;
    }
  }
  return contributions;
}

TEST(ExactSum, IsTheRoundedQuotientOfLongDivision) {
  std::mt19937_64 random(3);
  constexpr std::size_t kCount = 50;
  for (int round = 0; round < 40; ++round) {
    for (const Dtype dtype : kDtypes) {
      for (const unsigned workers : {1U, 2U, 3U, 8U, 9U, 33U, 300U}) {
        if (workers == 300 && round % 4 != 0) continue;
        const Contributions contributions = finite_elements(dtype, workers, kCount, random);
        for (const unsigned divisor : {1U, workers, 7U}) {
          std::vector<std::uint32_t> expected;
          for (std::size_t i = 0; i < kCount; ++i) {
            LongDivision sum(dtype);
            for (const auto& elements : contributions) sum.add(elements[i]);
            expected.push_back(sum.rounded(divisor));
          }
          ASSERT_TRUE(added_up(dtype, contributions, divisor) == stored(dtype, expected))
              << name_of(dtype) << ", " << workers << " workers, divided by " << divisor << ", round " << round;
        }
      }
    }
  }
}

TEST(ExactSum, MemoryThatChangesAfterItsPlanesWereCountedOverflowsNothing) {
  const ExactFormat format(Dtype::kF32, 2);
  const Buffer before = stored(Dtype::kF32, {0x3F800000, 0});
  const Planes planes = format.planes_of(before.data(), 2);
  std::vector<std::int32_t> words(2 * static_cast<std::size_t>(std::popcount(planes)) + 1, 0x5A5A5A5A);
  format.split(stored(Dtype::kF32, {0x3F800000, 0x7F800000}).data(), 2, planes, words.data());
  EXPECT_EQ(words.back(), 0x5A5A5A5A);
}

TEST(ExactSum, TheLargestElementsOfAllWorkersDoNotOverflowAWord) {
  for (const unsigned workers : {1U, 2U, 32U, 1024U, 4096U}) {
    for (const std::uint32_t element : {0x7F7FFFFFU, 0xFF7FFFFFU, 0x7F800000U, 0xFF800000U, 0x7FC00000U}) {
      const Contributions contributions(workers, {element});
      EXPECT_TRUE(split_and_join(Dtype::kF32, contributions, workers) == stored(Dtype::kF32, {element})) << element;
    }
  }
}

TEST(ExactSum, AgreesWithWiderArithmeticWhereThatIsExact) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> terms(1 + random() % 32);
    long double exact = 0;
    for (float& term : terms) {
      const auto mantissa = static_cast<float>(static_cast<std::int32_t>(random() & 0xFFFFFF) - 0x800000);
      term = std::ldexp(mantissa, static_cast<int>(random() % 30) - 15);
      exact += term;
    }
    EXPECT_EQ(sum(terms), static_cast<float>(exact));
    // Dividing by a power of two is exact.
    EXPECT_EQ(sum(terms, 16), static_cast<float>(exact / 16));
  }
}

}  // namespace
}  // namespace wiresum::numeric::testing
