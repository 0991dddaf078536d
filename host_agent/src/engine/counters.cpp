#include "engine/counters.hpp"

#include "wire/packet.hpp"

namespace wiresum::engine {

void add(TrafficStats& sum, const TrafficStats& more) noexcept {
  for (const Counter& counter : kCounters) {
    std::uint64_t& value = sum.*counter.value;
    const std::uint64_t other = more.*counter.value;
    switch (counter.sum) {
      case Counter::Sum::kAdd:
        value += other;
        break;
      case Counter::Sum::kFirst:
        if (value == 0) value = other;
        break;
      case Counter::Sum::kNewestRound:
        if (wire::newer(static_cast<std::uint32_t>(other), static_cast<std::uint32_t>(value))) value = other;
        break;
      case Counter::Sum::kLatestTensor:
        value = wire::later_of(value, other);
        break;
    }
  }
}

}  // namespace wiresum::engine
