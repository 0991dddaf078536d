#include "schedule/opening.hpp"

#include <algorithm>
#include <bit>

namespace wiresum::schedule {
namespace {

constexpr unsigned kWordBits = 32;
constexpr unsigned kExponentBits = 8;

void put(std::span<std::uint32_t> words, std::uint64_t at, unsigned bits, std::uint64_t value) noexcept {
  for (unsigned done = 0; done < bits;) {
    const auto shift = static_cast<unsigned>((at + done) % kWordBits);
    words[(at + done) / kWordBits] |= static_cast<std::uint32_t>(value >> done << shift);
    done += kWordBits - shift;
  }
}

std::uint64_t get(std::span<const std::uint32_t> words, std::uint64_t at, unsigned bits) noexcept {
  std::uint64_t value = 0;
  for (unsigned done = 0; done < bits;) {
    const auto shift = static_cast<unsigned>((at + done) % kWordBits);
    value |= std::uint64_t{words[(at + done) / kWordBits] >> shift} << done;
    done += kWordBits - shift;
  }
  return value & ((std::uint64_t{1} << bits) - 1);
}

}  // namespace

Opening::Opening(std::uint32_t slots, std::uint64_t chunks, unsigned workers, std::uint64_t counts,
                 std::size_t lanes) noexcept
    : workers_(workers), field_bits_(kExponentBits + static_cast<unsigned>(std::bit_width(chunks - 1))) {
  const auto fitting = [this](std::uint64_t words) {
    return words * kWordBits / (std::uint64_t{workers_} * field_bits_);
  };
  const std::uint64_t wanted = std::min<std::uint64_t>(slots, chunks);
  const std::uint64_t room = (lanes - counts % lanes) % lanes;
  size_ = fitting(room);
  if (size_ < wanted / 2 && fitting(room + lanes) >= wanted / 2) size_ = fitting(room + lanes);
  size_ = std::min(size_, wanted);
}

std::uint64_t Opening::words() const noexcept { return (size_ * workers_ * field_bits_ + kWordBits - 1) / kWordBits; }

void Opening::write(const Request& request, std::size_t lanes, ChunkRun run, std::span<const numeric::BlockScan> scans,
                    unsigned worker, std::span<std::uint32_t> words) const {
  const std::size_t step = chunk_elements(request.format, lanes);
  std::uint64_t at = worker * size_ * field_bits_;
  const std::uint64_t end = at + size_ * field_bits_;
  for (const worker::Region& region : request.regions) {
    const ChunkRun part = part_of_region(request, region, lanes, run);
    for (std::uint64_t i = part.begin; i < part.end && at < end; ++i) {
      const std::uint64_t number = region.chunk_first + i;
      if (!scans.empty() && !scans[number].present) continue;
      const Block block = block_of(request, region, i, step);
      const std::uint8_t exponent = numeric::max_exponent(request.format.dtype, block.source, block.elements);
      put(words, at, field_bits_, number << kExponentBits | exponent);
      at += field_bits_;
    }
  }
}

std::vector<std::uint8_t> Opening::read(std::span<const std::uint32_t> words,
                                        std::span<const std::uint32_t> union_chunks) const {
  union_chunks = union_chunks.first(std::min<std::size_t>(size_, union_chunks.size()));
  std::vector<std::uint8_t> exponents(union_chunks.size(), numeric::kExponentZero);
  for (std::uint64_t i = 0; i < size_ * workers_; ++i) {
    // Of a worker that has fewer chunks the rest says that chunk 0 has exponent 0, which is true of any.
    const std::uint64_t field = get(words, i * field_bits_, field_bits_);
    const auto found = std::ranges::lower_bound(union_chunks, field >> kExponentBits);
    if (found == union_chunks.end() || *found != field >> kExponentBits) continue;
    std::uint8_t& exponent = exponents[static_cast<std::size_t>(found - union_chunks.begin())];
    exponent = std::max(exponent, static_cast<std::uint8_t>(field));
  }
  return exponents;
}

}  // namespace wiresum::schedule
