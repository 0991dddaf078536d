// What a worker learns about its own tensors before a collective begins. Pure.
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

/// Density of blocks on the wire: 254 is all present, rounded up, so that it is 0 only if no sampled block is present.
inline constexpr std::uint8_t kDensityFull = 254;

/// The one rule for null pointers, whichever way a request came: a side of a region that is used has memory, unless the
/// region is empty. Throws std::invalid_argument.
void require_memory(std::span<const worker::Region> regions);

/// Numbers the chunks of all regions in order; returns how many there are: 1 of a barrier.
std::uint64_t number_chunks(std::vector<worker::Region>& regions, numeric::Format format, std::size_t lanes);

/// A sample of a few chunks, spread evenly.
struct Sample {
  std::uint8_t density = kDensityFull;  // estimated: how many of the request's chunks are present at this worker
  /// Of each, which of 32 elements are not zero. None where chunks are too small to be cut into blocks.
  std::vector<std::uint32_t> runs;
  std::uint32_t chunks_present = 0;  // bit i: the chunk of run i holds anything
};

/// `salt` says where to begin. Workers with the same salt sample the same positions.
[[nodiscard]] Sample take_sample(const Request& request, std::size_t lanes, std::uint64_t chunks, std::uint64_t salt);

/// How many runs take_sample returns of a tensor of so many chunks.
[[nodiscard]] std::uint64_t sampled_runs(numeric::Format format, std::size_t lanes, std::uint64_t chunks);

/// What is known about a request's tensors, from before its submission and since.
struct Survey {
  std::uint64_t chunks = 0;
  Sample sample;  // of a request that may not be sparse, nothing
  worker::ChunkPresence presence;
};

/// Reads every chunk. In a region that is summed in place, a chunk that is all zeros becomes +0.0 throughout: its sum
/// if no worker has it.
[[nodiscard]] worker::ChunkPresence scan(const Request& request, std::size_t lanes, std::uint64_t chunks);

/// A tensor that is made of a request's, and summed where it is.
struct PackedTensor {
  Request request;
  std::uint64_t chunks = 0;
  worker::ChunkPresence presence;

  /// After the request's format and regions have been set.
  void number_and_scan(std::size_t lanes);
};

/// Does the request have chunks that nobody writes if no worker has them? In a region summed in place, scan() has.
[[nodiscard]] bool needs_clearing(const Request& request) noexcept;

/// Writes zeros to the destinations of chunks that `present` says no worker has, where scan() has not.
void clear_absent(const Request& request, std::size_t lanes, const std::function<bool(std::uint64_t)>& present);

}  // namespace wiresum::schedule
