// The first all-reduce of a session: full packets through every thread, with a number of its own for each chunk. It
// finds a blocked port or a small MTU at once, and workers whose chunks do not meet at the same aggregators.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/engine.hpp"
#include "session/grant.hpp"

namespace wiresum::session {

/// Enough chunks that each engine thread sends full packets (SchedulerConfig::chunks_per_thread_min).
inline constexpr std::size_t kGreetingChunksPerThread = 16;

class Greeting {
 public:
  /// A sum that is not what it must be.
  struct Wrong {
    std::int32_t found = 0;
    std::int32_t expected = 0;
  };

  /// Submits it. It must live until the operation is done. Throws as Engine::submit does.
  Greeting(engine::Engine& engine, const Grant& grant);
  Greeting(const Greeting&) = delete;
  Greeting& operator=(const Greeting&) = delete;

  [[nodiscard]] const std::shared_ptr<engine::Operation>& operation() const noexcept { return operation_; }
  /// The first wrong sum, if there is one. Valid once the operation is done, without a failure.
  [[nodiscard]] std::optional<Wrong> wrong() const;

 private:
  const std::size_t lanes_;
  const std::int32_t workers_;
  std::vector<std::int32_t> values_;
  std::shared_ptr<engine::Operation> operation_;
};

}  // namespace wiresum::session
