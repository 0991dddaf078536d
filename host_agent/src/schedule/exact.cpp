// What the scheduler does for a sum that is rounded once: exact_sum.hpp says how it travels.
#include <cassert>

#include "schedule/scheduler.hpp"

namespace wiresum::schedule {

namespace {

/// Words of an exact sum are not those of a rounded one: workers that disagree on which one it is must find out.
constexpr std::uint32_t kExactTag = 0x3C3C0000;
constexpr std::uint32_t kPlanesTag = 0x69690000;

}  // namespace

bool Scheduler::is_exact(const Request& request) const noexcept {
  if (!may_be_exact(request)) return false;
  std::uint64_t elements = 0;
  for (const worker::Region& region : request.regions) elements += region.elements;
  return elements > 0 && elements <= config_.exact_elements_max;
}

void Scheduler::issue_exact(RequestState& state) {
  ++exact_sums_;
  state.exact = std::make_unique<ExactSum>(state.request, config_.lanes,
                                           WorkerRank{.rank = config_.rank, .workers = config_.workers});
  if (state.exact->uses_all_gather()) {
    state.exact->pack_elements();
    issue_packed_exact(state);
    return;
  }
  assert(asking_ == nullptr);
  asking_ = &state;
  start_task(state, Stage::kMeasuring, [&state] {
    state.exact->count();
    return worker::Status::kOk;
  });
}

void Scheduler::issue_planes(RequestState& state) {
  issue_counts(state, Stage::kPlanes, state.exact->counts(), collective_of(state, kPlanesTag));
}

void Scheduler::issue_packed_exact(RequestState& state) {
  if (&state == asking_) asking_ = nullptr;
  const Stage stage = state.exact->uses_all_gather() ? Stage::kAllGather : Stage::kLimbs;
  issue_packed(state, stage, state.exact->packed(), kExactTag);
}

}  // namespace wiresum::schedule
