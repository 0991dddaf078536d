// The parts of `_native` besides sessions. No logic.
#pragma once

#include <nanobind/nanobind.h>

#include "numeric/codec.hpp"
#include "session/session.hpp"
#include "wiresum/agent/capi.hpp"

/// The request of `form`, over no memory yet.
[[nodiscard]] wiresum::engine::Request request_of(const wiresum::capi::Form& form, std::int64_t timeout_ns,
                                                  bool notify);

/// A call that computes with a caller's arrays, in the caller's thread: other threads may run Python meanwhile, and the
/// caller's floating-point mode (flush-to-zero, rounding) does not change the results.
struct Computing {
  nanobind::gil_scoped_release unlocked;
  wiresum::numeric::DefaultFloatEnvironment environment;
};

/// The functions behind `_native.CAPI`.
void bind_capi(nanobind::module_& module);

/// Binds the kernels of compressed gradients; every call over elements is Computing.
void bind_compression(nanobind::module_& module);

/// Binds sums that do not depend on the split of gradients; every call over elements is Computing.
void bind_digit_sums(nanobind::module_& module);
