// Shared by the scheduler's tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "schedule/scheduler.hpp"

namespace wiresum::schedule {

/// An fp32 tensor of one value, and the request to sum it in place.
struct Fp32Tensor {
  explicit Fp32Tensor(std::size_t elements, float value = 0.0F) : values(elements, value) {}
  Request request(std::uint16_t signature = 7) {
    auto* const bytes = reinterpret_cast<std::byte*>(values.data());
    Request made;
    made.regions = {{.source = bytes, .destination = bytes, .elements = values.size()}};
    made.signature = signature;
    made.may_be_sparse = true;
    return made;
  }
  /// A tensor that is always sent whole.
  Request dense_request() {
    Request made = request();
    made.may_be_sparse = false;
    return made;
  }
  std::vector<float> values;
};

/// Takes a request through all steps of its submission.
inline Ticket submit(Scheduler& scheduler, Request request, std::size_t lanes) {
  Survey survey = scheduler.survey(request, 0);
  if (scheduler.expects_scan(request, survey)) survey.presence = scan(request, lanes, survey.chunks);
  return scheduler.submit(std::move(request), std::move(survey));
}

inline void run_tasks(Scheduler& scheduler) {
  while (const auto task = scheduler.poll_task()) {
    scheduler.complete(*task, task->run());
  }
}

}  // namespace wiresum::schedule
