#include "schedule/elements.hpp"

#include <bit>
#include <cstring>

namespace wiresum::schedule {
namespace {

/// The shortest run of elements that is worth a call.
constexpr unsigned kCopyMin = 16;

template <class Word>
Word load(const std::byte* from) noexcept {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

/// Bit i of the result is 1 if word i has any bit of `mask`.
template <class Word>
std::uint64_t nonzero_words(const std::byte* source, std::size_t count, Word mask) noexcept {
  Word any = 0;
  for (std::size_t i = 0; i < count; ++i) any |= load<Word>(source + i * sizeof(Word));
  if ((any & mask) == 0) return 0;
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < count; ++i) {
    bits |= std::uint64_t{(load<Word>(source + i * sizeof(Word)) & mask) != 0} << i;
  }
  return bits;
}

/// Calls `move(first, length, before)` for each run of ones; `before` counts lower ones.
template <class Move>
std::size_t for_each_run(std::uint64_t set, const Move& move) noexcept {
  std::size_t before = 0;
  while (set != 0) {
    const auto first = static_cast<unsigned>(std::countr_zero(set));
    const auto length = static_cast<unsigned>(std::countr_one(set >> first));
    move(first, length, before);
    before += length;
    set &= ~(low_bits(length) << first);
  }
  return before;
}

template <class Word>
void copy(std::byte* to, const std::byte* from, unsigned count) noexcept {
  if (count >= kCopyMin) {
    std::memcpy(to, from, count * sizeof(Word));
    return;
  }
  for (unsigned i = 0; i < count; ++i) std::memcpy(to + i * sizeof(Word), from + i * sizeof(Word), sizeof(Word));
}

template <class Word>
std::size_t gather(const std::byte* source, std::uint64_t set, std::byte* packed) noexcept {
  return for_each_run(set, [=](unsigned first, unsigned length, std::size_t before) {
    copy<Word>(packed + before * sizeof(Word), source + first * sizeof(Word), length);
  });
}

template <class Word>
std::size_t scatter(const std::byte* packed, std::uint64_t set, std::byte* destination) noexcept {
  return for_each_run(set, [=](unsigned first, unsigned length, std::size_t before) {
    copy<Word>(destination + first * sizeof(Word), packed + before * sizeof(Word), length);
  });
}

}  // namespace

std::uint64_t choose_bits(std::uint64_t set, std::uint64_t chosen) noexcept {
  if ((set & (set + 1)) == 0) return chosen & set;  // the lowest bits keep their places
  std::uint64_t bits = 0;
  for (; chosen != 0 && set != 0; chosen >>= 1, set &= set - 1) {
    if ((chosen & 1) != 0) bits |= set & -set;
  }
  return bits;
}

std::uint64_t present_elements(numeric::Dtype dtype, const std::byte* source, std::size_t count) noexcept {
  switch (dtype) {
    case numeric::Dtype::kF32:
      return nonzero_words<std::uint32_t>(source, count, 0x7FFFFFFF);
    case numeric::Dtype::kF16:
    case numeric::Dtype::kBF16:
      return nonzero_words<std::uint16_t>(source, count, 0x7FFF);
    case numeric::Dtype::kI32:
      return nonzero_words<std::uint32_t>(source, count, 0xFFFFFFFF);
    case numeric::Dtype::kE4M3:
    case numeric::Dtype::kE5M2:
    case numeric::Dtype::kRaw:
      return low_bits(static_cast<unsigned>(count));  // never sparse
  }
  return 0;
}

std::size_t gather_elements(std::size_t element_bytes, const std::byte* source, std::uint64_t set,
                            std::byte* packed) noexcept {
  return element_bytes == sizeof(std::uint32_t) ? gather<std::uint32_t>(source, set, packed)
                                                : gather<std::uint16_t>(source, set, packed);
}

std::size_t scatter_elements(std::size_t element_bytes, const std::byte* packed, std::uint64_t set,
                             std::byte* destination) noexcept {
  return element_bytes == sizeof(std::uint32_t) ? scatter<std::uint32_t>(packed, set, destination)
                                                : scatter<std::uint16_t>(packed, set, destination);
}

}  // namespace wiresum::schedule
