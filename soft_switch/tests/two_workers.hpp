// A job of two workers, whose tests need no other.
#pragma once

#include "switch_harness.hpp"

namespace wiresum::dataplane {

inline constexpr SwitchSizes kSizes{.slots = 16, .lanes_max = 8, .jobs_max = 8};
inline constexpr std::uint16_t kJob = 3;
inline constexpr std::uint16_t kLanes = 4;
inline const Words kOnes{1, 1, 1, 1};

inline JobEntry entry() { return job_entry(kJob, 2, kLanes, 4, 8); }

inline wire::Header packet(std::uint8_t worker, std::uint32_t round, std::uint32_t slot = 0) {
  return {.kind = wire::Kind::kData,
          .job = kJob,
          .key = entry().key,
          .worker = worker,
          .cell = wire::cell_of(slot, round),
          .round = round};
}

}  // namespace wiresum::dataplane
