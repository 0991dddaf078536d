#include "schedule/presence.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

namespace wiresum::schedule {
namespace {

constexpr unsigned kBits = 32;

unsigned count_bits(unsigned workers) noexcept { return static_cast<unsigned>(std::bit_width(workers)); }

}  // namespace

unsigned counts_per_word(unsigned workers) noexcept {
  assert(workers >= 1);
  return kBits / count_bits(workers);
}

void PresenceCounts::reset(std::uint64_t blocks, unsigned workers, std::uint64_t more_words) {
  blocks_ = blocks;
  workers_ = workers;
  bits_ = count_bits(workers);
  per_word_ = counts_per_word(workers);
  count_words_ = (blocks + per_word_ - 1) / per_word_;
  words_.assign(count_words_ + more_words, 0);
  present_.assign(blocks_ / 64 + 1, 0);
}

bool PresenceCounts::collect() {
  std::vector<std::uint64_t> mine(present_.size());
  std::swap(mine, present_);
  const std::uint32_t field = (std::uint32_t{1} << bits_) - 1;
  for (std::uint64_t i = 0; i < count_words_; ++i) {
    const std::uint64_t first = i * per_word_;
    const std::uint64_t fields = std::min<std::uint64_t>(per_word_, blocks_ - first);
    for (std::uint32_t rest = words_[i]; rest != 0;) {
      const unsigned place = static_cast<unsigned>(std::countr_zero(rest)) / bits_;
      const std::uint32_t count = rest >> place * bits_ & field;
      if (place >= fields || count > workers_) return false;
      present_[(first + place) / 64] |= std::uint64_t{1} << (first + place) % 64;
      rest &= ~(field << place * bits_);
    }
  }
  std::uint64_t lost = 0;
  for (std::size_t i = 0; i < mine.size(); ++i) lost |= mine[i] & ~present_[i];
  return lost == 0;
}

std::uint64_t PresenceCounts::present(std::uint64_t first, unsigned count) const noexcept {
  assert(count <= 64 && first + count <= blocks_);
  if (count == 0) return 0;
  const std::uint64_t word = first / 64;
  const unsigned shift = first % 64;
  std::uint64_t bits = present_[word] >> shift;
  if (shift != 0 && word + 1 < present_.size()) bits |= present_[word + 1] << (64 - shift);
  return count == 64 ? bits : bits & ((std::uint64_t{1} << count) - 1);
}

}  // namespace wiresum::schedule
