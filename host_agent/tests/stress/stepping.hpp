// Stops a thread at any one of its instructions, for tests of what two threads do to each other: the processor's trap
// flag raises a signal after each instruction, and the handler counts them. So each moment at which the other thread
// may act is tried, whatever the code under test looks like, and it needs no hook for that.
//
// One thread at a time. x86-64 alone has it, and ThreadSanitizer puts instructions of its own, and locks, in between.
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
/// The other thread may need what the stopped one holds: then it goes on before the other has acted.
inline constexpr std::chrono::milliseconds kStopMax{1};

inline std::atomic<std::int64_t> steps_left{0};
inline std::atomic<std::int64_t> steps_taken{0};
inline std::atomic<bool> stopped{false};   // the thread stands at the instruction
inline std::atomic<bool> released{false};  // it may go on

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

/// The calling thread is to be stopped after so many instructions; 0: never, they are only counted.
inline void begin(std::int64_t steps) {
  steps_taken.store(0);
  stopped.store(false);
  released.store(false);
  steps_left.store(steps);
  __writeeflags(__readeflags() | kTrapFlag);
}

/// How many instructions the calling thread has done since begin(); it is no longer counted.
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
