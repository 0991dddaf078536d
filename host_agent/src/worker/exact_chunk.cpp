#include "worker/exact_chunk.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <new>

#include "numeric/codec.hpp"

namespace wiresum::worker {
namespace {

constexpr numeric::Format kWords{.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone, .bits = 32};

}  // namespace

void ExactChunk::begin(const numeric::ExactFormat& format, numeric::Dtype dtype, const ChunkView& chunk,
                       std::size_t lanes) noexcept {
  format_ = &format;
  dtype_ = dtype;
  chunk_ = chunk;
  lanes_ = lanes;
  mine_ = chunk.source == nullptr ? 0 : format.planes_of(chunk.source, chunk.elements);
  planes_ = 0;
  code_ = static_cast<std::uint8_t>(format.planes() + 1);
  part_first_ = 0;
  sums_.clear();
}

std::uint8_t ExactChunk::code() const noexcept {
  const unsigned first = format_->planes() + 1 - code_;  // above the present plane
  const numeric::Planes left = mine_ >> first << first;
  return left == 0 ? 0 : static_cast<std::uint8_t>(format_->planes() - static_cast<unsigned>(std::countr_zero(left)));
}

bool ExactChunk::start_plane(std::uint8_t code) noexcept {
  assert(code > 0 && is_possible(code));
  code_ = code;
  part_first_ = 0;
  planes_ |= numeric::Planes{1} << plane();
  if (chunk_.destination == nullptr) return true;
  try {
    sums_.resize(sums_.size() + chunk_.elements);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

std::size_t ExactChunk::part_elements() const noexcept { return std::min(lanes_, chunk_.elements - part_first_); }

void ExactChunk::write(std::byte* payload, std::span<std::int32_t> scratch) const noexcept {
  assert(has_plane() && scratch.size() >= lanes_);
  const std::byte* const source = chunk_.source + part_first_ * numeric::element_bytes(dtype_);
  format_->split(source, part_elements(), numeric::Planes{1} << plane(), scratch.data());
  numeric::quantise(kWords, {}, reinterpret_cast<const std::byte*>(scratch.data()), part_elements(), payload, lanes_);
}

bool ExactChunk::take(const std::byte* payload) noexcept {
  if (chunk_.destination != nullptr) {
    std::int32_t* const sums = sums_.data() + sums_.size() - chunk_.elements + part_first_;
    numeric::dequantise(kWords, {}, payload, lanes_, reinterpret_cast<std::byte*>(sums), part_elements());
  }
  part_first_ += part_elements();
  return part_first_ < chunk_.elements;
}

void ExactChunk::finish(unsigned divisor) noexcept {
  if (chunk_.destination != nullptr) {
    format_->join(sums_.data(), chunk_.elements, planes_, divisor, chunk_.destination);
  }
  sums_ = {};
}

}  // namespace wiresum::worker
