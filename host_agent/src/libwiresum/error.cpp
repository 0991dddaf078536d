#include "libwiresum/error.hpp"

#include <array>

#include "wiresum/wiresum.h"

namespace wiresum::capi {
namespace {

struct Entry {
  int code;
  const char* name;
  std::string_view exception;  // empty: the sidecar says none
};

constexpr std::array<Entry, 16> kEntries{{
    {WIRESUM_OK, "WIRESUM_OK", ""},
    {WIRESUM_ERROR, "WIRESUM_ERROR", "WiresumError"},
    {WIRESUM_ERROR_ARGUMENT, "WIRESUM_ERROR_ARGUMENT", "ValueError"},
    {WIRESUM_ERROR_JOIN, "WIRESUM_ERROR_JOIN", "JoinError"},
    {WIRESUM_ERROR_WORKER_LOST, "WIRESUM_ERROR_WORKER_LOST", "WorkerLostError"},
    {WIRESUM_ERROR_SWITCH_UNREACHABLE, "WIRESUM_ERROR_SWITCH_UNREACHABLE", "SwitchUnreachableError"},
    {WIRESUM_ERROR_DIVERGED, "WIRESUM_ERROR_DIVERGED", "DivergedError"},
    {WIRESUM_ERROR_COLLECTIVE_TIMEOUT, "WIRESUM_ERROR_COLLECTIVE_TIMEOUT", "CollectiveTimeoutError"},
    {WIRESUM_ERROR_CLOSED, "WIRESUM_ERROR_CLOSED", "SessionClosedError"},
    {WIRESUM_ERROR_ABORTED, "WIRESUM_ERROR_ABORTED", "JobAbortedError"},
    {WIRESUM_ERROR_ABORTED, "WIRESUM_ERROR_ABORTED", "WorkerLeftError"},
    {WIRESUM_ERROR_FORKED, "WIRESUM_ERROR_FORKED", ""},
    {WIRESUM_ERROR_SIDECAR, "WIRESUM_ERROR_SIDECAR", ""},
    {WIRESUM_ERROR_FULL, "WIRESUM_ERROR_FULL", ""},
    {WIRESUM_ERROR_SYSTEM, "WIRESUM_ERROR_SYSTEM", ""},
    {WIRESUM_IN_FLIGHT, "WIRESUM_IN_FLIGHT", ""},
}};

}  // namespace

int code_of_exception(std::string_view name) noexcept {
  for (const Entry& entry : kEntries) {
    if (!name.empty() && entry.exception == name) return entry.code;
  }
  return WIRESUM_ERROR;
}

const char* name_of_code(int code) noexcept {
  for (const Entry& entry : kEntries) {
    if (entry.code == code) return entry.name;
  }
  return "(no code of wiresum)";
}

}  // namespace wiresum::capi
