#include "schedule/elements.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace wiresum::schedule {
namespace {

using numeric::Dtype;

template <class Element>
const std::byte* bytes_of(const std::vector<Element>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

std::vector<std::uint64_t> some_sets() {
  std::mt19937_64 random(3);
  std::vector<std::uint64_t> sets = {0, 1, ~std::uint64_t{0}, std::uint64_t{1} << 63, 0xFFFF'0000'FFFF'0000, 0xFF};
  for (int i = 0; i < 200; ++i) sets.push_back(i % 3 == 0 ? random() & random() & random() : random());
  return sets;
}

TEST(Elements, PresentElementsAreThoseThatAreNoZeroOfEitherSign) {
  std::vector<float> values(64);
  values[3] = 1e-44F;
  values[5] = -0.0F;
  values[63] = NAN;
  EXPECT_EQ(present_elements(Dtype::kF32, bytes_of(values), 64), 1U << 3 | std::uint64_t{1} << 63);
  EXPECT_EQ(present_elements(Dtype::kF32, bytes_of(values), 63), 1U << 3) << "the last element is not counted";
  values.assign(64, -0.0F);
  EXPECT_EQ(present_elements(Dtype::kF32, bytes_of(values), 64), 0u);
  const std::vector<std::uint16_t> halves = {0, 0x8000, 1, 0xFC00};
  EXPECT_EQ(present_elements(Dtype::kF16, bytes_of(halves), 4), 0b1100u);
  EXPECT_EQ(present_elements(Dtype::kBF16, bytes_of(halves), 4), 0b1100u);
  const std::vector<std::int32_t> integers = {0, INT32_MIN, 7};
  EXPECT_EQ(present_elements(Dtype::kI32, bytes_of(integers), 3), 0b110u) << "an integer has no negative zero";
}

TEST(Elements, ABlockIsRepresentedByItsFirstBit) {
  for (unsigned size = 1; size <= 64; size *= 2) {
    for (const std::uint64_t set : some_sets()) {
      std::uint64_t starts = 0;
      std::uint64_t whole = 0;
      for (unsigned first = 0; first < 64; first += size) {
        if ((set >> first & low_bits(size)) == 0) continue;
        starts |= std::uint64_t{1} << first;
        whole |= low_bits(size) << first;
      }
      EXPECT_EQ(present_blocks(set, size), starts) << size;
      EXPECT_EQ(whole_blocks(starts, size), whole) << size;
    }
  }
}

TEST(Elements, ChosenBitsKeepTheirOrderInTheSet) {
  std::mt19937_64 random(5);
  for (const std::uint64_t set : some_sets()) {
    const std::uint64_t chosen = random();
    std::uint64_t expected = 0;
    unsigned rank = 0;
    for (unsigned i = 0; i < 64; ++i) {
      if ((set >> i & 1) != 0 && (chosen >> rank++ & 1) != 0) expected |= std::uint64_t{1} << i;
    }
    EXPECT_EQ(choose_bits(set, chosen), expected);
  }
}

template <class Element>
void gather_and_scatter() {
  std::vector<Element> source(64);
  for (std::size_t i = 0; i < 64; ++i) source[i] = static_cast<Element>(i + 1);
  for (const std::uint64_t set : some_sets()) {
    std::vector<Element> expected;
    std::vector<Element> expected_back(64, 99);
    for (unsigned i = 0; i < 64; ++i) {
      if ((set >> i & 1) == 0) continue;
      expected.push_back(source[i]);
      expected_back[i] = source[i];
    }
    std::vector<Element> packed(65, 77);
    const std::size_t count =
        gather_elements(sizeof(Element), bytes_of(source), set, reinterpret_cast<std::byte*>(packed.data()));
    ASSERT_EQ(count, expected.size());
    EXPECT_EQ(packed[count], 77) << "wrote too far";
    packed.resize(count);
    EXPECT_EQ(packed, expected);
    std::vector<Element> back(64, 99);
    EXPECT_EQ(scatter_elements(sizeof(Element), bytes_of(packed), set, reinterpret_cast<std::byte*>(back.data())),
              count);
    EXPECT_EQ(back, expected_back);
  }
}

TEST(Elements, ScatteringIsTheInverseOfGathering) {
  gather_and_scatter<std::uint32_t>();
  gather_and_scatter<std::uint16_t>();
}

}  // namespace
}  // namespace wiresum::schedule
