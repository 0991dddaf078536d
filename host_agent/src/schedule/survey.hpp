// What a worker finds out about its own tensors before a collective begins. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "numeric/codec.hpp"
#include "schedule/request.hpp"

namespace wiresum::schedule {

/// Density of blocks on the wire: 254 is all present, rounded up, so that it is 0 only if no sampled block is present.
inline constexpr std::uint8_t kDensityFull = 254;

/// One chunk of a request, in memory.
struct Block {
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
  std::size_t elements = 0;
};

/// Elements of a full chunk.
[[nodiscard]] std::size_t chunk_elements(numeric::Format format, std::size_t lanes);

/// Chunk `index` of a region; `step` elements make one.
[[nodiscard]] Block block_of(const Request& request, const worker::Region& region, std::uint64_t index,
                             std::size_t step);

/// Numbers the chunks of all regions in order; returns how many there are: 1 of a barrier.
std::uint64_t number_chunks(std::vector<worker::Region>& regions, numeric::Format format, std::size_t lanes);

/// A look at a few chunks, spread evenly.
struct Sample {
  std::uint8_t density = kDensityFull;  // estimated: how many of the request's chunks are present at this worker
  /// Of each, which of 32 elements are not zero. None where chunks are too small to be cut into blocks.
  std::vector<std::uint32_t> runs;
  std::uint32_t chunks_present = 0;  // bit i: the chunk of run i holds anything
};

/// `salt` says where to begin. Workers that give the same one look at the same places.
[[nodiscard]] Sample take_sample(const Request& request, std::size_t lanes, std::uint64_t chunks, std::uint64_t salt);

/// How many runs take_sample returns of a tensor of so many chunks.
[[nodiscard]] std::uint64_t sampled_runs(numeric::Format format, std::size_t lanes, std::uint64_t chunks);

/// What was found out about a request before it was submitted, and since.
struct Survey {
  std::uint64_t chunks = 0;
  Sample sample;                          // of a request that may not be sparse, nothing
  std::vector<numeric::BlockScan> scans;  // by chunk; empty if nobody has looked at any
  std::uint64_t scanned = 0;              // so many from the first on have been looked at
};

/// A run of chunks, by number.
struct ChunkRun {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// What of a run lies in a region, numbered from the region's first chunk on.
[[nodiscard]] ChunkRun part_of_region(const Request& request, const worker::Region& region, std::size_t lanes,
                                      ChunkRun run);

/// Looks at the chunks up to number `end` that have not been looked at.
void look(Survey& survey, const Request& request, std::size_t lanes, std::uint64_t end);

/// Looks at every chunk. In a region that is summed in place, a chunk of nothing but zeros becomes one of +0.0: that
/// is its sum, should no worker have it.
[[nodiscard]] std::vector<numeric::BlockScan> scan_blocks(const Request& request, std::size_t lanes,
                                                          std::uint64_t chunks);

/// Writes zeros to the destinations of chunks that `present` says no worker has, where scan_blocks has not.
void clear_absent(const Request& request, std::size_t lanes, ChunkRun run,
                  const std::function<bool(std::uint32_t)>& present);

}  // namespace wiresum::schedule
