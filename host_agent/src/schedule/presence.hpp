// How many workers have each block: the counts that a prologue sums over the workers.
//
// Each count has a field of ceil(log2(N + 1)) bits in a 32-bit word, for N workers. Each worker adds 1 or nothing, so a
// sum is at most N and fits: no carry leaves a field. The sum of the words is therefore the sums of the fields, below
// 2^32, and the switch's addition modulo 2^32 gives it exactly. Bits of a word that belong to no field stay zero.
//
// A sum comes from other machines, and may be anything. collect() refuses one that the workers cannot have made.
#pragma once

#include <cassert>
#include <cstdint>
#include <span>
#include <vector>

namespace wiresum::schedule {

/// Counts in a word: 16 for 2 or 3 workers, 8 for 8, 5 for 32.
[[nodiscard]] unsigned counts_per_word(unsigned workers) noexcept;

class PresenceCounts {
 public:
  /// Makes `blocks` counts, all of them 0, and after them `more_words` words for something else.
  void reset(std::uint64_t blocks, unsigned workers, std::uint64_t more_words = 0);

  [[nodiscard]] std::uint64_t size() const noexcept { return blocks_; }
  /// The words that go through the network, and come back summed.
  [[nodiscard]] std::span<std::uint32_t> words() noexcept { return words_; }
  [[nodiscard]] std::span<std::uint32_t> more_words() noexcept { return words().subspan(count_words_); }

  /// Notes that this worker has block `index`.
  void add(std::uint64_t index) noexcept {
    assert(index < blocks_);
    words_[index / per_word_] |= 1U << index % per_word_ * bits_;
    present_[index / 64] |= std::uint64_t{1} << index % 64;
  }

  /// Finds the counts that are not 0, after the sum. Returns false if the workers cannot have made this sum: a count is
  /// above their number, or 0 for a block that this worker has, or a bit is in no block's field.
  [[nodiscard]] bool collect();
  /// A bit for each of up to 64 blocks from `first` on that some worker has: bit i is block first + i. Call after
  /// collect().
  [[nodiscard]] std::uint64_t present(std::uint64_t first, unsigned count) const noexcept;

 private:
  std::uint64_t blocks_ = 0;
  unsigned workers_ = 1;
  unsigned bits_ = 1;
  unsigned per_word_ = 32;
  std::uint64_t count_words_ = 0;
  std::vector<std::uint32_t> words_;
  std::vector<std::uint64_t> present_;  // a bit for each block of this worker, and after collect() of any worker
};

}  // namespace wiresum::schedule
