// Small collectives in which every worker gets the elements of all others, as one sum of integers: each worker puts its
// own elements into words that are zero at all others. That takes one round trip, and as few packets as hold the words.
//
//   a sum of few floats that is rounded once (numeric/exact.hpp): one round trip less than block floating point. Each
//     worker adds up the elements of all
//   a reduction (numeric/reduction.hpp), in the same way
//   copies, such as an all-gather: their regions one behind the other, where each would have a packet of its own
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/presence.hpp"
#include "schedule/request.hpp"
#include "schedule/survey.hpp"

namespace wiresum::schedule {

class Gathered {
 public:
  /// True if the request travels so; the same at all workers. `chunks` are those of its regions, and a sum of floats is
  /// one that is rounded once.
  [[nodiscard]] static bool suits(const Request& request, std::uint64_t chunks, std::size_t lanes,
                                  WorkerRank self) noexcept;

  /// The request's memory must outlive this object.
  Gathered(const Request& request, std::size_t lanes, WorkerRank self);

  /// A tensor of integers, to be summed in place.
  [[nodiscard]] const PackedTensor& packed() const noexcept { return packed_; }

  /// Writes the results to their destinations after the packed tensor has been summed.
  void join();

 private:
  void join(const worker::Region& region, const std::byte* contributions) const;

  const Request& request_;
  WorkerRank self_;
  std::size_t words_;  // words of one worker's elements, region by region
  std::vector<std::int32_t> memory_;
  PackedTensor packed_;
};

}  // namespace wiresum::schedule
