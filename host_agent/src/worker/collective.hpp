// A collective, as the worker's state machine sees it: regions of memory, cut into chunks.
//
// One structure serves all collectives. A region is a run of elements; a worker *contributes* to it when it has a
// `source` (otherwise it sends EMPTY) and *keeps* the sum when it has a `destination`:
//
//   all-reduce       one region per tensor, with source and destination at every worker
//   broadcast        one region: source at the root alone, destination at the others
//   all-gather       N regions: source in my own, destination in all
//   reduce           one region: source everywhere, destination at the root
//   reduce-scatter   N regions: source in all, destination in my own
//   barrier          no region: a single META chunk
//
// A sparse collective sends only the chunks that some worker has: `chunks` lists them, the same at all workers, and
// `presence` says which of them this worker has; for those that are absent it sends EMPTY. schedule/ makes both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "numeric/codec.hpp"
#include "numeric/format.hpp"
#include "worker/chunk_presence.hpp"

namespace wiresum::worker {

/// Nanoseconds on the caller's clock. The core never reads a clock.
using TimeNs = std::int64_t;
inline constexpr TimeNs kNever = INT64_MAX;

/// A worker's memory for a region, if the worker reads or writes it. An unused side is marked by a flag and never by an
/// address: a null pointer comes from a caller whose memory is gone, and is refused (schedule::require_memory).
template <class Byte>
class Side {
 public:
  constexpr Side() noexcept = default;
  constexpr Side(Byte* first) noexcept : first_(first), is_used_(true) {}  // NOLINT(google-explicit-constructor)
  Side(std::nullptr_t) = delete;

  [[nodiscard]] constexpr bool is_used() const noexcept { return is_used_; }
  /// The first byte; null if the side is not used.
  [[nodiscard]] constexpr Byte* first() const noexcept { return first_; }

 private:
  Byte* first_ = nullptr;
  bool is_used_ = false;
};
using Source = Side<const std::byte>;
using Destination = Side<std::byte>;

struct Region {
  Source source;
  Destination destination;
  std::uint64_t elements = 0;
  std::uint32_t chunk_first = 0;  // number of the region's first chunk in the collective
};

/// Enough packets to fill the fastest paths; used until the workers have agreed on a measured value.
inline constexpr std::uint32_t kSlotsSpreadMax = 64;

struct Collective {
  /// A tag for every packet's `tensor` field, checked in every RESULT: the collective's sequence number in the low 16
  /// bits, a signature of the call in the high 16. Workers that call different collectives find out by it.
  std::uint32_t tensor = 0;
  numeric::Format format;
  float fixed_scale = 1.0F;  // for Scaling::kFixed
  float divisor = 1.0F;      // AVG: N
  bool exact = false;        // all chunks are summed exactly (exact_chunk.hpp): fp8, or Scaling::kBlockExponent
  /// Regions in order of chunk_first; owned by the submitter until the collective is complete.
  std::span<const Region> regions;
  /// The numbers of the chunks to send; empty means all.
  std::span<const std::uint32_t> chunks;
  /// The presence of this worker's chunks, by number; it must live until the collective is complete. An unknown chunk
  /// is examined when its turn comes.
  const ChunkPresence* presence = &kNothingKnown;
  /// This worker thread's share of the chunks: a run of `chunks`, or of all numbers. A barrier is the one chunk [0, 1)
  /// without a region.
  std::uint32_t chunk_begin = 0;
  std::uint32_t chunk_end = 0;
  /// A collective of few chunks takes a slot for each, up to this number; the same at all workers. Each slot costs one
  /// more packet, for its first exponent, so slots beyond a full path bring nothing.
  std::uint32_t slots_spread_max = kSlotsSpreadMax;
  TimeNs deadline = kNever;
  std::uint64_t token = 0;  // handed back in the completion
  std::uint8_t vote = 0;    // 0..254: the completion has the largest vote of all workers
};

enum class Status : std::uint8_t {
  kOk,
  kTimedOut,    // the deadline passed
  kDiverged,    // a RESULT for our round has another worker's tags: the workers call different collectives
  kAborted,     // abort() was called
  kNoMemory,    // this worker could not allocate what it needs
  kImpossible,  // a sum came back that the workers cannot have made
  kWrongSum,    // the check word of a slot's sum was wrong twice
};

struct Completion {
  std::uint64_t token = 0;
  Status status = Status::kOk;
  /// The largest vote of all workers; 0 for an empty share, and after a failure; 255 if the last chunk was summed
  /// exactly, since its packet had no place for a vote.
  std::uint8_t vote = 0;
  std::uint32_t round_trip_chunks = 0;  // about how many chunks this thread could send in an empty path's round trip
};

}  // namespace wiresum::worker
