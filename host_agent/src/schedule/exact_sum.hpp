// A sum of floats that is rounded once (numeric/exact.hpp), as collectives of integers.
//
// Theory of operation. There are two ways; the request's size and the number of workers decide:
//
//   All-gather, for few elements. Every worker gets the elements of all others: each worker puts its own into words
//   that are zero at all others, so that a sum of integers brings them together. Then each worker adds them up itself.
//   That takes one round trip, one less than block floating point, and N times the words.
//
//   Split. First a count for each block of 256 elements and each plane: does any worker have it? Then the words of
//   those planes, block by block, and in each block plane by plane; their sums make the elements. Neither zeros nor
//   blocks that are zero at all workers cost a word.
//
// Memory: what travels, and for the counts 1/60 of the tensor or less.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "numeric/exact.hpp"
#include "schedule/presence.hpp"
#include "schedule/request.hpp"
#include "schedule/survey.hpp"

namespace wiresum::schedule {

/// Can the request's sum be exact? Only of floats whose scale is not the caller's choice.
[[nodiscard]] bool may_be_exact(const Request& request) noexcept;

class ExactSum {
 public:
  /// The request's memory must stay; may_be_exact(request).
  ExactSum(const Request& request, std::size_t lanes, WorkerRank self);

  [[nodiscard]] bool uses_all_gather() const noexcept { return uses_all_gather_; }

  /// All-gather: makes the packed tensor.
  void pack_elements();

  /// Split: counts my planes.
  void count();
  [[nodiscard]] PresenceCounts& counts() noexcept { return counts_; }
  /// The counts have been summed: makes the packed tensor of the planes that some worker has. False if the workers
  /// cannot have made that sum.
  [[nodiscard]] bool split();

  /// A tensor of integers, to be summed where it is.
  [[nodiscard]] const PackedTensor& packed() const noexcept { return packed_; }

  /// The packed tensor has been summed: writes the request's sums to their destinations.
  void join();

 private:
  [[nodiscard]] std::size_t words_of(const worker::Region& region) const noexcept;
  [[nodiscard]] numeric::Planes union_of(std::uint64_t block) const noexcept;
  void pack(std::size_t words);
  void join_all_gather();
  void join_split();

  const Request& request_;
  std::size_t lanes_;
  WorkerRank self_;
  numeric::ExactFormat format_;
  unsigned divisor_;
  std::size_t element_bytes_;
  std::size_t words_ = 0;  // of my elements, region by region
  std::uint64_t blocks_ = 0;
  bool uses_all_gather_ = false;
  PresenceCounts counts_;
  std::vector<std::int32_t> memory_;
  PackedTensor packed_;
};

}  // namespace wiresum::schedule
