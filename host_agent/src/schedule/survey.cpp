#include "schedule/survey.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "numeric/codec.hpp"
#include "schedule/elements.hpp"
#include "schedule/granularity.hpp"
#include "worker/chunks.hpp"

namespace wiresum::schedule {

using worker::chunk_elements;

namespace {

/// The sampled blocks of a tensor; a few show a dense one.
constexpr std::uint64_t kSamples = 32;  // bits of Sample::chunks_present

/// The fewest elements of a chunk that is cut into blocks.
constexpr std::size_t kRefinableElementsMin = std::size_t{2} * kRunElements;

/// The present elements of the chunk's aligned run number `number`. Only whole runs are taken: a shorter rest would
/// make a full chunk seem sparse.
std::uint32_t sample_run(numeric::Dtype dtype, const worker::ChunkView& chunk, std::uint64_t number) {
  const std::size_t runs = std::max<std::size_t>(1, chunk.elements / kRunElements);
  const std::size_t first = number % runs * kRunElements;
  const std::size_t count = std::min<std::size_t>(kRunElements, chunk.elements - first);
  return static_cast<std::uint32_t>(
      present_elements(dtype, chunk.source + first * numeric::element_bytes(dtype), count));
}

void require_memory(const char* side, const std::byte* first, std::uint64_t elements) {
  if (first != nullptr) return;
  throw std::invalid_argument("the " + std::string(side) + " of " + std::to_string(elements) +
                              " elements is a null pointer: its memory was never allocated, or has been freed");
}

}  // namespace

void require_memory(std::span<const worker::Region> regions) {
  for (const worker::Region& region : regions) {
    if (region.elements == 0) continue;
    if (region.source.is_used()) require_memory("source", region.source.first(), region.elements);
    if (region.destination.is_used()) require_memory("destination", region.destination.first(), region.elements);
  }
}

std::uint64_t number_chunks(std::vector<worker::Region>& regions, numeric::Format format, std::size_t lanes) {
  std::uint64_t chunks = regions.empty() ? 1 : 0;
  for (worker::Region& region : regions) {
    region.chunk_first = static_cast<std::uint32_t>(chunks);
    chunks += worker::chunks_of(region.elements, format, lanes);
  }
  return chunks;
}

std::uint64_t sampled_runs(numeric::Format format, std::size_t lanes, std::uint64_t chunks) {
  return chunk_elements(format, lanes) < kRefinableElementsMin ? 0 : std::min(kSamples, chunks);
}

Sample take_sample(const Request& request, std::size_t lanes, std::uint64_t chunks, std::uint64_t salt) {
  if (chunks == 0) return {.density = 0, .runs = {}, .chunks_present = 0};
  const std::uint64_t samples = std::min(kSamples, chunks);
  const std::uint64_t stride = chunks / samples;
  const std::size_t step = chunk_elements(request.format, lanes);
  std::vector<std::uint32_t> runs(samples);
  std::uint32_t present = 0;
  for (std::uint64_t i = 0; i < samples; ++i) {
    const std::uint64_t number = i * stride + salt % stride;
    const worker::ChunkView chunk = worker::chunk_at(request.regions, number, step, request.format.dtype);
    runs[i] = sample_run(request.format.dtype, chunk, salt / stride + i);
    const bool found = runs[i] != 0 || numeric::scan_block(request.format.dtype, chunk.source, chunk.elements).present;
    present |= std::uint32_t{found} << i;
  }
  const auto count = static_cast<std::uint64_t>(std::popcount(present));
  runs.resize(sampled_runs(request.format, lanes, chunks));
  return {.density = static_cast<std::uint8_t>((count * kDensityFull + samples - 1) / samples),
          .runs = std::move(runs),
          .chunks_present = present};
}

worker::ChunkPresence scan(const Request& request, std::size_t lanes, std::uint64_t chunks) {
  const numeric::Dtype dtype = request.format.dtype;
  const std::size_t step = chunk_elements(request.format, lanes);
  worker::ChunkPresence presence(chunks);
  std::vector<numeric::BlockScan> scans;
  for (const worker::Region& region : request.regions) {
    scans.resize(worker::chunks_of(region.elements, request.format, lanes));
    numeric::scan_blocks(dtype, region.source.first(), region.elements, step, scans.data());
    const bool in_place = region.destination.first() == region.source.first();
    for (std::uint64_t i = 0; i < scans.size(); ++i) {
      presence.set(region.chunk_first + i, scans[i].present);
      if (!in_place || !scans[i].negative_zero) continue;
      const worker::ChunkView chunk = chunk_in_region(region, i, step, dtype);
      std::memset(chunk.destination, 0, chunk.elements * numeric::element_bytes(dtype));
    }
  }
  return presence;
}

void PackedTensor::number_and_scan(std::size_t lanes) {
  chunks = number_chunks(request.regions, request.format, lanes);
  presence = scan(request, lanes, chunks);
}

namespace {

bool is_cleared_apart(const worker::Region& region) noexcept {
  return region.destination.is_used() && region.destination.first() != region.source.first() && region.elements > 0;
}

}  // namespace

bool needs_clearing(const Request& request) noexcept { return std::ranges::any_of(request.regions, is_cleared_apart); }

void clear_absent(const Request& request, std::size_t lanes, const std::function<bool(std::uint64_t)>& present) {
  const numeric::Dtype dtype = request.format.dtype;
  const std::size_t step = chunk_elements(request.format, lanes);
  for (const worker::Region& region : request.regions) {
    if (!is_cleared_apart(region)) continue;
    const std::uint64_t chunks = worker::chunks_of(region.elements, request.format, lanes);
    for (std::uint64_t i = 0; i < chunks; ++i) {
      if (present(region.chunk_first + i)) continue;
      const worker::ChunkView chunk = chunk_in_region(region, i, step, dtype);
      std::memset(chunk.destination, 0, chunk.elements * numeric::element_bytes(dtype));
    }
  }
}

}  // namespace wiresum::schedule
