// The choice of kernels: the best that build and processor have, or those that WIRESUM_SIMD names.
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
/// __builtin_cpu_supports also asks whether the operating system saves the registers; not every compiler knows F16C
/// there, which came before AVX2 and uses the same registers.
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

}  // namespace

const Kernels& active_kernels() noexcept {
  static const Kernels* const kernels = choose();
  return *kernels;
}

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

void accumulate(std::byte* cell, const std::byte* payload, std::size_t words) noexcept {
  active_kernels().accumulate(cell, payload, words);
}

const char* instruction_set() noexcept { return active_kernels().name; }

}  // namespace wiresum::numeric
