// Sums of limbs make sums of integers, modulo 2^8 or 2^64, and never overflow their lanes.
#include "numeric/integers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace wiresum::numeric::testing {
namespace {

constexpr std::int32_t kUntouched = 0x5A5A5A5A;

template <class Integer>
using Integers = std::vector<Integer>;

template <class Integer>
Integers<std::int32_t> limbs_of(const IntegerFormat& format, const Integers<Integer>& integers) {
  const std::size_t count = format.limbs(integers.size());
  Integers<std::int32_t> limbs(count + 1, kUntouched);
  format.split(reinterpret_cast<const std::byte*>(integers.data()), integers.size(), limbs.data());
  EXPECT_EQ(limbs.back(), kUntouched);
  limbs.resize(count);
  return limbs;
}

/// The sums at all workers, by limbs, in lanes like those of the switch and the codec.
template <class Integer>
Integers<Integer> sum(const IntegerFormat& format, const std::vector<Integers<Integer>>& workers) {
  const std::size_t count = workers.front().size();
  std::vector<std::int64_t> exact(format.limbs(count));
  for (const Integers<Integer>& worker : workers) {
    const Integers<std::int32_t> limbs = limbs_of(format, worker);
    for (std::size_t i = 0; i < limbs.size(); ++i) exact[i] += limbs[i];
  }
  const std::int64_t lane_max = (std::int64_t{1} << (format.lane_bits() - 1)) - 1;
  Integers<std::int32_t> sums;
  for (const std::int64_t one : exact) {
    EXPECT_LE(one, lane_max);
    EXPECT_GE(one, -lane_max - 1);
    sums.push_back(static_cast<std::int32_t>(one));
  }
  Integers<Integer> joined(count + 1, Integer{0x5A});
  format.join(sums.data(), count, reinterpret_cast<std::byte*>(joined.data()));
  EXPECT_EQ(joined.back(), Integer{0x5A});
  joined.resize(count);
  return joined;
}

template <class Integer>
class IntegersTest : public ::testing::Test {
 protected:
  using Unsigned = std::make_unsigned_t<Integer>;

  static void check(const std::vector<Integers<Integer>>& workers) {
    Integers<Integer> expected(workers.front().size());
    for (const Integers<Integer>& worker : workers) {
      for (std::size_t i = 0; i < worker.size(); ++i) {
        expected[i] = static_cast<Integer>(static_cast<Unsigned>(expected[i]) + static_cast<Unsigned>(worker[i]));
      }
    }
    EXPECT_EQ(sum(IntegerFormat(sizeof(Integer), static_cast<unsigned>(workers.size())), workers), expected);
  }
};

using Widths = ::testing::Types<std::int8_t, std::int64_t>;
TYPED_TEST_SUITE(IntegersTest, Widths);

constexpr unsigned kWorkers[] = {1, 2, 3, 4, 31, 255, 256, 257, 1024, 1025, 4096};

TYPED_TEST(IntegersTest, RandomIntegersAreSummedModuloTheirWidth) {  // R5.15
  std::mt19937_64 random(1);
  for (const unsigned workers : kWorkers) {
    std::vector<Integers<TypeParam>> all(workers, Integers<TypeParam>(20));
    for (Integers<TypeParam>& one : all) {
      for (TypeParam& integer : one) integer = static_cast<TypeParam>(random() >> random() % 64);
    }
    this->check(all);
  }
}

/// All workers have the same integers, so that each lane's sum is as far from zero as possible.
TYPED_TEST(IntegersTest, ExtremeIntegersOfAllWorkersFitTheirLanes) {
  using Limits = std::numeric_limits<TypeParam>;
  for (const unsigned workers : kWorkers) {
    Integers<TypeParam> extremes{Limits::min(), Limits::max(), -1, 0, 1};
    // Each limb is the smallest, or the largest, that limbs of so many bits can be.
    for (unsigned bits = 8; bits < 33; ++bits) {
      std::uint64_t lowest = 0;
      std::uint64_t highest = 0;
      for (unsigned at = 0; at < 64; at += bits) {
        lowest -= std::uint64_t{1} << (bits - 1) << at;
        highest += ((std::uint64_t{1} << (bits - 1)) - 1) << at;
      }
      extremes.push_back(static_cast<TypeParam>(lowest));
      extremes.push_back(static_cast<TypeParam>(highest));
    }
    this->check(std::vector(workers, extremes));
  }
}

TYPED_TEST(IntegersTest, NoIntegersHaveNoLimbs) { this->check({{}, {}}); }

TEST(IntegerLimbsTest, ThereAreAsFewAsTheWorkersAllow) {  // R5.15
  for (const unsigned workers : kWorkers) {
    const IntegerFormat bytes(1, workers);
    EXPECT_EQ(bytes.limbs(10), 10);
    EXPECT_EQ(bytes.lane_bits(), workers <= 256 ? 16 : 32);
    const IntegerFormat longs(8, workers);
    EXPECT_EQ(longs.limbs(10), workers == 1 ? 20 : workers <= 1024 ? 30 : 40);
    EXPECT_EQ(longs.lane_bits(), 32);
  }
}

TEST(IntegerLimbsTest, SmallNumbersHaveNoUpperLimbs) {
  const Integers<std::int64_t> small{-1, 1, -(1 << 19), (1 << 19) - 1};
  const Integers<std::int32_t> limbs = limbs_of(IntegerFormat(8, 4096), small);
  EXPECT_TRUE(std::equal(small.begin(), small.end(), limbs.begin()));
  EXPECT_TRUE(std::all_of(limbs.begin() + 4, limbs.end(), [](std::int32_t limb) { return limb == 0; }));
}

}  // namespace
}  // namespace wiresum::numeric::testing
