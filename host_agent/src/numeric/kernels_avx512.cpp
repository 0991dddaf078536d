// The kernels for AVX-512 (F, BW, VL, DQ): sixteen lanes.
#include "numeric/kernel_table.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace wiresum::numeric {
namespace {

struct Avx512 {
  static constexpr std::size_t kWidth = 16;
  using Float = __m512;
  using Int = __m512i;

  static Float load_f32(const std::byte* from) noexcept { return _mm512_loadu_ps(from); }
  static Float load_f16(const std::byte* from) noexcept {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Float load_bf16(const std::byte* from) noexcept {
    const Int halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(halves, 16));
  }
  static Int load_i32(const std::byte* from) noexcept { return _mm512_loadu_si512(from); }
  static void store_f32(std::byte* to, Float value) noexcept { _mm512_storeu_ps(to, value); }
  static void store_f16(std::byte* to, Float value) noexcept {
    const __m256i halves = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  }
  static void store_bf16(std::byte* to, Float value) noexcept {
    const Int bits = _mm512_castps_si512(value);
    const Int odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const Int rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const Int chosen = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    const __m256i top = _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), top);
  }
  static void store_i32(std::byte* to, Int value) noexcept { _mm512_storeu_si512(to, value); }
  static Int swap_to_big_endian(Int value) noexcept {
    const __m128i order = _mm_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
    return _mm512_shuffle_epi8(value, _mm512_broadcast_i32x4(order));
  }

  static Float broadcast(float value) noexcept { return _mm512_set1_ps(value); }
  static Float clamp(Float value, Float limit) noexcept {
    const Float least = _mm512_xor_ps(limit, _mm512_set1_ps(-0.0F));
    const __mmask16 is_number = _mm512_cmp_ps_mask(value, value, _CMP_ORD_Q);
    return _mm512_maskz_max_ps(is_number, _mm512_min_ps(value, limit), least);
  }
  static Int round_to_int(Float value) noexcept { return _mm512_cvtps_epi32(value); }
  static Float to_float(Int value) noexcept { return _mm512_cvtepi32_ps(value); }

  static Int add(Int a, Int b) noexcept { return _mm512_add_epi32(a, b); }
  static Int subtract(Int a, Int b) noexcept { return _mm512_sub_epi32(a, b); }
  static Int multiply(Int a, Int b) noexcept { return _mm512_mullo_epi32(a, b); }
  template <int kBits>
  static Int shift_left(Int value) noexcept {
    return _mm512_slli_epi32(value, kBits);
  }
  template <int kBits>
  static Int shift_right_arithmetic(Int value) noexcept {
    return _mm512_srai_epi32(value, kBits);
  }
  static Int broadcast_int(std::uint32_t value) noexcept { return _mm512_set1_epi32(static_cast<int>(value)); }
  static Int mask_bits(Int value, Int mask) noexcept { return _mm512_and_si512(value, mask); }
  static Int or_bits(Int a, Int b) noexcept { return _mm512_or_si512(a, b); }
  static bool has_bits(Int value, Int mask) noexcept { return _mm512_test_epi32_mask(value, mask) != 0; }
  static Int add_16(Int a, Int b) noexcept { return _mm512_add_epi16(a, b); }
  static Int max_16(Int a, Int b) noexcept { return _mm512_max_epi16(a, b); }
  static Int min_16(Int a, Int b) noexcept { return _mm512_min_epi16(a, b); }

  static constexpr std::size_t kDoubles = 8;
  using Double = __m512d;
  using Long = __m512i;

  static Long count_from(std::uint32_t first) noexcept {
    const Long steps = _mm512_setr_epi32(0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0);
    return _mm512_add_epi32(_mm512_set1_epi64(first), steps);
  }
  static Long broadcast_long(std::uint32_t value) noexcept { return _mm512_set1_epi64(value); }
  static Long multiply_low(Long a, Long b) noexcept { return _mm512_mul_epu32(a, b); }
  static Long high(Long value) noexcept { return _mm512_srli_epi64(value, 32); }
  static Long xor_three(Long a, Long b, Long c) noexcept { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
  static void store_low(std::uint32_t* to, Long value) noexcept {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi64_epi32(value));
  }
  /// Makes the value the mantissa of a number from 2^20 on, whose last bit is worth 2^-32.
  static Double fraction(Long value) noexcept {
    const Long base = _mm512_castpd_si512(_mm512_set1_pd(0x1p20));
    const Long shifted = _mm512_ternarylogic_epi64(value, _mm512_set1_epi64(0xFFFFFFFF), base, 0xEA);  // (a & b) | c
    return _mm512_sub_pd(_mm512_castsi512_pd(shifted), _mm512_set1_pd(0x1p20));
  }

  static Double load_double(const float* from) noexcept { return _mm512_cvtps_pd(_mm256_loadu_ps(from)); }
  static Double load_double(const double* from) noexcept { return _mm512_loadu_pd(from); }
  static Double load_double(const std::int32_t* from) noexcept {
    return _mm512_cvtepi32_pd(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void store_double(float* to, Double value) noexcept { _mm256_storeu_ps(to, _mm512_cvtpd_ps(value)); }
  static void store_double(double* to, Double value) noexcept { _mm512_storeu_pd(to, value); }
  static Double broadcast(double value) noexcept { return _mm512_set1_pd(value); }
  static Double clamp(Double value, Double limit) noexcept {
    return _mm512_max_pd(_mm512_min_pd(value, limit), _mm512_xor_pd(limit, _mm512_set1_pd(-0.0)));
  }
  static void store_floor(std::int32_t* to, Double value) noexcept {
    const __m256i floored = _mm512_cvt_roundpd_epi32(value, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), floored);
  }
};

}  // namespace

constinit const Kernels kKernelsAvx512 = make_kernels<Avx512, Avx512>("avx512");

}  // namespace wiresum::numeric
#endif
