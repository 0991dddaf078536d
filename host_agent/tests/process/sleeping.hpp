// Waits until the other threads of this process sleep, as the kernel says.
#pragma once

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>

#include "patience.hpp"

namespace wiresum::process {

[[nodiscard]] inline bool do_other_threads_sleep() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::ifstream stream(task.path() / "stat");
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    const std::size_t name_end = text.rfind(") ");
    if (name_end != std::string::npos && text[name_end + 2] != 'S') return false;
  }
  return true;
}

inline void await_sleep_of_other_threads() {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!do_other_threads_sleep()) {
    if (std::chrono::steady_clock::now() > until) throw std::runtime_error("a thread of this process does not sleep");
    std::this_thread::yield();
  }
}

}  // namespace wiresum::process
