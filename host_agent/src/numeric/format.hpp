// The format in which the elements of a tensor become the 32-bit words that the switch adds, and back.
//
// A payload is `words` big-endian 32-bit words. With b-bit lanes (b = 32, 16, 8) a word carries
// 32 / b elements in *planar* order: element i of a chunk sits in word i % words, lane i / words,
// where lane 0 is the low-order one. Planar order makes packing a shift and an add of whole vectors,
// with no shuffle.
//
// Lanes are two's complement and packed arithmetically: word = sum over lanes j of value_j * 2^(b*j),
// modulo 2^32. A negative lane borrows from the lane above it, and unpacking undoes that from the low
// lane up. Addition of words then adds every lane exactly as long as each lane's *sum* fits its width.
// A zero vector is a zero word, so an EMPTY contribution adds nothing whatever the lane width.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/constants.hpp"

namespace wiresum::numeric {

enum class Dtype : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kE4M3,  // fp8 as in OCP's OFP8 and PyTorch's float8_e4m3fn: no Inf, and NaN where all bits but the sign are set
  kE5M2,  // fp8 with the rules of IEEE 754
  kI32,
  kRaw,  // opaque bytes, carried bit for bit; only ever one contributor per chunk
};

enum class Scaling : std::uint8_t {
  kNone,           // kI32 and kRaw: elements are lanes; fp8: sums are exact (exact.hpp)
  kBlockExponent,  // block floating point: a power of two for each chunk, agreed in the previous round
  kFixed,          // the caller's scale for every chunk and worker
};

struct Format {
  Dtype dtype = Dtype::kF32;
  Scaling scaling = Scaling::kBlockExponent;
  std::uint8_t bits = 32;  // 32, 16 or 8; kRaw counts as 8 without packing
};

/// Bytes of one element in memory.
[[nodiscard]] constexpr std::size_t element_bytes(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kF32:
    case Dtype::kI32:
      return 4;
    case Dtype::kF16:
    case Dtype::kBF16:
      return 2;
    case Dtype::kE4M3:
    case Dtype::kE5M2:
    case Dtype::kRaw:
      return 1;
  }
  return 1;
}

/// True for floats that a scale makes integers.
[[nodiscard]] constexpr bool is_scaled(Dtype dtype) noexcept {
  return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16;
}

/// True for floats that only have exact sums.
[[nodiscard]] constexpr bool is_fp8(Dtype dtype) noexcept { return dtype == Dtype::kE4M3 || dtype == Dtype::kE5M2; }

/// The most workers whose floats fit lanes of so many bits: each worker's element has a range of -1 to 1 at least.
[[nodiscard]] constexpr unsigned workers_max(unsigned bits) noexcept { return bits == 8 ? 64 : wire::kJobWorkersMax; }

/// Elements that one 32-bit word carries.
[[nodiscard]] constexpr std::size_t elements_per_word(Format format) noexcept {
  return format.dtype == Dtype::kRaw ? 4 : 32u / format.bits;
}

/// True if the combination exists: kRaw, kI32 and fp8 take no scaling; other floats need one.
[[nodiscard]] constexpr bool valid(Format format) noexcept {
  const bool lanes = format.bits == 32 || format.bits == 16 || format.bits == 8;
  switch (format.dtype) {
    case Dtype::kF32:
    case Dtype::kF16:
    case Dtype::kBF16:
      return lanes && format.scaling != Scaling::kNone;
    case Dtype::kE4M3:
    case Dtype::kE5M2:
      return format.bits == 32 && format.scaling == Scaling::kNone;
    case Dtype::kI32:
      return lanes && format.scaling == Scaling::kNone;
    case Dtype::kRaw:
      return format.bits == 8 && format.scaling == Scaling::kNone;
  }
  return false;
}

}  // namespace wiresum::numeric
