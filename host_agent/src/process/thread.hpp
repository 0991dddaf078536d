// Starting threads, with an error that names the limits if the system refuses.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace wiresum::process {

/// Starts a thread that runs `run`, which must not throw. `what` names the thread, and how many there are. Throws
/// std::system_error, whose text has `what` and the known limits, or std::bad_alloc. The thread takes no signal sent to
/// the process: a program that blocks a signal and waits for it knows nothing of this thread.
[[nodiscard]] std::thread start_thread(const std::string& what, std::function<void()> run);

/// Says in words what limits the number of threads here.
[[nodiscard]] std::string thread_limits();

}  // namespace wiresum::process
