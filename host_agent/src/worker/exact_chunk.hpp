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
  /// The chunk's memory, and the format, must stay until finish(). `lanes`: of a packet.
  void begin(const numeric::ExactFormat& format, numeric::Dtype dtype, const ChunkView& chunk,
             std::size_t lanes) noexcept;
  /// The chunk after it will be this one.
  void look_ahead(const ChunkView& next) noexcept;

  static constexpr std::uint8_t kMore = 32;

  /// The code that this worker's next packet says: of its lowest plane that no earlier round was about. 0: of none.
  [[nodiscard]] std::uint8_t code() const noexcept;
  /// The first code of the chunk after it; 0 if there is none.
  [[nodiscard]] std::uint8_t code_ahead() const noexcept { return ahead_.has_value() ? code_of(*ahead_) : 0; }
  /// May a RESULT say this code of the chunk? It names a plane above those before.
  [[nodiscard]] bool is_possible(std::uint8_t code) const noexcept { return code < code_; }
  /// May it say this one of the chunk after it?
  [[nodiscard]] bool is_possible_ahead(std::uint8_t code) const noexcept {
    return code <= (ahead_.has_value() ? format_->planes() : 0);
  }

  /// Of the present plane, the same at all workers.
  [[nodiscard]] std::uint8_t plane_code() const noexcept { return code_; }
  /// The plane of that code is next; code > 0. False if there is no memory for it.
  [[nodiscard]] bool start_plane(std::uint8_t code) noexcept;
  /// Has this worker anything in the present plane?
  [[nodiscard]] bool has_plane() const noexcept { return (mine_ >> plane() & 1) != 0; }
  /// Writes the present part of this plane as `lanes` big-endian words; has_plane().
  void write(std::byte* payload) const noexcept;
  /// The sum of the present part. Returns whether the plane has further parts, of which the next is the present one
  /// now.
  [[nodiscard]] bool take(const std::byte* payload) noexcept;

  /// All planes have come: writes the chunk's sum to its destination, and frees the memory.
  void finish(unsigned divisor) noexcept;

 private:
  [[nodiscard]] unsigned plane() const noexcept { return format_->planes() - code_; }
  [[nodiscard]] numeric::Planes planes_of(const ChunkView& chunk) const noexcept;
  /// Of the lowest of these planes.
  [[nodiscard]] std::uint8_t code_of(numeric::Planes planes) const noexcept;
  [[nodiscard]] std::size_t part_elements() const noexcept;

  const numeric::ExactFormat* format_ = nullptr;
  numeric::Dtype dtype_ = numeric::Dtype::kF32;
  ChunkView chunk_;
  std::size_t lanes_ = 0;
  numeric::Planes mine_ = 0;
  std::optional<numeric::Planes> ahead_;  // that this worker has of the chunk after it
  numeric::Planes planes_ = 0;            // that have come, or are about to
  std::uint8_t code_ = 0;                 // of the present plane; before the first, one more than there are
  std::size_t part_first_ = 0;            // the present part's first element
  std::vector<std::int32_t> limbs_;       // of my planes, from the first that came
  std::vector<std::int32_t> sums_;
};

}  // namespace wiresum::worker
