// Integers of 8 and 64 bits as 32-bit integers, whose sums make sums modulo 2^8 or 2^64. Pure.
//
// Theory of operation
//
// An integer is cut into *limbs* of B bits, from the lowest: x = l0 + l1 * 2^B + l2 * 2^2B + ..., each from -2^(B-1) to
// 2^(B-1) - 1. The switch adds the N workers' limbs of one position in lanes of 16 or 32 bits. B is ceil(log2 N) less
// than a lane has, so no sum of limbs overflows, and these sums, with their weights, make the sum of the integers. The
// highest limb loses only multiples of 2^64. Signed or not, integers modulo 2^64 are the same.
//
// All limbs of one position follow each other. The upper limbs of small numbers of either sign are zeros, and chunks of
// zeros need not be sent.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wiresum::numeric {

class IntegerFormat {
 public:
  /// `bytes` of an integer are 1 or 8, and `workers` are 1..kJobWorkersMax.
  IntegerFormat(std::size_t bytes, unsigned workers) noexcept;

  /// The bits of a limb on the wire (Format::bits).
  [[nodiscard]] std::uint8_t lane_bits() const noexcept { return lane_bits_; }
  /// The number of limbs of `count` integers.
  [[nodiscard]] std::size_t limbs(std::size_t count) const noexcept { return limbs_ * count; }

  void split(const std::byte* source, std::size_t count, std::int32_t* limbs) const noexcept;
  /// Writes `count` integers from the sums of such limbs over all workers.
  void join(const std::int32_t* sums, std::size_t count, std::byte* destination) const noexcept;

 private:
  std::size_t bytes_;
  std::uint8_t lane_bits_;
  unsigned limb_bits_;
  std::size_t limbs_;  // in one integer
};

}  // namespace wiresum::numeric
