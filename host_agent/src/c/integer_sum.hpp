// A sum of integers of 8 or 64 bits: the switch adds their limbs (numeric/integers.hpp), whose memory is kept here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "numeric/integers.hpp"
#include "schedule/request.hpp"

namespace wiresum::c {

class IntegerSum {
 public:
  /// Reads each region's source at once; finish() writes the destinations. Throws std::invalid_argument for a region of
  /// elements without memory.
  IntegerSum(std::size_t element_bytes, unsigned workers, std::vector<worker::Region> regions);

  /// The limbs of each region, as kI32 of lane_bits() on the wire, to be summed in place.
  [[nodiscard]] std::vector<worker::Region> limbs();
  [[nodiscard]] std::uint8_t lane_bits() const noexcept { return format_.lane_bits(); }

  /// Writes the sums of integers from the summed limbs.
  void finish() const noexcept;

 private:
  numeric::IntegerFormat format_;
  std::vector<worker::Region> regions_;
  std::vector<std::int32_t> words_;
};

}  // namespace wiresum::c
