#include "schedule/gathered_sum.hpp"

#include <cstring>

#include "worker/chunks.hpp"

namespace wiresum::schedule {

using worker::quotient_up;
using worker::Region;

namespace {

/// Sending this many packets costs about as much as the round trips of an exact sum of a chunk.
constexpr std::size_t kPacketsMax = 16;

constexpr numeric::Format kWords{.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone, .bits = 32};

std::size_t bytes_of(const Region& region, const Request& request) noexcept {
  return region.elements * numeric::element_bytes(request.format.dtype);
}

std::size_t words_of(const Region& region, const Request& request) noexcept {
  return quotient_up(bytes_of(region, request), sizeof(std::int32_t));
}

std::size_t words_of(const Request& request) noexcept {
  std::size_t words = 0;
  for (const Region& region : request.regions) words += words_of(region, request);
  return words;
}

}  // namespace

bool GatheredSum::suits(const Request& request, std::size_t lanes, WorkerRank self) noexcept {
  return words_of(request) * self.workers <= kPacketsMax * lanes;  // R5.2
}

GatheredSum::GatheredSum(const Request& request, std::size_t lanes, WorkerRank self)
    : request_(request), self_(self), words_(words_of(request)), memory_(words_ * self.workers) {
  std::int32_t* words = memory_.data() + words_ * self.rank;
  for (const Region& region : request.regions) {
    if (region.source.is_used() && region.elements > 0) {
      std::memcpy(words, region.source.first(), bytes_of(region, request));
    }
    words += words_of(region, request);
  }
  auto* const bytes = reinterpret_cast<std::byte*>(memory_.data());
  packed_.request.format = kWords;
  packed_.request.regions = {{.source = bytes, .destination = bytes, .elements = memory_.size()}};
  packed_.number_and_scan(lanes);
}

void GatheredSum::join() {
  const numeric::ExactFormat format(request_.format.dtype, self_.workers);
  const auto divisor = static_cast<unsigned>(request_.divisor);
  const auto* contributions = reinterpret_cast<const std::byte*>(memory_.data());
  for (const Region& region : request_.regions) {
    if (region.destination.is_used()) {
      format.add_up(contributions, words_ * sizeof(std::int32_t), self_.workers, region.elements, divisor,
                    region.destination.first());
    }
    contributions += words_of(region, request_) * sizeof(std::int32_t);
  }
}

}  // namespace wiresum::schedule
