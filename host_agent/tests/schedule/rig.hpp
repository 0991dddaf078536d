// What the scheduler's tests share.
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
  std::vector<float> values;
};

inline Ticket submit(Scheduler& scheduler, Request request) {
  Survey survey = scheduler.survey(request, 0);
  return scheduler.submit(std::move(request), std::move(survey));
}

}  // namespace wiresum::schedule
