// The union of a sparse collective at a finer granularity than chunks, and the elements that are left, packed together.
//
// Theory of operation. A *row* is 64 elements of a chunk of the union, as a 64-bit number; the last row of a chunk may
// be shorter. `mine_` has a bit for each element that is not zero here, `union_` for each that may not be zero at some
// worker: at first all. A step (granularity.hpp) cuts the union into aligned blocks; each has a count, in the order of
// the tensor. Blocks of a step lie within those of the step before, since sizes are decreasing powers of two, so the
// blocks of the union are those whose first element is in it. What is in the union at the end is packed, in the order
// of the tensor, into memory of its own, summed like any tensor, and unpacked. All other elements become +0.0.
//
// Every worker computes the same union from the same counts, so an element has the same index in the packed tensor at
// all workers. With blocks of one element, these indices replace the keys that other methods send.
//
// The sums have the same bits as if the whole tensor had been sent. For that a float must be rounded with the exponent
// that the workers agree on for its chunk, although a packet holds elements of many chunks. So the first counts also
// carry each worker's exponent of each chunk, in a byte that is zero at all other workers (so there is no carry). All
// workers take the largest, and what is packed are the integers that the chunk's lanes would have held.
//
// A chunk that a packet of its own would not carry in block floating point (worker.hpp) is *set aside*: it is not
// packed but sent whole, after what is packed, so that its sum is exact as in the dense path. All workers must set
// aside the same chunks, and know only the largest exponent of each worker. So a worker that has an Inf or a NaN in a
// chunk, or exponents that lie apart by most of what is allowed, says 255 in its byte, and the workers' largest
// exponents may lie apart by the rest. This sets aside every chunk that would be summed exactly, and a few others.
//
// Memory: 1/16 of the union's chunks for the rows (1/8 at 16 bits per element), the counts, and 4 bytes for each
// element that is left.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "numeric/codec.hpp"
#include "schedule/granularity.hpp"
#include "schedule/presence.hpp"
#include "schedule/request.hpp"
#include "schedule/survey.hpp"
#include "worker/chunks.hpp"

namespace wiresum::schedule {

/// Number of words that a chunk's exponents take in the first counts: a byte for each of `workers`. Integers have none.
[[nodiscard]] std::uint64_t exponent_words(numeric::Format format, unsigned workers) noexcept;

class Refinement {
 public:
  /// `chunks` is the union so far. The request's memory must outlive this object.
  Refinement(const Request& request, std::size_t lanes, WorkerRank self, std::span<const std::uint32_t> chunks);

  /// Reads the chunks that may hold anything.
  void read(const worker::ChunkPresence& presence);

  /// Counts this worker's blocks of `size` elements.
  void count(unsigned size);
  [[nodiscard]] PresenceCounts& counts() noexcept { return counts_; }
  /// Narrows the union down to the blocks in the summed counts. Returns false if the workers cannot have made that sum.
  [[nodiscard]] bool narrow();
  /// The bound of the elements to pack.
  [[nodiscard]] const UnionSize& union_size() const noexcept { return union_size_; }
  /// The numbers of the chunks that are set aside. Call after the first narrow().
  [[nodiscard]] std::span<const std::uint32_t> set_aside() const noexcept { return set_aside_; }

  /// Makes the packed tensor of integers, of as many regions as the request. Like unpack(), it needs the thread's
  /// default floating-point environment.
  void pack();
  [[nodiscard]] const PackedTensor& packed() const noexcept { return packed_; }
  /// Writes the packed tensor's sum to the destinations; those of chunks set aside stay as they are.
  void unpack();

 private:
  void find_blocks();
  [[nodiscard]] bool is_float() const noexcept { return request_.format.scaling != numeric::Scaling::kNone; }
  [[nodiscard]] bool has_blocks_of_32_bits() const noexcept;
  [[nodiscard]] std::uint8_t exponent_to_say(const worker::ChunkView& block) const noexcept;
  [[nodiscard]] bool is_set_aside(std::size_t chunk) const noexcept {
    return exponents_[chunk] == numeric::kExponentNotFinite;
  }
  void write_exponents();
  [[nodiscard]] bool agree_on_exponents();
  [[nodiscard]] numeric::Scale scale_of(std::size_t chunk) const noexcept;
  [[nodiscard]] std::span<const std::uint64_t> rows_of(const std::vector<std::uint64_t>& rows, std::size_t chunk) const;
  /// Packs, or unpacks, a chunk of the union, by place. Both return how many of its elements are left.
  std::size_t pack(std::size_t chunk, std::int32_t* integers);
  std::size_t unpack(std::size_t chunk, const std::int32_t* integers);

  const Request& request_;
  std::size_t lanes_;
  WorkerRank self_;
  std::size_t element_bytes_;
  std::size_t rows_of_chunk_;
  std::span<const std::uint32_t> chunks_;
  std::vector<worker::ChunkView> blocks_;  // by place in the union
  std::vector<std::size_t> region_ends_;   // the place after a region's last chunk, by region
  std::vector<std::uint64_t> mine_;        // rows, chunk by chunk
  std::vector<std::uint64_t> union_;
  std::vector<std::uint8_t> exponents_;  // by place: this worker's, then the largest of all; 255: set aside
  std::vector<std::uint32_t> set_aside_;
  UnionSize union_size_;
  unsigned size_ = 0;  // size of the blocks that are being counted
  PresenceCounts counts_;
  std::vector<std::int32_t> memory_;
  std::vector<std::byte> elements_;  // elements that are left of a chunk
  PackedTensor packed_;
};

}  // namespace wiresum::schedule
