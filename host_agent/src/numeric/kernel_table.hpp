// The table of kernels of a vector type, which each kernels_<set>.cpp exports. Internal, like kernel_templates.hpp.
#pragma once

#include "numeric/digit_templates.hpp"
#include "numeric/kernel_templates.hpp"
#include "numeric/stochastic_templates.hpp"

namespace wiresum::numeric {
namespace {

/// `Half` is the vector for fp16: One if the set has no conversion.
template <class V, class Half>
constexpr Kernels make_kernels(const char* name) noexcept {
  Kernels kernels = {};
  kernels.name = name;
  if constexpr (V::kWidth == 1) {
    kernels.magnitudes[0] = magnitudes_scalar<std::uint32_t, kMaskF32>;
    kernels.magnitudes[1] = magnitudes_scalar<std::uint16_t, kMaskF16>;
    kernels.magnitudes[2] = magnitudes_scalar<std::uint16_t, kMaskBF16>;
    kernels.scan = scan_scalar;
  } else {
    kernels.magnitudes[0] = magnitudes<V, std::uint32_t, kMaskF32>;
    kernels.magnitudes[1] = magnitudes<V, std::uint16_t, kMaskF16>;
    kernels.magnitudes[2] = magnitudes<V, std::uint16_t, kMaskBF16>;
    kernels.scan = scan<V>;
  }
  const auto fill = [&kernels]<class W, Dtype kDtype>() {
    constexpr auto kRow = static_cast<std::size_t>(kDtype);
    kernels.quantise[kRow][0] = quantise_chunk<W, kDtype, 32>;
    kernels.quantise[kRow][1] = quantise_chunk<W, kDtype, 16>;
    kernels.quantise[kRow][2] = quantise_chunk<W, kDtype, 8>;
    kernels.dequantise[kRow][0] = dequantise_chunk<W, kDtype, 32>;
    kernels.dequantise[kRow][1] = dequantise_chunk<W, kDtype, 16>;
    kernels.dequantise[kRow][2] = dequantise_chunk<W, kDtype, 8>;
    kernels.to_integers[kRow] = quantise_chunk<W, kDtype, 32, true>;
    kernels.from_integers[kRow] = dequantise_chunk<W, kDtype, 32, true>;
  };
  fill.template operator()<V, Dtype::kF32>();
  fill.template operator()<Half, Dtype::kF16>();
  fill.template operator()<V, Dtype::kBF16>();
  fill.template operator()<V, Dtype::kI32>();
  kernels.accumulate = accumulate_words<V>;
  kernels.weigh = weigh_words<V>;
  kernels.block_range = block_range;
  kernels.add_digits = add_digits<false>;
  kernels.add_top_digits = add_digits<true>;
  kernels.random_words = draw_words<V>;
  kernels.float_gradients = {round_elements<V, float>, scale_elements<V, float>, square_distance_of<V, float>};
  kernels.double_gradients = {round_elements<V, double>, scale_elements<V, double>, square_distance_of<V, double>};
  kernels.pack[0] = kernels.to_integers[static_cast<std::size_t>(Dtype::kI32)];
  kernels.pack[1] = quantise_chunk<V, Dtype::kI32, 16, true>;
  kernels.pack[2] = quantise_chunk<V, Dtype::kI32, 8, true>;
  kernels.unpack[0] = kernels.from_integers[static_cast<std::size_t>(Dtype::kI32)];
  kernels.unpack[1] = dequantise_chunk<V, Dtype::kI32, 16, true>;
  kernels.unpack[2] = dequantise_chunk<V, Dtype::kI32, 8, true>;
  return kernels;
}

}  // namespace
}  // namespace wiresum::numeric
