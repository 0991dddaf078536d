// Compressed gradients' kernels, as Python sees them. No logic; every call releases the GIL.
#pragma once

#include <nanobind/nanobind.h>

void bind_compression(nanobind::module_& module);
