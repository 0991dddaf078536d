#include "c/error.hpp"

#include <array>

#include "session/failure.hpp"
#include "wiresum/wiresum.h"

namespace wiresum::c {
namespace {

using session::Failure;

struct ErrorCode {
  int code;
  const char* name;
  std::string_view kind;  // of a session::Failure; empty: none
};

constexpr std::array<ErrorCode, 16> kErrorCodes{{
    {WIRESUM_OK, "WIRESUM_OK", ""},
    {WIRESUM_ERROR, "WIRESUM_ERROR", "WiresumError"},
    {WIRESUM_ERROR_ARGUMENT, "WIRESUM_ERROR_ARGUMENT", Failure::kArgument},
    {WIRESUM_ERROR_JOIN, "WIRESUM_ERROR_JOIN", "JoinError"},
    {WIRESUM_ERROR_WORKER_LOST, "WIRESUM_ERROR_WORKER_LOST", "WorkerLostError"},
    {WIRESUM_ERROR_SWITCH_UNREACHABLE, "WIRESUM_ERROR_SWITCH_UNREACHABLE", "SwitchUnreachableError"},
    {WIRESUM_ERROR_DIVERGED, "WIRESUM_ERROR_DIVERGED", "DivergedError"},
    {WIRESUM_ERROR_COLLECTIVE_TIMEOUT, "WIRESUM_ERROR_COLLECTIVE_TIMEOUT", "CollectiveTimeoutError"},
    {WIRESUM_ERROR_CLOSED, "WIRESUM_ERROR_CLOSED", Failure::kClosed},
    {WIRESUM_ERROR_ABORTED, "WIRESUM_ERROR_ABORTED", Failure::kAborted},
    {WIRESUM_ERROR_ABORTED, "WIRESUM_ERROR_ABORTED", "WorkerLeftError"},
    {WIRESUM_ERROR_FORKED, "WIRESUM_ERROR_FORKED", Failure::kForked},
    {WIRESUM_ERROR_SIDECAR, "WIRESUM_ERROR_SIDECAR", Failure::kSidecar},
    {WIRESUM_ERROR_FULL, "WIRESUM_ERROR_FULL", Failure::kFull},
    {WIRESUM_ERROR_SYSTEM, "WIRESUM_ERROR_SYSTEM", Failure::kMemory},
    {WIRESUM_IN_FLIGHT, "WIRESUM_IN_FLIGHT", ""},
}};

}  // namespace

int code_of_kind(std::string_view kind) noexcept {
  for (const ErrorCode& entry : kErrorCodes) {
    if (!kind.empty() && entry.kind == kind) return entry.code;
  }
  return WIRESUM_ERROR;
}

const char* name_of_code(int code) noexcept {
  for (const ErrorCode& entry : kErrorCodes) {
    if (entry.code == code) return entry.name;
  }
  return "(no code of wiresum)";
}

}  // namespace wiresum::c
