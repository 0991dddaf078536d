// NCCL's function for what a plug-in says.
#pragma once

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "../src/nccl_v11.h"

namespace nccl {

/// The last warning in this thread, as ncclGetLastError() has it.
inline thread_local std::string last_warning;

inline void log(ncclDebugLogLevel level, unsigned long /*flags*/, const char* /*file*/, int /*line*/,
                const char* format, ...) {
  std::array<char, 1024> text{};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  if (level == NCCL_LOG_WARN) last_warning = text.data();
  if (std::getenv("NCCL_DEBUG") != nullptr) std::fprintf(stderr, "%s\n", text.data());
}

}  // namespace nccl
