// A collective as its caller asks for it: worker::Collective without what the scheduler fills in.
#pragma once

#include <cstdint>
#include <vector>

#include "numeric/format.hpp"
#include "worker/collective.hpp"

namespace wiresum::schedule {

/// Who this worker is among how many.
struct WorkerRank {
  unsigned rank = 0;
  unsigned workers = 1;
};

struct Request {
  numeric::Format format;
  float fixed_scale = 1.0F;
  float divisor = 1.0F;
  std::vector<worker::Region> regions;  // chunk_first is filled in; no regions: a barrier
  std::uint16_t signature = 0;          // of what is called, the same at all workers
  worker::TimeNs deadline = worker::kNever;
  /// May blocks that are zero everywhere be left out? Every worker must contribute to every region, and all must say
  /// the same here.
  bool may_be_sparse = false;
};

}  // namespace wiresum::schedule
