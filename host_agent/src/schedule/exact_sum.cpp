#include "schedule/exact_sum.hpp"

#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>

#include "worker/chunks.hpp"

namespace wiresum::schedule {

using worker::quotient_up;
using worker::Region;

namespace {

/// Sending this many packets costs about as much as a round trip: up to here the elements themselves are sent.
constexpr std::size_t kAllGatherPacketsMax = 8;
/// Elements that share a count. Fewer cost more counts, and more have more planes.
constexpr std::size_t kBlockElements = 256;

constexpr numeric::Format kWords{.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone, .bits = 32};

/// Calls visit(block, elements) for each block of a region, as memory in the region.
template <class Visit>
void for_each_block(const Region& region, numeric::Dtype dtype, const Visit& visit) {
  for (std::uint64_t i = 0; i * kBlockElements < region.elements; ++i) {
    visit(worker::chunk_in_region(region, i, kBlockElements, dtype));
  }
}

}  // namespace

bool may_be_exact(const Request& request) noexcept {
  return request.format.scaling == numeric::Scaling::kBlockExponent && request.divisor >= 1.0F &&
         request.divisor <= static_cast<float>(wire::kJobWorkersMax) && std::trunc(request.divisor) == request.divisor;
}

ExactSum::ExactSum(const Request& request, std::size_t lanes, WorkerRank self)
    : request_(request),
      lanes_(lanes),
      self_(self),
      format_(request.format.dtype, self.workers),
      divisor_(static_cast<unsigned>(request.divisor)),
      element_bytes_(numeric::element_bytes(request.format.dtype)) {
  assert(may_be_exact(request));
  for (const Region& region : request_.regions) {
    words_ += words_of(region);
    blocks_ += quotient_up(region.elements, kBlockElements);
  }
  uses_all_gather_ = words_ * self_.workers <= kAllGatherPacketsMax * lanes_;
}

std::size_t ExactSum::words_of(const Region& region) const noexcept {
  return quotient_up(region.elements * element_bytes_, sizeof(std::int32_t));
}

void ExactSum::pack(std::size_t words) {
  auto* const bytes = reinterpret_cast<std::byte*>(memory_.data());
  packed_.request.format = kWords;
  packed_.request.regions = {{.source = bytes, .destination = bytes, .elements = words}};
  packed_.number_and_scan(lanes_);
}

// ---- All-gather ----

void ExactSum::pack_elements() {
  memory_.assign(words_ * self_.workers, 0);
  std::int32_t* words = memory_.data() + words_ * self_.rank;
  for (const Region& region : request_.regions) {
    if (region.source.is_used() && region.elements > 0) {
      std::memcpy(words, region.source.first(), region.elements * element_bytes_);
    }
    words += words_of(region);
  }
  pack(memory_.size());
}

void ExactSum::join_all_gather() {
  const auto* contributions = reinterpret_cast<const std::byte*>(memory_.data());
  for (const Region& region : request_.regions) {
    if (region.destination.is_used()) {
      format_.add_up(contributions, words_ * sizeof(std::int32_t), self_.workers, region.elements, divisor_,
                     region.destination.first());
    }
    contributions += words_of(region) * sizeof(std::int32_t);
  }
}

// ---- Split ----

void ExactSum::count() {
  counts_.reset(blocks_ * format_.planes(), self_.workers);
  std::uint64_t first = 0;
  for (const Region& region : request_.regions) {
    for_each_block(region, request_.format.dtype, [&](const worker::ChunkView& block) {
      numeric::Planes rest = block.source == nullptr ? 0 : format_.planes_of(block.source, block.elements);
      for (; rest != 0; rest &= rest - 1) counts_.add(first + static_cast<unsigned>(std::countr_zero(rest)));
      first += format_.planes();
    });
  }
}

numeric::Planes ExactSum::union_of(std::uint64_t block) const noexcept {
  return static_cast<numeric::Planes>(counts_.present(block * format_.planes(), format_.planes()));
}

bool ExactSum::split() {
  if (!counts_.collect()) return false;
  std::size_t words = 0;
  std::uint64_t number = 0;
  for (const Region& region : request_.regions) {
    for_each_block(region, request_.format.dtype, [&](const worker::ChunkView& block) {
      words += block.elements * static_cast<std::size_t>(std::popcount(union_of(number++)));
    });
  }
  memory_.assign(words, 0);
  std::int32_t* next = memory_.data();
  number = 0;
  for (const Region& region : request_.regions) {
    for_each_block(region, request_.format.dtype, [&](const worker::ChunkView& block) {
      const numeric::Planes planes = union_of(number++);
      if (block.source != nullptr) format_.split(block.source, block.elements, planes, next);
      next += block.elements * static_cast<std::size_t>(std::popcount(planes));
    });
  }
  pack(words);
  return true;
}

void ExactSum::join_split() {
  const std::int32_t* next = memory_.data();
  std::uint64_t number = 0;
  for (const Region& region : request_.regions) {
    for_each_block(region, request_.format.dtype, [&](const worker::ChunkView& block) {
      const numeric::Planes planes = union_of(number++);
      if (block.destination != nullptr) format_.join(next, block.elements, planes, divisor_, block.destination);
      next += block.elements * static_cast<std::size_t>(std::popcount(planes));
    });
  }
}

void ExactSum::join() {
  if (uses_all_gather_) {
    join_all_gather();
  } else {
    join_split();
  }
}

}  // namespace wiresum::schedule
