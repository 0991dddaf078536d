// A collective in its caller's terms: worker::Collective without the fields that the scheduler fills in.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "numeric/format.hpp"
#include "numeric/reduction.hpp"
#include "worker/collective.hpp"

namespace wiresum::schedule {

/// This worker's number among how many.
struct WorkerRank {
  unsigned rank = 0;
  unsigned workers = 1;
};

struct Request {
  numeric::Format format;
  float fixed_scale = 1.0F;
  float divisor = 1.0F;
  std::vector<worker::Region> regions;  // the scheduler fills in chunk_first; no regions: a barrier
  std::uint16_t signature = 0;          // a signature of the call, the same at all workers
  worker::TimeNs deadline = worker::kNever;
  /// True if blocks that are zero everywhere may be left out; the same at all workers. Every worker must then
  /// contribute to every region.
  bool may_be_sparse = false;
  /// Each worker gets the elements of all, which travel as bytes (kRaw), and reduces them by itself. For few elements.
  /// Every worker must then contribute to every region.
  std::optional<numeric::Reduction> reduction;
};

}  // namespace wiresum::schedule
