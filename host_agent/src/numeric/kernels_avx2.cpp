// The kernels for AVX2 with F16C: eight lanes.
#include "numeric/kernel_table.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace wiresum::numeric {
namespace {

struct Avx2 {
  static constexpr std::size_t kWidth = 8;
  using Float = __m256;
  using Int = __m256i;

  static Float load_f32(const std::byte* from) noexcept {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
  }
  static Float load_f16(const std::byte* from) noexcept {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Float load_bf16(const std::byte* from) noexcept {
    const Int halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(halves, 16));
  }
  static Int load_i32(const std::byte* from) noexcept {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store_f32(std::byte* to, Float value) noexcept { _mm256_storeu_ps(reinterpret_cast<float*>(to), value); }
  static void store_f16(std::byte* to, Float value) noexcept {
    const __m128i halves = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
  }
  static void store_bf16(std::byte* to, Float value) noexcept {
    const Int bits = _mm256_castps_si256(value);
    const Int odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const Int rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const Int quieted = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const Int is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const Int top = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quieted, is_nan), 16);
    // The pack works within each half of the register: its two useful quarters are gathered.
    const Int packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(top, top), 0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
  }
  static void store_i32(std::byte* to, Int value) noexcept {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
  }
  static Int swap_to_big_endian(Int value) noexcept {
    const Int order = _mm256_broadcastsi128_si256(_mm_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12));
    return _mm256_shuffle_epi8(value, order);
  }

  static Float broadcast(float value) noexcept { return _mm256_set1_ps(value); }
  static Float clamp(Float value, Float limit) noexcept {
    const Float least = _mm256_xor_ps(limit, _mm256_set1_ps(-0.0F));
    const Float clamped = _mm256_max_ps(_mm256_min_ps(value, limit), least);
    return _mm256_and_ps(clamped, _mm256_cmp_ps(value, value, _CMP_ORD_Q));
  }
  static Int round_to_int(Float value) noexcept { return _mm256_cvtps_epi32(value); }
  static Float to_float(Int value) noexcept { return _mm256_cvtepi32_ps(value); }

  static Int add(Int a, Int b) noexcept { return _mm256_add_epi32(a, b); }
  static Int subtract(Int a, Int b) noexcept { return _mm256_sub_epi32(a, b); }
  static Int multiply(Int a, Int b) noexcept { return _mm256_mullo_epi32(a, b); }
  template <int kBits>
  static Int shift_left(Int value) noexcept {
    return _mm256_slli_epi32(value, kBits);
  }
  template <int kBits>
  static Int shift_right_arithmetic(Int value) noexcept {
    return _mm256_srai_epi32(value, kBits);
  }
  static Int broadcast_int(std::uint32_t value) noexcept { return _mm256_set1_epi32(static_cast<int>(value)); }
  static Int mask_bits(Int value, Int mask) noexcept { return _mm256_and_si256(value, mask); }
  static Int or_bits(Int a, Int b) noexcept { return _mm256_or_si256(a, b); }
  static bool has_bits(Int value, Int mask) noexcept { return _mm256_testz_si256(value, mask) == 0; }
  static Int add_16(Int a, Int b) noexcept { return _mm256_add_epi16(a, b); }
  static Int max_16(Int a, Int b) noexcept { return _mm256_max_epi16(a, b); }
  static Int min_16(Int a, Int b) noexcept { return _mm256_min_epi16(a, b); }

  static constexpr std::size_t kDoubles = 4;
  using Double = __m256d;
  using Long = __m256i;

  static Long count_from(std::uint32_t first) noexcept {
    return _mm256_add_epi32(_mm256_set1_epi64x(first), _mm256_setr_epi32(0, 0, 1, 0, 2, 0, 3, 0));
  }
  static Long broadcast_long(std::uint32_t value) noexcept { return _mm256_set1_epi64x(value); }
  static Long multiply_low(Long a, Long b) noexcept { return _mm256_mul_epu32(a, b); }
  static Long high(Long value) noexcept { return _mm256_srli_epi64(value, 32); }
  static Long xor_three(Long a, Long b, Long c) noexcept { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
  static void store_low(std::uint32_t* to, Long value) noexcept {
    const Long order = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    const Long packed = _mm256_permutevar8x32_epi32(value, order);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
  }
  /// Makes the value the mantissa of a number from 2^20 on, whose last bit is worth 2^-32.
  static Double fraction(Long value) noexcept {
    const Long base = _mm256_castpd_si256(_mm256_set1_pd(0x1p20));
    const Double shifted = _mm256_castsi256_pd(_mm256_blend_epi32(value, base, 0xAA));
    return _mm256_sub_pd(shifted, _mm256_set1_pd(0x1p20));
  }

  static Double load_double(const float* from) noexcept { return _mm256_cvtps_pd(_mm_loadu_ps(from)); }
  static Double load_double(const double* from) noexcept { return _mm256_loadu_pd(from); }
  static Double load_double(const std::int32_t* from) noexcept {
    return _mm256_cvtepi32_pd(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static void store_double(float* to, Double value) noexcept { _mm_storeu_ps(to, _mm256_cvtpd_ps(value)); }
  static void store_double(double* to, Double value) noexcept { _mm256_storeu_pd(to, value); }
  static Double broadcast(double value) noexcept { return _mm256_set1_pd(value); }
  static Double clamp(Double value, Double limit) noexcept {
    return _mm256_max_pd(_mm256_min_pd(value, limit), _mm256_xor_pd(limit, _mm256_set1_pd(-0.0)));
  }
  static void store_floor(std::int32_t* to, Double value) noexcept {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvttpd_epi32(_mm256_floor_pd(value)));
  }
};

}  // namespace

constinit const Kernels kKernelsAvx2 = make_kernels<Avx2, Avx2>("avx2");

}  // namespace wiresum::numeric
#endif
