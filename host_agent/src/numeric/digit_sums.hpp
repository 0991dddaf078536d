// Sums of gradients whose bits do not depend on the order of the parts, nor on their split among workers.
//
// Theory of operation
//
// A float is an integer of at most 277 bits, times 2^-149 (exact.hpp). It is cut into *digits* of 7 bits (6 with
// more than 8 parts), at positions that are the same for all elements, each with the element's sign. The sum of one
// position's digits over all parts is an integer, so no order and no split of the parts changes it.
//
// An element would have up to 40 digits. Elements of one scale, like a gradient's, need only the first few: a *block*
// of 256 elements has an *end*, the position after the highest digit that any part needs in the block, and keeps a
// *window* of 4, 8, ... digits below the end. Each part loses its digits below the window. The window depends on the
// largest element of all parts alone. A part that moves the end upwards moves the window: the sums of the lowest digits
// are dropped, as if no part had had any. Therefore digits are summed one by one: the sum of the parts could not be cut
// afterwards, since the carries of dropped digits would be in it. With all digits the sum is exact.
//
// Four digits' sums, with their weights, are sent as one 32-bit *word*, which 8 parts of 28 bits (or 128 of 24) cannot
// overflow. Workers agree on the ends by their maxima, and then add words as integers. A gradient of one word for each
// element takes as many bytes as its floats.
//
// Let X be the largest magnitude of any part in the block. A part's element loses less than 2^-21 X with windows of 4
// digits of 7 bits (2^-18 X with 6 bits), and so does the mean; with 8 digits less than 2^-49 X (2^-42 X). The mean is
// then rounded once, to nearest even.
//
// Pure; the memory is the caller's. Integer arithmetic, and one division at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "numeric/exact.hpp"
#include "numeric/kernels.hpp"

namespace wiresum::numeric {

class DigitSums {
 public:
  static constexpr std::size_t kBlock = kDigitBlock;
  static constexpr unsigned kPartsMax = 128;
  static constexpr unsigned kDigitsMax = 48;

  /// `parts` are 1..kPartsMax, at all workers together. `words` are kept of each element; 0, or more than fp32 can
  /// need, stands for all.
  DigitSums(unsigned parts, unsigned words) noexcept;

  [[nodiscard]] unsigned words() const noexcept { return words_; }
  [[nodiscard]] bool exact() const noexcept { return words_ == all_words_; }

  [[nodiscard]] static constexpr std::size_t blocks(std::size_t elements) noexcept {
    return (elements + kBlock - 1) / kBlock;
  }
  /// The number of integers that hold the sums of so many elements.
  [[nodiscard]] std::size_t lanes(std::size_t elements) const noexcept { return blocks(elements) * block_lanes(); }

  /// The places of each block's digits: `ends` as above, and `depths`, kDigitsMax less the lowest digit. Both are 0
  /// where all elements are 0. The extents of several workers are the maxima of each.
  struct Extents {
    std::span<std::uint8_t> ends;
    std::span<std::uint8_t> depths;
  };

  /// True if sums can have these extents: another worker may send anything.
  [[nodiscard]] bool possible(Extents extents) const noexcept;

  /// Adds a part. `extents` are 0 before the first part, and then `lanes` may hold anything. Inf and NaN count as 0: a
  /// part with any returns true, and needs count_special().
  bool add(std::span<const float> part, Extents extents, std::int32_t* lanes) const noexcept;

  /// Counts each Inf and NaN, as ExactFormat does in its last plane: one count for each element.
  void count_special(std::span<const float> part, std::int32_t* counts) const noexcept;

  /// The number of words that pack() writes. Here and below all extents are possible().
  [[nodiscard]] std::size_t packed(Extents agreed, std::size_t elements) const noexcept;

  /// Writes the words of own sums for the extents that hold at all workers: block after block, the lowest word first.
  /// Changes neither extents nor sums.
  void pack(Extents own, Extents agreed, const std::int32_t* lanes, std::size_t elements,
            std::int32_t* words) const noexcept;

  /// Writes the elements from the sums of such words over all workers, each divided by `divisor` (1..kPartsMax) and
  /// rounded once to nearest even. `counts` are the sums of special values' counts, or null.
  void join(Extents agreed, const std::int32_t* words, const std::int32_t* counts, unsigned divisor,
            std::span<float> elements) const noexcept;

 private:
  struct Window {
    unsigned base = 0;   // the lowest digit
    unsigned words = 0;  // 0 if the block is empty
  };

  [[nodiscard]] Planes special_plane() const noexcept { return Planes{1} << (format_.planes() - 1); }
  [[nodiscard]] std::size_t block_lanes() const noexcept { return std::size_t{2} * words_ * kBlock; }
  [[nodiscard]] unsigned base_of(unsigned end) const noexcept { return end > 4 * words_ ? end - 4 * words_ : 0; }
  /// The digits that are sent of a block.
  [[nodiscard]] Window window_of(Extents agreed, std::size_t block) const noexcept;
  void move_up(const std::int32_t* from, unsigned digits, std::int32_t* to) const noexcept;
  void join_exactly(Window window, const std::int32_t* words, const std::int32_t* counts, unsigned divisor,
                    std::span<float> elements) const noexcept;

  ExactFormat format_;  // one of its limbs is a word
  unsigned digit_bits_;
  unsigned all_words_;
  unsigned words_;
};

}  // namespace wiresum::numeric
