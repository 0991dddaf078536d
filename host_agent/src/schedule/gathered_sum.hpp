// A sum of few floats that is rounded once (numeric/exact.hpp), as an all-gather: every worker gets the elements of all
// others, and adds them up itself. Each worker puts its own into words that are zero at all others, so that a sum of
// integers brings them together. That takes one round trip, one less than block floating point, and N times the words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "numeric/exact.hpp"
#include "schedule/presence.hpp"
#include "schedule/request.hpp"
#include "schedule/survey.hpp"

namespace wiresum::schedule {

class GatheredSum {
 public:
  /// True if the request has few enough elements; the same at all workers.
  [[nodiscard]] static bool suits(const Request& request, std::size_t lanes, WorkerRank self) noexcept;

  /// The request's memory must outlive this object.
  GatheredSum(const Request& request, std::size_t lanes, WorkerRank self);

  /// A tensor of integers, to be summed in place.
  [[nodiscard]] const PackedTensor& packed() const noexcept { return packed_; }

  /// Writes the request's sums to their destinations after the packed tensor has been summed.
  void join();

 private:
  const Request& request_;
  WorkerRank self_;
  std::size_t words_;  // words of this worker's elements, region by region
  std::vector<std::int32_t> memory_;
  PackedTensor packed_;
};

}  // namespace wiresum::schedule
