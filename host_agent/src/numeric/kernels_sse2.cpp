// The kernels for baseline x86-64: SSE2, four lanes. fp16 is converted one by one.
#include "numeric/kernel_table.hpp"

#if defined(__x86_64__)
#include <emmintrin.h>

namespace wiresum::numeric {
namespace {

struct Sse2 {
  static constexpr std::size_t kWidth = 4;
  using Float = __m128;
  using Int = __m128i;

  static Float load_f32(const std::byte* from) noexcept { return _mm_loadu_ps(reinterpret_cast<const float*>(from)); }
  static Float load_bf16(const std::byte* from) noexcept {
    const Int halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), halves));
  }
  static Int load_i32(const std::byte* from) noexcept {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static void store_f32(std::byte* to, Float value) noexcept { _mm_storeu_ps(reinterpret_cast<float*>(to), value); }
  static void store_bf16(std::byte* to, Float value) noexcept {
    const Int bits = _mm_castps_si128(value);
    const Int odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
    const Int rounded = _mm_add_epi32(bits, _mm_add_epi32(odd, _mm_set1_epi32(0x7FFF)));
    const Int quieted = _mm_or_si128(bits, _mm_set1_epi32(0x400000));
    const Int is_nan = _mm_castps_si128(_mm_cmpunord_ps(value, value));
    const Int chosen = _mm_or_si128(_mm_and_si128(is_nan, quieted), _mm_andnot_si128(is_nan, rounded));
    // The pack saturates signed numbers: an arithmetic shift keeps the top half within range.
    const Int top = _mm_srai_epi32(chosen, 16);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi32(top, top));
  }
  static void store_i32(std::byte* to, Int value) noexcept { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value); }
  static Int swap_to_big_endian(Int value) noexcept {
    const Int pairs = _mm_or_si128(_mm_slli_epi16(value, 8), _mm_srli_epi16(value, 8));
    return _mm_shufflehi_epi16(_mm_shufflelo_epi16(pairs, 0xB1), 0xB1);
  }

  static Float broadcast(float value) noexcept { return _mm_set1_ps(value); }
  static Float clamp(Float value, Float limit) noexcept {
    const Float least = _mm_xor_ps(limit, _mm_set1_ps(-0.0F));
    const Float clamped = _mm_max_ps(_mm_min_ps(value, limit), least);
    return _mm_and_ps(clamped, _mm_cmpord_ps(value, value));
  }
  static Int round_to_int(Float value) noexcept { return _mm_cvtps_epi32(value); }
  static Float to_float(Int value) noexcept { return _mm_cvtepi32_ps(value); }

  static Int add(Int a, Int b) noexcept { return _mm_add_epi32(a, b); }
  static Int subtract(Int a, Int b) noexcept { return _mm_sub_epi32(a, b); }
  static Int multiply(Int a, Int b) noexcept {
    const Int even = _mm_mul_epu32(a, b);
    const Int odd = _mm_mul_epu32(_mm_srli_epi64(a, 32), _mm_srli_epi64(b, 32));
    return _mm_unpacklo_epi32(_mm_shuffle_epi32(even, 0x08), _mm_shuffle_epi32(odd, 0x08));
  }
  template <int kBits>
  static Int shift_left(Int value) noexcept {
    return _mm_slli_epi32(value, kBits);
  }
  template <int kBits>
  static Int shift_right_arithmetic(Int value) noexcept {
    return _mm_srai_epi32(value, kBits);
  }
  static Int broadcast_int(std::uint32_t value) noexcept { return _mm_set1_epi32(static_cast<int>(value)); }
  static Int mask_bits(Int value, Int mask) noexcept { return _mm_and_si128(value, mask); }
  static Int or_bits(Int a, Int b) noexcept { return _mm_or_si128(a, b); }
  static bool has_bits(Int value, Int mask) noexcept {
    return _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_and_si128(value, mask), _mm_setzero_si128())) != 0xFFFF;
  }
  static Int add_16(Int a, Int b) noexcept { return _mm_add_epi16(a, b); }
  static Int max_16(Int a, Int b) noexcept { return _mm_max_epi16(a, b); }
  static Int min_16(Int a, Int b) noexcept { return _mm_min_epi16(a, b); }

  static constexpr std::size_t kDoubles = 2;
  using Double = __m128d;
  using Long = __m128i;

  static Long count_from(std::uint32_t first) noexcept {
    return _mm_set_epi32(0, static_cast<int>(first + 1), 0, static_cast<int>(first));
  }
  static Long broadcast_long(std::uint32_t value) noexcept { return _mm_set1_epi64x(value); }
  static Long multiply_low(Long a, Long b) noexcept { return _mm_mul_epu32(a, b); }
  static Long high(Long value) noexcept { return _mm_srli_epi64(value, 32); }
  static Long xor_three(Long a, Long b, Long c) noexcept { return _mm_xor_si128(_mm_xor_si128(a, b), c); }
  static void store_low(std::uint32_t* to, Long value) noexcept {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi32(value, 0x08));
  }
  /// Makes the value the mantissa of a number from 2^20 on, whose last bit is worth 2^-32.
  static Double fraction(Long value) noexcept {
    const Long low = _mm_and_si128(value, _mm_set1_epi64x(0xFFFFFFFF));
    const Double shifted = _mm_castsi128_pd(_mm_or_si128(low, _mm_castpd_si128(_mm_set1_pd(0x1p20))));
    return _mm_sub_pd(shifted, _mm_set1_pd(0x1p20));
  }

  static Double load_double(const float* from) noexcept {
    return _mm_cvtps_pd(_mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
  static Double load_double(const double* from) noexcept { return _mm_loadu_pd(from); }
  static Double load_double(const std::int32_t* from) noexcept {
    return _mm_cvtepi32_pd(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  static void store_double(float* to, Double value) noexcept {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_castps_si128(_mm_cvtpd_ps(value)));
  }
  static void store_double(double* to, Double value) noexcept { _mm_storeu_pd(to, value); }
  static Double broadcast(double value) noexcept { return _mm_set1_pd(value); }
  static Double clamp(Double value, Double limit) noexcept {
    return _mm_max_pd(_mm_min_pd(value, limit), _mm_xor_pd(limit, _mm_set1_pd(-0.0)));
  }
  static void store_floor(std::int32_t* to, Double value) noexcept {
    const __m128i cut = _mm_cvttpd_epi32(value);
    const Double above = _mm_cmplt_pd(value, _mm_cvtepi32_pd(cut));  // all ones: -1 as an integer
    const __m128i correction = _mm_shuffle_epi32(_mm_castpd_si128(above), 0x08);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_add_epi32(cut, correction));
  }
};

}  // namespace

constinit const Kernels kKernelsSse2 = make_kernels<Sse2, One>("sse2");

}  // namespace wiresum::numeric
#endif
