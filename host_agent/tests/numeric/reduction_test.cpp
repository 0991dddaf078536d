// Reductions of any contributions, against a reference in wider types.
#include "numeric/reduction.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "numeric_testing.hpp"

namespace wiresum::numeric::testing {
namespace {

using Bytes = std::vector<std::byte>;

constexpr Operator kOperators[] = {Operator::kSum, Operator::kProduct, Operator::kMin, Operator::kMax,
                                   Operator::kAnd, Operator::kOr,      Operator::kXor};
constexpr Element kElements[] = {Element::kF64, Element::kF32, Element::kF16, Element::kBF16, Element::kI64,
                                 Element::kI32, Element::kI8,  Element::kU8,  Element::kBool};
constexpr std::size_t kCount = 101;

/// The contributions' memory is not aligned, and has a gap between workers.
Bytes reduced(Reduction reduction, const std::vector<Bytes>& workers) {
  const std::size_t bytes = workers.front().size();
  const std::size_t stride = bytes + 3;
  Buffer contributions(workers.size() * stride, 1);
  for (std::size_t k = 0; k < workers.size(); ++k) {
    std::memcpy(contributions.data() + k * stride, workers[k].data(), bytes);
  }
  Buffer result(bytes, 1);
  reduce(reduction, contributions.data(), stride, static_cast<unsigned>(workers.size()),
         bytes / element_bytes(reduction.element), result.data());
  return {result.data(), result.data() + bytes};
}

std::vector<Bytes> random_bytes(Element element, unsigned workers, std::mt19937_64& random) {
  std::vector<Bytes> made(workers, Bytes(kCount * element_bytes(element)));
  for (Bytes& one : made) {
    std::ranges::generate(one, [&] { return random() % 4 == 0 ? std::byte{0} : static_cast<std::byte>(random()); });
  }
  return made;
}

template <class T>
T get(const Bytes& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
  return value;
}

/// Of integers as numbers of any size, of which the lowest bits count.
template <class Integer>
void check_integers(Element element, Operator op, const std::vector<Bytes>& workers) {
  __extension__ using Wide = __int128;
  const Bytes found = reduced({element, op}, workers);
  for (std::size_t i = 0; i < kCount; ++i) {
    Wide expected = get<Integer>(workers[0], i);
    for (std::size_t k = 1; k < workers.size(); ++k) {
      const Wide next = get<Integer>(workers[k], i);
      if (op == Operator::kSum) expected += next;
      if (op == Operator::kProduct) expected = static_cast<Wide>(static_cast<Integer>(expected)) * next;
      if (op == Operator::kMin) expected = std::min(expected, next);
      if (op == Operator::kMax) expected = std::max(expected, next);
      if (op == Operator::kAnd) expected &= next;
      if (op == Operator::kOr) expected |= next;
      if (op == Operator::kXor) expected ^= next;
    }
    ASSERT_EQ(get<Integer>(found, i), static_cast<Integer>(expected)) << static_cast<int>(op) << " of element " << i;
  }
}

TEST(Reduction, IntegersWrapAroundAndCompareAsTheirTypeDoes) {  // R6.2
  std::mt19937_64 random(1);
  for (const unsigned workers : {1U, 2U, 3U, 8U, 33U}) {
    for (const Operator op : kOperators) {
      check_integers<std::int64_t>(Element::kI64, op, random_bytes(Element::kI64, workers, random));
      check_integers<std::int32_t>(Element::kI32, op, random_bytes(Element::kI32, workers, random));
      check_integers<std::int8_t>(Element::kI8, op, random_bytes(Element::kI8, workers, random));
      check_integers<std::uint8_t>(Element::kU8, op, random_bytes(Element::kU8, workers, random));
    }
  }
}

TEST(Reduction, ABoolIsTrueWhateverItsByteAndIsWrittenAsOne) {
  std::mt19937_64 random(2);
  for (const unsigned workers : {1U, 2U, 5U}) {
    for (const Operator op : kOperators) {
      const std::vector<Bytes> given = random_bytes(Element::kBool, workers, random);
      const Bytes found = reduced({Element::kBool, op}, given);
      for (std::size_t i = 0; i < kCount; ++i) {
        const auto is_true = [i](const Bytes& one) { return one[i] != std::byte{0}; };
        bool expected = std::ranges::any_of(given, is_true);
        if (op == Operator::kMin || op == Operator::kProduct || op == Operator::kAnd) {
          expected = std::ranges::all_of(given, is_true);
        }
        if (op == Operator::kXor) expected = std::ranges::count_if(given, is_true) % 2 != 0;
        ASSERT_EQ(found[i], std::byte{expected});
      }
    }
  }
}

/// The number that a float of this type has, in a type that has all of them.
double number(Element element, const Bytes& bytes, std::size_t i) {
  if (element == Element::kF64) return get<double>(bytes, i);
  if (element == Element::kF32) return static_cast<double>(get<float>(bytes, i));
  if (element == Element::kF16) return value_of_half(get<std::uint16_t>(bytes, i));
  return static_cast<double>(std::bit_cast<float>(std::uint32_t{get<std::uint16_t>(bytes, i)} << 16));
}

/// Rounded to nearest even among the numbers that the type has: without the type's own conversions.
double rounded(Element element, double value) {
  if (element == Element::kF64 || !std::isfinite(value) || value == 0) return value;
  const int digits = element == Element::kF32 ? 24 : element == Element::kF16 ? 11 : 8;
  const int lowest = element == Element::kF16 ? -24 : element == Element::kF32 ? -149 : -133;
  const int highest = element == Element::kF16 ? 16 : 128;
  int exponent = 0;
  static_cast<void>(std::frexp(value, &exponent));
  const int unit = std::max(exponent - digits, lowest);
  const double near = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  return std::abs(near) >= std::ldexp(1.0, highest) ? std::copysign(INFINITY, value) : near;
}

TEST(Reduction, FloatsAreRoundedAfterEachStepInTheOrderOfWorkers) {
  std::mt19937_64 random(3);
  for (const unsigned workers : {1U, 2U, 3U, 8U}) {
    for (const Element element : {Element::kF64, Element::kF32, Element::kF16, Element::kBF16}) {
      for (const Operator op : {Operator::kSum, Operator::kProduct}) {
        const std::vector<Bytes> given = random_bytes(element, workers, random);
        const Bytes found = reduced({element, op}, given);
        for (std::size_t i = 0; i < kCount; ++i) {
          double expected = number(element, given[0], i);
          for (unsigned k = 1; k < workers; ++k) {
            const double next = number(element, given[k], i);
            // fp64 holds the product of two fp32 exactly, and rounding their sum twice does no harm: 53 >= 2 * 24 + 2.
            expected = rounded(element, op == Operator::kSum ? expected + next : expected * next);
          }
          const double is = number(element, found, i);
          ASSERT_TRUE(is == expected || (std::isnan(is) && std::isnan(expected))) << is << " for " << expected;
          ASSERT_TRUE(std::isnan(is) || std::signbit(is) == std::signbit(expected));
        }
      }
    }
  }
}

TEST(Reduction, ANanOfASumOrAProductHasTheSameBitsOnAllMachines) {
  const double inf = INFINITY;
  Bytes one(sizeof inf);
  std::memcpy(one.data(), &inf, sizeof inf);
  Bytes other(sizeof inf);
  const double minus = -inf;
  std::memcpy(other.data(), &minus, sizeof minus);
  EXPECT_EQ(get<std::uint64_t>(reduced({Element::kF64, Operator::kSum}, {one, other}), 0), 0x7FF8000000000000U);
  EXPECT_EQ(get<std::uint64_t>(reduced({Element::kF64, Operator::kProduct}, {one, Bytes(8)}), 0), 0x7FF8000000000000U);
}

TEST(Reduction, MinimaAndMaximaAreNanIfAnElementIsAndTheFirstOfEqualOnes) {
  std::mt19937_64 random(4);
  for (const Element element : {Element::kF64, Element::kF32, Element::kF16, Element::kBF16}) {
    const std::size_t bytes = element_bytes(element);
    for (const Operator op : {Operator::kMin, Operator::kMax}) {
      std::vector<Bytes> given = random_bytes(element, 3, random);
      for (std::size_t i = 0; i < kCount; i += 4) {  // zeros of either sign, and one number for all
        for (Bytes& one : given) {
          std::memset(one.data() + i * bytes, 0, bytes);
          if (i % 8 == 0) one[(i + 1) * bytes - 1] = static_cast<std::byte>(random() % 2 * 0x80);
        }
      }
      const Bytes found = reduced({element, op}, given);
      for (std::size_t i = 0; i < kCount; ++i) {
        double expected = number(element, given[0], i);
        for (std::size_t k = 1; k < given.size(); ++k) {
          const double next = number(element, given[k], i);
          if (std::isnan(next) || (op == Operator::kMin ? next < expected : next > expected)) expected = next;
        }
        const double is = number(element, found, i);
        ASSERT_TRUE(std::isnan(expected) ? std::isnan(is) : is == expected);
        ASSERT_TRUE(std::isnan(is) || std::signbit(is) == std::signbit(expected)) << i;
      }
    }
  }
}

TEST(Reduction, FloatsHaveNoBitsAndUnknownValuesAreInvalid) {
  for (const Element element : kElements) {
    for (const Operator op : kOperators) {
      EXPECT_EQ(valid({element, op}), element > Element::kBF16 || op <= Operator::kMax);
    }
    EXPECT_FALSE(valid({element, static_cast<Operator>(7)}));
  }
  EXPECT_FALSE(valid({static_cast<Element>(9), Operator::kSum}));
}

}  // namespace
}  // namespace wiresum::numeric::testing
