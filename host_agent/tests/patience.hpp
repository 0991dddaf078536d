// How long a test waits for an event: the same bound, and the same factor, as tests in Python have (their patience.py).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace wiresum {

/// By how much this machine is slower now than a quiet one; the run of the tests has measured it.
inline double patience_factor() {
  const char* const said = std::getenv("TEST_PATIENCE");
  return said == nullptr ? 1.0 : std::max(1.0, std::strtod(said, nullptr));
}

/// For an event that must come, however busy the machine is. It only ends what hangs.
inline const std::chrono::seconds kPatience{static_cast<int>(60 * patience_factor())};

}  // namespace wiresum
