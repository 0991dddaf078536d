// The functions behind `_native.CAPI`. No logic.
#pragma once

#include <nanobind/nanobind.h>

#include "session/session.hpp"
#include "wiresum/agent/capi.hpp"

/// What `form` asks for, over no memory yet.
[[nodiscard]] wiresum::engine::Request request_of(const wiresum::capi::Form& form, std::int64_t timeout_ns,
                                                  bool notify);

void bind_capi(nanobind::module_& module);
