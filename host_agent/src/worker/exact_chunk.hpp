// One chunk that is summed exactly, in several rounds of its slot (worker.hpp says when): what this worker has of it,
// and what has come back.
//
// Theory of operation. The chunk's floats are split into planes of limbs (numeric/exact.hpp). A plane takes one round,
// or, where a packet carries several elements in a word, a round for each of these parts. Only planes that some worker
// has are sent, from the lowest on. Which is next comes with a RESULT: each worker's packet says in its exponent field
// which of its planes comes next, as a *code* that is the larger the lower the plane; the switch's maximum is the
// lowest of all. Code 0 says that there are no more. So all workers know it alike, and none of them counts ahead.
//
// The first code of a chunk takes a META round. But where all chunks are summed exactly, a worker that has no more
// planes of this chunk says the first code of the slot's next one. So that nobody takes the one for the other, codes of
// a chunk that has begun are above kMore, which no chunk's first code reaches.
//
// Memory is allocated as planes come, and freed with the last one: no more chunks are under way than slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "numeric/exact.hpp"
#include "worker/chunks.hpp"

namespace wiresum::worker {

class ExactChunk {
 public:
  /// Begins a chunk; its memory, and the format, must stay until finish(). `lanes` is a packet's number of words.
  void begin(const numeric::ExactFormat& format, numeric::Dtype dtype, const ChunkView& chunk,
             std::size_t lanes) noexcept;
  /// Notes the chunk that follows this one.
  void look_ahead(const ChunkView& next) noexcept;

  static constexpr std::uint8_t kMore = 32;

  /// The code in this worker's next packet: that of its lowest plane after all earlier rounds, or 0 without one.
  [[nodiscard]] std::uint8_t code() const noexcept;
  /// The first code of the following chunk; 0 without one.
  [[nodiscard]] std::uint8_t code_ahead() const noexcept { return ahead_.has_value() ? code_of(*ahead_) : 0; }
  /// True if a RESULT may have this code, which must name a plane above all earlier ones.
  [[nodiscard]] bool is_possible(std::uint8_t code) const noexcept { return code < code_; }
  /// True if a RESULT may have this code for the following chunk.
  [[nodiscard]] bool is_possible_ahead(std::uint8_t code) const noexcept {
    return code <= (ahead_.has_value() ? format_->planes() : 0);
  }

  /// The code of the present plane, the same at all workers.
  [[nodiscard]] std::uint8_t plane_code() const noexcept { return code_; }
  /// Makes the plane of `code`, above 0, the present one. Returns false without memory.
  [[nodiscard]] bool start_plane(std::uint8_t code) noexcept;
  /// True if this worker has anything in the present plane.
  [[nodiscard]] bool has_plane() const noexcept { return (mine_ >> plane() & 1) != 0; }
  /// Writes the present part of this plane as `lanes` big-endian words. Requires has_plane().
  void write(std::byte* payload) const noexcept;
  /// Takes the sum of the present part. Returns true if the plane has a further part, which becomes the present one.
  [[nodiscard]] bool take(const std::byte* payload) noexcept;

  /// Writes the chunk's sum to its destination after the last plane, and frees the memory.
  void finish(unsigned divisor) noexcept;

 private:
  [[nodiscard]] unsigned plane() const noexcept { return format_->planes() - code_; }
  [[nodiscard]] numeric::Planes planes_of(const ChunkView& chunk) const noexcept;
  /// The code of the lowest of these planes.
  [[nodiscard]] std::uint8_t code_of(numeric::Planes planes) const noexcept;
  [[nodiscard]] std::size_t part_elements() const noexcept;

  const numeric::ExactFormat* format_ = nullptr;
  numeric::Dtype dtype_ = numeric::Dtype::kF32;
  ChunkView chunk_;
  std::size_t lanes_ = 0;
  numeric::Planes mine_ = 0;
  std::optional<numeric::Planes> ahead_;  // this worker's planes of the following chunk
  numeric::Planes planes_ = 0;            // the planes that have come, or are about to
  std::uint8_t code_ = 0;                 // the present plane's code; before the first, one more than the largest
  std::size_t part_first_ = 0;            // the present part's first element
  std::vector<std::int32_t> limbs_;       // this worker's limbs, from the first plane that came
  std::vector<std::int32_t> sums_;
};

}  // namespace wiresum::worker
