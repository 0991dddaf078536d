// The collectives that a worker has been given: a fixed pool, kept in order of submission, then of completion.
#pragma once

#include <cstdint>
#include <vector>

#include "numeric/codec.hpp"
#include "worker/collective.hpp"
#include "worker/slot.hpp"

namespace wiresum::worker {

/// A packet's place in the order that all workers share. Keys are compared as serial numbers: `order` may wrap.
[[nodiscard]] constexpr std::uint64_t order_key(std::uint64_t order, std::uint64_t position) noexcept {
  // 2^32 chunks and a META round of at most 2^15 slots fit 33 bits. The remaining bits are for `order`, of which only
  // collectives_max numbers are alive at one time.
  constexpr unsigned kPositionBits = 33;
  return (order << kPositionBits) + position;
}

struct Pending {
  Collective work;
  numeric::Scale fixed;      // the one scale of all chunks, for Scaling::kFixed
  std::uint64_t order = 0;   // number of the submission
  std::uint32_t chunks = 0;  // number of chunks in this thread's share
  std::uint32_t chunks_left = 0;
  std::uint32_t slot_start = 0;  // local chunk i goes through slot (slot_start + i % stride) % slots
  std::uint32_t stride = 0;
  std::uint32_t chunk_elements = 0;  // elements in a full chunk
  bool exponent_round = false;       // a META round comes before each slot's first chunk
  bool barrier = false;              // no regions: every chunk is a META round
  std::uint8_t vote = 0;             // the workers' largest, once the last chunk has come back
  Status status = Status::kOk;
  std::uint32_t previous = kNoCollective;
  std::uint32_t next = kNoCollective;

  /// The number of local chunk `chunk` in the collective.
  [[nodiscard]] std::uint32_t number(std::uint32_t chunk) const noexcept {
    const std::uint32_t at = work.chunk_begin + chunk;
    return work.chunks.empty() ? at : work.chunks[at];
  }
  /// The memory of local chunk `chunk`; it has no source if this worker is known to have only zeros there.
  [[nodiscard]] ChunkView view(std::uint32_t chunk) const noexcept;
  /// Reads the elements of local chunk `chunk` at `view`, and returns its exponents. If all elements are zero, the view
  /// loses its source: the chunk is sent EMPTY.
  [[nodiscard]] numeric::Exponents exponents(std::uint32_t chunk, ChunkView& view) const noexcept;
  /// The place of a slot's packet in the agreed order: submission, then round, then slot.
  [[nodiscard]] std::uint64_t key(const Slot& slot) const noexcept;
};

/// Every entry is in one of three lists: free, in progress (by submission), complete (until the caller takes it).
class PendingPool {
 public:
  explicit PendingPool(std::uint32_t capacity);

  [[nodiscard]] Pending& operator[](std::uint32_t index) noexcept { return entries_[index]; }
  [[nodiscard]] const Pending& operator[](std::uint32_t index) const noexcept { return entries_[index]; }

  /// Appends an entry to the list in progress; returns kNoCollective if all are in use.
  [[nodiscard]] std::uint32_t acquire() noexcept;
  void complete(std::uint32_t index, Status status) noexcept;
  /// Takes and frees the entry that was completed first; kNoCollective without one. The entry stays readable until the
  /// next acquire().
  [[nodiscard]] std::uint32_t take_complete() noexcept;

  /// The first entry in progress; Pending::next leads on.
  [[nodiscard]] std::uint32_t oldest() const noexcept { return active_.head; }

 private:
  struct List {
    std::uint32_t head = kNoCollective;
    std::uint32_t tail = kNoCollective;
  };
  void append(List& list, std::uint32_t index) noexcept;
  void unlink(List& list, std::uint32_t index) noexcept;

  std::vector<Pending> entries_;
  List free_;
  List active_;
  List complete_;
};

}  // namespace wiresum::worker
