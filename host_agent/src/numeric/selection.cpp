// Theory of operation. Magnitudes of floating-point numbers, taken as integers, are in the same order as the numbers.
// The smallest chosen magnitude, the boundary, is found digit by digit (radix selection): one pass counts magnitudes by
// their top bits, which gives the boundary's top bits. Each further pass counts the magnitudes that begin with the
// known bits, by the next bits.
//
// Such passes are slow compared with memory. Therefore a large tensor is sampled first, and the sample gives a
// magnitude that the boundary most likely exceeds. One pass then collects candidates, elements of at least this
// magnitude, by comparisons, which compilers vectorise; most runs of elements have no candidate. The boundary is found
// among the candidates. If they are fewer than wanted, or far more, all elements are counted. The choice is exact
// either way: the sample affects the time alone.
#include "numeric/selection.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

namespace wiresum::numeric {
namespace {

constexpr unsigned kDigitBits = 11;  // first an exponent and three bits; counters stay in the first-level cache
constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;
constexpr std::size_t kRun = 16;                             // elements, as many as fp32 has in a cache line
constexpr std::size_t kRunsApart = 32;                       // one run of so many is sampled
constexpr std::size_t kSampledMin = 64 * kRun * kRunsApart;  // elements of a tensor that is worth a sample
constexpr std::size_t kCandidatesPerWanted = 4;

/// `Bits` is signed, since vectors of baseline x86-64 compare signed integers only. Magnitudes leave the sign bit free.
template <class Element>
struct Magnitude {
  using Bits = std::conditional_t<sizeof(Element) == 4, std::int32_t, std::int64_t>;
  static constexpr unsigned kBits = 8 * sizeof(Element) - 1;
  static Bits of(Element element) noexcept {
    if constexpr (std::is_integral_v<Element>) {
      constexpr Element kLeast = std::numeric_limits<Element>::min();
      return element == kLeast ? std::numeric_limits<Element>::max() : std::abs(element);
    } else {
      return std::bit_cast<Bits>(element) & std::numeric_limits<Bits>::max();
    }
  }
};

template <class Bits>
struct Boundary {
  Bits magnitude = 0;     // the smallest chosen one
  std::size_t equal = 0;  // the number of chosen elements with this magnitude
};

/// Finds the next `bits` bits of the boundary among the magnitudes that begin with `known`, above the shift. Adds to
/// `above` the number of those above the digit found.
template <class Bits, class At>
std::size_t next_digit(std::size_t count, const At& magnitude, Bits known, unsigned bits, unsigned shift,
                       std::size_t wanted, std::size_t& above) noexcept {
  // Two sets of counters, since neighbours often have one digit, and would wait for each other's counter.
  std::uint32_t counts[2][kDigits] = {};
  const Bits mask = (Bits{1} << bits) - 1;
  for (std::size_t i = 0; i < count; ++i) {
    const Bits of_element = magnitude(i) >> shift;
    if (of_element >> bits == known) ++counts[i % 2][of_element & mask];
  }
  auto digit = static_cast<std::size_t>(mask);
  while (digit > 0 && above + counts[0][digit] + counts[1][digit] < wanted) {
    above += counts[0][digit] + counts[1][digit];
    --digit;
  }
  return digit;
}

template <class Element, class At>
Boundary<typename Magnitude<Element>::Bits> find_boundary(std::size_t count, std::size_t wanted,
                                                          const At& magnitude) noexcept {
  using Bits = typename Magnitude<Element>::Bits;
  Bits found = 0;
  std::size_t above = 0;
  for (unsigned known = 0; known < Magnitude<Element>::kBits;) {
    const unsigned bits = std::min(kDigitBits, Magnitude<Element>::kBits - known);
    const unsigned shift = Magnitude<Element>::kBits - known - bits;
    found = static_cast<Bits>(found << bits |
                              static_cast<Bits>(next_digit(count, magnitude, found, bits, shift, wanted, above)));
    known += bits;
  }
  return {found, wanted - above};
}

/// Writes the `wanted` largest of `count` magnitudes, element i as index(i).
template <class Element, class At, class Index>
void write_largest(std::size_t count, std::size_t wanted, const At& magnitude, const Index& index,
                   std::int64_t* indices) noexcept {
  auto boundary = find_boundary<Element>(count, wanted, magnitude);
  std::size_t written = 0;
  for (std::size_t i = 0; i < count && written < wanted; ++i) {
    const auto value = magnitude(i);
    if (value < boundary.magnitude) continue;
    if (value == boundary.magnitude) {
      if (boundary.equal == 0) continue;
      --boundary.equal;
    }
    indices[written++] = index(i);
  }
}

/// A magnitude that most likely a few more than `wanted` elements reach, or 0. `sample` can hold one run of each
/// kRunsApart.
template <class Element>
typename Magnitude<Element>::Bits estimate_boundary(const Element* source, std::size_t count, std::size_t wanted,
                                                    Element* sample) noexcept {
  std::size_t sampled = 0;
  for (std::size_t at = 0; at + kRun <= count; at += kRun * kRunsApart, sampled += kRun) {
    std::copy_n(source + at, kRun, sample + sampled);
  }
  const double expected = static_cast<double>(wanted) * static_cast<double>(sampled) / static_cast<double>(count);
  // The margin is three standard deviations for runs of equal elements.
  const double deviation = std::sqrt(static_cast<double>(kRun) * (expected + 1));
  const auto rank = static_cast<std::size_t>(expected + 3 * deviation);
  if (rank >= sampled) return 0;
  return find_boundary<Element>(sampled, rank, [&](std::size_t i) { return Magnitude<Element>::of(sample[i]); })
      .magnitude;
}

/// An element that may be among the largest.
template <class Element>
struct Candidate {
  typename Magnitude<Element>::Bits magnitude;
  std::int32_t index;
};

/// True if one of a run's elements is a candidate: then a difference is negative, and has the sign bit. Every vector
/// unit subtracts and collects bits. (Compilers would unroll such a short loop of comparisons.)
template <class Element>
bool has_candidate(const Element* run, typename Magnitude<Element>::Bits threshold) noexcept {
  using Bits = typename Magnitude<Element>::Bits;
  using Vector [[gnu::vector_size(16)]] = Bits;
  constexpr std::size_t kLanes = sizeof(Vector) / sizeof(Bits);
  const Bits least = threshold - (std::is_integral_v<Element> ? 1 : 0);
  Vector differences = {};
  for (std::size_t i = 0; i < kRun; i += kLanes) {
    Vector magnitudes;
    std::memcpy(&magnitudes, run + i, sizeof magnitudes);
    if constexpr (std::is_integral_v<Element>) {
      magnitudes ^= magnitudes >> Magnitude<Element>::kBits;  // 1 less for a negative integer: none is too large
    } else {
      magnitudes &= std::numeric_limits<Bits>::max();
    }
    differences |= least - 1 - magnitudes;
  }
  Bits collected = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) collected |= differences[lane];
  return collected < 0;
}

/// Writes all elements that reach the threshold, which is above 0, and returns their number; 0 if they are more than
/// `most`. `found` can hold kRun more than `most`.
template <class Element>
std::size_t find_candidates(const Element* source, std::size_t count, typename Magnitude<Element>::Bits threshold,
                            std::size_t most, Candidate<Element>* found) noexcept {
  std::size_t written = 0;
  const auto look_at = [&](std::size_t at, std::size_t end) {
    for (; at < end; ++at) {
      const auto magnitude = Magnitude<Element>::of(source[at]);
      found[written] = {magnitude, static_cast<std::int32_t>(at)};
      written += static_cast<std::size_t>(magnitude >= threshold);
    }
  };
  std::size_t at = 0;
  for (; at + kRun <= count && written <= most; at += kRun) {
    if (has_candidate(source + at, threshold)) look_at(at, at + kRun);
  }
  if (written <= most) look_at(at, count);
  return written <= most ? written : 0;
}

bool is_worth_a_sample(std::size_t count, std::size_t wanted) noexcept {
  return count >= kSampledMin && wanted <= count / kCandidatesPerWanted;
}

std::size_t candidates_max(std::size_t wanted) noexcept {
  return std::max(kCandidatesPerWanted * wanted, kSampledMin / kRun);
}

template <class Element>
std::size_t scratch_bytes(std::size_t count, std::size_t wanted) noexcept {
  if (!is_worth_a_sample(count, wanted)) return 0;
  const std::size_t sample_bytes = (count / (kRun * kRunsApart) + 1) * kRun * sizeof(Element);
  return std::max(sample_bytes, (candidates_max(wanted) + kRun) * sizeof(Candidate<Element>));
}

/// Candidates overwrite the sample in the scratch memory.
template <class Element>
void choose_largest(const Element* source, std::size_t count, std::size_t wanted, std::int64_t* indices,
                    std::span<std::byte> scratch) noexcept {
  assert(wanted <= count && count <= kLargestElementsMax);
  if (wanted == 0) return;
  if (is_worth_a_sample(count, wanted) && scratch.size() >= scratch_bytes<Element>(count, wanted)) {
    const auto threshold = estimate_boundary(source, count, wanted, reinterpret_cast<Element*>(scratch.data()));
    auto* const candidates = reinterpret_cast<Candidate<Element>*>(scratch.data());
    const std::size_t found =
        threshold == 0 ? 0 : find_candidates(source, count, threshold, candidates_max(wanted), candidates);
    if (found >= wanted) {
      write_largest<Element>(
          found, wanted, [&](std::size_t i) { return candidates[i].magnitude; },
          [&](std::size_t i) { return candidates[i].index; }, indices);
      return;
    }
  }
  write_largest<Element>(
      count, wanted, [&](std::size_t i) { return Magnitude<Element>::of(source[i]); },
      [](std::size_t i) { return static_cast<std::int64_t>(i); }, indices);
}

}  // namespace

std::size_t largest_scratch_bytes(std::size_t count, std::size_t wanted, std::size_t element_bytes) noexcept {
  return element_bytes == sizeof(float) ? scratch_bytes<float>(count, wanted) : scratch_bytes<double>(count, wanted);
}

void largest(const float* source, std::size_t count, std::size_t wanted, std::int64_t* indices,
             std::span<std::byte> scratch) noexcept {
  choose_largest(source, count, wanted, indices, scratch);
}

void largest(const double* source, std::size_t count, std::size_t wanted, std::int64_t* indices,
             std::span<std::byte> scratch) noexcept {
  choose_largest(source, count, wanted, indices, scratch);
}

void largest(const std::int32_t* source, std::size_t count, std::size_t wanted, std::int64_t* indices,
             std::span<std::byte> scratch) noexcept {
  choose_largest(source, count, wanted, indices, scratch);
}

}  // namespace wiresum::numeric
