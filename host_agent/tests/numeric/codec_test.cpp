// The codec's guarantees: layout, exactness, the error bound, no overflow, and the treatment of NaN and Inf.
#include "numeric/codec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <thread>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "numeric_testing.hpp"

namespace wiresum::numeric::testing {
namespace {

unsigned ceil_log2(unsigned workers) {
  unsigned log2 = 0;
  while ((1U << log2) < workers) ++log2;
  return log2;
}

/// One chunk of N workers summed as by the switch, and the result at each worker.
struct Round {
  Format format;
  std::size_t words;
  std::size_t count;
  float divisor = 1.0F;

  std::uint8_t exponent = 0;
  Scale scale = {};
  std::vector<std::int64_t> exact_lane_sums = {};  // 64-bit integers
  Buffer sum{0};
  Buffer result{0};

  /// Runs a round in which `workers_each` workers have each source.
  void run(const std::vector<Buffer>& sources, unsigned workers_each = 1) {
    for (const Buffer& source : sources) {
      exponent = std::max(exponent, max_exponent(format.dtype, source.data(), count));
    }
    scale = block_scale(static_cast<unsigned>(sources.size()) * workers_each, exponent, format.bits, divisor);
    sum = Buffer(4 * words, 0, std::byte{0});
    exact_lane_sums.assign(words * elements_per_word(format), 0);
    for (const Buffer& source : sources) {
      Buffer payload(4 * words);
      quantise(format, scale, source.data(), count, payload.data(), words);
      const auto lanes = reference_lanes(payload, words, format.bits);
      for (std::size_t i = 0; i < lanes.size(); ++i) exact_lane_sums[i] += workers_each * lanes[i];
      for (unsigned worker = 0; worker < workers_each; ++worker) {
        numeric::accumulate(sum.data(), payload.data(), words);
      }
    }
    result = Buffer(count * element_bytes(format.dtype));
    dequantise(format, scale, sum.data(), words, result.data(), count);
  }
};

/// The error bound that codec.cpp states; `sum` is the exact sum.
long double error_bound(Dtype dtype, unsigned workers, unsigned bits, std::uint8_t exponent, long double sum) {
  const int log2_workers = static_cast<int>(ceil_log2(workers));
  const int unbiased = std::max<int>(exponent, 1) - 127;
  const long double quantum = std::ldexp(1.0L, unbiased - (static_cast<int>(bits) - 2 - log2_workers));
  const long double lanes = workers * quantum * (bits == 32 && workers <= 128 ? 0.5L : 1.0L);
  const long double reached = std::abs(sum) + lanes;
  const long double rounded = std::max(std::ldexp(reached, -24), std::ldexp(1.0L, -150));
  const long double largest = reached + rounded;
  long double narrowed = 0;
  if (dtype == Dtype::kF16) narrowed = std::max(std::ldexp(largest, -11), std::ldexp(1.0L, -25));
  if (dtype == Dtype::kBF16) narrowed = std::max(std::ldexp(largest, -8), std::ldexp(1.0L, -134));
  return lanes + rounded + narrowed;
}

struct Workload {
  Format format;
  unsigned workers;
};

/// All small numbers of workers that lanes of this width can carry, and some large ones.
std::vector<unsigned> job_sizes(unsigned bits) {
  std::vector<unsigned> sizes(32);
  std::iota(sizes.begin(), sizes.end(), 1U);
  for (const unsigned workers : {33U, 64U, 127U, 128U, 129U, 700U, 1024U, 4096U}) {
    if (workers <= workers_max(bits)) sizes.push_back(workers);
  }
  return sizes;
}

std::vector<Workload> all_workloads() {
  std::vector<Workload> workloads;
  for (const Dtype dtype : kFloatDtypes) {
    for (const std::uint8_t bits : kLaneWidths) {
      for (const unsigned workers : job_sizes(bits)) {
        workloads.push_back({{dtype, Scaling::kBlockExponent, bits}, workers});
      }
    }
  }
  return workloads;
}

class BlockFloatingPoint : public ::testing::Test {
 protected:
  void SetUp() override { set_default_float_environment(); }
  std::mt19937_64 random_{7};
};

long double largest_finite(Dtype dtype) {
  Buffer one(element_bytes(dtype));
  put_bits(dtype, one, 0, largest_bits(dtype));
  return static_cast<long double>(get(dtype, one, 0));
}

TEST_F(BlockFloatingPoint, HoldsItsErrorBound) {  // R5.9
  for (const auto& [format, workers] : all_workloads()) {
    const int trials = workers <= 129 ? 12 : 3;
    for (int trial = 0; trial < trials; ++trial) {
      const std::size_t words = 1 + random_() % 70;
      const std::size_t count = 1 + random_() % (words * elements_per_word(format));
      const unsigned binades = trial % 3 == 0 ? 1 : trial % 3 == 1 ? 12 : 40;
      const std::uint32_t top = static_cast<std::uint32_t>(random_() % (largest_bits(format.dtype) + 1));
      std::vector<Buffer> sources;
      for (unsigned worker = 0; worker < workers; ++worker) {
        sources.emplace_back(count * element_bytes(format.dtype));
        fill_gradient(format.dtype, sources.back(), count, top, binades, random_);
      }
      Round round{format, words, count};
      round.run(sources);
      ASSERT_LT(round.exponent, kExponentNotFinite);
      for (std::size_t i = 0; i < count; ++i) {
        long double sum = 0;
        for (const Buffer& source : sources) sum += static_cast<long double>(get(format.dtype, source, i));
        const long double bound = error_bound(format.dtype, workers, format.bits, round.exponent, sum);
        const auto actual = static_cast<long double>(get(format.dtype, round.result, i));
        if (std::isinf(actual)) {
          ASSERT_GE((actual > 0 ? sum : -sum) + bound, largest_finite(format.dtype))
              << "Inf, though the sum is in range";
        } else {
          ASSERT_LE(std::abs(actual - sum), bound)
              << name_of(format.dtype) << " " << int{format.bits} << " bits, N " << workers << ", m "
              << int{round.exponent} << ", element " << i << ", sum " << sum << ", result " << actual;
        }
      }
    }
  }
}

TEST_F(BlockFloatingPoint, NeverOverflowsALaneAtTheExtremes) {
  for (const auto& [format, workers] : all_workloads()) {
    // The largest mantissas of several exponents: all of one sign, of mixed signs, and of alternating lanes.
    const std::uint32_t tops[] = {largest_bits(format.dtype), infinity_bits(format.dtype) / 2 | 0x7FU, 1U,
                                  format.dtype == Dtype::kF32    ? 0x3FFFFFFFU
                                  : format.dtype == Dtype::kBF16 ? 0x3FFFU
                                                                 : 0x3FFFU};
    for (const std::uint32_t top : tops) {
      for (int signs = 0; signs < 4; ++signs) {
        const std::size_t words = 19;
        const std::size_t count = words * elements_per_word(format);
        if (workers > 129 && signs == 2) continue;  // a sum of random signs is far from the extremes
        const unsigned workers_each = signs == 2 ? 1 : workers;
        std::vector<Buffer> sources;
        for (unsigned source = 0; source < workers / workers_each; ++source) {
          sources.emplace_back(count * element_bytes(format.dtype));
          for (std::size_t i = 0; i < count; ++i) {
            const bool negative = signs == 1 || (signs == 2 && (random_() & 1U) != 0) || (signs == 3 && i / words % 2);
            put_bits(format.dtype, sources.back(), i, top | (negative ? sign_bit(format.dtype) : 0));
          }
        }
        Round round{format, words, count};
        round.run(sources, workers_each);
        ASSERT_EQ(reference_lanes(round.sum, words, format.bits), round.exact_lane_sums)
            << name_of(format.dtype) << " " << int{format.bits} << " bits, N " << workers << ", top " << top;
        const std::int64_t most = (std::int64_t{1} << (format.bits - 1)) - 1;
        for (const std::int64_t sum : round.exact_lane_sums) ASSERT_LE(std::abs(sum), most);
      }
    }
  }
}

TEST_F(BlockFloatingPoint, ClampsALaneOf32BitsByLessThanOneUnit) {
  for (const unsigned workers : job_sizes(32)) {
    for (int exponent = 1; exponent < 255; ++exponent) {
      const Scale scale = block_scale(workers, static_cast<std::uint8_t>(exponent), 32, 1.0F);
      const float largest = std::bit_cast<float>(static_cast<std::uint32_t>(exponent) << 23 | 0x7FFFFFU);
      const auto lane = static_cast<double>(largest * scale.up[0] * scale.up[1]);
      if (workers <= 128) {
        ASSERT_EQ(lane, static_cast<double>(scale.limit));
      } else {
        ASSERT_EQ(std::trunc(lane), static_cast<double>(scale.limit)) << "clamped by less than one";
      }
      ASSERT_LE(static_cast<std::int64_t>(scale.limit) * workers, INT32_MAX);
    }
  }
}

TEST_F(BlockFloatingPoint, TheScaleFollowsTheFormulaInTheHeaderFile) {  // R5.8, R8.14
  for (const unsigned bits : {32U, 16U, 8U}) {
    for (const unsigned workers : job_sizes(bits)) {
      for (int m = 0; m < 255; ++m) {
        const Scale scale = block_scale(workers, static_cast<std::uint8_t>(m), bits, 1.0F);
        const int shift = static_cast<int>(bits) - 2 - static_cast<int>(ceil_log2(workers)) - (std::max(m, 1) - 127);
        ASSERT_EQ(std::ldexp(1.0, shift), static_cast<double>(scale.up[0]) * static_cast<double>(scale.up[1]));
        ASSERT_EQ(std::ldexp(1.0, -shift), static_cast<double>(scale.down[0]) * static_cast<double>(scale.down[1]));
        for (const float factor : {scale.up[0], scale.up[1], scale.down[0], scale.down[1]}) {
          ASSERT_TRUE(std::isnormal(factor));
        }
        if (bits < 32) {
          ASSERT_EQ(scale.limit, (1 << (bits - 1 - ceil_log2(workers))) - 1);
        }
      }
    }
  }
}

TEST_F(BlockFloatingPoint, SumsSubnormalsExactlyWith32BitLanes) {
  for (const unsigned workers : {1U, 2U, 3U, 8U, 31U, 32U}) {
    std::vector<Buffer> sources;
    std::vector<std::int64_t> expected(61, 0);
    for (unsigned worker = 0; worker < workers; ++worker) {
      sources.emplace_back(4 * 61);
      for (std::size_t i = 0; i < 61; ++i) {
        const std::uint32_t magnitude = static_cast<std::uint32_t>(random_() % (0x800000U / workers));
        const bool negative = (random_() & 1U) != 0;
        put_bits(Dtype::kF32, sources.back(), i, magnitude | (negative ? 0x80000000U : 0));
        expected[i] += negative ? -std::int64_t{magnitude} : std::int64_t{magnitude};
      }
    }
    Round round{{Dtype::kF32, Scaling::kBlockExponent, 32}, 61, 61};
    round.run(sources);
    EXPECT_EQ(round.exponent, kExponentZero);
    for (std::size_t i = 0; i < 61; ++i) {
      ASSERT_EQ(get(Dtype::kF32, round.result, i), std::ldexp(static_cast<double>(expected[i]), -149));
    }
  }
}

TEST_F(BlockFloatingPoint, GivesZerosForZeros) {
  for (const auto& [format, workers] : all_workloads()) {
    const std::size_t count = 13 * elements_per_word(format);
    std::vector<Buffer> sources;
    for (unsigned worker = 0; worker < workers; ++worker) {
      sources.emplace_back(count * element_bytes(format.dtype), 0, std::byte{0});
    }
    Round round{format, 13, count};
    round.run(sources);
    EXPECT_EQ(round.exponent, kExponentZero);
    ASSERT_TRUE(round.sum == Buffer(4 * 13, 0, std::byte{0}));
    ASSERT_TRUE(round.result == Buffer(round.result.size(), 0, std::byte{0}));
  }
}

TEST_F(BlockFloatingPoint, MakesTheWholeChunkNanIfOneElementIsNotFinite) {
  for (const Dtype dtype : kFloatDtypes) {
    for (const std::uint8_t bits : kLaneWidths) {
      for (const std::uint32_t wrong :
           {infinity_bits(dtype), infinity_bits(dtype) | 1U, infinity_bits(dtype) | sign_bit(dtype)}) {
        const Format format{dtype, Scaling::kBlockExponent, bits};
        const std::size_t count = 29;
        std::vector<Buffer> sources;
        for (int worker = 0; worker < 3; ++worker) {
          sources.emplace_back(count * element_bytes(dtype));
          fill_gradient(dtype, sources.back(), count, largest_bits(dtype), 4, random_);
        }
        put_bits(dtype, sources[1], random_() % count, wrong);
        Round round{format, 29, count};
        round.run(sources);
        EXPECT_EQ(round.exponent, kExponentNotFinite);
        EXPECT_TRUE(round.scale.not_finite);
        EXPECT_TRUE(round.sum == Buffer(4 * 29, 0, std::byte{0})) << "not zeros on the wire";
        for (std::size_t i = 0; i < count; ++i) ASSERT_TRUE(std::isnan(get(dtype, round.result, i)));
      }
    }
  }
}

TEST_F(BlockFloatingPoint, AverageIsTheSumDividedByN) {
  for (const unsigned workers : {2U, 3U, 7U, 8U, 32U}) {
    std::vector<Buffer> sources;
    for (unsigned worker = 0; worker < workers; ++worker) {
      sources.emplace_back(4 * 50);
      fill_gradient(Dtype::kF32, sources.back(), 50, 0x3F800000U, 8, random_);
    }
    const Format format{Dtype::kF32, Scaling::kBlockExponent, 32};
    Round sum{format, 50, 50};
    sum.run(sources);
    Round average{format, 50, 50, static_cast<float>(workers)};
    average.run(sources);
    for (std::size_t i = 0; i < 50; ++i) {
      const auto total = static_cast<float>(get(Dtype::kF32, sum.result, i));
      ASSERT_EQ(get(Dtype::kF32, average.result, i), static_cast<double>(total / static_cast<float>(workers)));
    }
  }
}

TEST_F(BlockFloatingPoint, OneWorkerGetsItsTensorBackIfItFitsTheLanes) {
  Buffer source(4 * 40);
  for (std::size_t i = 0; i < 40; ++i) {
    // Values are within seven binades of the largest: 24 bits of mantissa fit 31 bits of lane.
    const auto exponent = static_cast<std::uint32_t>(100 + random_() % 8);
    put_bits(Dtype::kF32, source, i, exponent << 23 | static_cast<std::uint32_t>(random_() & 0x807FFFFFU));
  }
  std::vector<Buffer> sources;
  sources.push_back(std::move(source));
  Round round{{Dtype::kF32, Scaling::kBlockExponent, 32}, 40, 40};
  round.run(sources);
  EXPECT_TRUE(round.result == sources[0]);
}

TEST_F(BlockFloatingPoint, SaturatesIfTheTensorGrowsAfterItsExponentWasAgreed) {
  const Format format{Dtype::kF32, Scaling::kBlockExponent, 32};
  const Scale scale = block_scale(4, 127, 32, 1.0F);
  const float grown[] = {1e30F, -1e30F, NAN, INFINITY};
  Buffer payload(16);
  quantise(format, scale, reinterpret_cast<const std::byte*>(grown), 4, payload.data(), 4);
  const std::vector<std::int64_t> expected = {scale.limit, -std::int64_t{scale.limit}, 0, scale.limit};
  EXPECT_EQ(reference_lanes(payload, 4, 32), expected);
}

TEST(MaxExponent, EqualsTheExponentOfTheFp32Value) {
  set_default_float_environment();
  for (const Dtype dtype : kFloatDtypes) {
    std::mt19937_64 random(3);
    for (std::uint32_t i = 0; i < 65536; ++i) {
      const std::uint32_t bits = dtype == Dtype::kF32 ? static_cast<std::uint32_t>(random()) : i;
      Buffer source(element_bytes(dtype));
      put_bits(dtype, source, 0, bits);
      const auto value = static_cast<float>(get(dtype, source, 0));
      ASSERT_EQ(max_exponent(dtype, source.data(), 1), (std::bit_cast<std::uint32_t>(value) >> 23) & 0xFFU)
          << name_of(dtype) << " " << std::hex << bits;
    }
  }
}

TEST(Exponents, AreThoseOfTheFiniteElements) {
  for (const Dtype dtype : kFloatDtypes) {
    Buffer source(6 * element_bytes(dtype));
    const float values[] = {0.5F, INFINITY, -0.0F, 8.0F, NAN, 2.0F};
    for (std::size_t i = 0; i < 6; ++i) put(dtype, source, i, values[i]);
    const Exponents mixed = exponents_of(dtype, source.data(), 6);
    EXPECT_EQ(mixed.largest, 130) << name_of(dtype);
    EXPECT_EQ(mixed.smallest, 126) << name_of(dtype);
    EXPECT_TRUE(mixed.not_finite) << name_of(dtype);
    EXPECT_FALSE(exponents_of(dtype, source.data(), 1).not_finite) << name_of(dtype);
    put(dtype, source, 0, -INFINITY);
    const Exponents none = exponents_of(dtype, source.data(), 3);
    EXPECT_EQ(none.largest, 0) << name_of(dtype);
    EXPECT_EQ(none.smallest, 0) << name_of(dtype);
    EXPECT_TRUE(none.not_finite) << name_of(dtype);
  }
}

TEST(Exponents, SubnormalsCountAsZerosButNotThoseOfFp16) {
  Buffer tiny(8);
  put_bits(Dtype::kF32, tiny, 0, 1);
  put_bits(Dtype::kF32, tiny, 1, 0x3F800000);
  EXPECT_EQ(exponents_of(Dtype::kF32, tiny.data(), 2).smallest, 127);
  put_bits(Dtype::kBF16, tiny, 0, 1);
  put_bits(Dtype::kBF16, tiny, 1, 0x3F80);
  EXPECT_EQ(exponents_of(Dtype::kBF16, tiny.data(), 2).smallest, 127);
  put_bits(Dtype::kF16, tiny, 0, 1);  // 2^-24
  EXPECT_EQ(exponents_of(Dtype::kF16, tiny.data(), 2).smallest, 127 - 24);
}

TEST(Exponents, AreWideFromAGapOnThatLeavesTwoBits) {
  EXPECT_EQ(exponent_gap_max(1), 28u);
  EXPECT_EQ(exponent_gap_max(2), 27u);
  EXPECT_EQ(exponent_gap_max(32), 23u);
  EXPECT_EQ(exponent_gap_max(64), 23u) << "more workers, more elements that are small by chance";
  EXPECT_EQ(exponent_gap_max(1024), 27u);
  EXPECT_EQ(exponent_gap_max(4096), 29u);
  const Exponents exponents{.largest = 120, .smallest = 100};
  EXPECT_FALSE(is_wide(exponents, 127, 27));
  EXPECT_TRUE(is_wide(exponents, 128, 27));
  EXPECT_FALSE(is_wide({}, 254, 27)) << "zeros lose nothing";
  for (const unsigned workers : {1U, 2U, 5U, 32U}) {
    const auto largest = static_cast<std::uint8_t>(130);
    const auto smallest = static_cast<std::uint8_t>(130 - exponent_gap_max(workers));
    const float least = std::bit_cast<float>(std::uint32_t{smallest} << 23);
    const Scale scale = block_scale(workers, largest, 32, 1.0F);
    EXPECT_EQ(least * scale.up[0] * scale.up[1], 4.0F) << "so its integer is 4, and an error of 1/2 is an eighth";
  }
}

TEST(MaxExponent, IsZeroForNothingAndForIntegers) {
  const Buffer ones(64, 0, std::byte{0xFF});
  EXPECT_EQ(max_exponent(Dtype::kF32, nullptr, 0), 0);
  EXPECT_EQ(max_exponent(Dtype::kI32, ones.data(), 16), 0);
  EXPECT_EQ(max_exponent(Dtype::kRaw, ones.data(), 64), 0);
}

TEST(Layout, IsPlanarTwosComplementBigEndian) {  // R2.14, R2.19, R5.17, R5.18
  set_default_float_environment();
  std::mt19937_64 random(5);
  for (const std::uint8_t bits : kLaneWidths) {
    const Format format{Dtype::kF32, Scaling::kFixed, bits};
    const Scale scale = fixed_scale(1, 1.0F, bits, 1.0F);
    for (std::size_t words = 1; words < 40; ++words) {
      for (std::size_t count = 0; count <= words * elements_per_word(format); ++count) {
        std::vector<std::int64_t> values(count);
        std::vector<float> elements(count);
        for (std::size_t i = 0; i < count; ++i) {
          const auto range = std::int64_t{1} << (bits == 32 ? 24 : bits - 1);
          values[i] = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(2 * range - 1)) - (range - 1);
          elements[i] = static_cast<float>(values[i]);
        }
        Buffer payload(4 * words, 1);
        quantise(format, scale, reinterpret_cast<const std::byte*>(elements.data()), count, payload.data(), words);
        ASSERT_TRUE(payload == reference_payload(values, words, bits)) << words << " words, " << count << " elements";
      }
    }
  }
}

TEST(Layout, MatchesAVectorWrittenByHand) {  // R5.17, R5.18
  const float elements[] = {1.0F, -2.0F, 3.0F, -4.0F};
  Buffer payload(4);
  quantise({Dtype::kF32, Scaling::kFixed, 8}, fixed_scale(1, 1.0F, 8, 1.0F),
           reinterpret_cast<const std::byte*>(elements), 4, payload.data(), 1);
  // 1 - 2 * 2^8 + 3 * 2^16 - 4 * 2^24 = 0xFC02FE01.
  const unsigned char expected[] = {0xFC, 0x02, 0xFE, 0x01};
  EXPECT_EQ(std::memcmp(payload.data(), expected, 4), 0);
}

TEST(FixedScale, SaturatesAndNeverOverflows) {
  set_default_float_environment();
  std::mt19937_64 random(11);
  for (const Dtype dtype : kFloatDtypes) {
    for (const std::uint8_t bits : kLaneWidths) {
      for (unsigned workers = 1; workers <= 32; ++workers) {
        const Format format{dtype, Scaling::kFixed, bits};
        const Scale scale = fixed_scale(workers, 1000.0F, bits, 1.0F);
        const std::size_t words = 21;
        const std::size_t count = words * elements_per_word(format);
        Buffer source(count * element_bytes(dtype));
        for (std::size_t i = 0; i < count; ++i) put_bits(dtype, source, i, random_bits(dtype, random, false));
        Buffer payload(4 * words);
        quantise(format, scale, source.data(), count, payload.data(), words);
        const auto lanes = reference_lanes(payload, words, bits);
        Buffer sum(4 * words, 0, std::byte{0});
        for (unsigned worker = 0; worker < workers; ++worker) numeric::accumulate(sum.data(), payload.data(), words);
        const auto sums = reference_lanes(sum, words, bits);
        for (std::size_t i = 0; i < count; ++i) {
          const double value = get(dtype, source, i);
          ASSERT_EQ(sums[i], lanes[i] * workers);
          if (std::isnan(value)) {
            ASSERT_EQ(lanes[i], 0);
          } else if (std::abs(value) * 1000.0 > scale.limit) {
            ASSERT_EQ(lanes[i], value > 0 ? scale.limit : -scale.limit);
          } else {
            ASSERT_LE(std::abs(static_cast<double>(lanes[i]) - value * 1000.0), 0.5 + std::abs(value) * 1e-4);
          }
        }
      }
    }
  }
}

TEST(FixedScale, UndoesTheScalingForEveryFactor) {
  set_default_float_environment();
  const Format format{Dtype::kF32, Scaling::kFixed, 32};
  // The factors go from the smallest subnormal to the largest number.
  for (const float factor :
       {0x1p-149F, 0x1.8p-140F, 0x1p-126F, 1e-20F, 0.3F, 1.0F, 1000.0F, 1e20F, 0x1p127F, 3.4e38F}) {
    const Scale scale = fixed_scale(2, factor, 32, 1.0F);
    Buffer payload(4, 0, std::byte{0});
    payload.data()[2] = std::byte{0x30};  // the lane 12345
    payload.data()[3] = std::byte{0x39};
    Buffer result(4);
    dequantise(format, scale, payload.data(), 1, result.data(), 1);
    const double expected = 12345.0 / static_cast<double>(factor);
    const double actual = get(Dtype::kF32, result, 0);
    if (expected > 3.5e38) {
      EXPECT_TRUE(std::isinf(actual)) << factor;
    } else {
      EXPECT_NEAR(actual / expected, 1.0, 0x1p-22) << factor;
    }
  }
}

TEST(FixedScale, NanComesFromAScaleThatIsNoPositiveNumber) {
  const Format format{Dtype::kF32, Scaling::kFixed, 16};
  for (const float factor : {0.0F, -1.0F, INFINITY, NAN}) {
    const Scale scale = fixed_scale(2, factor, 16, 1.0F);
    const Buffer payload(4);
    Buffer result(8);
    dequantise(format, scale, payload.data(), 1, result.data(), 2);
    EXPECT_TRUE(std::isnan(get(Dtype::kF32, result, 0)) && std::isnan(get(Dtype::kF32, result, 1))) << factor;
  }
}

TEST(Int32, IsExactAndWraps) {  // R5.14
  const Format format{Dtype::kI32, Scaling::kNone, 32};
  std::mt19937_64 random(13);
  std::vector<std::uint32_t> expected(45, 0);
  Buffer sum(4 * 45, 0, std::byte{0});
  for (int worker = 0; worker < 32; ++worker) {
    Buffer source(4 * 45);
    for (std::size_t i = 0; i < 45; ++i) {
      const auto value = static_cast<std::uint32_t>(random());
      put_bits(Dtype::kI32, source, i, value);
      expected[i] += value;
    }
    Buffer payload(4 * 45);
    quantise(format, Scale{}, source.data(), 45, payload.data(), 45);
    numeric::accumulate(sum.data(), payload.data(), 45);
  }
  Buffer result(4 * 45);
  dequantise(format, Scale{}, sum.data(), 45, result.data(), 45);
  EXPECT_EQ(std::memcmp(result.data(), expected.data(), 4 * 45), 0);
}

TEST(Int32, InNarrowLanesIsTakenModuloTheirWidth) {
  std::mt19937_64 random(17);
  for (const std::uint8_t bits : {std::uint8_t{16}, std::uint8_t{8}}) {
    const Format format{Dtype::kI32, Scaling::kNone, bits};
    const std::size_t count = 33 * elements_per_word(format) - 5;
    Buffer source(4 * count);
    for (std::size_t i = 0; i < count; ++i) put_bits(Dtype::kI32, source, i, static_cast<std::uint32_t>(random()));
    Buffer payload(4 * 33);
    Buffer result(4 * count);
    quantise(format, Scale{}, source.data(), count, payload.data(), 33);
    dequantise(format, Scale{}, payload.data(), 33, result.data(), count);
    for (std::size_t i = 0; i < count; ++i) {
      std::int32_t before;
      std::int32_t after;
      std::memcpy(&before, source.data() + 4 * i, 4);
      std::memcpy(&after, result.data() + 4 * i, 4);
      ASSERT_EQ(after, bits == 16 ? static_cast<std::int16_t>(before) : static_cast<std::int8_t>(before));
    }
  }
}

TEST(Raw, CarriesBytesInOrderAndZerosAfterThem) {  // R2.19, R5.16
  const Format format{Dtype::kRaw, Scaling::kNone, 8};
  for (std::size_t count = 0; count <= 40; ++count) {
    Buffer source(count, 1);
    for (std::size_t i = 0; i < count; ++i) source.data()[i] = static_cast<std::byte>(i + 1);
    Buffer payload(40, 3);
    quantise(format, Scale{}, source.data(), count, payload.data(), 10);
    EXPECT_TRUE(count == 0 || std::memcmp(payload.data(), source.data(), count) == 0);
    for (std::size_t i = count; i < 40; ++i) ASSERT_EQ(payload.data()[i], std::byte{0});
    Buffer result(count, 5);
    dequantise(format, Scale{}, payload.data(), 10, result.data(), count);
    EXPECT_TRUE(result == source);
  }
}

TEST(Dequantise, MayWriteOverTheSource) {
  set_default_float_environment();
  const Format format{Dtype::kF32, Scaling::kBlockExponent, 16};
  Buffer tensor(4 * 90);
  std::mt19937_64 random(19);
  fill_gradient(Dtype::kF32, tensor, 90, 0x3F800000U, 3, random);
  const Scale scale = block_scale(2, max_exponent(Dtype::kF32, tensor.data(), 90), 16, 1.0F);
  Buffer payload(4 * 47);
  quantise(format, scale, tensor.data(), 90, payload.data(), 47);
  Buffer apart(4 * 90);
  dequantise(format, scale, payload.data(), 47, apart.data(), 90);
  dequantise(format, scale, payload.data(), 47, tensor.data(), 90);
  EXPECT_TRUE(tensor == apart);
}

TEST(FloatEnvironment, IsResetWhileNumericsRun) {
  std::thread([] {
#if defined(__x86_64__)
    _mm_setcsr(0x1F80 | 0x8040 | 0x6000);  // FTZ, DAZ, toward zero
#else
    std::fesetround(FE_TOWARDZERO);
#endif
    set_default_float_environment();
    const Format format{Dtype::kF32, Scaling::kBlockExponent, 32};
    const float tiny[] = {0x1p-149F, -0x1.8p-140F};
    const Scale scale = block_scale(1, 0, 32, 1.0F);
    Buffer payload(8);
    Buffer result(8);
    quantise(format, scale, reinterpret_cast<const std::byte*>(tiny), 2, payload.data(), 2);
    dequantise(format, scale, payload.data(), 2, result.data(), 2);
    EXPECT_EQ(std::memcmp(result.data(), tiny, 8), 0) << "subnormals were flushed";
    const float halves[] = {1.5F, 2.5F};
    quantise({Dtype::kF32, Scaling::kFixed, 32}, fixed_scale(1, 1.0F, 32, 1.0F),
             reinterpret_cast<const std::byte*>(halves), 2, payload.data(), 2);
    EXPECT_EQ(reference_lanes(payload, 2, 32), (std::vector<std::int64_t>{2, 2})) << "not to nearest even";
  }).join();
}

}  // namespace
}  // namespace wiresum::numeric::testing
