// Sums of digits are the same bits for any order and any split of the parts; with all digits they are exact.
#include "numeric/digit_sums.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "numeric_testing.hpp"

namespace wiresum::numeric::testing {
namespace {

using Part = std::vector<float>;
using Bits = std::vector<std::uint32_t>;

Bits bits_of(const Part& part) {
  Bits bits(part.size());
  std::memcpy(bits.data(), part.data(), part.size() * sizeof(float));
  return bits;
}

struct Worker {
  Worker(const DigitSums& sums, std::size_t elements)
      : ends(DigitSums::blocks(elements)),
        depths(ends.size()),
        lanes(sums.lanes(elements), 0x5A5A5A5A),
        counts(elements) {}
  DigitSums::Extents extents() { return {ends, depths}; }

  std::vector<std::uint8_t> ends;
  std::vector<std::uint8_t> depths;
  std::vector<std::int32_t> lanes;
  std::vector<std::int32_t> counts;
};

/// The mean of all parts, each added by the worker that `owner` names.
Part mean(const DigitSums& sums, const std::vector<Part>& parts, const std::vector<std::size_t>& owner) {
  const std::size_t elements = parts.front().size();
  std::vector<Worker> workers(1 + *std::ranges::max_element(owner), Worker(sums, elements));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Worker& worker = workers[owner[i]];
    const bool special = sums.add(parts[i], worker.extents(), worker.lanes.data());
    EXPECT_EQ(special, std::ranges::any_of(parts[i], [](float value) { return !std::isfinite(value); }));
    if (special) sums.count_special(parts[i], worker.counts.data());
  }
  Worker all(sums, elements);
  for (const Worker& worker : workers) {
    for (std::size_t b = 0; b < all.ends.size(); ++b) {
      all.ends[b] = std::max(all.ends[b], worker.ends[b]);
      all.depths[b] = std::max(all.depths[b], worker.depths[b]);
    }
  }
  const std::size_t words = sums.packed(all.extents(), elements);
  std::vector<std::int64_t> total(words);
  for (Worker& worker : workers) {
    std::vector<std::int32_t> mine(words + 1, 0x5A5A5A5A);
    sums.pack(worker.extents(), all.extents(), worker.lanes.data(), elements, mine.data());
    EXPECT_EQ(mine.back(), 0x5A5A5A5A);
    for (std::size_t i = 0; i < words; ++i) total[i] += mine[i];
    for (std::size_t i = 0; i < elements; ++i) all.counts[i] += worker.counts[i];
  }
  std::vector<std::int32_t> sent(total.begin(), total.end());
  EXPECT_TRUE(std::ranges::equal(sent, total)) << "a sum of words overflowed";
  Part result(elements, -1.0F);
  const bool special = std::ranges::any_of(all.counts, [](auto count) { return count != 0; });
  sums.join(all.extents(), sent.data(), special ? all.counts.data() : nullptr, static_cast<unsigned>(parts.size()),
            result);
  return result;
}

Part mean(const DigitSums& sums, const std::vector<Part>& parts) {
  return mean(sums, parts, std::vector<std::size_t>(parts.size(), 0));
}

/// Sums by definition: each element loses its bits below its block's window, and the rest is summed exactly.
Part reference(const std::vector<Part>& parts, unsigned words) {
  const int digit_bits = parts.size() <= 8 ? 7 : 6;
  const int digits = static_cast<int>(4 * words);
  const std::size_t elements = parts.front().size();
  std::vector<Part> cut = parts;
  for (std::size_t first = 0; first < elements; first += DigitSums::kBlock) {
    const std::size_t last = std::min(elements, first + DigitSums::kBlock);
    int end = 0;
    for (const Part& part : parts) {
      for (std::size_t i = first; i < last; ++i) {
        if (part[i] == 0 || !std::isfinite(part[i])) continue;
        end = std::max(end, (std::max(std::ilogb(part[i]), -126) + 149) / digit_bits + 1);
      }
    }
    const int low = std::max(0, end - digits) * digit_bits - 149;
    for (Part& part : cut) {
      for (std::size_t i = first; i < last; ++i) {
        const double value = static_cast<double>(part[i]);
        if (words != 0 && std::isfinite(value)) {
          part[i] = static_cast<float>(std::ldexp(std::trunc(std::ldexp(value, -low)), low));
        }
      }
    }
  }
  const ExactFormat format(Dtype::kF32, static_cast<unsigned>(parts.size()));
  std::vector<std::byte> all(parts.size() * elements * sizeof(float));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::memcpy(all.data() + i * elements * sizeof(float), cut[i].data(), elements * sizeof(float));
  }
  Part result(elements);
  const auto count = static_cast<unsigned>(parts.size());
  format.add_up(all.data(), elements * sizeof(float), count, elements, count,
                reinterpret_cast<std::byte*>(result.data()));
  return result;
}

/// Elements around 2^scale, over so many binades, zeros among them.
Part gradient(std::size_t elements, int scale, int binades, std::mt19937_64& random) {
  Part part(elements);
  for (float& value : part) {
    const auto mantissa = static_cast<float>(static_cast<std::int64_t>(random() % 0x1000000) - 0x800000);
    const int below = static_cast<int>(random() % static_cast<unsigned>(binades + 1));
    value = random() % 16 == 0 ? 0.0F : std::ldexp(mantissa, std::clamp(scale - below, -160, 127) - 23);
  }
  return part;
}

Part any_bits(std::size_t elements, bool finite, std::mt19937_64& random) {
  Bits bits(elements);
  for (auto& word : bits) word = random_bits(Dtype::kF32, random, finite);
  Part part(elements);
  std::memcpy(part.data(), bits.data(), elements * sizeof(float));
  return part;
}

std::vector<Part> random_parts(unsigned count, std::size_t elements, std::mt19937_64& random) {
  std::vector<Part> parts;
  const int kind = static_cast<int>(random() % 4);
  const int scale = static_cast<int>(random() % 250) - 140;
  for (unsigned i = 0; i < count; ++i) {
    if (kind == 0) {
      parts.push_back(any_bits(elements, true, random));
    } else if (kind == 1) {
      parts.push_back(any_bits(elements, false, random));
    } else {  // scales that differ from part to part move the windows
      parts.push_back(gradient(elements, scale + static_cast<int>(random() % (kind == 2 ? 4 : 60)), 40, random));
    }
  }
  if (count > 1 && random() % 2 == 0) {
    std::ranges::transform(parts.front(), parts.back().begin(), [](float value) { return -value; });
  }
  return parts;
}

// A window that lies below the first digit or above the last would be read from memory that is none of the sums'.
TEST(DigitSums, ExtentsThatNoSumsHaveAreImpossible) {
  const auto possible = [](const DigitSums& sums, std::uint8_t end, std::uint8_t depth) {
    return sums.possible({{&end, 1}, {&depth, 1}});
  };
  const DigitSums exact(8, 0);
  EXPECT_TRUE(possible(exact, 0, 0));
  EXPECT_TRUE(possible(exact, 40, 48)) << "all digits";
  EXPECT_TRUE(possible(exact, 1, 48)) << "the lowest alone";
  EXPECT_FALSE(possible(exact, 41, 48));
  EXPECT_FALSE(possible(exact, 40, 49));
  EXPECT_FALSE(possible(exact, 3, 45)) << "the lowest digit is the end";
  EXPECT_FALSE(possible(exact, 3, 0));
  const DigitSums rounded(8, 1);
  EXPECT_TRUE(possible(rounded, 3, 3)) << "the depth does not count";
  EXPECT_FALSE(possible(rounded, 255, 0));
}

TEST(DigitSums, AnySplitAndOrderGivesTheBitsOfTheDefinition) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    constexpr unsigned kCounts[] = {1, 2, 3, 7, 8, 9, 16, 31};
    const unsigned count = kCounts[random() % std::size(kCounts)];
    const auto words = static_cast<unsigned>(random() % 4);
    std::vector<Part> parts = random_parts(count, 1 + random() % 600, random);
    const DigitSums sums(count, words);
    const Bits expected = bits_of(reference(parts, words));
    for (int split = 0; split < 4; ++split) {
      std::ranges::shuffle(parts, random);
      std::vector<std::size_t> owner(count);
      for (auto& worker : owner) worker = random() % (split * 2 + 1);
      ASSERT_EQ(bits_of(mean(sums, parts, owner)), expected)
          << "round " << round << ", " << count << " parts, " << words << " words";
    }
  }
}

TEST(DigitSums, ManyLargePartsDoNotOverflow) {
  for (const unsigned count : {8U, 128U}) {
    for (const unsigned words : {1U, 2U, 0U}) {
      for (const float value : {std::numeric_limits<float>::max(), -0x1.fffffep27F, 0x1.fffffep-100F, 0x1p-149F}) {
        const std::vector<Part> parts(count, Part(300, value));
        EXPECT_EQ(bits_of(mean(DigitSums(count, words), parts)), bits_of(reference(parts, words))) << value;
      }
    }
  }
}

TEST(DigitSums, TheErrorIsWithinItsBound) {
  std::mt19937_64 random(3);
  for (const auto& [count, words, bound] :
       {std::tuple{8U, 1U, 0x1p-21}, {128U, 1U, 0x1p-18}, {8U, 2U, 0x1p-49}, {128U, 2U, 0x1p-42}}) {
    for (int scale = -60; scale < -46; ++scale) {
      std::vector<Part> parts(count);
      for (Part& part : parts) part = gradient(DigitSums::kBlock, scale, 20, random);
      double largest = 0;
      for (const Part& part : parts) {
        for (const float value : part) largest = std::max(largest, std::abs(static_cast<double>(value)));
      }
      const Part result = mean(DigitSums(count, words), parts);
      for (std::size_t i = 0; i < result.size(); ++i) {
        long double exact = 0;
        for (const Part& part : parts) exact += part[i];
        exact /= count;
        const long double rounding = std::abs(exact) * 0x1p-24L;
        ASSERT_LE(std::abs(result[i] - exact), bound * largest + rounding) << count << " parts, " << words << " words";
      }
    }
  }
}

TEST(DigitSums, AllZerosNeedNoWords) {
  const DigitSums sums(8, 1);
  Worker worker(sums, 300);
  sums.add(Part(300, -0.0F), worker.extents(), worker.lanes.data());
  EXPECT_EQ(sums.packed(worker.extents(), 300), 0U);
  EXPECT_EQ(bits_of(mean(sums, {Part(300, -0.0F)})), Bits(300, 0));
}

TEST(DigitSums, ExtremesTakeTheWordsTheyNeedAndNoMore) {
  const DigitSums one(8, 1);
  const DigitSums all(8, 0);
  EXPECT_FALSE(one.exact());
  EXPECT_TRUE(all.exact());
  for (const auto& [values, words] : {std::pair{Part{1.0F}, 2U}, {Part{1.0F, 0x1p-149F}, 12U}, {Part{0x1p-149F}, 1U}}) {
    Worker worker(all, values.size());
    all.add(values, worker.extents(), worker.lanes.data());
    EXPECT_LE(all.packed(worker.extents(), values.size()), words * values.size());
    EXPECT_EQ(one.packed(worker.extents(), values.size()), values.size());
  }
}

TEST(DigitSums, AllInstructionSetsGiveTheSameLanes) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; ++round) {
    const Part part = round % 2 == 0 ? any_bits(kDigitBlock, true, random)
                                     : gradient(kDigitBlock, static_cast<int>(random() % 60) - 30, 30, random);
    const auto digit_bits = static_cast<std::uint32_t>(6 + random() % 2);
    const auto low = static_cast<std::int32_t>(random() % 250);
    std::vector<std::int32_t> expected(2 * kDigitBlock, 100);
    kKernelsScalar.add_digits(part.data(), low, digit_bits, expected.data());
    for (const Kernels* kernels : all_tables()) {
      std::vector<std::int32_t> lanes(2 * kDigitBlock, 100);
      kernels->add_digits(part.data(), low, digit_bits, lanes.data());
      EXPECT_EQ(lanes, expected) << kernels->name;
      if (low >= 24 && kernels->block_range(part.data()).largest >> 23 <= static_cast<std::uint32_t>(low) + 8) {
        std::ranges::fill(lanes, 100);
        kernels->add_top_digits(part.data(), low, digit_bits, lanes.data());
        EXPECT_EQ(lanes, expected) << kernels->name;
      }
      const BlockRange range = kernels->block_range(part.data());
      EXPECT_EQ(range.largest, kKernelsScalar.block_range(part.data()).largest) << kernels->name;
      EXPECT_EQ(range.smallest_less_1, kKernelsScalar.block_range(part.data()).smallest_less_1) << kernels->name;
    }
  }
}

}  // namespace
}  // namespace wiresum::numeric::testing
