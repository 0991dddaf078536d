// Which kernels run: the best that build and processor have, or the one that WIRESUM_SIMD names.
#include <cstdlib>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "numeric/codec.hpp"
#include "numeric/kernels.hpp"

namespace wiresum::numeric {
namespace {

#if defined(__x86_64__)
/// __builtin_cpu_supports also asks whether the operating system saves the registers; not every compiler lets it
/// ask for F16C, which came before AVX2 and uses the same registers.
bool has_avx2() noexcept {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return has_f16c && __builtin_cpu_supports("avx2");
}

bool has_avx512() noexcept {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

const Kernels* choose() noexcept {
  const Kernels* tables[kKernelTablesMax];
  const Kernels* const best = tables[supported_kernels(tables) - 1];
  const char* const wanted = std::getenv("WIRESUM_SIMD");
  const Kernels* const named = wanted == nullptr ? nullptr : find_kernels(wanted);
  return named == nullptr ? best : named;
}

/// Chosen once, at the first use; never changes after.
const Kernels& active() noexcept {
  static const Kernels* const kernels = choose();
  return *kernels;
}

}  // namespace

std::size_t supported_kernels(const Kernels* (&tables)[kKernelTablesMax]) noexcept {
  std::size_t count = 0;
  tables[count++] = &kKernelsScalar;
#if defined(__x86_64__)
  __builtin_cpu_init();
  tables[count++] = &kKernelsSse2;
  if (has_avx2()) tables[count++] = &kKernelsAvx2;
  if (has_avx512()) tables[count++] = &kKernelsAvx512;
#endif
  return count;
}

const Kernels* find_kernels(const char* name) noexcept {
  const Kernels* tables[kKernelTablesMax];
  const std::size_t count = supported_kernels(tables);
  for (std::size_t i = 0; i < count; ++i) {
    if (std::strcmp(tables[i]->name, name) == 0) return tables[i];
  }
  return nullptr;
}

std::uint8_t max_exponent(Dtype dtype, const std::byte* source, std::size_t count) noexcept {
  return max_exponent(active(), dtype, source, count);
}

BlockScan scan_block(Dtype dtype, const std::byte* source, std::size_t count) noexcept {
  return scan_block(active(), dtype, source, count);
}

void scan_blocks(Dtype dtype, const std::byte* source, std::size_t count, std::size_t step, BlockScan* scans) noexcept {
  scan_blocks(active(), dtype, source, count, step, scans);
}

void quantise(Format format, const Scale& scale, const std::byte* source, std::size_t count, std::byte* payload,
              std::size_t words) noexcept {
  quantise(active(), format, scale, source, count, payload, words);
}

void dequantise(Format format, const Scale& scale, const std::byte* payload, std::size_t words, std::byte* destination,
                std::size_t count) noexcept {
  dequantise(active(), format, scale, payload, words, destination, count);
}

void to_integers(Dtype dtype, const Scale& scale, const std::byte* source, std::size_t count,
                 std::int32_t* integers) noexcept {
  to_integers(active(), dtype, scale, source, count, integers);
}

void from_integers(Dtype dtype, const Scale& scale, const std::int32_t* integers, std::byte* destination,
                   std::size_t count) noexcept {
  from_integers(active(), dtype, scale, integers, destination, count);
}

void accumulate(std::byte* cell, const std::byte* payload, std::size_t words) noexcept {
  active().accumulate(cell, payload, words);
}

void random_words(const Draw& draw, std::uint64_t first, std::size_t count, std::uint32_t* words) noexcept {
  active().random_words(draw, first, count, words);
}

void round_stochastically(const Draw& draw, std::uint64_t first, const float* source, std::size_t count, double inverse,
                          std::int32_t limit, std::int32_t* integers) noexcept {
  active().round_32(draw, first, source, count, inverse, limit, integers);
}

void round_stochastically(const Draw& draw, std::uint64_t first, const double* source, std::size_t count,
                          double inverse, std::int32_t limit, std::int32_t* integers) noexcept {
  active().round_64(draw, first, source, count, inverse, limit, integers);
}

void scale_integers(const std::int32_t* integers, std::size_t count, double factor, float* values) noexcept {
  active().scale_32(integers, count, factor, values);
}

void scale_integers(const std::int32_t* integers, std::size_t count, double factor, double* values) noexcept {
  active().scale_64(integers, count, factor, values);
}

double square_distance(const float* a, const float* b, std::size_t count) noexcept {
  return active().square_distance_32(a, b, count);
}

double square_distance(const double* a, const double* b, std::size_t count) noexcept {
  return active().square_distance_64(a, b, count);
}

void pack_lanes(unsigned bits, const std::int32_t* integers, std::size_t count, std::uint32_t* packed,
                std::size_t words) noexcept {
  pack_lanes(active(), bits, integers, count, packed, words);
}

void unpack_lanes(unsigned bits, const std::uint32_t* packed, std::size_t words, std::int32_t* integers,
                  std::size_t count) noexcept {
  unpack_lanes(active(), bits, packed, words, integers, count);
}

const char* instruction_set() noexcept { return active().name; }

}  // namespace wiresum::numeric
