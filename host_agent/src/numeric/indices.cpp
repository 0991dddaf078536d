#include "numeric/indices.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

namespace wiresum::numeric {
namespace {

constexpr unsigned kByteBits = 8;
constexpr std::size_t kWordBits = 64;

/// The layout of the code of `count` indices below `size`.
struct Layout {
  unsigned low_bits = 0;
  std::size_t bitmap_bits = 0;
  std::size_t bitmap_bytes = 0;
  std::size_t bytes = 0;

  Layout(std::size_t count, std::size_t size) noexcept {
    assert(size <= kIndexedElementsMax);
    if (count == 0) return;
    low_bits = size <= count ? 0 : static_cast<unsigned>(std::bit_width(size / count)) - 1;
    bitmap_bits = count + (size >> low_bits);
    bitmap_bytes = (bitmap_bits + kByteBits - 1) / kByteBits;
    bytes = bitmap_bytes + (count * low_bits + kByteBits - 1) / kByteBits;
  }
};

/// Loads up to eight bytes, the first one the lowest.
std::uint64_t load_word(std::span<const std::uint8_t> bytes, std::size_t at) noexcept {
  std::uint64_t word = 0;
  if (at + sizeof word <= bytes.size()) {
    std::memcpy(&word, bytes.data() + at, sizeof word);
    if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
    return word;
  }
  for (std::size_t i = at; i < bytes.size(); ++i) word |= std::uint64_t{bytes[i]} << (kByteBits * (i - at));
  return word;
}

/// Writes numbers of `bits` bits, one after the other.
class BitWriter {
 public:
  explicit BitWriter(std::span<std::uint8_t> to) noexcept : to_(to) {}

  /// `bits` are 32 at most.
  void put(std::uint64_t value, unsigned bits) noexcept {
    pending_ |= value << pending_bits_;
    for (pending_bits_ += bits; pending_bits_ >= kByteBits; pending_bits_ -= kByteBits) flush();
  }

  void finish() noexcept {
    if (pending_bits_ > 0) flush();
  }

 private:
  void flush() noexcept {
    to_[at_++] = static_cast<std::uint8_t>(pending_);
    pending_ >>= kByteBits;
  }

  std::span<std::uint8_t> to_;
  std::size_t at_ = 0;
  std::uint64_t pending_ = 0;
  unsigned pending_bits_ = 0;
};

}  // namespace

std::size_t index_code_bytes(std::size_t count, std::size_t size) noexcept { return Layout(count, size).bytes; }

bool encode_indices(std::span<const std::int64_t> indices, std::size_t size, std::span<std::uint8_t> code) noexcept {
  const Layout layout(indices.size(), size);
  if (indices.size() > size || code.size() != layout.bytes) return false;
  std::fill_n(code.begin(), layout.bitmap_bytes, std::uint8_t{0});
  BitWriter low(code.subspan(layout.bitmap_bytes));
  const std::uint64_t mask = (std::uint64_t{1} << layout.low_bits) - 1;
  std::int64_t previous = -1;
  for (std::size_t j = 0; j < indices.size(); ++j) {
    if (indices[j] <= previous || indices[j] >= static_cast<std::int64_t>(size)) return false;
    previous = indices[j];
    const auto index = static_cast<std::uint64_t>(previous);
    const std::size_t bit = (index >> layout.low_bits) + j;
    code[bit / kByteBits] = static_cast<std::uint8_t>(code[bit / kByteBits] | 1U << (bit % kByteBits));
    low.put(index & mask, layout.low_bits);
  }
  low.finish();
  return true;
}

bool decode_indices(std::span<const std::uint8_t> code, std::size_t size, std::span<std::int64_t> indices) noexcept {
  const Layout layout(indices.size(), size);
  if (indices.size() > size || code.size() != layout.bytes) return false;
  const auto bitmap = code.first(layout.bitmap_bytes);
  const auto low = code.subspan(layout.bitmap_bytes);
  const std::uint64_t mask = (std::uint64_t{1} << layout.low_bits) - 1;
  std::int64_t previous = -1;
  std::size_t found = 0;
  for (std::size_t at = 0; at < bitmap.size(); at += sizeof(std::uint64_t)) {
    for (std::uint64_t word = load_word(bitmap, at); word != 0; word &= word - 1) {
      if (found == indices.size()) return false;
      const std::size_t bit = kByteBits * at + static_cast<std::size_t>(std::countr_zero(word));
      const std::size_t low_at = found * layout.low_bits;
      const std::uint64_t low_part = load_word(low, low_at / kByteBits) >> (low_at % kByteBits) & mask;
      const auto index = static_cast<std::int64_t>((bit - found) << layout.low_bits | low_part);
      if (index <= previous || index >= static_cast<std::int64_t>(size)) return false;
      indices[found++] = previous = index;
    }
  }
  return found == indices.size();
}

void mark_indices(std::span<const std::int64_t> indices, std::span<std::uint64_t> bitmap) noexcept {
  for (const std::int64_t index : indices) {
    const auto bit = static_cast<std::size_t>(index);
    bitmap[bit / kWordBits] |= std::uint64_t{1} << (bit % kWordBits);
  }
}

std::size_t marked_indices(std::span<const std::uint64_t> bitmap, std::int64_t* indices) noexcept {
  std::size_t count = 0;
  for (std::size_t at = 0; at < bitmap.size(); ++at) {
    for (std::uint64_t word = bitmap[at]; word != 0; word &= word - 1) {
      indices[count++] = static_cast<std::int64_t>(kWordBits * at) + std::countr_zero(word);
    }
  }
  return count;
}

void find_places(std::span<const std::int64_t> indices, std::span<const std::int64_t> others,
                 std::int64_t* places) noexcept {
  std::size_t at = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    while (at < others.size() && others[at] < indices[i]) ++at;
    places[i] = at < others.size() && others[at] == indices[i] ? static_cast<std::int64_t>(at) : -1;
  }
}

}  // namespace wiresum::numeric
