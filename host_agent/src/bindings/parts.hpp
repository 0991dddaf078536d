// The parts of `_native` besides sessions. No logic.
#pragma once

#include <nanobind/nanobind.h>

#include "session/session.hpp"
#include "wiresum/agent/capi.hpp"

/// What `form` asks for, over no memory yet.
[[nodiscard]] wiresum::engine::Request request_of(const wiresum::capi::Form& form, std::int64_t timeout_ns,
                                                  bool notify);

/// The functions behind `_native.CAPI`.
void bind_capi(nanobind::module_& module);

/// Compressed gradients' kernels; every call releases the GIL.
void bind_compression(nanobind::module_& module);

/// Sums of gradients whatever the split; every call over elements releases the GIL.
void bind_digit_sums(nanobind::module_& module);
