#include "c/integer_sum.hpp"

#include <utility>

#include "schedule/survey.hpp"

namespace wiresum::c {

using worker::Destination;
using worker::Region;
using worker::Source;

IntegerSum::IntegerSum(std::size_t element_bytes, unsigned workers, std::vector<Region> regions)
    : format_(element_bytes, workers), regions_(std::move(regions)) {
  schedule::require_memory(regions_);
  std::size_t words = 0;
  for (const Region& region : regions_) words += format_.limbs(region.elements);
  words_.resize(words);
  std::int32_t* limbs = words_.data();
  for (const Region& region : regions_) {
    if (region.source.is_used()) format_.split(region.source.first(), region.elements, limbs);
    limbs += format_.limbs(region.elements);
  }
}

std::vector<Region> IntegerSum::limbs() {
  std::vector<Region> made;
  auto* memory = reinterpret_cast<std::byte*>(words_.data());
  for (const Region& region : regions_) {
    const std::size_t limbs = format_.limbs(region.elements);
    made.push_back({.source = region.source.is_used() ? Source(memory) : Source(),
                    .destination = region.destination.is_used() ? Destination(memory) : Destination(),
                    .elements = limbs});
    memory += limbs * sizeof(std::int32_t);
  }
  return made;
}

void IntegerSum::finish() const noexcept {
  const std::int32_t* sums = words_.data();
  for (const Region& region : regions_) {
    if (region.destination.is_used()) format_.join(sums, region.elements, region.destination.first());
    sums += format_.limbs(region.elements);
  }
}

}  // namespace wiresum::c
