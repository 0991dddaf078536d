// A worker's survey of its own tensors before a collective begins. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "numeric/format.hpp"
#include "schedule/request.hpp"
#include "worker/chunk_presence.hpp"

namespace wiresum::schedule {

/// The density on the wire if all blocks are present. Densities are rounded up, so 0 means that no sampled block is
/// present.
inline constexpr std::uint8_t kDensityFull = 254;

/// Checks the one rule for null pointers: a used side of a region has memory, unless the region is empty. Throws
/// std::invalid_argument.
void require_memory(std::span<const worker::Region> regions);

/// Numbers the chunks of all regions in order; returns how many there are: 1 for a barrier.
std::uint64_t number_chunks(std::vector<worker::Region>& regions, numeric::Format format, std::size_t lanes);

/// A sample of a few chunks, spread evenly.
struct Sample {
  std::uint8_t density = kDensityFull;  // estimated share of the request's chunks that are present at this worker
  /// A bit for each of 32 elements that is not zero, by sampled chunk. Empty where chunks are too small to be cut into
  /// blocks.
  std::vector<std::uint32_t> runs;
  std::uint32_t chunks_present = 0;  // bit i: the chunk of run i holds anything
};

/// `salt` decides the start. Workers with the same salt sample the same positions.
[[nodiscard]] Sample take_sample(const Request& request, std::size_t lanes, std::uint64_t chunks, std::uint64_t salt);

/// The number of runs that take_sample returns for a tensor of so many chunks.
[[nodiscard]] std::uint64_t sampled_runs(numeric::Format format, std::size_t lanes, std::uint64_t chunks);

/// Knowledge about a request's tensors, from before its submission and since.
struct Survey {
  std::uint64_t chunks = 0;
  Sample sample;  // empty for a request that may not be sparse
  worker::ChunkPresence presence;
};

/// Reads every chunk. In a region that is summed in place, a chunk that is all zeros becomes +0.0 throughout: its sum
/// if no worker has it.
[[nodiscard]] worker::ChunkPresence scan(const Request& request, std::size_t lanes, std::uint64_t chunks);

/// A tensor that is made of a request's tensors, and summed in place.
struct PackedTensor {
  Request request;
  std::uint64_t chunks = 0;
  worker::ChunkPresence presence;

  /// Numbers the chunks and scans them. Call after setting the request's format and regions.
  void number_and_scan(std::size_t lanes);
};

/// True if the request has chunks that nobody writes if no worker has them. In a region summed in place, scan() writes
/// them.
[[nodiscard]] bool needs_clearing(const Request& request) noexcept;

/// Writes zeros to the destinations of chunks that `present` says no worker has, unless scan() has.
void clear_absent(const Request& request, std::size_t lanes, const std::function<bool(std::uint64_t)>& present);

}  // namespace wiresum::schedule
