// Selecting the largest values gives the same as a sort, for sampled tensors and for small ones.
#include "numeric/selection.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

namespace wiresum::numeric::testing {
namespace {

constexpr std::size_t kSampled = 40'000;  // elements of a tensor that is large enough to be sampled

/// A sort key by magnitude, with NaN above all numbers.
template <class Element>
double key_of(Element value) {
  const double wide = static_cast<double>(value);
  return std::isnan(wide) ? std::numeric_limits<double>::infinity() : std::min(std::fabs(wide), 1e300);
}

template <class Element>
void expect_what_a_sort_finds(const std::vector<Element>& values, const std::vector<std::size_t>& all_wanted) {
  std::vector<std::int64_t> sorted(values.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  std::stable_sort(sorted.begin(), sorted.end(), [&](std::int64_t a, std::int64_t b) {
    return key_of(values[static_cast<std::size_t>(a)]) > key_of(values[static_cast<std::size_t>(b)]);
  });
  for (const std::size_t wanted : all_wanted) {
    std::vector<std::int64_t> expected(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(wanted));
    std::sort(expected.begin(), expected.end());
    std::vector<std::byte> scratch(largest_scratch_bytes(values.size(), wanted, sizeof(Element)));
    for (const std::span<std::byte> memory : {std::span(scratch), std::span<std::byte>()}) {
      std::vector<std::int64_t> actual(wanted);
      largest(values.data(), values.size(), wanted, actual.data(), memory);
      ASSERT_EQ(actual, expected) << wanted << " of " << values.size() << " with " << memory.size() << " bytes";
    }
  }
}

template <class Element>
void expect_what_a_sort_finds_in_small_tensors(std::mt19937_64& random, const std::vector<Element>& choices) {
  for (const std::size_t count : {1, 2, 3, 50, 1001}) {
    std::vector<Element> values(count);
    for (Element& value : values) value = choices[random() % choices.size()];
    expect_what_a_sort_finds(values, {0, 1, count / 3, count - 1, count});
  }
}

template <class Element>
std::vector<Element> normal_values(std::mt19937_64& random, std::size_t count) {
  std::normal_distribution<double> normal(0.0, 1000.0);
  std::vector<Element> values(count);
  for (Element& value : values) value = static_cast<Element>(normal(random));
  return values;
}

TEST(Largest, FindsWhatAStableSortFinds) {
  std::mt19937_64 random(3);
  std::vector<float> floats = {0.0F, -0.0F, 1.0F, -1.0F, 1e-42F, INFINITY, -INFINITY, NAN};
  std::vector<double> doubles = {0.0, -0.0, 1.0, -1.0, 1e-310, INFINITY, -INFINITY, NAN};
  expect_what_a_sort_finds_in_small_tensors(random, floats);
  expect_what_a_sort_finds_in_small_tensors(random, doubles);
  expect_what_a_sort_finds_in_small_tensors(random, normal_values<float>(random, 2000));
  expect_what_a_sort_finds_in_small_tensors(random, normal_values<double>(random, 2000));
  expect_what_a_sort_finds_in_small_tensors(random, std::vector<std::int32_t>{0, 1, -1, INT32_MAX, -INT32_MAX});
  expect_what_a_sort_finds_in_small_tensors(random, std::vector<std::int32_t>{0, 1, -1, INT32_MIN});
}

template <class Element>
class SampledLargest : public ::testing::Test {};
using Elements = ::testing::Types<float, double, std::int32_t>;
TYPED_TEST_SUITE(SampledLargest, Elements);

TYPED_TEST(SampledLargest, FindsWhatAStableSortFindsAtAnyRatio) {
  std::mt19937_64 random(4);
  for (const std::size_t count : {kSampled, kSampled + 15}) {
    const auto values = normal_values<TypeParam>(random, count);
    expect_what_a_sort_finds(values, {1, count / 1000, count / 100, count / 5, count / 3});
  }
}

TYPED_TEST(SampledLargest, GivesTiesToTheLowerIndex) {
  std::mt19937_64 random(5);
  std::vector<TypeParam> values(kSampled);
  for (TypeParam& value : values) value = static_cast<TypeParam>(random() % 64 == 0 ? random() % 3 : 0);
  expect_what_a_sort_finds(values, {kSampled / 1000, kSampled / 100, kSampled / 50, kSampled / 10});
}

/// The large values lie only where no sample is taken, so the estimated threshold is too low; or only there, so it is
/// too high.
TYPED_TEST(SampledLargest, IsExactIfTheSampleIsMisleading) {
  std::mt19937_64 random(6);
  for (const bool large_in_sample : {false, true}) {
    auto values = normal_values<TypeParam>(random, kSampled);
    for (std::size_t i = 0; i < kSampled; ++i) {
      const bool in_sample = i / 16 % 32 == 0;
      if (in_sample == large_in_sample && i % 3 == 0) values[i] *= static_cast<TypeParam>(1000);
    }
    expect_what_a_sort_finds(values, {kSampled / 1000, kSampled / 100, kSampled / 10});
  }
  expect_what_a_sort_finds(std::vector<TypeParam>(kSampled, static_cast<TypeParam>(7)), {kSampled / 100});
  expect_what_a_sort_finds(std::vector<TypeParam>(kSampled), {kSampled / 100});
}

}  // namespace
}  // namespace wiresum::numeric::testing
