#include "schedule/survey.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <utility>

#include "schedule/elements.hpp"
#include "schedule/granularity.hpp"
#include "worker/worker.hpp"

namespace wiresum::schedule {
namespace {

/// Sampled blocks of a tensor: a plainly dense one is known for it with few.
constexpr std::uint64_t kSamples = 32;  // a bit each in Sample::chunks_present

/// Chunks of fewer elements are not cut into blocks: a block would be hardly smaller.
constexpr std::size_t kRefinableElementsMin = std::size_t{2} * kRunElements;

/// Which elements of an aligned run of the block are present; `number` says which run. Of the whole ones: what is left
/// behind the last of them is too short to be full, and would make a full block look as if it were not.
std::uint32_t look_at_run(numeric::Dtype dtype, const Block& block, std::uint64_t number) {
  const std::size_t runs = std::max<std::size_t>(1, block.elements / kRunElements);
  const std::size_t first = number % runs * kRunElements;
  const std::size_t count = std::min<std::size_t>(kRunElements, block.elements - first);
  return static_cast<std::uint32_t>(
      present_elements(dtype, block.source + first * numeric::element_bytes(dtype), count));
}

}  // namespace

std::size_t chunk_elements(numeric::Format format, std::size_t lanes) {
  return lanes * numeric::elements_per_word(format);
}

Block block_of(const Request& request, const worker::Region& region, std::uint64_t index, std::size_t step) {
  const std::uint64_t first = index * step;
  const std::size_t offset = first * numeric::element_bytes(request.format.dtype);
  return {.source = region.source == nullptr ? nullptr : region.source + offset,
          .destination = region.destination == nullptr ? nullptr : region.destination + offset,
          .elements = static_cast<std::size_t>(std::min<std::uint64_t>(step, region.elements - first))};
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
  auto region = request.regions.begin();
  for (std::uint64_t i = 0; i < samples; ++i) {
    const std::uint64_t number = i * stride + salt % stride;
    // Of regions that begin at the same chunk all but the last are empty.
    while (region + 1 != request.regions.end() && (region + 1)->chunk_first <= number) ++region;
    const Block block = block_of(request, *region, number - region->chunk_first, step);
    runs[i] = look_at_run(request.format.dtype, block, salt / stride + i);
    const bool found = runs[i] != 0 || numeric::scan_block(request.format.dtype, block.source, block.elements).present;
    present |= std::uint32_t{found} << i;
  }
  const auto count = static_cast<std::uint64_t>(std::popcount(present));
  runs.resize(sampled_runs(request.format, lanes, chunks));
  return {.density = static_cast<std::uint8_t>((count * kDensityFull + samples - 1) / samples),
          .runs = std::move(runs),
          .chunks_present = present};
}

ChunkRun part_of_region(const Request& request, const worker::Region& region, std::size_t lanes, ChunkRun run) {
  const std::uint64_t end = region.chunk_first + worker::chunks_of(region.elements, request.format, lanes);
  const std::uint64_t first = std::max<std::uint64_t>(run.begin, region.chunk_first);
  return {.begin = first - region.chunk_first, .end = std::max(first, std::min(run.end, end)) - region.chunk_first};
}

namespace {

void scan_run(const Request& request, std::size_t lanes, ChunkRun run, std::span<numeric::BlockScan> scans) {
  const std::size_t step = chunk_elements(request.format, lanes);
  const std::size_t bytes = numeric::element_bytes(request.format.dtype);
  for (const worker::Region& region : request.regions) {
    const ChunkRun part = part_of_region(request, region, lanes, run);
    if (part.begin >= part.end) continue;
    numeric::BlockScan* const first = scans.data() + region.chunk_first;
    const Block head = block_of(request, region, part.begin, step);
    const std::uint64_t elements = std::min<std::uint64_t>(region.elements, part.end * step) - part.begin * step;
    numeric::scan_blocks(request.format.dtype, head.source, elements, step, first + part.begin);
    if (region.destination != region.source) continue;
    for (std::uint64_t i = part.begin; i < part.end; ++i) {
      const Block block = block_of(request, region, i, step);
      if (first[i].negative_zero) std::memset(block.destination, 0, block.elements * bytes);
    }
  }
}

}  // namespace

std::vector<numeric::BlockScan> scan_blocks(const Request& request, std::size_t lanes, std::uint64_t chunks) {
  std::vector<numeric::BlockScan> scans(chunks);
  scan_run(request, lanes, {.begin = 0, .end = chunks}, scans);
  return scans;
}

void look(Survey& survey, const Request& request, std::size_t lanes, std::uint64_t end) {
  if (end <= survey.scanned) return;
  survey.scans.resize(survey.chunks);
  scan_run(request, lanes, {.begin = survey.scanned, .end = end}, survey.scans);
  survey.scanned = end;
}

void clear_absent(const Request& request, std::size_t lanes, ChunkRun run,
                  const std::function<bool(std::uint32_t)>& present) {
  const std::size_t step = chunk_elements(request.format, lanes);
  const std::size_t bytes = numeric::element_bytes(request.format.dtype);
  for (const worker::Region& region : request.regions) {
    if (region.destination == nullptr || region.destination == region.source) continue;
    const ChunkRun part = part_of_region(request, region, lanes, run);
    for (std::uint64_t i = part.begin; i < part.end; ++i) {
      if (present(region.chunk_first + static_cast<std::uint32_t>(i))) continue;
      const Block block = block_of(request, region, i, step);
      std::memset(block.destination, 0, block.elements * bytes);
    }
  }
}

}  // namespace wiresum::schedule
