// The parts of `_native` besides sessions. No logic.
#pragma once

#include <nanobind/nanobind.h>

#include "numeric/codec.hpp"
#include "session/session.hpp"
#include "wiresum/agent/capi.hpp"

/// What `form` asks for, over no memory yet.
[[nodiscard]] wiresum::engine::Request request_of(const wiresum::capi::Form& form, std::int64_t timeout_ns,
                                                  bool notify);

/// For calls that compute with a caller's arrays, in its thread: others may run Python meanwhile, and the results have
/// the same bits whatever floating-point mode the caller has set (flush-to-zero, rounding).
struct Computing {
  nanobind::gil_scoped_release unlocked;
  wiresum::numeric::DefaultFloatEnvironment environment;
};

/// The functions behind `_native.CAPI`.
void bind_capi(nanobind::module_& module);

/// Compressed gradients' kernels; every call over elements is Computing.
void bind_compression(nanobind::module_& module);

/// Sums of gradients whatever the split; every call over elements is Computing.
void bind_digit_sums(nanobind::module_& module);
