// Quantises and dequantises one chunk. Pure; SIMD behind one run-time dispatch (kernels.hpp).
#pragma once

#include <cfenv>
#include <cstddef>
#include <cstdint>

#include "numeric/format.hpp"

namespace wiresum::numeric {

inline constexpr std::uint8_t kExponentZero = 0;         // all elements zero or subnormal
inline constexpr std::uint8_t kExponentNotFinite = 255;  // stands for Inf and NaN

struct Kernels;
/// The kernels (kernels.hpp) of the processor's best instruction set, or of the one that the environment variable
/// WIRESUM_SIMD names; chosen at the first use. Tests and benchmarks pass others to the functions below.
[[nodiscard]] const Kernels& active_kernels() noexcept;

/// Biased fp32 exponents (0..254) among a chunk's elements; fp16 and bf16 count as their fp32 value.
struct Exponents {
  std::uint8_t largest = kExponentZero;   // among finite elements
  std::uint8_t smallest = kExponentZero;  // among finite elements that are neither zero nor subnormal; 0 without any
  bool not_finite = false;                // an Inf or a NaN is among the elements
};

/// Finds the exponents of `count` elements: all 0 for an empty chunk and for types without a scale.
[[nodiscard]] Exponents exponents_of(Dtype dtype, const std::byte* source, std::size_t count,
                                     const Kernels& kernels = active_kernels()) noexcept;

/// How far below a chunk's largest exponent one of its elements may be, in block floating point with 32 bits. With up
/// to 32 workers an element keeps its two leading bits at least, and loses an eighth of itself at most. More workers
/// leave fewer bits: the distance is then 2^(17 + ceil(log2 N)). About 1 chunk of ordinary numbers in 150 has an
/// element that is small by chance and further away (docs/numerics.md).
[[nodiscard]] unsigned exponent_gap_max(unsigned workers) noexcept;

/// True if an element lies more than `gap_max` below the exponent `largest`, which all workers have agreed on.
[[nodiscard]] inline bool is_wide(const Exponents& exponents, std::uint8_t largest, unsigned gap_max) noexcept {
  return exponents.smallest != kExponentZero && exponents.smallest + gap_max < largest;
}

/// The result of a look at a block of a tensor.
struct BlockScan {
  bool present = false;        // not every element is zero; -0.0 counts as zero, since it adds nothing
  bool negative_zero = false;  // the block is not present, but some element is -0.0
};

/// Scans `count` elements of a dtype that is summed (not kRaw). A block that does not begin with zeros is not read
/// further: its exponent is computed right before the block is quantised, so that a dense tensor is read from memory
/// once. Blocks are expected to be scanned in order.
[[nodiscard]] BlockScan scan_block(Dtype dtype, const std::byte* source, std::size_t count,
                                   const Kernels& kernels = active_kernels()) noexcept;

/// Scans each block of `step` elements among `count`; the last block may be shorter.
void scan_blocks(Dtype dtype, const std::byte* source, std::size_t count, std::size_t step, BlockScan* scans,
                 const Kernels& kernels = active_kernels()) noexcept;

/// The factors of a chunk: from floats to integers, and from the sum back.
///
/// Block floating point, N workers, agreed exponent m (1..254; 0 counts as 1, for subnormals have
/// exponent 1's scale): scale = 2^(bits - 2 - ceil(log2 N) - (m - 127)), a power of two, so that
/// scaling is exact. `limit` bounds one worker's lane so that N of them cannot overflow:
/// 2^(bits - 1 - ceil(log2 N)) - 1, cut to an fp32 number. With 32-bit lanes of at most 128 workers no
/// element of a block exceeds it (codec.cpp).
struct Scale {
  // Two factors, since 2^156 is no fp32 number: x * up[0] * up[1], then round to nearest even.
  float up[2] = {1.0F, 1.0F};
  float down[2] = {1.0F, 1.0F};
  std::int32_t limit = 0x7FFFFFFF;  // lanes are clamped to [-limit, limit]
  float divisor = 1.0F;             // AVG divides by N, correctly rounded, after scaling back
  bool not_finite = false;          // the caller's scale makes no sense: all elements become NaN
};

[[nodiscard]] Scale block_scale(unsigned workers, std::uint8_t exponent, unsigned bits, float divisor) noexcept;
[[nodiscard]] Scale fixed_scale(unsigned workers, float scale, unsigned bits, float divisor) noexcept;

/// Writes `words` big-endian words from `count` elements (count <= words * elements_per_word; the rest of the
/// lanes are zero). Rounds to nearest even. `payload` need not be aligned.
void quantise(Format format, const Scale& scale, const std::byte* source, std::size_t count, std::byte* payload,
              std::size_t words, const Kernels& kernels = active_kernels()) noexcept;

/// Writes `count` elements from the summed words. `destination` may be the quantiser's `source`.
void dequantise(Format format, const Scale& scale, const std::byte* payload, std::size_t words, std::byte* destination,
                std::size_t count, const Kernels& kernels = active_kernels()) noexcept;

/// Writes what quantise() would put into lanes of 32 bits, as integers of the host's byte order: one for each element
/// of a dtype that is summed. The scale may belong to narrower lanes.
void to_integers(Dtype dtype, const Scale& scale, const std::byte* source, std::size_t count, std::int32_t* integers,
                 const Kernels& kernels = active_kernels()) noexcept;
/// Inverts to_integers().
void from_integers(Dtype dtype, const Scale& scale, const std::int32_t* integers, std::byte* destination,
                   std::size_t count, const Kernels& kernels = active_kernels()) noexcept;

/// Packs integers into lanes of 8 or 16 bits, planar as in format.hpp, in words of the host's byte order, which a sum
/// of int32 adds. `count` <= words * (32 / bits).
void pack_lanes(unsigned bits, const std::int32_t* integers, std::size_t count, std::uint32_t* packed,
                std::size_t words, const Kernels& kernels = active_kernels()) noexcept;
void unpack_lanes(unsigned bits, const std::uint32_t* packed, std::size_t words, std::int32_t* integers,
                  std::size_t count, const Kernels& kernels = active_kernels()) noexcept;

/// cell[i] += payload[i] for big-endian words, modulo 2^32: the switch's adder.
void accumulate(std::byte* cell, const std::byte* payload, std::size_t words) noexcept;

/// Gives the calling thread the floating-point environment in which the results above are promised: round to
/// nearest even, subnormals as numbers. A thread inherits the environment of its creator.
void set_default_float_environment() noexcept;

/// Gives the calling thread that environment for the object's lifetime.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() noexcept;
  ~DefaultFloatEnvironment();
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t before_{};
};

/// The name of active_kernels(): "scalar", "sse2", "avx2", "avx512" (or "portable" where the processor is not x86-64).
[[nodiscard]] const char* instruction_set() noexcept;

}  // namespace wiresum::numeric
