#include "numeric/integers.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "wire/constants.hpp"

namespace wiresum::numeric {
namespace {

/// Two limbs share a word as long as sums of bytes fit half a word.
std::uint8_t lane_bits_of(std::size_t bytes, unsigned carry_bits) noexcept {
  return bytes == 1 && carry_bits <= 8 ? 16 : 32;
}

template <class Integer>
void cut(const std::byte* source, std::size_t count, unsigned limb_bits, std::size_t limbs, std::int32_t* to) noexcept {
  const unsigned unused = 64 - limb_bits;
  for (std::size_t i = 0; i < count; ++i) {
    Integer integer;
    std::memcpy(&integer, source + i * sizeof integer, sizeof integer);
    std::int64_t rest = integer;  // NOLINT(bugprone-signed-char-misuse): an int8 is a number
    for (std::size_t position = 0; position < limbs; ++position) {
      const auto bits = static_cast<std::uint64_t>(rest);
      const std::int64_t limb = static_cast<std::int64_t>(bits << unused) >> unused;
      to[position * count + i] = static_cast<std::int32_t>(limb);  // R5.15
      rest = static_cast<std::int64_t>(bits - static_cast<std::uint64_t>(limb)) >> limb_bits;
    }
  }
}

template <class Integer>
void add_up(const std::int32_t* sums, std::size_t count, unsigned limb_bits, std::size_t limbs,
            std::byte* to) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t all = 0;
    for (std::size_t position = 0; position < limbs; ++position) {
      all += static_cast<std::uint64_t>(std::int64_t{sums[position * count + i]}) << (position * limb_bits);
    }
    const auto integer = static_cast<Integer>(all);
    std::memcpy(to + i * sizeof integer, &integer, sizeof integer);
  }
}

}  // namespace

IntegerFormat::IntegerFormat(std::size_t bytes, unsigned workers) noexcept : bytes_(bytes) {
  assert(bytes == 1 || bytes == 8);
  assert(workers >= 1 && workers <= wire::kJobWorkersMax);
  const auto carry_bits = static_cast<unsigned>(std::bit_width(workers - 1));
  const auto bits = static_cast<unsigned>(8 * bytes);
  lane_bits_ = lane_bits_of(bytes, carry_bits);
  limb_bits_ = std::min(bits, lane_bits_ - carry_bits);
  limbs_ = (bits + limb_bits_ - 1) / limb_bits_;
}

void IntegerFormat::split(const std::byte* source, std::size_t count, std::int32_t* limbs) const noexcept {
  const auto cut_all = bytes_ == 1 ? cut<std::int8_t> : cut<std::int64_t>;
  cut_all(source, count, limb_bits_, limbs_, limbs);
}

void IntegerFormat::join(const std::int32_t* sums, std::size_t count, std::byte* destination) const noexcept {
  const auto add_all = bytes_ == 1 ? add_up<std::int8_t> : add_up<std::int64_t>;
  add_all(sums, count, limb_bits_, limbs_, destination);
}

}  // namespace wiresum::numeric
