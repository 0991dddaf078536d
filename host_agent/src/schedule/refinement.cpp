#include "schedule/refinement.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "schedule/elements.hpp"

namespace wiresum::schedule {

using worker::chunk_elements;

namespace {

constexpr unsigned kBytesPerWord = 4;
constexpr unsigned kBitsPerByte = 8;
/// The part of numeric::exponent_gap_max for the distance between the workers' largest exponents.
constexpr unsigned kGapBetweenWorkers = 10;

}  // namespace

std::uint64_t exponent_words(numeric::Format format, unsigned workers) noexcept {
  return format.scaling == numeric::Scaling::kNone ? 0 : (workers + kBytesPerWord - 1) / kBytesPerWord;
}

Refinement::Refinement(const Request& request, std::size_t lanes, WorkerRank self,
                       std::span<const std::uint32_t> chunks)
    : request_(request),
      lanes_(lanes),
      self_(self),
      element_bytes_(numeric::element_bytes(request.format.dtype)),
      rows_of_chunk_((chunk_elements(request.format, lanes) + kRowElements - 1) / kRowElements),
      chunks_(chunks) {
  union_size_ = {.size = 0, .blocks = 0, .elements = chunks.size() * chunk_elements(request.format, lanes)};
}

// ---- Presence ----

void Refinement::find_blocks() {
  const std::size_t step = chunk_elements(request_.format, lanes_);
  blocks_.reserve(chunks_.size());
  for (const worker::Region& region : request_.regions) {
    const std::uint64_t end = region.chunk_first + worker::chunks_of(region.elements, request_.format, lanes_);
    while (blocks_.size() < chunks_.size() && chunks_[blocks_.size()] < end) {
      blocks_.push_back(
          chunk_in_region(region, chunks_[blocks_.size()] - region.chunk_first, step, request_.format.dtype));
    }
    region_ends_.push_back(blocks_.size());
  }
}

void Refinement::read(const worker::ChunkPresence& presence) {
  find_blocks();
  mine_.assign(blocks_.size() * rows_of_chunk_, 0);
  union_.assign(mine_.size(), 0);
  exponents_.assign(blocks_.size(), numeric::kExponentZero);
  const numeric::Dtype dtype = request_.format.dtype;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const worker::ChunkView& block = blocks_[i];
    const bool holds_anything = presence.may_hold(chunks_[i]);
    if (holds_anything && is_float()) exponents_[i] = exponent_to_say(block);
    for (std::size_t first = 0; first < block.elements; first += kRowElements) {
      const std::size_t count = std::min<std::size_t>(kRowElements, block.elements - first);
      const std::size_t row = i * rows_of_chunk_ + first / kRowElements;
      union_[row] = low_bits(static_cast<unsigned>(count));
      if (holds_anything) mine_[row] = present_elements(dtype, block.source + first * element_bytes_, count);
    }
  }
}

void Refinement::count(unsigned size) {
  const bool first = union_size_.size == 0;
  size_ = size;
  std::uint64_t blocks = 0;
  for (const std::uint64_t row : union_) blocks += static_cast<unsigned>(std::popcount(row & block_starts(size)));
  const std::uint64_t words_of_exponents = exponent_words(request_.format, self_.workers) * blocks_.size();
  counts_.reset(blocks, self_.workers, first ? words_of_exponents : 0);
  if (first) write_exponents();
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < union_.size(); ++i) {
    const std::uint64_t starts = union_[i] & block_starts(size);
    for (std::uint64_t mine = present_blocks(mine_[i], size) & starts; mine != 0; mine &= mine - 1) {
      const std::uint64_t below = (mine & -mine) - 1;
      counts_.add(before + static_cast<unsigned>(std::popcount(starts & below)));
    }
    before += static_cast<unsigned>(std::popcount(starts));
  }
}

bool Refinement::narrow() {
  if (!counts_.collect()) return false;
  if (union_size_.size == 0 && !agree_on_exponents()) return false;
  union_size_ = {.size = size_, .blocks = 0, .elements = 0};
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < union_.size(); ++i) {
    std::uint64_t& row = union_[i];
    const std::uint64_t starts = row & block_starts(size_);
    const auto count = static_cast<unsigned>(std::popcount(starts));
    const std::uint64_t kept = choose_bits(starts, counts_.present(before, count));
    before += count;
    row &= is_set_aside(i / rows_of_chunk_) ? 0 : whole_blocks(kept, size_);
    if (row == 0) continue;
    union_size_.blocks += static_cast<unsigned>(std::popcount(kept));
    union_size_.elements += static_cast<unsigned>(std::popcount(row));
  }
  return true;
}

// ---- Exponents ----

bool Refinement::has_blocks_of_32_bits() const noexcept {
  return request_.format.scaling == numeric::Scaling::kBlockExponent && request_.format.bits == 32;
}

std::uint8_t Refinement::exponent_to_say(const worker::ChunkView& block) const noexcept {
  const numeric::Exponents exponents = numeric::exponents_of(request_.format.dtype, block.source, block.elements);
  const unsigned gap_max = numeric::exponent_gap_max(self_.workers) - kGapBetweenWorkers;
  const bool is_apart = has_blocks_of_32_bits() && numeric::is_wide(exponents, exponents.largest, gap_max);
  return exponents.not_finite || is_apart ? numeric::kExponentNotFinite : exponents.largest;
}

void Refinement::write_exponents() {
  const std::uint64_t words = exponent_words(request_.format, self_.workers);
  if (words == 0) return;
  const std::span<std::uint32_t> fields = counts_.more_words();
  const unsigned shift = self_.rank % kBytesPerWord * kBitsPerByte;
  for (std::size_t i = 0; i < exponents_.size(); ++i) {
    fields[i * words + self_.rank / kBytesPerWord] = std::uint32_t{exponents_[i]} << shift;
  }
}

bool Refinement::agree_on_exponents() {
  const std::uint64_t words = exponent_words(request_.format, self_.workers);
  if (words == 0) return true;
  const std::span<std::uint32_t> fields = counts_.more_words();
  const auto said_by = [](std::span<const std::uint32_t> said, unsigned rank) {
    return static_cast<std::uint8_t>(said[rank / kBytesPerWord] >> rank % kBytesPerWord * kBitsPerByte);
  };
  for (std::size_t i = 0; i < exponents_.size(); ++i) {
    const std::span<const std::uint32_t> said = fields.subspan(i * words, words);
    // Each worker adds to its own byte alone, and none to those behind the last worker's.
    const unsigned last_bits = ((self_.workers - 1) % kBytesPerWord + 1) * kBitsPerByte;
    if (said_by(said, self_.rank) != exponents_[i] || std::uint64_t{said.back()} >> last_bits != 0) return false;
    std::uint8_t largest = exponents_[i];
    std::uint8_t least = largest;  // among workers with an exponent
    for (std::uint32_t word : said) {
      for (; word != 0; word >>= kBitsPerByte) {
        const auto exponent = static_cast<std::uint8_t>(word);
        largest = std::max(largest, exponent);
        if (exponent != numeric::kExponentZero) least = least == 0 ? exponent : std::min(least, exponent);
      }
    }
    const bool is_apart = has_blocks_of_32_bits() && least + kGapBetweenWorkers < largest;
    exponents_[i] = is_apart ? numeric::kExponentNotFinite : largest;
    if (is_set_aside(i)) set_aside_.push_back(chunks_[i]);
  }
  return true;
}

numeric::Scale Refinement::scale_of(std::size_t chunk) const noexcept {
  const numeric::Format format = request_.format;
  if (!is_float()) return {};
  if (format.scaling == numeric::Scaling::kBlockExponent) {
    return numeric::block_scale(self_.workers, exponents_[chunk], format.bits, request_.divisor);
  }
  return numeric::fixed_scale(self_.workers, request_.fixed_scale, format.bits, request_.divisor);
}

// ---- The rest ----

std::span<const std::uint64_t> Refinement::rows_of(const std::vector<std::uint64_t>& rows, std::size_t chunk) const {
  return std::span(rows).subspan(chunk * rows_of_chunk_, rows_of_chunk_);
}

std::size_t Refinement::pack(std::size_t chunk, std::int32_t* integers) {
  std::size_t count = 0;
  std::uint64_t mine = 0;
  for (const std::uint64_t row : rows_of(mine_, chunk)) mine |= row;
  const std::byte* source = blocks_[chunk].source;
  for (const std::uint64_t row : rows_of(union_, chunk)) {
    count += gather_elements(element_bytes_, source, row, elements_.data() + count * element_bytes_);
    source += kRowElements * element_bytes_;
  }
  if (mine == 0 || count == 0) return count;  // zeros, as the memory is
  numeric::to_integers(request_.format.dtype, scale_of(chunk), elements_.data(), count, integers);
  return count;
}

void Refinement::pack() {
  elements_.resize(rows_of_chunk_ * kRowElements * element_bytes_);
  memory_.assign(union_size_.elements, 0);
  packed_.request.format = {
      .dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone, .bits = request_.format.bits};
  std::int32_t* packed = memory_.data();
  std::size_t chunk = 0;
  for (const std::size_t region_end : region_ends_) {
    std::int32_t* const begin = packed;
    for (; chunk < region_end; ++chunk) packed += pack(chunk, packed);
    auto* const bytes = reinterpret_cast<std::byte*>(begin);
    packed_.request.regions.push_back(
        {.source = bytes, .destination = bytes, .elements = static_cast<std::uint64_t>(packed - begin)});
  }
  packed_.number_and_scan(lanes_);
}

std::size_t Refinement::unpack(std::size_t chunk, const std::int32_t* integers) {
  if (is_set_aside(chunk)) return 0;
  const worker::ChunkView& block = blocks_[chunk];
  std::size_t count = 0;
  for (const std::uint64_t row : rows_of(union_, chunk)) count += static_cast<unsigned>(std::popcount(row));
  if (block.destination == nullptr) return count;
  const numeric::Dtype dtype = request_.format.dtype;
  const numeric::Scale scale = scale_of(chunk);
  if (scale.not_finite) {
    numeric::from_integers(dtype, scale, nullptr, block.destination, block.elements);
    return count;
  }
  numeric::from_integers(dtype, scale, integers, elements_.data(), count);
  std::memset(block.destination, 0, block.elements * element_bytes_);
  const std::byte* packed = elements_.data();
  std::byte* destination = block.destination;
  for (const std::uint64_t row : rows_of(union_, chunk)) {
    packed += scatter_elements(element_bytes_, packed, row, destination) * element_bytes_;
    destination += kRowElements * element_bytes_;
  }
  return count;
}

void Refinement::unpack() {
  const std::int32_t* packed = memory_.data();
  for (std::size_t chunk = 0; chunk < blocks_.size(); ++chunk) packed += unpack(chunk, packed);
}

}  // namespace wiresum::schedule
