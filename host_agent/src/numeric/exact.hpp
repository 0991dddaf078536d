// Sums of floats, rounded once, at the end: an element's sum does not depend on its neighbours in the packet.
//
// Theory of operation
//
// Every finite float is an integer multiple of its format's smallest subnormal; the integer has at most 277 bits (fp32;
// 40 for fp16, 32 for e5m2, 18 for e4m3, which is one limb in any job). The integer is cut into *limbs* of `limb_bits`
// bits, at the same positions for all elements and workers, each with the element's sign. The switch adds the N
// workers' limbs of one position as 32-bit integers. A limb is below 2^limb_bits, and limb_bits = 31 - ceil(log2 N), so
// no sum overflows. The sums of all positions, with their weights, are the exact sum of the elements (a
// superaccumulator: Kulisch, "Computer Arithmetic and Validity", 2013, ch. 8). The sum, or its quotient for an average,
// is rounded once to nearest even.
//
// A significand of 24 bits lies in two of a dozen limbs (three with hundreds of workers), so in a chunk of elements
// most positions are zero at all workers. The other positions are the chunk's *planes*, a set: bit k stands for the
// limbs at position k, and the last plane for elements that are Inf or NaN. Fields of a word of the last plane count
// +Inf and -Inf, a NaN as both; such an element's sum is what IEEE 754 defines.
//
// All arithmetic is in integers: the caller's floating-point environment does not matter. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "numeric/format.hpp"

namespace wiresum::numeric {

/// A set of planes.
using Planes = std::uint32_t;

class ExactFormat {
 public:
  static constexpr unsigned kLimbsMax = 15;  // for fp32 and kJobWorkersMax

  /// `dtype` is of floats, and `workers` are 1..kJobWorkersMax.
  ExactFormat(Dtype dtype, unsigned workers) noexcept;

  /// The number of planes; the last is for special values.
  [[nodiscard]] unsigned planes() const noexcept { return limbs_ + 1; }

  /// The planes in which `count` elements are not all zero.
  [[nodiscard]] Planes planes_of(const std::byte* source, std::size_t count) const noexcept;

  /// Writes `count` words for each of `planes`, one plane after the other. `planes` includes all that planes_of()
  /// found; others are left out, even if the program has written to its memory since.
  void split(const std::byte* source, std::size_t count, Planes planes, std::int32_t* words) const noexcept;

  /// Writes `count` elements from the sums of such words over all workers: each is the sum divided by `divisor`,
  /// rounded once to nearest even. A sum of zero is +0.0.
  void join(const std::int32_t* words, std::size_t count, Planes planes, unsigned divisor,
            std::byte* destination) const noexcept;

  /// Writes the result of join() from the elements of all workers: worker k's are at contributions + k * stride.
  void add_up(const std::byte* contributions, std::size_t stride, unsigned workers, std::size_t count, unsigned divisor,
              std::byte* destination) const noexcept;

 private:
  /// The parts of one element by plane, or their sums over all workers.
  using Parts = std::array<std::int64_t, kLimbsMax + 1>;
  struct LimbBit {
    std::uint8_t limb = 0;
    std::uint8_t shift = 0;
  };

  __extension__ using Wide = __int128;
  /// The upper bits of a sum, more than 64 of them or all. The lowest counts 2^low of the format's smallest subnormals.
  struct Upper {
    Wide bits;
    int low;
    bool fraction;  // the rest is more than 0, and less than the lowest bit counts
  };

  [[nodiscard]] std::uint32_t load(const std::byte* source, std::size_t index) const noexcept;
  void store(std::byte* destination, std::size_t index, std::uint32_t bits) const noexcept;
  /// Calls take(plane, part) for each part of an element that is not 0.
  template <class Take>
  void for_each_part(std::uint32_t bits, const Take& take) const noexcept;
  /// The significand of a finite element.
  [[nodiscard]] std::uint32_t significand_of(std::uint32_t bits) const noexcept {
    const std::uint32_t mantissa = bits & (hidden_bit() - 1);
    return (bits >> mantissa_bits_ & exponent_max_) == 0 ? mantissa : mantissa | hidden_bit();
  }
  /// The result for one element of any contributions.
  [[nodiscard]] std::uint32_t sum_of_parts(const std::byte* contributions, std::size_t stride, unsigned workers,
                                           std::size_t index, unsigned divisor) const noexcept;
  [[nodiscard]] std::uint32_t rounded(const Upper& sum, unsigned divisor) const noexcept;
  /// The element that the sums of `planes` make; other planes' sums are 0.
  [[nodiscard]] std::uint32_t rounded(const Parts& sums, Planes planes, unsigned divisor) const noexcept;
  [[nodiscard]] std::uint32_t hidden_bit() const noexcept { return 1U << mantissa_bits_; }
  [[nodiscard]] std::uint32_t special(std::uint32_t counts) const noexcept;

  Dtype dtype_;
  unsigned mantissa_bits_;
  unsigned exponent_max_;  // all bits of an exponent
  std::uint32_t sign_;
  std::uint32_t special_;   // the smallest magnitude that is no finite number: Inf, or e4m3's NaN
  std::uint32_t overflow_;  // what rounds beyond the finite numbers: Inf, or e4m3's largest number
  unsigned limb_bits_;
  unsigned limbs_;
  std::array<LimbBit, 255> places_{};  // by biased exponent: where a significand's lowest bit is
};

}  // namespace wiresum::numeric
