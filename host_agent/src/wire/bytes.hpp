// Numbers in network byte order, at an offset of a packet or frame. Shifts work on either byte order, and compilers
// make one instruction of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wiresum::wire::bytes {

inline std::uint8_t load8(const std::byte* from, std::size_t at) noexcept {
  return std::to_integer<std::uint8_t>(from[at]);
}

inline std::uint16_t load16(const std::byte* from, std::size_t at) noexcept {
  return static_cast<std::uint16_t>(load8(from, at) << 8 | load8(from, at + 1));
}

inline std::uint32_t load32(const std::byte* from, std::size_t at) noexcept {
  return static_cast<std::uint32_t>(load16(from, at)) << 16 | load16(from, at + 2);
}

inline void store8(std::byte* to, std::size_t at, std::uint8_t value) noexcept {
  to[at] = static_cast<std::byte>(value);
}

inline void store16(std::byte* to, std::size_t at, std::uint16_t value) noexcept {
  store8(to, at, static_cast<std::uint8_t>(value >> 8));
  store8(to, at + 1, static_cast<std::uint8_t>(value & 0xFF));
}

inline void store32(std::byte* to, std::size_t at, std::uint32_t value) noexcept {
  store16(to, at, static_cast<std::uint16_t>(value >> 16));
  store16(to, at + 2, static_cast<std::uint16_t>(value & 0xFFFF));
}

}  // namespace wiresum::wire::bytes
