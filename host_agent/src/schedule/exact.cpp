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

void Scheduler::deal_exact(Entry& entry) {
  ++exact_sums_;
  entry.exact =
      std::make_unique<ExactSum>(entry.request, config_.lanes, Place{.rank = config_.rank, .workers = config_.workers});
  if (entry.exact->is_gathered()) {
    entry.exact->gather();
    deal_packed_exact(entry);
    return;
  }
  assert(asking_ == nullptr);
  asking_ = &entry;
  start_chore(entry, Stage::kMeasuring, [&entry] { entry.exact->count(); });
}

void Scheduler::deal_planes(Entry& entry) {
  worker::Collective work;
  work.tensor = entry.ticket.tensor ^ kPlanesTag;
  deal_counts(entry, Stage::kPlanes, entry.exact->counts(), work);
}

void Scheduler::deal_packed_exact(Entry& entry) {
  if (&entry == asking_) asking_ = nullptr;
  const ExactSum& sum = *entry.exact;
  worker::Collective work;
  work.tensor = entry.ticket.tensor ^ kExactTag;
  work.format = sum.packed().format;
  work.regions = sum.packed().regions;
  work.presence = &sum.packed_presence();
  work.deadline = entry.request.deadline;
  work.token = entry.ticket.token;
  deal_shares(entry, sum.is_gathered() ? Stage::kGathered : Stage::kLimbs, work, sum.packed_chunks());
}

}  // namespace wiresum::schedule
