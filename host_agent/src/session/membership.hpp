// The interface by which a session joins its job: Python's gRPC code implements it (wiresum/agent/job_membership.py),
// in this process (bindings/) or in a sidecar (c/). No lock of the session's is held in any of these calls, so each may
// take the interpreter's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "session/failure.hpp"
#include "session/grant.hpp"
#include "session/line.hpp"

namespace wiresum::session {

/// Binds so many consecutive UDP ports of an address of this host, from `first` to `last` if these are not 0; returns
/// the first. Throws std::invalid_argument, std::system_error.
using Bind = std::function<std::uint16_t(const std::string& address, std::size_t count, std::uint16_t first,
                                         std::uint16_t last)>;

class Session;

/// Any thread may call any method. All of them may throw what ends the caller's call: a Failure, LineError, or errors
/// of the interpreter.
class Membership {
 public:
  virtual ~Membership() = default;

  /// Returns when all aggregators have granted the job. `bind` is called for each of them, in their order.
  [[nodiscard]] virtual Grant join(const Bind& bind) = 0;
  /// Starts to ask `session` for its state, to halt and move it, and to tell it of the job's end.
  virtual void attend(std::shared_ptr<Session> session) = 0;
  /// Explains in words why the data path failed: `explain` comes with a state, `greeting-wrong` with `found` and
  /// `expected`. Takes a bounded while.
  [[nodiscard]] virtual Failure explain(const Line& question) = 0;
  /// Ends the job for everybody.
  virtual void abort(const std::string& reason) = 0;
  /// Leaves the job, whether it was joined or not. Idempotent, bounded.
  virtual void leave() = 0;
};

}  // namespace wiresum::session
