#include "numeric/digit_sums.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>

#include "numeric/codec.hpp"

namespace wiresum::numeric {
namespace {

constexpr std::uint32_t kInfinity = 0x7F800000U;
constexpr unsigned kBitsMax = 277;  // a float as an integer
constexpr unsigned kWordsMax = DigitSums::kDigitsMax / 4;

using Elements = std::array<float, DigitSums::kBlock>;
using Row = std::array<std::int32_t, DigitSums::kBlock>;

/// The bit where the significand of a finite float begins.
constexpr unsigned position_of(std::uint32_t magnitude) noexcept { return std::max(magnitude >> 23, 1U) - 1; }

constexpr std::int32_t low_half(std::int32_t lane) noexcept { return static_cast<std::int16_t>(lane & 0xFFFF); }
constexpr std::int32_t high_half(std::int32_t lane) noexcept { return (lane - low_half(lane)) >> 16; }

/// Makes one number of four digits' sums, for each element of a block. A block's odd digits follow its even ones.
void pack_block(const std::int32_t* __restrict lanes, unsigned digit_bits, std::int32_t* __restrict words) noexcept {
  const std::int32_t digit = 1 << digit_bits;
  for (std::size_t i = 0; i < DigitSums::kBlock; ++i) {
    const std::int32_t even = lanes[i];
    const std::int32_t odd = lanes[DigitSums::kBlock + i];
    words[i] = low_half(even) + digit * (low_half(odd) + digit * (high_half(even) + digit * high_half(odd)));
  }
}

/// Divides words, whose unit is 2^exponent, and rounds once to nearest even.
///
/// The quotient is rounded to fp64, and then to fp32, with the result of one rounding: a quotient of 31 bits by 7 is
/// either half way between two floats or at least 2^-33 of itself away from there, and fp64 errs by 2^-53.
void divide_words(const std::int32_t* words, std::size_t count, unsigned divisor, int exponent,
                  float* quotients) noexcept {
  const double unit = std::ldexp(1.0, exponent);
  for (std::size_t i = 0; i < count; ++i) quotients[i] = static_cast<float>(words[i] * unit / divisor);
}

}  // namespace

DigitSums::DigitSums(unsigned parts, unsigned words) noexcept
    : format_(Dtype::kF32, parts <= 8 ? 8 : kPartsMax),
      digit_bits_(parts <= 8 ? 7 : 6),
      all_words_((kBitsMax + 4 * digit_bits_ - 1) / (4 * digit_bits_)),
      words_(words == 0 ? all_words_ : std::min(words, all_words_)) {
  assert(parts >= 1 && parts <= kPartsMax);
  assert(all_words_ <= kWordsMax && all_words_ + 1 == format_.planes());
}

bool DigitSums::possible(Extents extents) const noexcept {
  for (std::size_t block = 0; block < extents.ends.size(); ++block) {
    const unsigned end = extents.ends[block];
    const unsigned depth = extents.depths[block];
    if (end > 4 * all_words_ || depth > kDigitsMax) return false;
    if (exact() && end != 0 && kDigitsMax - depth >= end) return false;  // no digit lies between depth and end
  }
  return true;
}

bool DigitSums::add(std::span<const float> part, Extents extents, std::int32_t* lanes) const noexcept {
  assert(extents.ends.size() == blocks(part.size()) && extents.depths.size() == extents.ends.size());
  const Kernels& kernels = active_kernels();
  bool special = false;
  for (std::size_t block = 0; block < extents.ends.size(); ++block, lanes += block_lanes()) {
    const auto elements = part.subspan(block * kBlock, std::min(kBlock, part.size() - block * kBlock));
    Elements copy;
    const float* source = elements.data();
    if (elements.size() < kBlock) {
      std::fill(std::ranges::copy(elements, copy.begin()).out, copy.end(), 0.0F);
      source = copy.data();
    }
    BlockRange range = kernels.block_range(source);
    if (range.largest >= kInfinity) {
      special = true;
      std::replace_copy_if(
          source, source + kBlock, copy.begin(), [](float value) { return !std::isfinite(value); }, 0.0F);
      source = copy.data();
      range = kernels.block_range(source);
    }
    if (range.largest == 0) continue;

    const unsigned highest = position_of(range.largest) + 23;
    const unsigned lowest = position_of(range.smallest_less_1 + 1) / digit_bits_;
    const unsigned end = std::max<unsigned>(extents.ends[block], highest / digit_bits_ + 1);
    const unsigned base = base_of(end);
    if (extents.ends[block] == 0) {
      std::fill_n(lanes, block_lanes(), 0);
    } else if (base != base_of(extents.ends[block])) {
      move_up(lanes, base - base_of(extents.ends[block]), lanes);
    }
    extents.ends[block] = static_cast<std::uint8_t>(end);
    extents.depths[block] = std::max(extents.depths[block], static_cast<std::uint8_t>(kDigitsMax - lowest));
    for (unsigned word = lowest > base ? (lowest - base) / 4 : 0; word < words_; ++word) {
      const unsigned low = (base + 4 * word) * digit_bits_;
      if (low > highest) break;
      const bool top = word + 1 == words_ && low >= 24;
      const auto add_digits = top ? kernels.add_top_digits : kernels.add_digits;
      add_digits(source, static_cast<std::int32_t>(low), digit_bits_, lanes + std::size_t{2} * word * kBlock);
    }
  }
  return special;
}

void DigitSums::count_special(std::span<const float> part, std::int32_t* counts) const noexcept {
  for (std::size_t at = 0; at < part.size(); at += kBlock) {
    const auto elements = part.subspan(at, std::min(kBlock, part.size() - at));
    Row row;
    format_.split(reinterpret_cast<const std::byte*>(elements.data()), elements.size(), special_plane(), row.data());
    for (std::size_t i = 0; i < elements.size(); ++i) counts[at + i] += row[i];
  }
}

/// Drops the sums of the lowest `digits`. `to` may be `from`.
void DigitSums::move_up(const std::int32_t* from, unsigned digits, std::int32_t* to) const noexcept {
  std::array<std::array<std::int16_t, kBlock>, kDigitsMax> rows;
  for (unsigned digit = 0; digit < 4 * words_; ++digit) {
    const std::int32_t* const lane = from + (digit / 4 * 2 + digit % 2) * kBlock;
    for (std::size_t i = 0; i < kBlock; ++i) {
      rows[digit][i] = static_cast<std::int16_t>(digit % 4 < 2 ? low_half(lane[i]) : high_half(lane[i]));
    }
  }
  std::fill_n(to, block_lanes(), 0);
  for (unsigned digit = digits; digit < 4 * words_; ++digit) {
    const unsigned place = digit - digits;
    std::int32_t* const lane = to + (place / 4 * 2 + place % 2) * kBlock;
    const std::int32_t weight = place % 4 < 2 ? 1 : 65536;
    for (std::size_t i = 0; i < kBlock; ++i) lane[i] += rows[digit][i] * weight;
  }
}

DigitSums::Window DigitSums::window_of(Extents agreed, std::size_t block) const noexcept {
  const unsigned end = agreed.ends[block];
  if (end == 0) return {};
  const unsigned base = exact() ? (kDigitsMax - agreed.depths[block]) / 4 * 4 : base_of(end);
  return {.base = base, .words = (end - base + 3) / 4};
}

std::size_t DigitSums::packed(Extents agreed, std::size_t elements) const noexcept {
  std::size_t words = 0;
  for (std::size_t block = 0; block < blocks(elements); ++block) {
    words += window_of(agreed, block).words * std::min(kBlock, elements - block * kBlock);
  }
  return words;
}

void DigitSums::pack(Extents own, Extents agreed, const std::int32_t* lanes, std::size_t elements,
                     std::int32_t* words) const noexcept {
  std::array<std::int32_t, std::size_t{2} * kWordsMax * kBlock> moved;
  for (std::size_t block = 0; block < blocks(elements); ++block, lanes += block_lanes()) {
    const std::size_t count = std::min(kBlock, elements - block * kBlock);
    const Window window = window_of(agreed, block);
    if (own.ends[block] == 0) {
      std::fill_n(words, window.words * count, 0);
      words += window.words * count;
      continue;
    }
    assert(own.ends[block] <= agreed.ends[block]);
    const std::int32_t* from = lanes;
    if (exact()) {
      from += window.base / 4 * std::size_t{2} * kBlock;
    } else if (const unsigned base = base_of(own.ends[block]); base != window.base) {
      move_up(lanes, window.base - base, moved.data());
      from = moved.data();
    }
    for (unsigned word = 0; word < window.words; ++word, from += 2 * kBlock, words += count) {
      if (count == kBlock) {
        pack_block(from, digit_bits_, words);
      } else {
        Row row;
        pack_block(from, digit_bits_, row.data());
        std::copy_n(row.begin(), count, words);
      }
    }
  }
}

void DigitSums::join(Extents agreed, const std::int32_t* words, const std::int32_t* counts, unsigned divisor,
                     std::span<float> elements) const noexcept {
  assert(divisor >= 1 && divisor <= kPartsMax);
  for (std::size_t block = 0; block < blocks(elements.size()); ++block) {
    const auto part = elements.subspan(block * kBlock, std::min(kBlock, elements.size() - block * kBlock));
    const std::int32_t* const special = counts == nullptr ? nullptr : counts + block * kBlock;
    const bool has_special =
        special != nullptr && std::any_of(special, special + part.size(), [](auto count) { return count != 0; });
    const Window window = window_of(agreed, block);
    if (window.words != 1 || has_special) {
      join_exactly(window, words, has_special ? special : nullptr, divisor, part);
    } else {
      divide_words(words, part.size(), divisor, static_cast<int>(window.base * digit_bits_) - 149, part.data());
    }
    words += window.words * part.size();
  }
}

void DigitSums::join_exactly(Window window, const std::int32_t* words, const std::int32_t* counts, unsigned divisor,
                             std::span<float> elements) const noexcept {
  // Limbs have fixed positions: a word that lies over the end of a limb is cut there.
  const unsigned shift = window.base % 4 * digit_bits_;
  const unsigned limb_bits = 4 * digit_bits_;
  const std::int64_t limb = std::int64_t{1} << limb_bits;
  std::array<Row, kWordsMax + 2> rows{};
  for (unsigned word = 0; word < window.words; ++word) {
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const std::int32_t sum = words[word * elements.size() + i];
      if (shift == 0) {
        rows[word][i] = sum;
      } else {
        const std::int64_t shifted = sum * (std::int64_t{1} << shift);
        rows[word][i] += static_cast<std::int32_t>(shifted & (limb - 1));
        rows[word + 1][i] = static_cast<std::int32_t>(shifted >> limb_bits);
      }
    }
  }
  const unsigned limbs = window.words + (shift == 0 ? 0 : 1);
  Planes planes = ((Planes{1} << limbs) - 1) << window.base / 4;
  assert(planes < special_plane());
  if (counts != nullptr) {
    std::copy_n(counts, elements.size(), rows[limbs].begin());
    planes |= special_plane();
  }
  std::array<float, kBlock> rounded;
  format_.join(rows.front().data(), kBlock, planes, divisor, reinterpret_cast<std::byte*>(rounded.data()));
  std::copy_n(rounded.begin(), elements.size(), elements.begin());
}

}  // namespace wiresum::numeric
