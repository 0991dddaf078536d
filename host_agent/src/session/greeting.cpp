#include "session/greeting.hpp"

#include <cassert>
#include <utility>

namespace wiresum::session {
Greeting::Greeting(engine::Engine& engine, const Grant& grant)
    : lanes_(grant.lanes()),
      workers_(grant.world_size()),
      values_(lanes_ * kGreetingChunksPerThread * grant.threads()) {
  const std::int32_t factor = static_cast<std::int32_t>(grant.engine.rank) + 1;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    values_[i] = static_cast<std::int32_t>(i / lanes_ + 1) * factor;
  }
  auto* const memory = reinterpret_cast<std::byte*>(values_.data());
  engine::Request request{.work = {.format = {.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone},
                                   .regions = {{.source = memory, .destination = memory, .elements = values_.size()}}},
                          .timeout_ns = std::chrono::nanoseconds(grant.greeting_timeout).count(),
                          .notify = false};
  operation_ = engine.submit(std::move(request));
}

std::optional<Greeting::Wrong> Greeting::wrong() const {
  assert(operation_->done());
  const std::int32_t everybody = workers_ * (workers_ + 1) / 2;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const std::int32_t expected = static_cast<std::int32_t>(i / lanes_ + 1) * everybody;
    if (values_[i] != expected) return Wrong{.found = values_[i], .expected = expected};
  }
  return std::nullopt;
}

}  // namespace wiresum::session
