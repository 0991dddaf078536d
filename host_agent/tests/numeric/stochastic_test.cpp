// Kernels for compressed gradients: the generator equals its published test vectors, and every instruction set equals a
// reference written from stochastic.hpp's text.
#include "numeric/stochastic.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "numeric/codec.hpp"
#include "numeric/kernels.hpp"
#include "numeric_testing.hpp"

namespace wiresum::numeric::testing {
namespace {

using Block = std::array<std::uint32_t, 4>;

/// Philox 4x32-10, as in the paper.
Block philox(Block counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return counter;
}

std::uint32_t reference_word(const Draw& draw, std::uint64_t i) {
  const auto block = static_cast<std::uint32_t>(16 * (i / 64) + i % 16);
  return philox({block, draw.worker, draw.step, draw.stream}, draw.key[0], draw.key[1])[(i / 16) % 4];
}

TEST(Philox, ReferenceGivesThePublishedVectors) {
  constexpr std::uint32_t kOnes = 0xFFFFFFFFU;
  EXPECT_EQ(philox({0, 0, 0, 0}, 0, 0), (Block{0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U}));
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, kOnes, kOnes),
            (Block{0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU}));
  EXPECT_EQ(philox({0x243F6A88U, 0x85A308D3U, 0x13198A2EU, 0x03707344U}, 0xA4093822U, 0x299F31D0U),
            (Block{0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U}));
}

class StochasticKernels : public ::testing::TestWithParam<const Kernels*> {
 protected:
  void SetUp() override { set_default_float_environment(); }
  std::mt19937_64 random_{7};
  const Draw draw_ = {{0xA4093822U, 0x299F31D0U}, 5, 0xFFFFFFF0U, 3};

  template <class Element>
  std::vector<Element> elements(std::size_t count) {
    std::vector<Element> values(count);
    for (Element& value : values) {
      const auto magnitude = std::ldexp(static_cast<Element>(random_() % 4096), static_cast<int>(random_() % 24) - 20);
      value = random_() % 2 == 0 ? magnitude : -magnitude;
    }
    return values;
  }

  template <class Element, class Round>
  void rounds_as_the_reference_does(const Round& round) {
    for (const std::int32_t limit : {15, 4095, 0x7FFFFFFF}) {
      for (const std::size_t count : {0, 1, 63, 64, 65, 200}) {
        for (const std::uint64_t first : {0U, 1U, 64U, 130U}) {
          const std::vector<Element> source = elements<Element>(count);
          std::vector<std::int32_t> actual(count);
          const double inverse = limit == 0x7FFFFFFF ? 1e8 : 1.37;
          round(draw_, first, source.data(), count, inverse, limit, actual.data());
          for (std::size_t i = 0; i < count; ++i) {
            const double word = reference_word(draw_, first + i);
            const double shifted = static_cast<double>(source[i]) * inverse + word * 0x1p-32;
            const double bound = limit;
            ASSERT_EQ(actual[i], std::fmin(std::fmax(std::floor(shifted), -bound), bound))
                << "element " << i << " of " << count << " from " << first << ", " << source[i];
          }
        }
      }
    }
  }
};

TEST_P(StochasticKernels, DrawTheReferenceWordsFromAnyStart) {
  for (const std::size_t count : {0, 1, 15, 16, 17, 63, 64, 65, 129, 300}) {
    for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{63}, std::uint64_t{64},
                                      std::uint64_t{1000}, kDrawWordsMax - 300}) {
      std::vector<std::uint32_t> words(count + 1, 0xA5A5A5A5U);
      GetParam()->random_words(draw_, first, count, words.data());
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(words[i], reference_word(draw_, first + i)) << first << " + " << i;
      }
      ASSERT_EQ(words[count], 0xA5A5A5A5U) << "wrote beyond the end";
    }
  }
}

TEST_P(StochasticKernels, RoundFloatsAsTheReferenceDoes) {
  rounds_as_the_reference_does<float>(GetParam()->float_gradients.round);
}

TEST_P(StochasticKernels, RoundDoublesAsTheReferenceDoes) {
  rounds_as_the_reference_does<double>(GetParam()->double_gradients.round);
}

// Therefore any number of threads gives the same integers.
TEST_P(StochasticKernels, AnySplitGivesTheSameIntegers) {
  const std::vector<float> source = elements<float>(1000);
  std::vector<std::int32_t> whole(source.size());
  GetParam()->float_gradients.round(draw_, 0, source.data(), source.size(), 2.0, 127, whole.data());
  for (int attempt = 0; attempt < 50; ++attempt) {
    std::vector<std::int32_t> parts(source.size());
    for (std::size_t at = 0; at < source.size();) {
      const std::size_t count = std::min<std::size_t>(source.size() - at, random_() % 150);
      GetParam()->float_gradients.round(draw_, at, source.data() + at, count, 2.0, 127, parts.data() + at);
      at += count;
    }
    ASSERT_EQ(parts, whole);
  }
}

TEST_P(StochasticKernels, ScaleByRoundingToDoubleAndThenToTheType) {
  for (std::size_t count = 0; count < 40; ++count) {
    std::vector<std::int32_t> integers(count);
    for (std::int32_t& integer : integers) integer = static_cast<std::int32_t>(random_());
    const double factor = 1.0 / 3.0e5;
    std::vector<float> floats(count);
    std::vector<double> doubles(count);
    GetParam()->float_gradients.scale(integers.data(), count, factor, floats.data());
    GetParam()->double_gradients.scale(integers.data(), count, factor, doubles.data());
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(doubles[i], integers[i] * factor);
      ASSERT_EQ(floats[i], static_cast<float>(integers[i] * factor));
    }
  }
}

TEST_P(StochasticKernels, AddSquaresByColumnsInOrder) {
  for (const std::size_t count : {0, 1, 31, 32, 33, 64, 1000}) {
    const std::vector<float> a = elements<float>(count);
    const std::vector<float> b = elements<float>(count);
    double columns[32] = {};
    for (std::size_t i = 0; i < count; ++i) {
      const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
      columns[i % 32] += difference * difference;
    }
    const double expected = std::accumulate(std::begin(columns), std::end(columns), 0.0);
    ASSERT_EQ(GetParam()->float_gradients.square_distance(a.data(), b.data(), count), expected);
    const std::vector<double> wide_a(a.begin(), a.end());
    const std::vector<double> wide_b(b.begin(), b.end());
    ASSERT_EQ(GetParam()->double_gradients.square_distance(wide_a.data(), wide_b.data(), count), expected);
  }
}

TEST_P(StochasticKernels, UnpackTheSumOfPackedWords) {
  for (const unsigned bits : {8U, 16U, 32U}) {
    const std::int64_t half = std::int64_t{1} << (bits - 1);
    for (const std::size_t count : {0, 1, 7, 64, 65, 333}) {
      const std::size_t words = (count * bits + 31) / 32;
      std::vector<std::uint32_t> total(words, 0);
      std::vector<std::int64_t> expected(count, 0);
      for (int worker = 0; worker < 3; ++worker) {  // their sum fits, though a single contribution may not
        std::vector<std::int32_t> integers(count);
        for (std::size_t i = 0; i < count; ++i) {
          const std::int64_t wanted =
              static_cast<std::int64_t>(random_() % (2 * static_cast<std::uint64_t>(half))) - half;
          const std::int64_t value = worker < 2 ? wanted : wanted - expected[i];
          integers[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(value));
          expected[i] = worker < 2 ? expected[i] + value : wanted;
        }
        std::vector<std::uint32_t> packed(words);
        pack_lanes(bits, integers.data(), count, packed.data(), words, *GetParam());
        for (std::size_t word = 0; word < words; ++word) total[word] += packed[word];
      }
      std::vector<std::int32_t> back(count);
      unpack_lanes(bits, total.data(), words, back.data(), count, *GetParam());
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(back[i], expected[i]) << bits << " bits, " << i << "/" << count;
    }
  }
}

std::string table_name(const ::testing::TestParamInfo<const Kernels*>& info) { return info.param->name; }

INSTANTIATE_TEST_SUITE_P(InstructionSets, StochasticKernels, ::testing::ValuesIn(all_tables()), table_name);

}  // namespace
}  // namespace wiresum::numeric::testing
