// The kernels' source, for the kernels_<set>.cpp; reduction.cpp uses its conversions. Everything is in an unnamed
// namespace, so that each file gets its own copy, compiled for its own instruction set (kernels.hpp says why). For the
// same reason no function of the standard library is called here.
//
// A vector type V holds kWidth lanes of 32 bits and offers the operations that `One`, the vector of width one, defines
// in portable C++; vectors of floats and doubles have operators, too. `One` is the reference, and processes whatever is
// shorter than a vector.
//
// A payload is planar (format.hpp), so element i of lane j is `words` elements behind element i of lane j - 1, and a
// chunk that does not fill its payload splits the words in two runs: [0, rest) has one more lane in use than
// [rest, words). In each run the number of lanes in use is constant, and a compile-time parameter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/kernels.hpp"

namespace wiresum::numeric {
namespace {

template <class T>
[[gnu::always_inline]] inline T load_as(const std::byte* from) noexcept {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
[[gnu::always_inline]] inline void store_as(std::byte* to, T value) noexcept {
  __builtin_memcpy(to, &value, sizeof value);
}

/// Converts fp16 to fp32, exactly. Quiets a NaN, as the hardware does.
inline float float_from_half(std::uint16_t half) noexcept {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1FU;
  const std::uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0) {  // subnormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, magnitude) | sign);
  }
  if (exponent == 31) {
    const std::uint32_t quiet = mantissa != 0 ? 0x400000U : 0U;
    return __builtin_bit_cast(float, sign | 0x7F800000U | quiet | (mantissa << 13));
  }
  return __builtin_bit_cast(float, sign | ((exponent + 112) << 23) | (mantissa << 13));
}

/// Converts fp32 to fp16, to nearest even; 65520 and above become Inf, as IEEE 754 says.
inline std::uint16_t half_from_float(float value) noexcept {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t half;
  if (magnitude > 0x7F800000U) {  // NaN: keep the payload's top, quiet
    half = 0x7E00U | ((magnitude >> 13) & 0x3FFU);
  } else if (magnitude >= 0x47800000U) {  // 65536 and above
    half = 0x7C00U;
  } else if (magnitude < 0x38800000U) {
    // Below 2^-14 a half has steps of 2^-24, like fp32 in [0.5, 1): adding 0.5 rounds.
    const float aligned = __builtin_bit_cast(float, magnitude) + 0.5F;
    half = __builtin_bit_cast(std::uint32_t, aligned) - 0x3F000000U;
  } else {
    // A carry out of the mantissa rightly raises the exponent, at the top to that of Inf.
    half = (magnitude + 0xFFFU + ((magnitude >> 13) & 1U) - 0x38000000U) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

/// Converts fp32 to bf16, to nearest even. A NaN is cut and quieted: rounding could carry a NaN into Inf.
inline std::uint16_t bfloat_from_float(float value) noexcept {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits | 0x400000U) >> 16);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

struct One {
  static constexpr std::size_t kWidth = 1;
  using Float = float;
  using Int = std::uint32_t;  // unsigned, since lanes wrap

  static Float load_f32(const std::byte* from) noexcept { return load_as<float>(from); }
  static Float load_f16(const std::byte* from) noexcept { return float_from_half(load_as<std::uint16_t>(from)); }
  static Float load_bf16(const std::byte* from) noexcept {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(load_as<std::uint16_t>(from)) << 16);
  }
  static Int load_i32(const std::byte* from) noexcept { return load_as<std::uint32_t>(from); }
  static void store_f32(std::byte* to, Float value) noexcept { store_as(to, value); }
  static void store_f16(std::byte* to, Float value) noexcept { store_as(to, half_from_float(value)); }
  static void store_bf16(std::byte* to, Float value) noexcept { store_as(to, bfloat_from_float(value)); }
  static void store_i32(std::byte* to, Int value) noexcept { store_as(to, value); }

  static Int swap_to_big_endian(Int value) noexcept {
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap32(value) : value;
  }

  static Float broadcast(float value) noexcept { return value; }
  /// Clamps to [-limit, limit], a NaN to 0. Here and below values are selected without a branch: a branch on a
  /// gradient's sign would be mispredicted every other time.
  static Float clamp(Float value, Float limit) noexcept {
    const float number = value == value ? value : 0.0F;
    const float below = number < limit ? number : limit;
    return below > -limit ? below : -limit;
  }
  /// Rounds to nearest even; |value| < 2^31. From 2^23 on an fp32 number is an integer; below, adding 2^23 leaves no
  /// place for a fraction, so that the addition rounds.
  static Int round_to_int(Float value) noexcept {
    const auto bits = __builtin_bit_cast(std::uint32_t, value);
    const float magic = __builtin_bit_cast(float, (bits & 0x80000000U) | 0x4B000000U);  // +-2^23
    const float rounded = (value + magic) - magic;
    const bool is_integer = (bits & 0x7FFFFFFFU) >= 0x4B000000U;
    return static_cast<Int>(static_cast<std::int32_t>(is_integer ? value : rounded));
  }
  static Float to_float(Int value) noexcept { return static_cast<float>(static_cast<std::int32_t>(value)); }

  static Int add(Int a, Int b) noexcept { return a + b; }
  static Int subtract(Int a, Int b) noexcept { return a - b; }
  static Int multiply(Int a, Int b) noexcept { return a * b; }
  template <int kBits>
  static Int shift_left(Int value) noexcept {
    return value << kBits;
  }
  template <int kBits>
  static Int shift_right_arithmetic(Int value) noexcept {
    return static_cast<Int>(static_cast<std::int32_t>(value) >> kBits);
  }

  // Lanes of 64 bits hold doubles, and integers whose low 32 bits are random (stochastic_templates.hpp).
  static constexpr std::size_t kDoubles = 1;
  using Double = double;
  using Long = std::uint64_t;

  static Long count_from(std::uint32_t first) noexcept { return first; }
  static Long broadcast_long(std::uint32_t value) noexcept { return value; }
  static Long multiply_low(Long a, Long b) noexcept { return (a & 0xFFFFFFFFU) * (b & 0xFFFFFFFFU); }
  static Long high(Long value) noexcept { return value >> 32; }
  static Long xor_three(Long a, Long b, Long c) noexcept { return a ^ b ^ c; }
  static void store_low(std::uint32_t* to, Long value) noexcept { *to = static_cast<std::uint32_t>(value); }
  /// The low 32 bits times 2^-32, exactly.
  static Double fraction(Long value) noexcept { return static_cast<double>(value & 0xFFFFFFFFU) * 0x1p-32; }

  static Double load_double(const float* from) noexcept { return static_cast<double>(*from); }
  static Double load_double(const double* from) noexcept { return *from; }
  static Double load_double(const std::int32_t* from) noexcept { return static_cast<double>(*from); }
  static void store_double(float* to, Double value) noexcept { *to = static_cast<float>(value); }
  static void store_double(double* to, Double value) noexcept { *to = value; }
  static Double broadcast(double value) noexcept { return value; }
  static Double clamp(Double value, Double limit) noexcept {
    const double below = value < limit ? value : limit;
    return below > -limit ? below : -limit;
  }
  /// The floor must fit 32 bits.
  static void store_floor(std::int32_t* to, Double value) noexcept {
    const auto cut = static_cast<std::int32_t>(value);
    *to = cut - (value < static_cast<double>(cut) ? 1 : 0);
  }
};

template <class V, Dtype kDtype>
[[gnu::always_inline]] inline typename V::Float load_float(const std::byte* from) noexcept {
  if constexpr (kDtype == Dtype::kF32) {
    return V::load_f32(from);
  } else if constexpr (kDtype == Dtype::kF16) {
    return V::load_f16(from);
  } else {
    return V::load_bf16(from);
  }
}

template <class V, Dtype kDtype>
[[gnu::always_inline]] inline void store_float(std::byte* to, typename V::Float value) noexcept {
  if constexpr (kDtype == Dtype::kF32) {
    V::store_f32(to, value);
  } else if constexpr (kDtype == Dtype::kF16) {
    V::store_f16(to, value);
  } else {
    V::store_bf16(to, value);
  }
}

/// Extends the sign of the low kBits of each lane.
template <class V, unsigned kBits>
[[gnu::always_inline]] inline typename V::Int sign_extend(typename V::Int value) noexcept {
  if constexpr (kBits == 32) {
    return value;
  } else {
    return V::template shift_right_arithmetic<32 - kBits>(V::template shift_left<32 - kBits>(value));
  }
}

/// Factors as vectors, made once a run: a store through a byte pointer may alias the factors' struct, and would make
/// the compiler load the factors again for every vector.
template <class V>
struct WideQuantise {
  typename V::Float up0, up1, limit;
  explicit WideQuantise(const QuantiseFactors& factors) noexcept
      : up0(V::broadcast(factors.up[0])), up1(V::broadcast(factors.up[1])), limit(V::broadcast(factors.limit)) {}
};

template <class V>
struct WideDequantise {
  typename V::Float down0, down1, divisor;
  explicit WideDequantise(const DequantiseFactors& factors) noexcept
      : down0(V::broadcast(factors.down[0])),
        down1(V::broadcast(factors.down[1])),
        divisor(V::broadcast(factors.divisor)) {}
};

template <class V, Dtype kDtype, unsigned kBits>
[[gnu::always_inline]] inline typename V::Int element_to_lane(const WideQuantise<V>& factors,
                                                              const std::byte* from) noexcept {
  if constexpr (kDtype == Dtype::kI32) {
    return sign_extend<V, kBits>(V::load_i32(from));
  } else {
    const auto scaled = load_float<V, kDtype>(from) * factors.up0 * factors.up1;
    return V::round_to_int(V::clamp(scaled, factors.limit));
  }
}

template <class V, Dtype kDtype, bool kDivide>
[[gnu::always_inline]] inline void lane_to_element(const WideDequantise<V>& factors, typename V::Int lane,
                                                   std::byte* to) noexcept {
  if constexpr (kDtype == Dtype::kI32) {
    V::store_i32(to, lane);
  } else {
    auto value = V::to_float(lane) * factors.down0 * factors.down1;
    if constexpr (kDivide) value = value / factors.divisor;
    store_float<V, kDtype>(to, value);
  }
}

/// The bytes ahead that a kernel prefetches. Chunks of a tensor are mostly handled in order, but each is short, and
/// other memory is touched between two chunks, so the processor's own prefetching starts anew every time. A prefetch
/// beyond the end of the tensor does nothing.
inline constexpr std::size_t kPrefetchBytes = 4096;
inline constexpr std::size_t kCacheLine = 64;

/// Packs kWidth words. `stride` is the distance in bytes between the elements of adjacent lanes. Integers for the wire
/// are cut to their lanes. Integers for the host's words are not: one that exceeds its lane does no harm if the sum
/// over all workers fits.
template <class V, Dtype kDtype, unsigned kBits, unsigned kLanes, bool kHostOrder>
[[gnu::always_inline]] inline void pack(const WideQuantise<V>& factors, const std::byte* source, std::size_t stride,
                                        std::byte* payload) noexcept {
  constexpr unsigned kCut = kHostOrder ? 32 : kBits;
  if constexpr (V::kWidth > 1 && kLanes > 1) {  // the processor prefetches a single stream by itself
    for (unsigned lane = 0; lane < kLanes; ++lane) __builtin_prefetch(source + lane * stride + kPrefetchBytes);
  }
  auto packed = element_to_lane<V, kDtype, kCut>(factors, source);
  if constexpr (kLanes > 1) {
    packed = V::add(packed, V::template shift_left<kBits>(element_to_lane<V, kDtype, kCut>(factors, source + stride)));
  }
  if constexpr (kLanes > 2) {
    packed = V::add(packed,
                    V::template shift_left<2 * kBits>(element_to_lane<V, kDtype, kCut>(factors, source + 2 * stride)));
  }
  if constexpr (kLanes > 3) {
    packed = V::add(packed,
                    V::template shift_left<3 * kBits>(element_to_lane<V, kDtype, kCut>(factors, source + 3 * stride)));
  }
  if constexpr (kHostOrder) {
    V::store_i32(payload, packed);
  } else {
    V::store_i32(payload, V::swap_to_big_endian(packed));
  }
}

/// Unpacks from the low lane up: a lane's value is subtracted from the word, which also undoes the lane's borrow.
template <class V, Dtype kDtype, unsigned kBits, unsigned kLanes, bool kDivide>
[[gnu::always_inline]] inline void unpack(const WideDequantise<V>& factors, typename V::Int packed,
                                          std::byte* destination, std::size_t stride) noexcept {
  const auto lane = sign_extend<V, kBits>(packed);
  lane_to_element<V, kDtype, kDivide>(factors, lane, destination);
  if constexpr (kLanes > 1) {
    const auto rest = V::template shift_right_arithmetic<kBits>(V::subtract(packed, lane));
    unpack<V, kDtype, kBits, kLanes - 1, kDivide>(factors, rest, destination + stride, stride);
  }
}

/// Calls `at(V, word)` to cover the words [begin, end): by whole vectors, the last one moved back to end with the run
/// (some words are then done twice, with the same result), or one by one if the run is too short.
template <class V, class At>
[[gnu::always_inline]] inline void cover(std::size_t begin, std::size_t end, const At& at) noexcept {
  if (end - begin < V::kWidth) {
    for (std::size_t word = begin; word < end; ++word) at(One{}, word);
    return;
  }
  std::size_t word = begin;
  for (; word + V::kWidth <= end; word += V::kWidth) at(V{}, word);
  if (word < end) at(V{}, end - V::kWidth);
}

template <class V, Dtype kDtype, unsigned kBits, bool kHostOrder, unsigned kLanes>
void pack_run(const QuantiseFactors& factors, const std::byte* source, std::size_t words, unsigned lanes,
              std::size_t begin, std::size_t end, std::byte* payload) noexcept {
  if constexpr (kLanes == 0) {
    __builtin_memset(payload + 4 * begin, 0, 4 * (end - begin));
  } else if (lanes != kLanes) {
    pack_run<V, kDtype, kBits, kHostOrder, kLanes - 1>(factors, source, words, lanes, begin, end, payload);
  } else {
    constexpr std::size_t kBytes = element_bytes(kDtype);
    const WideQuantise<V> wide(factors);
    const WideQuantise<One> narrow(factors);
    cover<V>(begin, end, [&]<class W>(W, std::size_t word) __attribute__((always_inline)) {
      if constexpr (W::kWidth == V::kWidth) {
        pack<V, kDtype, kBits, kLanes, kHostOrder>(wide, source + kBytes * word, kBytes * words, payload + 4 * word);
      } else {
        pack<One, kDtype, kBits, kLanes, kHostOrder>(narrow, source + kBytes * word, kBytes * words,
                                                     payload + 4 * word);
      }
    });
  }
}

template <class V, bool kHostOrder>
[[gnu::always_inline]] inline typename V::Int load_word(const std::byte* from) noexcept {
  const auto word = V::load_i32(from);
  if constexpr (kHostOrder) {
    return word;
  } else {
    return V::swap_to_big_endian(word);
  }
}

template <class V, Dtype kDtype, unsigned kBits, bool kHostOrder, unsigned kLanes, bool kDivide>
void unpack_run(const DequantiseFactors& factors, const std::byte* payload, std::size_t words, unsigned lanes,
                std::size_t begin, std::size_t end, std::byte* destination) noexcept {
  if constexpr (kLanes > 0) {
    if (lanes != kLanes) {
      unpack_run<V, kDtype, kBits, kHostOrder, kLanes - 1, kDivide>(factors, payload, words, lanes, begin, end,
                                                                    destination);
      return;
    }
    constexpr std::size_t kBytes = element_bytes(kDtype);
    const WideDequantise<V> wide(factors);
    const WideDequantise<One> narrow(factors);
    cover<V>(begin, end, [&]<class W>(W, std::size_t word) __attribute__((always_inline)) {
      const auto packed = load_word<W, kHostOrder>(payload + 4 * word);
      if constexpr (W::kWidth == V::kWidth) {
        unpack<V, kDtype, kBits, kLanes, kDivide>(wide, packed, destination + kBytes * word, kBytes * words);
      } else {
        unpack<One, kDtype, kBits, kLanes, kDivide>(narrow, packed, destination + kBytes * word, kBytes * words);
      }
    });
  }
}

/// The places of `count` elements in `words` words: [0, rest) uses full + 1 lanes, [rest, words) uses full.
struct Fill {
  unsigned full = 0;
  std::size_t rest;
  Fill(std::size_t count, std::size_t words) noexcept : rest(count) {
    while (words > 0 && rest >= words) {  // at most four times
      rest -= words;
      ++full;
    }
  }
};

template <class V, Dtype kDtype, unsigned kBits, bool kHostOrder = false>
void quantise_chunk(const QuantiseFactors& factors, const std::byte* source, std::size_t count, std::byte* payload,
                    std::size_t words) noexcept {
  constexpr unsigned kLanes = 32 / kBits;
  const Fill fill(count, words);
  if (fill.rest > 0)
    pack_run<V, kDtype, kBits, kHostOrder, kLanes>(factors, source, words, fill.full + 1, 0, fill.rest, payload);
  if (fill.rest < words) {
    pack_run<V, kDtype, kBits, kHostOrder, kLanes>(factors, source, words, fill.full, fill.rest, words, payload);
  }
}

template <class V, Dtype kDtype, unsigned kBits, bool kHostOrder, bool kDivide>
void dequantise_runs(const DequantiseFactors& factors, const std::byte* payload, std::size_t words,
                     std::byte* destination, std::size_t count) noexcept {
  constexpr unsigned kLanes = 32 / kBits;
  const Fill fill(count, words);
  if (fill.rest > 0) {
    unpack_run<V, kDtype, kBits, kHostOrder, kLanes, kDivide>(factors, payload, words, fill.full + 1, 0, fill.rest,
                                                              destination);
  }
  if (fill.full > 0) {
    unpack_run<V, kDtype, kBits, kHostOrder, kLanes, kDivide>(factors, payload, words, fill.full, fill.rest, words,
                                                              destination);
  }
}

template <class V, Dtype kDtype, unsigned kBits, bool kHostOrder = false>
void dequantise_chunk(const DequantiseFactors& factors, const std::byte* payload, std::size_t words,
                      std::byte* destination, std::size_t count) noexcept {
  if (kDtype == Dtype::kI32 || factors.divisor == 1.0F) {
    dequantise_runs<V, kDtype, kBits, kHostOrder, false>(factors, payload, words, destination, count);
  } else {
    dequantise_runs<V, kDtype, kBits, kHostOrder, true>(factors, payload, words, destination, count);
  }
}

template <class V>
[[gnu::always_inline]] inline void add_word(std::byte* cell, const std::byte* payload) noexcept {
  const auto sum = V::add(load_word<V, false>(cell), load_word<V, false>(payload));
  V::store_i32(cell, V::swap_to_big_endian(sum));
}

/// The tail is done one by one, since a word must be added exactly once.
template <class V>
void accumulate_words(std::byte* cell, const std::byte* payload, std::size_t words) noexcept {
  std::size_t word = 0;
  for (; word + V::kWidth <= words; word += V::kWidth) add_word<V>(cell + 4 * word, payload + 4 * word);
  for (; word < words; ++word) add_word<One>(cell + 4 * word, payload + 4 * word);
}

template <class V>
std::uint32_t weigh_words(const std::uint32_t* weights, const std::byte* payload, std::size_t words) noexcept {
  const auto weighed = [=]<class W>(W, std::size_t word) __attribute__((always_inline)) {
    return W::multiply(W::load_i32(reinterpret_cast<const std::byte*>(weights + word)),
                       load_word<W, false>(payload + 4 * word));
  };
  std::size_t word = 0;
  std::uint32_t sum = 0;
  if (words >= V::kWidth) {
    auto sums = weighed(V{}, 0);
    for (word = V::kWidth; word + V::kWidth <= words; word += V::kWidth) sums = V::add(sums, weighed(V{}, word));
    std::byte lanes[4 * V::kWidth];
    V::store_i32(lanes, sums);
    for (std::size_t lane = 0; lane < V::kWidth; ++lane) sum += load_as<std::uint32_t>(lanes + 4 * lane);
  }
  for (; word < words; ++word) sum += weighed(One{}, word);
  return sum;
}

/// Magnitudes as integers have the order of the numbers, with Inf and NaN above all finite ones.
template <class Element, Element kMask>
MagnitudeRange magnitudes_scalar(const std::byte* source, std::size_t count) noexcept {
  std::uint32_t largest = 0;
  std::uint32_t least = 0xFFFFFFFFU;  // the smallest less 1: a zero wraps to above all others
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = load_as<Element>(source + i * sizeof(Element)) & kMask;
    largest = magnitude > largest ? magnitude : largest;
    least = magnitude - 1 < least ? magnitude - 1 : least;
  }
  return {.largest = largest, .smallest = least + 1};
}

/// Finds magnitudes by vectors of 16-bit lanes for both widths: an fp32 number's top half has the exponent, and SSE2
/// has maxima of 16-bit integers but none of 32-bit ones. The lanes are signed, so a magnitude is shifted by 0x7FFF
/// before the minimum: zeros become the largest lane, and the others keep their order. An element may count twice, so
/// the last vector is moved back to end with the data.
template <class V, class Element, Element kMask>
MagnitudeRange magnitudes(const std::byte* source, std::size_t count) noexcept {
  constexpr std::size_t kBytes = 4 * V::kWidth;
  constexpr std::uint16_t kShift = 0x7FFF;
  const std::size_t bytes = count * sizeof(Element);
  if (bytes < kBytes) return magnitudes_scalar<Element, kMask>(source, count);
  const auto mask = V::broadcast_int(sizeof(Element) == 4 ? kMask : kMask | static_cast<std::uint32_t>(kMask) << 16);
  const auto shift = V::broadcast_int(kShift | static_cast<std::uint32_t>(kShift) << 16);
  auto first = V::mask_bits(V::load_i32(source + bytes - kBytes), mask);
  auto second = first;
  auto least = V::add_16(first, shift);
  std::size_t at = 0;
  for (; at + 2 * kBytes <= bytes; at += 2 * kBytes) {
    for (std::size_t line = 0; line < 2 * kBytes; line += kCacheLine) {
      __builtin_prefetch(source + at + line + kPrefetchBytes);
    }
    const auto even = V::mask_bits(V::load_i32(source + at), mask);
    const auto odd = V::mask_bits(V::load_i32(source + at + kBytes), mask);
    first = V::max_16(first, even);
    second = V::max_16(second, odd);
    least = V::min_16(least, V::min_16(V::add_16(even, shift), V::add_16(odd, shift)));
  }
  if (at + kBytes <= bytes) {
    const auto last = V::mask_bits(V::load_i32(source + at), mask);
    first = V::max_16(first, last);
    least = V::min_16(least, V::add_16(last, shift));
  }
  std::byte lanes[kBytes];
  V::store_i32(lanes, V::max_16(first, second));
  const std::uint32_t largest = magnitudes_scalar<Element, kMask>(lanes, kBytes / sizeof(Element)).largest;
  V::store_i32(lanes, least);
  std::int16_t smallest = 0x7FFF;
  for (std::size_t lane = 0; lane < kBytes; lane += 2) {
    const auto value = load_as<std::int16_t>(lanes + lane);
    smallest = value < smallest ? value : smallest;
  }
  const auto magnitude = static_cast<std::uint16_t>(static_cast<std::uint16_t>(smallest) - kShift);
  return {.largest = largest, .smallest = sizeof(Element) == 4 ? std::uint32_t{magnitude} << 16 : magnitude};
}

inline std::uint32_t any_bits_scalar(const std::byte* source, std::size_t bytes) noexcept {
  std::uint32_t any = 0;
  std::size_t at = 0;
  for (; at + 4 <= bytes; at += 4) any |= load_as<std::uint32_t>(source + at);
  return at < bytes ? any | load_as<std::uint16_t>(source + at) : any;
}

inline std::uint32_t scan_scalar(const std::byte* source, std::size_t bytes, std::uint32_t enough) noexcept {
  const std::size_t line = bytes < kCacheLine ? bytes : kCacheLine;
  const std::uint32_t first = any_bits_scalar(source, line);
  return (first & enough) != 0 ? enough : first | any_bits_scalar(source + line, bytes - line);
}

/// Scans by vectors. The last vector is moved back to end with the whole words, since a bit must be seen in its half of
/// a word, and may be seen twice. Most blocks of sparse tensors are read up to the first line only; after the first
/// line the processor's own prefetching does best.
template <class V>
std::uint32_t scan(const std::byte* source, std::size_t bytes, std::uint32_t enough) noexcept {
  constexpr std::size_t kBytes = 4 * V::kWidth;
  constexpr std::size_t kUnrolled = 8 * kBytes;
  const std::size_t whole = bytes / 4 * 4;
  if (whole < kCacheLine) return scan_scalar(source, bytes, enough);
  const auto mask = V::broadcast_int(enough);
  auto any = V::load_i32(source);
  for (std::size_t at = kBytes; at < kCacheLine; at += kBytes) any = V::or_bits(any, V::load_i32(source + at));
  if (V::has_bits(any, mask)) return enough;
  auto other = any;
  std::size_t at = kCacheLine;
  for (; at + kUnrolled <= whole; at += kUnrolled) {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kUnrolled; i += 2 * kBytes) {
      any = V::or_bits(any, V::load_i32(source + at + i));
      other = V::or_bits(other, V::load_i32(source + at + i + kBytes));
    }
    if (V::has_bits(V::or_bits(any, other), mask)) return enough;
  }
  for (; at + kBytes <= whole; at += kBytes) any = V::or_bits(any, V::load_i32(source + at));
  any = V::or_bits(any, V::load_i32(source + whole - kBytes));
  std::byte lanes[kBytes];
  V::store_i32(lanes, V::or_bits(any, other));
  return any_bits_scalar(lanes, kBytes) | any_bits_scalar(source + whole, bytes - whole);
}

/// The bits of an element for MagnitudeRange. A subnormal fp16 is a normal fp32 number; other subnormals count as 0.
inline constexpr std::uint32_t kMaskF32 = 0x7F800000U;
inline constexpr std::uint16_t kMaskF16 = 0x7FFFU;
inline constexpr std::uint16_t kMaskBF16 = 0x7F80U;

}  // namespace
}  // namespace wiresum::numeric
