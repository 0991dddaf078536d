// The choice of the largest values; the rest of stochastic.hpp is in the kernels.
//
// Theory of operation. The magnitude of a floating-point number, taken as an integer, orders like the number. So the
// boundary is found as digits of a number are: one pass counts magnitudes by their top bits, which tells the
// boundary's; the next one counts those that begin with these bits, by the bits after them; and so on. The last pass
// writes where magnitudes are above the boundary, and, as far as places are left, equal to it. Nothing is allocated,
// and each pass but the first and the last only compares most of what it reads.
#include "numeric/stochastic.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <type_traits>

namespace wiresum::numeric {
namespace {

constexpr unsigned kDigitBits = 11;  // at first an exponent and three bits more; counters stay in the first-level cache
constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;

template <class Element>
struct Magnitude {
  using Bits = std::conditional_t<sizeof(Element) == 4, std::uint32_t, std::uint64_t>;
  static constexpr unsigned kBits = 8 * sizeof(Element) - 1;
  static Bits of(Element element) noexcept { return std::bit_cast<Bits>(element) & (~Bits{0} >> 1); }
};

/// The `wanted`-th largest magnitude, and how many of those that equal it are among the largest.
template <class Element>
struct Boundary {
  using Bits = typename Magnitude<Element>::Bits;
  Bits magnitude = 0;
  std::size_t equal = 0;

  Boundary(const Element* source, std::size_t count, std::size_t wanted) noexcept {
    std::size_t above = 0;
    for (unsigned known = 0; known < Magnitude<Element>::kBits;) {
      const unsigned bits = std::min(kDigitBits, Magnitude<Element>::kBits - known);
      const unsigned shift = Magnitude<Element>::kBits - known - bits;
      const std::size_t digit = next_digit(source, count, bits, shift, wanted, above);
      magnitude = magnitude << bits | static_cast<Bits>(digit);
      known += bits;
    }
    equal = wanted - above;
  }

 private:
  /// Counts in `above` what lies above the digit found.
  std::size_t next_digit(const Element* source, std::size_t count, unsigned bits, unsigned shift, std::size_t wanted,
                         std::size_t& above) const noexcept {
    // Two sets of counters, since neighbours often have one digit, and would wait for each other's counter.
    std::uint32_t counts[2][kDigits] = {};
    const Bits mask = (Bits{1} << bits) - 1;
    for (std::size_t i = 0; i < count; ++i) {
      const Bits of_element = Magnitude<Element>::of(source[i]) >> shift;
      if (of_element >> bits == magnitude) ++counts[i % 2][of_element & mask];
    }
    std::size_t digit = static_cast<std::size_t>(mask);
    while (digit > 0 && above + counts[0][digit] + counts[1][digit] < wanted) {
      above += counts[0][digit] + counts[1][digit];
      --digit;
    }
    return digit;
  }
};

template <class Element>
void choose_largest(const Element* source, std::size_t count, std::size_t wanted, std::int64_t* indices) noexcept {
  assert(wanted <= count);
  if (wanted == 0) return;
  Boundary<Element> boundary(source, count, wanted);
  std::size_t written = 0;
  for (std::size_t i = 0; i < count && written < wanted; ++i) {
    const auto magnitude = Magnitude<Element>::of(source[i]);
    if (magnitude < boundary.magnitude) continue;
    if (magnitude == boundary.magnitude) {
      if (boundary.equal == 0) continue;
      --boundary.equal;
    }
    indices[written++] = static_cast<std::int64_t>(i);
  }
}

}  // namespace

void largest(const float* source, std::size_t count, std::size_t wanted, std::int64_t* indices) noexcept {
  choose_largest(source, count, wanted, indices);
}

void largest(const double* source, std::size_t count, std::size_t wanted, std::int64_t* indices) noexcept {
  choose_largest(source, count, wanted, indices);
}

}  // namespace wiresum::numeric
