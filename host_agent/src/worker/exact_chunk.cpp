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
  mine_ = ahead_.has_value() ? *ahead_ : planes_of(chunk);  // R5.6
  ahead_.reset();
  planes_ = 0;
  code_ = static_cast<std::uint8_t>(format.planes() + 1);
  part_first_ = 0;
  limbs_.clear();
  sums_.clear();
}

void ExactChunk::look_ahead(const ChunkView& next) noexcept {
  if (!ahead_.has_value()) ahead_ = planes_of(next);
}

numeric::Planes ExactChunk::planes_of(const ChunkView& chunk) const noexcept {
  return chunk.source == nullptr ? 0 : format_->planes_of(chunk.source, chunk.elements);
}

std::uint8_t ExactChunk::code_of(numeric::Planes planes) const noexcept {
  return planes == 0 ? 0  // R5.4
                     : static_cast<std::uint8_t>(format_->planes() - static_cast<unsigned>(std::countr_zero(planes)));
}

std::uint8_t ExactChunk::code() const noexcept {
  const unsigned first = format_->planes() + 1 - code_;  // above the present plane
  return code_of(mine_ >> first << first);
}

bool ExactChunk::start_plane(std::uint8_t code) noexcept {
  assert(code > 0 && is_possible(code));
  code_ = code;
  part_first_ = 0;
  planes_ |= numeric::Planes{1} << plane();
  try {
    if (limbs_.empty() && mine_ != 0) {
      limbs_.resize(chunk_.elements * static_cast<std::size_t>(std::popcount(mine_)));
      format_->split(chunk_.source, chunk_.elements, mine_, limbs_.data());
    }
    if (chunk_.destination != nullptr) sums_.resize(sums_.size() + chunk_.elements);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

std::size_t ExactChunk::part_elements() const noexcept { return std::min(lanes_, chunk_.elements - part_first_); }

void ExactChunk::write(std::byte* payload) const noexcept {
  assert(has_plane());
  const auto below = static_cast<std::size_t>(std::popcount(mine_ & ((numeric::Planes{1} << plane()) - 1)));
  const std::int32_t* const limbs = limbs_.data() + below * chunk_.elements + part_first_;
  numeric::quantise(kWords, {}, reinterpret_cast<const std::byte*>(limbs), part_elements(), payload, lanes_);
}

bool ExactChunk::take(const std::byte* payload) noexcept {
  if (chunk_.destination != nullptr) {
    std::int32_t* const sums = sums_.data() + sums_.size() - chunk_.elements + part_first_;
    numeric::dequantise(kWords, {}, payload, lanes_, reinterpret_cast<std::byte*>(sums), part_elements());
  }
  part_first_ += part_elements();  // R5.7
  return part_first_ < chunk_.elements;
}

void ExactChunk::finish(unsigned divisor) noexcept {
  if (chunk_.destination != nullptr) {
    format_->join(sums_.data(), chunk_.elements, planes_, divisor, chunk_.destination);
  }
  limbs_ = {};
  sums_ = {};
}

}  // namespace wiresum::worker
