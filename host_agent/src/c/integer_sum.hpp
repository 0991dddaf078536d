// A sum of integers of 8 or 64 bits: the switch adds their limbs (numeric/integers.hpp), in memory that is kept here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "numeric/integers.hpp"
#include "schedule/request.hpp"

namespace wiresum::c {

class IntegerSum {
 public:
  /// Of each region the source is read at once, and the destination is written by finish(). Throws
  /// std::invalid_argument if one has elements but no memory.
  IntegerSum(std::size_t element_bytes, unsigned workers, std::vector<worker::Region> regions);

  /// The limbs of each region, as kI32 of lane_bits() on the wire. They are summed where they are.
  [[nodiscard]] std::vector<worker::Region> limbs();
  [[nodiscard]] std::uint8_t lane_bits() const noexcept { return format_.lane_bits(); }

  /// Writes the sums, once the limbs have been summed.
  void finish() const noexcept;

 private:
  numeric::IntegerFormat format_;
  std::vector<worker::Region> regions_;
  std::vector<std::int32_t> words_;
};

}  // namespace wiresum::c
