#include "engine/greeting.hpp"

#include <cassert>
#include <utility>

namespace wiresum::engine {
namespace {

std::size_t threads_of(const EngineConfig& config) {
  std::size_t threads = 0;
  for (const AggregatorConfig& aggregator : config.aggregators) threads += aggregator.threads;
  return threads;
}

}  // namespace

Greeting::Greeting(Engine& engine, std::int64_t timeout_ns)
    : lanes_(engine.config().aggregators.front().worker.lanes),
      workers_(engine.config().aggregators.front().worker.workers),
      values_(lanes_ * kGreetingChunksPerThread * threads_of(engine.config())) {
  const std::int32_t share = static_cast<std::int32_t>(engine.config().rank) + 1;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    values_[i] = static_cast<std::int32_t>(i / lanes_ + 1) * share;
  }
  auto* const memory = reinterpret_cast<std::byte*>(values_.data());
  Request request{.work = {.format = {.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone},
                           .regions = {{.source = memory, .destination = memory, .elements = values_.size()}}},
                  .timeout_ns = timeout_ns,
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

}  // namespace wiresum::engine
