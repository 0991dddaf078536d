// Starting threads, with an error that names the limits if the system refuses.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace wiresum::process {

/// Starts a thread that runs `run`, which must not throw. `what`: which one, of how many, in words. Throws
/// std::system_error, whose text has that and the limits that are known, or std::bad_alloc. The thread takes no signal
/// that is sent to the process: a program that blocks one and waits for it knows nothing of this thread.
[[nodiscard]] std::thread start_thread(const std::string& what, std::function<void()> run);

/// What limits the number of threads here, in words.
[[nodiscard]] std::string thread_limits();

}  // namespace wiresum::process
