// Every instruction set equals the scalar reference bit for bit, and the scalar conversions equal their definition.
#include "numeric/kernels.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "numeric_testing.hpp"

namespace wiresum::numeric::testing {
namespace {

std::vector<const Kernels*> vector_tables() {
  const Kernels* tables[kKernelTablesMax];
  const std::size_t count = supported_kernels(tables);
  return {tables + 1, tables + count};
}

/// Lengths around every vector width, lengths of real packets, and one other.
constexpr std::size_t kWords[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 101, 360};

std::vector<std::size_t> counts_for(std::size_t words, std::size_t per_word, std::mt19937_64& random) {
  const std::size_t most = words * per_word;
  std::vector<std::size_t> counts = {0, most};
  for (const std::size_t count : {std::size_t{1}, words / 2, words - 1, words, words + 1, most - 1, most / 2 + 3}) {
    if (count < most) counts.push_back(count);
  }
  for (int i = 0; i < 4; ++i) counts.push_back(random() % (most + 1));
  return counts;
}

struct Case {
  const Kernels* kernels;
  Format format;
};

class VectorKernels : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { set_default_float_environment(); }
  std::mt19937_64 random_{20240607};
};

class VectorFloatKernels : public VectorKernels {};

Scale random_scale(Format format, std::mt19937_64& random) {
  const auto workers = static_cast<unsigned>(1 + random() % 32);
  const float divisor = (random() & 1U) != 0 ? static_cast<float>(workers) : 1.0F;
  if (format.scaling == Scaling::kFixed) {
    return fixed_scale(
        workers,
        std::ldexp(1.0F + static_cast<float>(random() % 1000) / 1000.0F, static_cast<int>(random() % 200) - 100),
        format.bits, divisor);
  }
  return block_scale(workers, static_cast<std::uint8_t>(random() % 255), format.bits, divisor);
}

TEST_P(VectorKernels, QuantiseAsScalarDoes) {
  const auto [kernels, format] = GetParam();
  const std::size_t bytes = element_bytes(format.dtype);
  for (const std::size_t words : kWords) {
    for (const std::size_t count : counts_for(words, elements_per_word(format), random_)) {
      Buffer source(count * bytes, bytes * (random_() % 4));
      for (std::size_t i = 0; i < count; ++i) {
        put_bits(format.dtype, source, i,
                 format.dtype == Dtype::kI32 ? static_cast<std::uint32_t>(random_())
                                             : random_bits(format.dtype, random_, /*finite=*/false));
      }
      const Scale scale = random_scale(format, random_);
      Buffer expected(4 * words);
      Buffer actual(4 * words, random_() % 8);
      quantise(format, scale, source.data(), count, expected.data(), words, kKernelsScalar);
      quantise(format, scale, source.data(), count, actual.data(), words, *kernels);
      ASSERT_TRUE(actual == expected) << "words " << words << ", count " << count;
    }
  }
}

TEST_P(VectorKernels, DequantiseAsScalarDoes) {
  const auto [kernels, format] = GetParam();
  const std::size_t bytes = element_bytes(format.dtype);
  for (const std::size_t words : kWords) {
    for (const std::size_t count : counts_for(words, elements_per_word(format), random_)) {
      Buffer payload(4 * words, random_() % 8);
      for (std::size_t i = 0; i < payload.size(); ++i) payload.data()[i] = static_cast<std::byte>(random_() & 0xFFU);
      const Scale scale = random_scale(format, random_);
      Buffer expected(count * bytes);
      Buffer actual(count * bytes, bytes * (random_() % 4));
      dequantise(format, scale, payload.data(), words, expected.data(), count, kKernelsScalar);
      dequantise(format, scale, payload.data(), words, actual.data(), count, *kernels);
      ASSERT_TRUE(actual == expected) << "words " << words << ", count " << count;
    }
  }
}

// Scaling makes no NaN and no Inf, but a conversion to bf16 has to handle them.
TEST_P(VectorFloatKernels, StoreNanAndInfinityAsScalarDoes) {
  const auto [kernels, format] = GetParam();
  const std::size_t lane = format.bits == 32 ? 0 : format.bits == 16 ? 1 : 2;
  const auto dtype = static_cast<std::size_t>(format.dtype);
  constexpr std::size_t kCount = 37;
  const Buffer payload(4 * kCount, 0, std::byte{0x11});
  for (const std::uint32_t bits : {0x7F800000U, 0xFF800000U, 0x7FC00000U, 0xFFFFFFFFU, 0x7F800001U, 0x7FFFFFFFU}) {
    const DequantiseFactors factors = {{std::bit_cast<float>(bits), 1.0F}, 1.0F};
    Buffer expected(kCount * element_bytes(format.dtype));
    Buffer actual(kCount * element_bytes(format.dtype));
    kKernelsScalar.dequantise[dtype][lane](factors, payload.data(), kCount, expected.data(), kCount);
    kernels->dequantise[dtype][lane](factors, payload.data(), kCount, actual.data(), kCount);
    ASSERT_TRUE(actual == expected) << std::hex << bits;
    EXPECT_EQ(std::isnan(get(format.dtype, actual, 0)), std::isnan(std::bit_cast<float>(bits)));
  }
}

TEST_P(VectorKernels, FindTheExponentsAsScalarDoes) {
  const auto [kernels, format] = GetParam();
  for (std::size_t count = 0; count < 200; ++count) {
    Buffer source(count * element_bytes(format.dtype), element_bytes(format.dtype));
    for (std::size_t i = 0; i < count; ++i) {
      put_bits(format.dtype, source, i,
               random_bits(format.dtype == Dtype::kI32 ? Dtype::kF32 : format.dtype, random_, count % 2 == 0));
    }
    const Exponents found = exponents_of(format.dtype, source.data(), count, *kernels);
    const Exponents expected = exponents_of(format.dtype, source.data(), count, kKernelsScalar);
    ASSERT_EQ(found.largest, expected.largest) << "count " << count;
    ASSERT_EQ(found.smallest, expected.smallest) << "count " << count;
    ASSERT_EQ(found.not_finite, expected.not_finite) << "count " << count;
  }
}

TEST_P(VectorFloatKernels, FindTheMaximumAtEveryPosition) {
  const auto [kernels, format] = GetParam();
  for (const std::size_t count : {1, 7, 16, 33, 64, 100, 129}) {
    for (std::size_t at = 0; at < count; ++at) {
      Buffer source(count * element_bytes(format.dtype), 0, std::byte{0});
      put_bits(format.dtype, source, at, infinity_bits(format.dtype) | sign_bit(format.dtype));
      ASSERT_EQ(max_exponent(format.dtype, source.data(), count, *kernels), 255) << at << " of " << count;
    }
  }
}

TEST_P(VectorFloatKernels, FindTheMinimumAtEveryPositionAndSkipZeros) {
  const auto [kernels, format] = GetParam();
  for (const std::size_t count : {1, 7, 16, 33, 64, 100, 129}) {
    for (std::size_t at = 0; at < count; ++at) {
      Buffer source(count * element_bytes(format.dtype), 0, std::byte{0});
      for (std::size_t i = 0; i < count; i += 3) put(format.dtype, source, i, i % 2 == 0 ? 4.0F : -0.0F);
      put(format.dtype, source, at, -0.25F);
      const Exponents found = exponents_of(format.dtype, source.data(), count, *kernels);
      ASSERT_EQ(found.smallest, 125) << at << " of " << count;
      ASSERT_EQ(found.largest, count > 1 && at != 0 ? 129 : count > 6 ? 129 : 125) << at << " of " << count;
    }
  }
}

TEST_P(VectorKernels, ScanABlockAsScalarDoes) {
  const auto [kernels, format] = GetParam();
  for (std::size_t count = 0; count < 200; ++count) {
    Buffer source(count * element_bytes(format.dtype), element_bytes(format.dtype), std::byte{0});
    for (std::size_t i = random_() % 3; i < count; i += 1 + random_() % 60) {  // mostly zeros of both signs
      put_bits(format.dtype, source, i,
               count % 3 == 0 ? sign_bit(format.dtype) : random_bits(format.dtype, random_, count % 2 == 0));
    }
    const BlockScan actual = scan_block(format.dtype, source.data(), count, *kernels);
    const BlockScan expected = scan_block(format.dtype, source.data(), count, kKernelsScalar);
    ASSERT_EQ(actual.present, expected.present) << "count " << count;
    ASSERT_EQ(actual.negative_zero, expected.negative_zero) << "count " << count;
  }
}

TEST_P(VectorKernels, ScanFindsASingleNonzeroElementAtEveryPosition) {
  const auto [kernels, format] = GetParam();
  for (const std::size_t count : {1, 7, 16, 33, 64, 100, 129, 400}) {
    for (std::size_t at = 0; at < count; ++at) {
      Buffer source(count * element_bytes(format.dtype), 0, std::byte{0});
      put_bits(format.dtype, source, at, 1);  // the smallest value, which no exponent shows
      ASSERT_TRUE(scan_block(format.dtype, source.data(), count, *kernels).present) << at << " of " << count;
      put_bits(format.dtype, source, at, sign_bit(format.dtype));
      const BlockScan sign = scan_block(format.dtype, source.data(), count, *kernels);
      const bool is_integer = format.dtype == Dtype::kI32;
      ASSERT_EQ(sign.present, is_integer) << at << " of " << count;
      ASSERT_EQ(sign.negative_zero, !is_integer) << at << " of " << count;
    }
  }
}

TEST_P(VectorKernels, ScanOfATensorEqualsTheScansOfItsBlocks) {
  const auto [kernels, format] = GetParam();
  const std::size_t bytes = element_bytes(format.dtype);
  for (const std::size_t step : {1, 3, 8, 33, 360}) {
    for (const std::size_t count : {std::size_t{0}, step - 1, step, 7 * step, 7 * step + step / 2}) {
      Buffer source(count * bytes, 0, std::byte{0});
      for (std::size_t at = 0; at < count; at += 1 + random_() % (2 * step)) {
        put_bits(format.dtype, source, at, (random_() & 1U) != 0 ? 1 : sign_bit(format.dtype));
      }
      std::vector<BlockScan> scans((count + step - 1) / step + 1);
      scans.back() = {.present = true, .negative_zero = true};  // must not be overwritten
      scan_blocks(format.dtype, source.data(), count, step, scans.data(), *kernels);
      for (std::size_t i = 0; i * step < count; ++i) {
        const std::size_t elements = std::min(step, count - i * step);
        const BlockScan expected = scan_block(format.dtype, source.data() + i * step * bytes, elements, kKernelsScalar);
        ASSERT_EQ(scans[i].present, expected.present) << "block " << i << " of " << step << ", count " << count;
        ASSERT_EQ(scans[i].negative_zero, expected.negative_zero) << "block " << i << " of " << step;
      }
      ASSERT_TRUE(scans.back().present && scans.back().negative_zero) << count << " by " << step;
    }
  }
}

TEST_P(VectorKernels, AccumulateAsScalarDoes) {
  const Kernels* const kernels = GetParam().kernels;
  for (std::size_t words = 0; words < 130; ++words) {
    Buffer payload(4 * words, random_() % 8);
    Buffer expected(4 * words);
    Buffer actual(4 * words, random_() % 8);
    for (std::size_t i = 0; i < 4 * words; ++i) {
      payload.data()[i] = static_cast<std::byte>(random_() & 0xFFU);
      expected.data()[i] = actual.data()[i] = static_cast<std::byte>(random_() & 0xFFU);
    }
    kKernelsScalar.accumulate(expected.data(), payload.data(), words);
    kernels->accumulate(actual.data(), payload.data(), words);
    ASSERT_TRUE(actual == expected) << "words " << words;
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Kernels* const kernels : vector_tables()) {
    for (const std::uint8_t bits : kLaneWidths) {
      for (const Dtype dtype : kFloatDtypes) {
        cases.push_back({kernels, {dtype, Scaling::kBlockExponent, bits}});
        cases.push_back({kernels, {dtype, Scaling::kFixed, bits}});
      }
      cases.push_back({kernels, {Dtype::kI32, Scaling::kNone, bits}});
    }
  }
  return cases;
}

std::vector<Case> float_cases() {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [](const Case& each) { return each.format.dtype == Dtype::kI32; });
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Format format = info.param.format;
  return std::string(info.param.kernels->name) + "_" + name_of(format.dtype) + "_" + std::to_string(format.bits) +
         (format.scaling == Scaling::kFixed ? "_fixed" : "");
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(VectorKernels);
INSTANTIATE_TEST_SUITE_P(InstructionSets, VectorKernels, ::testing::ValuesIn(all_cases()), case_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(VectorFloatKernels);
INSTANTIATE_TEST_SUITE_P(InstructionSets, VectorFloatKernels, ::testing::ValuesIn(float_cases()), case_name);

TEST(HalfConversion, ReadsAllHalvesExactly) {
  set_default_float_environment();
  Buffer source(2 * 65536);
  for (std::uint32_t i = 0; i < 65536; ++i) put_bits(Dtype::kF16, source, i, i);
  for (const Kernels* const kernels : all_tables()) {
    // Halves are multiples of 2^-24; below 32 in magnitude, times 2^24, they fit in 30 bits.
    Scale scale;
    scale.up[0] = 0x1p24F;
    scale.limit = (1 << 30) - 1;
    Buffer payload(4 * 65536);
    quantise({Dtype::kF16, Scaling::kFixed, 32}, scale, source.data(), 65536, payload.data(), 65536, *kernels);
    const auto lanes = reference_lanes(payload, 65536, 32);
    for (std::uint32_t i = 0; i < 65536; ++i) {
      const double value = value_of_half(static_cast<std::uint16_t>(i)) * 0x1p24;
      const double limit = (1 << 30) - 64;  // the largest fp32 number below 2^30
      const double expected = std::isnan(value) ? 0.0 : std::fmin(std::fmax(value, -limit), limit);
      ASSERT_EQ(static_cast<double>(lanes[i]), expected) << kernels->name << " " << std::hex << i;
    }
  }
}

// Tests every half, and between it and the next one the values just below, at and just above the middle.
TEST(HalfConversion, RoundsToNearestEvenAndOverflowsToInfinity) {
  set_default_float_environment();
  for (const Kernels* const kernels : all_tables()) {
    for (std::uint32_t half = 0; half < 0x7C00; ++half) {
      const double low = value_of_half(static_cast<std::uint16_t>(half));
      const double high = half == 0x7BFF ? 65536.0 : value_of_half(static_cast<std::uint16_t>(half + 1));
      const auto middle = static_cast<float>((low + high) / 2);
      const std::uint32_t even = half % 2 == 0 ? half : half + 1;
      const struct {
        float value;
        std::uint32_t expected;
      } points[] = {{static_cast<float>(low), half},
                    {std::nextafter(middle, 0.0F), half},
                    {middle, even},
                    {std::nextafter(middle, INFINITY), half + 1}};
      // One full vector of each value, produced from the lane 1 and a suitable scale.
      Buffer payload(4 * 16, 0, std::byte{0});
      for (std::size_t word = 0; word < 16; ++word) payload.data()[4 * word + 3] = std::byte{1};
      for (const auto& point : points) {
        const DequantiseFactors factors = {{point.value, 1.0F}, 1.0F};
        Buffer result(2 * 16);
        kernels->dequantise[1][0](factors, payload.data(), 16, result.data(), 16);
        std::uint16_t actual;
        std::memcpy(&actual, result.data() + 2 * 15, 2);
        ASSERT_EQ(actual, point.expected) << kernels->name << " " << std::hexfloat << point.value;
      }
    }
  }
}

TEST(Bfloat16Conversion, RoundsToNearestEven) {
  set_default_float_environment();
  Buffer payload(4 * 16, 0, std::byte{0});
  for (std::size_t word = 0; word < 16; ++word) payload.data()[4 * word + 3] = std::byte{1};
  for (const Kernels* const kernels : all_tables()) {
    for (std::uint32_t top = 0; top < 0x7F80; ++top) {
      for (const std::uint32_t low : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
        const bool up = low > 0x8000U || (low == 0x8000U && top % 2 == 1);
        const DequantiseFactors factors = {{std::bit_cast<float>(top << 16 | low), 1.0F}, 1.0F};
        Buffer result(2 * 16);
        kernels->dequantise[2][0](factors, payload.data(), 16, result.data(), 16);
        std::uint16_t actual;
        std::memcpy(&actual, result.data(), 2);
        ASSERT_EQ(actual, top + (up ? 1 : 0)) << kernels->name << " " << std::hex << top << " " << low;
      }
    }
  }
}

TEST(Dispatch, UsesTheInstructionSetOfTheEnvironmentOrTheBest) {
  const char* const wanted = std::getenv("WIRESUM_SIMD");
  const Kernels* const named = wanted == nullptr ? nullptr : find_kernels(wanted);
  EXPECT_STREQ(instruction_set(), named != nullptr ? named->name : all_tables().back()->name);
}

TEST(Dispatch, FindsNoUnknownTable) {
  EXPECT_EQ(find_kernels("neon"), nullptr);
  EXPECT_EQ(find_kernels(""), nullptr);
  EXPECT_EQ(find_kernels(kKernelsScalar.name), &kKernelsScalar);
}

}  // namespace
}  // namespace wiresum::numeric::testing
