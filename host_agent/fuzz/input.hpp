// What fuzzers share: the input as a program, and guard bytes around memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

namespace wiresum::fuzz {

inline constexpr std::size_t kGuardBytes = 64;
inline constexpr std::byte kGuard{0xA5};

inline void require(bool condition) {
  if (!condition) std::abort();
}

/// Nobody has written over the guard bytes on both sides.
[[nodiscard]] inline bool is_guarded(std::span<const std::byte> memory) {
  const auto guard = [](std::byte b) { return b == kGuard; };
  return std::ranges::all_of(memory.first(kGuardBytes), guard) && std::ranges::all_of(memory.last(kGuardBytes), guard);
}

/// The bytes of the input, and zeros after its end.
class Input {
 public:
  explicit Input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t value = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return value;
  }
  std::uint32_t word() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | byte();
    return value;
  }
  template <class T, std::size_t N>
  const T& one_of(const std::array<T, N>& values) {
    return values[byte() % N];
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace wiresum::fuzz
