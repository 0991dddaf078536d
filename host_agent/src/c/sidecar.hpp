// The sidecar, which joins and attends for all sessions of this process: `python -c "... wiresum.agent.sidecar ..."`.
//
// The sidecar is started with the first session, and ends when the socket for new sessions is closed, at the latest by
// the kernel when this process ends. Children of this process close their copies of the socket at the fork.
#pragma once

#include <string>

#include "c/channel.hpp"

namespace wiresum::c {

/// A socket for a new session, whose other end the sidecar serves; starts a sidecar if none runs. `python` is its
/// interpreter; "" is the one that fits this library. Throws Failure, also if the sidecar runs in another interpreter
/// than `python`, or std::system_error.
[[nodiscard]] Channel open_channel(const std::string& python);

/// Waits until the newest sidecar is no child of this process any more. At the deadline, when the interpreter has not
/// come to its first line, kills the sidecar and returns false.
[[nodiscard]] bool await_start(Channel::Deadline deadline);

/// The interpreter that `python` names; "" names the interpreter of the environment in which this library lies.
[[nodiscard]] std::string interpreter_of(const std::string& python);

/// Python's reason why the last sidecar could not begin; empty without one.
[[nodiscard]] std::string start_problem();

}  // namespace wiresum::c
