// The codec's inner loops, once for each instruction set, and the choice between them.
//
// Theory of operation. One source (kernel_templates.hpp) uses a small vector type; each kernels_<set>.cpp defines the
// type with the intrinsics of its set, is compiled with the set's flags, and exports only a table of function pointers.
// Everything else in these files has internal linkage: an inline function with external linkage, compiled both with AVX
// flags and without, would be one symbol to the linker, which may keep the AVX copy for all callers (and crash an older
// machine). A test looks at the symbols.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/format.hpp"
#include "numeric/stochastic.hpp"

namespace wiresum::numeric {

struct QuantiseFactors {
  float up[2];
  float limit;  // an integer, at most 2^31 - 128, the largest fp32 below 2^31
};

struct DequantiseFactors {
  float down[2];
  float divisor;
};

/// Magnitudes as bits without the sign; for fp32 and bf16 only the exponents' bits. Inf and NaN count as magnitudes.
struct MagnitudeRange {
  std::uint32_t largest = 0;
  std::uint32_t smallest = 0;  // among magnitudes other than 0; 0 without any
};

/// The elements of a block of digit_sums.hpp.
inline constexpr std::size_t kDigitBlock = 256;

/// A block's largest magnitude, as bits without the sign, and the smallest less 1, where a zero counts as 2^32 - 1.
struct BlockRange {
  std::uint32_t largest;
  std::uint32_t smallest_less_1;
};

struct Kernels {
  using Quantise = void (*)(const QuantiseFactors&, const std::byte* source, std::size_t count, std::byte* payload,
                            std::size_t words) noexcept;
  using Dequantise = void (*)(const DequantiseFactors&, const std::byte* payload, std::size_t words,
                              std::byte* destination, std::size_t count) noexcept;

  using AddDigits = void (*)(const float* elements, std::int32_t low, std::uint32_t digit_bits,
                             std::int32_t* lanes) noexcept;

  const char* name;
  /// The largest and the smallest magnitude of `count` elements, by dtype (kF32, kF16, kBF16).
  MagnitudeRange (*magnitudes[3])(const std::byte* source, std::size_t count) noexcept;
  /// The bits that are set in any of the 32-bit words; the last of an odd number of 16-bit elements counts as a low
  /// half. Looks at the first cache line before the rest, and stops at a bit of `enough`: the result then has such a
  /// bit, and need not have others.
  std::uint32_t (*scan)(const std::byte* source, std::size_t bytes, std::uint32_t enough) noexcept;
  /// The codec's kernels by dtype up to kI32, without any for fp8, and lane width (32, 16, 8).
  Quantise quantise[6][3];
  Dequantise dequantise[6][3];
  void (*accumulate)(std::byte* cell, const std::byte* payload, std::size_t words) noexcept;
  /// The sum of the payload's words, each times its weight, modulo 2^32 (check_word.hpp).
  std::uint32_t (*weigh)(const std::uint32_t* weights, const std::byte* payload, std::size_t words) noexcept;

  // The kernels of digit_sums.hpp.
  BlockRange (*block_range)(const float* elements) noexcept;
  AddDigits add_digits;
  AddDigits add_top_digits;

  // The kernels of compressed gradients (stochastic.hpp).
  /// Words `first` to `first + count` of a draw; first + count <= kDrawWordsMax.
  void (*random_words)(const Draw&, std::uint64_t first, std::size_t count, std::uint32_t* words) noexcept;
  GradientKernels<float> float_gradients;
  GradientKernels<double> double_gradients;
  /// The codec's kernels with lanes of 32 bits, in words of the host's byte order, by dtype.
  Quantise to_integers[6];
  Dequantise from_integers[6];
  /// The kernels for int32 in words of the host's byte order, by lane width (32, 16, 8).
  Quantise pack[3];
  Dequantise unpack[3];
};

extern const Kernels kKernelsScalar;  // the reference, and the only table for processors other than x86-64
#if defined(__x86_64__)
extern const Kernels kKernelsSse2;
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
#endif

inline constexpr std::size_t kKernelTablesMax = 4;

/// The table of this name, or null if this build or this processor has none.
[[nodiscard]] const Kernels* find_kernels(const char* name) noexcept;

/// Fills `tables` with those that run on this processor, slowest first; returns their number.
std::size_t supported_kernels(const Kernels* (&tables)[kKernelTablesMax]) noexcept;

}  // namespace wiresum::numeric
