// The process that joins and attends for all sessions of this one: `python -c "... wiresum.agent.sidecar ..."`.
//
// It is started with the first session, and ends when the socket that brings it new sessions is closed, which the
// kernel does when this process ends. Children of this process close theirs at the fork, so that they do not keep it
// open.
#pragma once

#include <string>

#include "c/channel.hpp"

namespace wiresum::c {

/// A socket for a new session, whose other end the sidecar serves; starts one if none runs. `python` is the interpreter
/// to start it with, "" for the one that fits this library. Throws Failure, also if one runs in another interpreter
/// than `python`, or std::system_error.
[[nodiscard]] Channel open_channel(const std::string& python);

/// Waits until the sidecar that was started last is no child of this process any more. False, and it is gone, if that
/// is not so by the deadline: its interpreter does not come to its first line.
[[nodiscard]] bool await_start(Channel::Deadline deadline);

/// The interpreter that `python` names; that of the environment in which this library lies, if it is "".
[[nodiscard]] std::string interpreter_of(const std::string& python);

/// Why the last sidecar could not begin, as Python said it; empty if it said nothing.
[[nodiscard]] std::string start_problem();

}  // namespace wiresum::c
