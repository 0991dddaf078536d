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

/// Where a worker reads or writes a region, if it does. That it does not is said by a flag and never by an address: a
/// null pointer is what a caller gives whose memory is gone, and is refused (schedule::require_memory).
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
  /// Goes into every packet's `tensor` field and is checked in every RESULT: the sequence number of the
  /// collective in its low 16 bits, a signature of what is being done in the high 16, so that workers which
  /// call different collectives find out.
  std::uint32_t tensor = 0;
  numeric::Format format;
  float fixed_scale = 1.0F;  // for Scaling::kFixed
  float divisor = 1.0F;      // AVG: N
  bool exact = false;        // Scaling::kBlockExponent: all chunks are summed exactly (exact_chunk.hpp)
  /// Regions in order of chunk_first; owned by the submitter until the collective is complete.
  std::span<const Region> regions;
  /// The numbers of the chunks to send. Empty: all of them.
  std::span<const std::uint32_t> chunks;
  /// What is known of this worker's tensor, by number of the chunk; it stays until the collective is complete. What is
  /// unknown is found out when the chunk's turn comes.
  const ChunkPresence* presence = &kNothingKnown;
  /// This worker thread's share of the chunks: a run of `chunks`, or of all numbers. A barrier is the one chunk [0, 1)
  /// with no region.
  std::uint32_t chunk_begin = 0;
  std::uint32_t chunk_end = 0;
  /// A collective of few chunks takes a slot for each, up to this number; the same at all workers. Each slot costs one
  /// more packet, for its first exponent, so more slots than fill the path only cost.
  std::uint32_t slots_spread_max = kSlotsSpreadMax;
  TimeNs deadline = kNever;
  std::uint64_t token = 0;  // handed back in the completion
  std::uint8_t vote = 0;    // 0..254: the completion tells the largest of all workers'
};

enum class Status : std::uint8_t {
  kOk,
  kTimedOut,    // its deadline passed
  kDiverged,    // a RESULT for our round carries another worker's tags: the workers call different collectives
  kAborted,     // abort() was called
  kNoMemory,    // this worker could not allocate what it needs
  kImpossible,  // a sum came back that the workers cannot have made
  kWrongSum,    // the check word of a slot's sum did not fit, twice
};

struct Completion {
  std::uint64_t token = 0;
  Status status = Status::kOk;
  /// The largest of all workers'; 0 of an empty share, and after a failure; 255 if the last chunk was summed exactly,
  /// since its packet had no place for it.
  std::uint8_t vote = 0;
  std::uint32_t round_trip_chunks = 0;  // about how many chunks this thread could send in an empty path's round trip
};

}  // namespace wiresum::worker
