// What the functions of wiresum.h ask for, as the engine takes it.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "session/session.hpp"

namespace wiresum::c {

/// A request without what the session knows.
struct Collective {
  enum class Kind : std::uint8_t { kAllReduce = 1, kReduce, kReduceScatter, kBroadcast, kAllGather, kBarrier };
  Kind kind = Kind::kBarrier;
  numeric::Dtype dtype = numeric::Dtype::kI32;
  bool average = false;
  int root = -1;
  std::vector<worker::Region> regions;
};

[[nodiscard]] engine::Request request_of(Collective collective, const session::Grant& grant,
                                         std::chrono::nanoseconds timeout);

}  // namespace wiresum::c
