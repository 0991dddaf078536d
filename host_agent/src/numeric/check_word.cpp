#include "numeric/check_word.hpp"

#include <array>
#include <cassert>

#include "numeric/kernels.hpp"
#include "wire/bytes.hpp"
#include "wire/constants.hpp"

namespace wiresum::numeric {
namespace {

/// The number of places where a payload's run of weights may begin. A power of two.
constexpr std::size_t kRuns = 1024;

/// The finaliser of SplitMix64, a permutation of the 64-bit numbers.
constexpr std::uint64_t mix(std::uint64_t value) noexcept {
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9U;
  value = (value ^ value >> 27) * 0x94D049BB133111EBU;
  return value ^ value >> 31;
}

std::uint64_t seed_of(const CheckSubject& subject) noexcept {  // R5.22
  const std::uint64_t what = std::uint64_t{subject.tensor} << 32 | subject.chunk;
  const std::uint64_t where = std::uint64_t{subject.round} << 32 | subject.slot;
  return mix(mix(what) ^ where);
}

/// Odd numbers. A payload's weights are a run of them, times an odd number.
constexpr auto kWeights = [] {
  std::array<std::uint32_t, wire::kLanesMax + kRuns> weights{};
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<std::uint32_t>(mix(i + 1)) | 1U;
  return weights;
}();

std::uint32_t check_word_of(const CheckSubject& subject, const std::byte* payload, std::size_t words,
                            const Kernels& kernels) noexcept {
  assert(words < wire::kLanesMax);
  const std::uint64_t seed = seed_of(subject);
  const auto factor = static_cast<std::uint32_t>(seed >> 32) | 1U;
  return factor * kernels.weigh(kWeights.data() + seed % kRuns, payload, words);  // R5.21
}

}  // namespace

void write_check_word(const CheckSubject& subject, std::byte* payload, std::size_t words,
                      const Kernels& kernels) noexcept {
  wire::bytes::store32(payload, words * wire::kWordBytes, check_word_of(subject, payload, words, kernels));
}

bool check_word_fits(const CheckSubject& subject, const std::byte* payload, std::size_t words,
                     const Kernels& kernels) noexcept {
  return wire::bytes::load32(payload, words * wire::kWordBytes) == check_word_of(subject, payload, words, kernels);
}

}  // namespace wiresum::numeric
