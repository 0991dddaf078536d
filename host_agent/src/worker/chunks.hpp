// How the regions of a collective are cut into chunks, and where a chunk lies in memory: the one definition of both.
// Pure.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#include "numeric/format.hpp"
#include "worker/collective.hpp"

namespace wiresum::worker {

[[nodiscard]] constexpr std::uint64_t quotient_up(std::uint64_t dividend, std::uint64_t divisor) noexcept {
  return dividend / divisor + (dividend % divisor != 0 ? 1 : 0);
}

/// The number of elements in a full chunk, which `lanes` words carry.
[[nodiscard]] constexpr std::size_t chunk_elements(numeric::Format format, std::size_t lanes) noexcept {
  return lanes * numeric::elements_per_word(format);
}

/// Chunks that `elements` elements take at `lanes` words a packet.
[[nodiscard]] constexpr std::uint64_t chunks_of(std::uint64_t elements, numeric::Format format,
                                                std::size_t lanes) noexcept {
  return quotient_up(elements, chunk_elements(format, lanes));
}

/// The memory of one chunk. A worker that does not contribute, or does not keep the sum, has no source, or no
/// destination.
struct ChunkView {
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
  std::uint32_t elements = 0;
};

/// Chunk `index` of a region; all but the region's last have `step` elements.
[[nodiscard]] inline ChunkView chunk_in_region(const Region& region, std::uint64_t index, std::size_t step,
                                               numeric::Dtype dtype) noexcept {
  const std::uint64_t first = index * step;
  assert(first < region.elements);
  const std::size_t offset = first * numeric::element_bytes(dtype);
  assert(!region.source.is_used() || region.source.first() != nullptr);
  assert(!region.destination.is_used() || region.destination.first() != nullptr);
  return {.source = region.source.is_used() ? region.source.first() + offset : nullptr,
          .destination = region.destination.is_used() ? region.destination.first() + offset : nullptr,
          .elements = static_cast<std::uint32_t>(std::min<std::uint64_t>(step, region.elements - first))};
}

/// The chunk with this number in a collective whose regions have their chunk_first, found by binary search (regions are
/// few next to chunks). Beyond the last chunk the view has no elements.
[[nodiscard]] inline ChunkView chunk_at(std::span<const Region> regions, std::uint64_t number, std::size_t step,
                                        numeric::Dtype dtype) noexcept {
  // All but the last of regions that begin at the same chunk are empty.
  const auto after = std::upper_bound(regions.begin(), regions.end(), number,
                                      [](std::uint64_t n, const Region& region) { return n < region.chunk_first; });
  if (after == regions.begin()) return {};
  const Region& region = *(after - 1);
  const std::uint64_t index = number - region.chunk_first;
  return index * step < region.elements ? chunk_in_region(region, index, step, dtype) : ChunkView{};
}

}  // namespace wiresum::worker
