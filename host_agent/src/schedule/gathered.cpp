#include "schedule/gathered.hpp"

#include <cstring>

#include "numeric/exact.hpp"
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

/// Of copies all workers share the words, since only one of them contributes to each region.
bool is_copy(const Request& request) noexcept {
  return request.format.dtype == numeric::Dtype::kRaw && !request.reduction.has_value();
}

std::size_t parts_of(const Request& request, WorkerRank self) noexcept { return is_copy(request) ? 1 : self.workers; }

}  // namespace

bool Gathered::suits(const Request& request, std::uint64_t chunks, std::size_t lanes, WorkerRank self) noexcept {
  if (request.reduction.has_value()) return true;
  const std::size_t words = words_of(request) * parts_of(request, self);
  const bool saves_packets = !is_copy(request) || quotient_up(words, lanes) < chunks;  // R6.8
  return saves_packets && words > 0 && words <= kPacketsMax * lanes;                   // R5.2
}

Gathered::Gathered(const Request& request, std::size_t lanes, WorkerRank self)
    : request_(request), self_(self), words_(words_of(request)), memory_(words_ * parts_of(request, self)) {
  std::int32_t* words = memory_.data() + (is_copy(request) ? 0 : words_ * self.rank);
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

void Gathered::join() {
  const auto* contributions = reinterpret_cast<const std::byte*>(memory_.data());
  for (const Region& region : request_.regions) {
    if (region.destination.is_used() && region.elements > 0) join(region, contributions);
    contributions += words_of(region, request_) * sizeof(std::int32_t);
  }
}

void Gathered::join(const Region& region, const std::byte* contributions) const {
  std::byte* const destination = region.destination.first();
  const std::size_t stride = words_ * sizeof(std::int32_t);
  if (is_copy(request_)) {
    std::memcpy(destination, contributions, region.elements);
  } else if (const auto& reduction = request_.reduction) {
    const std::size_t count = region.elements / numeric::element_bytes(reduction->element);
    numeric::reduce(*reduction, contributions, stride, self_.workers, count, destination);
  } else {
    const numeric::ExactFormat format(request_.format.dtype, self_.workers);
    const auto divisor = static_cast<unsigned>(request_.divisor);
    format.add_up(contributions, stride, self_.workers, region.elements, divisor, destination);
  }
}

}  // namespace wiresum::schedule
