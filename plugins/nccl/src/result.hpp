// How the plug-in answers NCCL: by results and sentences in NCCL's log, never by an exception.
#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "nccl_v11.h"

namespace wiresum::nccl {

/// What NCCL is told when a call fails. The text is a sentence for whoever reads NCCL's log.
class Refused : public std::runtime_error {
 public:
  Refused(ncclResult_t result, const std::string& text) : std::runtime_error(text), result_(result) {}
  [[nodiscard]] ncclResult_t result() const noexcept { return result_; }

 private:
  ncclResult_t result_;
};

inline void require(bool condition, const char* text) {
  if (!condition) throw Refused(ncclInvalidArgument, text);
}

/// As NCCL counts bytes where it does not need to know them all.
inline int as_int(std::size_t bytes) { return static_cast<int>(std::min<std::size_t>(bytes, INT_MAX)); }

/// From now on NCCL hears what is said through this function of its own.
void log_to(ncclDebugLogger_t logger) noexcept;
/// NCCL prints it as a warning. It is the text of ncclGetLastError() then, which PyTorch's exceptions have.
void warn(const char* text) noexcept;
/// NCCL prints it with NCCL_DEBUG=INFO.
void inform(const std::string& text) noexcept;

/// Runs the body of a function of a table. What it throws is said, and becomes a result.
template <typename Body>
ncclResult_t guarded(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return ncclSuccess;
  } catch (const Refused& refused) {
    warn(refused.what());
    return refused.result();
  } catch (const std::bad_alloc&) {
    warn("out of memory");
  } catch (const std::exception& error) {
    warn(error.what());
  }
  return ncclSystemError;
}

}  // namespace wiresum::nccl
