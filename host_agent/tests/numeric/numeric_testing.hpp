// Shared by the numeric tests: random elements of every kind, buffers of exact size, and a reference of the wire format
// that is written from format.hpp's text in 64-bit integers and shares no code with the kernels.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "numeric/codec.hpp"
#include "numeric/kernels.hpp"

namespace wiresum::numeric::testing {

inline constexpr Dtype kFloatDtypes[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};
inline constexpr std::uint8_t kLaneWidths[] = {32, 16, 8};

inline const char* name_of(Dtype dtype) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16", "e4m3", "e5m2", "i32", "raw"};
  return kNames[static_cast<std::size_t>(dtype)];
}

/// All instruction sets, the scalar one included.
inline std::vector<const Kernels*> all_tables() {
  const Kernels* tables[kKernelTablesMax];
  return {tables, tables + supported_kernels(tables)};
}

/// The largest exponent of all elements, 255 if one is not finite.
inline std::uint8_t max_exponent(Dtype dtype, const std::byte* source, std::size_t count,
                                 const Kernels& kernels = active_kernels()) {
  const Exponents exponents = exponents_of(dtype, source, count, kernels);
  return exponents.not_finite ? kExponentNotFinite : exponents.largest;
}

/// A heap block of exactly `bytes` bytes that starts `misalignment` past an aligned address, so that AddressSanitizer
/// detects any access beyond its end.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes, std::size_t misalignment = 0, std::byte fill = std::byte{0xA5})
      : misalignment_(misalignment), bytes_(bytes), block_(new std::byte[misalignment + bytes]) {
    if (bytes > 0) std::memset(data(), static_cast<int>(fill), bytes);
  }
  std::byte* data() { return block_.get() + misalignment_; }
  const std::byte* data() const { return block_.get() + misalignment_; }
  std::size_t size() const { return bytes_; }
  bool operator==(const Buffer& other) const {
    return bytes_ == other.bytes_ && (bytes_ == 0 || std::memcmp(data(), other.data(), bytes_) == 0);
  }

 private:
  std::size_t misalignment_;
  std::size_t bytes_;
  std::unique_ptr<std::byte[]> block_;
};

inline double value_of_half(std::uint16_t half) {
  const int exponent = (half >> 10) & 0x1F;
  const int mantissa = half & 0x3FF;
  const double sign = (half & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

inline double get(Dtype dtype, const Buffer& buffer, std::size_t i) {
  if (dtype == Dtype::kF32) {
    float value;
    std::memcpy(&value, buffer.data() + 4 * i, 4);
    return static_cast<double>(value);
  }
  std::uint16_t bits;
  std::memcpy(&bits, buffer.data() + 2 * i, 2);
  if (dtype == Dtype::kF16) return value_of_half(bits);
  return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
}

inline void put_bits(Dtype dtype, Buffer& buffer, std::size_t i, std::uint32_t bits) {
  const std::size_t bytes = element_bytes(dtype);
  const auto narrow = static_cast<std::uint16_t>(bits);
  std::memcpy(buffer.data() + bytes * i, bytes == 2 ? static_cast<const void*>(&narrow) : &bits, bytes);
}

/// A number that every float dtype has, or an Inf, a NaN or a zero.
inline void put(Dtype dtype, Buffer& buffer, std::size_t i, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (dtype == Dtype::kF32) return put_bits(dtype, buffer, i, bits);
  if (dtype == Dtype::kBF16) return put_bits(dtype, buffer, i, bits >> 16);
  const std::uint32_t exponent = bits >> 23 & 0xFF;
  const std::uint32_t half = exponent == 0 ? 0 : exponent == 255 ? 31 : exponent - 112;
  put_bits(dtype, buffer, i, (bits >> 16 & 0x8000) | half << 10 | (bits >> 13 & 0x3FF));
}

inline std::uint32_t sign_bit(Dtype dtype) { return element_bytes(dtype) == 4 ? 0x80000000U : 0x8000U; }
inline std::uint32_t infinity_bits(Dtype dtype) {
  return dtype == Dtype::kF32 ? 0x7F800000U : dtype == Dtype::kF16 ? 0x7C00U : 0x7F80U;
}
inline std::uint32_t largest_bits(Dtype dtype) { return infinity_bits(dtype) - 1; }

/// Random bit patterns: every sign, exponent and mantissa, subnormals, and (unless `finite`) Inf and NaN.
inline std::uint32_t random_bits(Dtype dtype, std::mt19937_64& random, bool finite) {
  const std::uint32_t infinity = infinity_bits(dtype);
  const std::uint32_t sign = (random() & 1U) != 0 ? sign_bit(dtype) : 0;
  switch (random() % 16) {
    case 0:
      return sign;  // zero
    case 1:
      return sign | largest_bits(dtype);
    case 2:
      return sign | static_cast<std::uint32_t>(random() % 64);  // subnormal
    case 3:
      return finite ? sign | 1U : sign | infinity;
    case 4:
      return finite ? sign : sign | infinity | 1U;  // a signalling NaN
    default:
      return sign | static_cast<std::uint32_t>(random() % infinity);
  }
}

/// One worker's chunk, with magnitudes within `binades` binades below `top_bits`.
inline void fill_gradient(Dtype dtype, Buffer& buffer, std::size_t count, std::uint32_t top_bits, unsigned binades,
                          std::mt19937_64& random) {
  const unsigned mantissa_bits = dtype == Dtype::kF32 ? 23 : dtype == Dtype::kF16 ? 10 : 7;
  const std::uint32_t span = binades << mantissa_bits;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t below = static_cast<std::uint32_t>(random() % (static_cast<std::uint64_t>(span) + 1));
    const std::uint32_t magnitude = below > top_bits ? 0 : top_bits - below;
    put_bits(dtype, buffer, i, magnitude | ((random() & 1U) != 0 ? sign_bit(dtype) : 0));
  }
}

/// The lanes of a payload, from format.hpp's text: word = sum of value_j * 2^(bits * j), low lane first.
inline std::vector<std::int64_t> reference_lanes(const Buffer& payload, std::size_t words, unsigned bits) {
  const unsigned lanes = 32 / bits;
  std::vector<std::int64_t> values(words * lanes);
  for (std::size_t word = 0; word < words; ++word) {
    std::int64_t rest = 0;
    for (std::size_t byte = 0; byte < 4; ++byte) {
      rest = rest * 256 + std::to_integer<std::int64_t>(payload.data()[4 * word + byte]);
    }
    for (unsigned lane = 0; lane < lanes; ++lane) {
      const std::int64_t modulus = std::int64_t{1} << bits;
      std::int64_t value = ((rest % modulus) + modulus) % modulus;
      if (value >= modulus / 2) value -= modulus;
      values[lane * words + word] = value;
      rest = (rest - value) / modulus;
    }
  }
  return values;
}

/// The inverse of reference_lanes.
inline Buffer reference_payload(const std::vector<std::int64_t>& values, std::size_t words, unsigned bits) {
  Buffer payload(4 * words);
  for (std::size_t word = 0; word < words; ++word) {
    std::uint64_t packed = 0;
    for (std::size_t lane = 0; lane * words + word < values.size(); ++lane) {
      packed += static_cast<std::uint64_t>(values[lane * words + word]) << (bits * lane);
    }
    for (std::size_t byte = 0; byte < 4; ++byte) {
      payload.data()[4 * word + byte] = static_cast<std::byte>((packed >> (24 - 8 * byte)) & 0xFFU);
    }
  }
  return payload;
}

}  // namespace wiresum::numeric::testing
