// Stops a thread at any of its instructions, for tests of how two threads interleave: the processor's trap flag raises
// a signal after each instruction, and the handler counts them. A test can thus try every moment at which another
// thread may act, without a hook in the code under test.
//
// Works for one thread at a time, on x86-64 only, and not under ThreadSanitizer, which adds its own instructions and
// locks.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#include <ucontext.h>
#include <x86intrin.h>
#define WIRESUM_STEPPING 1
#endif

namespace wiresum::stress::stepping {

#ifdef WIRESUM_STEPPING

inline constexpr bool kAvailable = true;
inline constexpr std::uint64_t kTrapFlag = 1u << 8;
/// The longest stop, since the other thread may need something that the stopped thread holds.
inline constexpr std::chrono::milliseconds kStopMax{1};

inline std::atomic<std::int64_t> steps_left{0};
inline std::atomic<std::int64_t> steps_taken{0};
inline std::atomic<bool> stopped{false};   // the thread is stopped at the instruction
inline std::atomic<bool> released{false};  // the thread may go on

inline void on_trap(int /*signal*/, siginfo_t* /*info*/, void* context) {
  steps_taken.fetch_add(1, std::memory_order_relaxed);
  if (steps_left.fetch_sub(1, std::memory_order_relaxed) != 1) return;
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~static_cast<greg_t>(kTrapFlag);
  stopped.store(true);
  const auto until = std::chrono::steady_clock::now() + kStopMax;
  while (!released.load() && std::chrono::steady_clock::now() < until) __builtin_ia32_pause();
}

inline void install() {
  struct sigaction action{};
  action.sa_sigaction = &on_trap;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGTRAP, &action, nullptr);
}

/// The calling thread will be stopped after so many instructions; 0 means never, they are only counted.
inline void begin(std::int64_t steps) {
  steps_taken.store(0);
  stopped.store(false);
  released.store(false);
  steps_left.store(steps);
  __writeeflags(__readeflags() | kTrapFlag);
}

/// Stops counting; returns how many instructions the calling thread has executed since begin().
inline std::int64_t end() {
  __writeeflags(__readeflags() & ~kTrapFlag);
  return steps_taken.load();
}

#else

inline constexpr bool kAvailable = false;
inline std::atomic<std::int64_t> steps_taken{0};
inline std::atomic<bool> stopped{false};
inline std::atomic<bool> released{false};
inline void install() {}
inline void begin(std::int64_t /*steps*/) {}
inline std::int64_t end() { return 0; }

#endif

}  // namespace wiresum::stress::stepping
