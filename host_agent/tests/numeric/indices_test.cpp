// Codes, unions and positions of indices, compared with reference implementations of their definitions.
#include "numeric/indices.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

namespace wiresum::numeric::testing {
namespace {

using Indices = std::vector<std::int64_t>;
using Code = std::vector<std::uint8_t>;

Indices draw(std::mt19937_64& random, std::size_t count, std::size_t size) {
  std::set<std::int64_t> drawn;
  while (drawn.size() < count) drawn.insert(static_cast<std::int64_t>(random() % size));
  return {drawn.begin(), drawn.end()};
}

/// Written bit by bit from the header's definition.
Code reference_code(const Indices& indices, std::size_t size) {
  if (indices.empty()) return {};
  const auto low_bits = static_cast<unsigned>(std::floor(std::log2(static_cast<double>(size / indices.size()))));
  std::vector<bool> bitmap(indices.size() + (size >> low_bits));
  std::vector<bool> low;
  for (std::size_t j = 0; j < indices.size(); ++j) {
    bitmap[j + static_cast<std::size_t>(indices[j] >> low_bits)] = true;
    for (unsigned bit = 0; bit < low_bits; ++bit) low.push_back((indices[j] >> bit & 1) != 0);
  }
  Code code;
  for (const std::vector<bool>& bits : {bitmap, low}) {
    const std::size_t first = code.size();
    code.resize(first + (bits.size() + 7) / 8);
    for (std::size_t i = 0; i < bits.size(); ++i) {
      code[first + i / 8] = static_cast<std::uint8_t>(code[first + i / 8] | (bits[i] ? 1U << (i % 8) : 0U));
    }
  }
  return code;
}

Code encoded(const Indices& indices, std::size_t size) {
  Code code(index_code_bytes(indices.size(), size), 0xFF);
  EXPECT_TRUE(encode_indices(indices, size, code));
  return code;
}

TEST(IndexCode, EqualsTheDefinitionAndDecodesToTheSameIndices) {
  std::mt19937_64 random(1);
  for (const std::size_t size : {1, 2, 63, 64, 65, 1000, 4097}) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, size / 100, size / 3, size - 1, size}) {
      const Indices indices = draw(random, count, size);
      const Code code = encoded(indices, size);
      ASSERT_EQ(code, reference_code(indices, size)) << count << " of " << size;
      Indices decoded(count);
      ASSERT_TRUE(decode_indices(code, size, decoded)) << count << " of " << size;
      ASSERT_EQ(decoded, indices);
    }
  }
}

TEST(IndexCode, ReachesTheEndsOfTheLargestTensor) {
  constexpr std::size_t kSize = (std::size_t{1} << 31) - 1;
  const Indices indices = {0, 1, kSize / 2, kSize - 2, kSize - 1};
  Indices decoded(indices.size());
  ASSERT_TRUE(decode_indices(encoded(indices, kSize), kSize, decoded));
  EXPECT_EQ(decoded, indices);
}

TEST(IndexCode, RefusesIndicesThatDoNotAscendBelowTheSize) {
  Code code(index_code_bytes(2, 100));
  for (const Indices& wrong : {Indices{5, 5}, Indices{6, 5}, Indices{-1, 5}, Indices{5, 100}}) {
    EXPECT_FALSE(encode_indices(wrong, 100, code)) << wrong[0] << ", " << wrong[1];
  }
  EXPECT_FALSE(encode_indices(Indices{5}, 100, code)) << "the buffer has the wrong size";
}

/// Any bytes are refused, or decode to indices that ascend and are below the size. (Sanitizers watch the bounds.)
TEST(IndexCode, RefusesOrDecodesArbitraryBytes) {
  std::mt19937_64 random(2);
  constexpr std::size_t kSize = 1000;
  constexpr std::size_t kCount = 37;
  std::size_t refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    Code code = encoded(draw(random, kCount, kSize), kSize);
    for (std::size_t flips = 1 + random() % 4; flips > 0; --flips) {
      const std::size_t bit = random() % (8 * code.size());
      code[bit / 8] = static_cast<std::uint8_t>(code[bit / 8] ^ 1U << (bit % 8));
    }
    Indices decoded(kCount);
    if (!decode_indices(code, kSize, decoded)) {
      ++refused;
      continue;
    }
    ASSERT_TRUE(std::adjacent_find(decoded.begin(), decoded.end(), std::greater_equal<>()) == decoded.end());
    ASSERT_GE(decoded.front(), 0);
    ASSERT_LT(decoded.back(), static_cast<std::int64_t>(kSize));
  }
  EXPECT_GT(refused, 1000U);
  Indices decoded(kCount);
  EXPECT_FALSE(decode_indices(Code(3), kSize, decoded)) << "too short";
}

TEST(IndexCode, RefusesCodesOfAnotherLength) {
  std::mt19937_64 random(4);
  constexpr std::size_t kSize = 1000;
  constexpr std::size_t kCount = 37;
  const Indices indices = draw(random, kCount, kSize);
  const Code code = encoded(indices, kSize);
  for (const std::size_t bytes : {code.size() - 1, code.size() + 1, code.size() + 100}) {
    Code other = code;
    other.resize(bytes);
    Indices decoded(kCount);
    EXPECT_FALSE(decode_indices(other, kSize, decoded)) << bytes;
    EXPECT_FALSE(encode_indices(indices, kSize, other)) << bytes;
  }
}

TEST(Indices, UnionsAndPositionsEqualThoseOfStdSet) {
  std::mt19937_64 random(3);
  for (const std::size_t size : {1, 64, 1000}) {
    std::vector<Indices> parts;
    for (int part = 0; part < 4; ++part) parts.push_back(draw(random, random() % (size + 1), size));
    std::set<std::int64_t> expected;
    std::vector<std::uint64_t> bitmap((size + 63) / 64);
    for (const Indices& part : parts) {
      expected.insert(part.begin(), part.end());
      mark_indices(part, bitmap);
    }
    Indices united(expected.size());
    ASSERT_EQ(marked_indices(bitmap, united.data()), expected.size());
    ASSERT_EQ(united, Indices(expected.begin(), expected.end()));
    for (const auto& [needles, others] : {std::pair{parts[0], united}, {united, parts[0]}, {parts[0], parts[1]}}) {
      Indices places(needles.size());
      find_places(needles, others, places.data());
      for (std::size_t i = 0; i < needles.size(); ++i) {
        const auto at = std::find(others.begin(), others.end(), needles[i]);
        ASSERT_EQ(places[i], at == others.end() ? -1 : at - others.begin());
      }
    }
  }
}

}  // namespace
}  // namespace wiresum::numeric::testing
