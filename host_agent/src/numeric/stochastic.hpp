// Compressed gradients: stochastic rounding. Pure; SIMD behind the same dispatch as the codec. All instruction sets
// give the same bits.
//
// Randomness is a function, not a stream: word i of a draw is a hash of the draw and i. A repeated step has the same
// randomness, a worker can compute another worker's draw, and threads can compute any part of a draw. The function's
// definition stands here:
//
//   The hash is Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a key of 64
//   bits and a counter of 128 bits give a block of four words. The counter is (block, worker, step, stream), `block`
//   first. Word i of a draw is word (i / 16) mod 4 of block 16 (i / 64) + i mod 16: vectors of up to 16 blocks,
//   computed side by side, are sixteen words in a row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wiresum::numeric {

/// The parameters of a random word besides its index.
struct Draw {
  std::uint32_t key[2] = {0, 0};
  std::uint32_t worker = 0;
  std::uint32_t step = 0;
  std::uint32_t stream = 0;
};

/// The words of a draw, whose blocks 32 bits number.
inline constexpr std::uint64_t kDrawWordsMax = std::uint64_t{1} << 34;

/// The kernels of gradients of one type; Kernels (kernels.hpp) has them for float and double.
template <class Element>
struct GradientKernels {
  /// integers[i] = floor(x * inverse + u), clamped to [-limit, limit]: all in fp64, each operation rounded to nearest.
  /// u in [0, 1) is word first + i of the draw times 2^-32. Elements are finite; 0 <= limit; first + count <=
  /// kDrawWordsMax.
  void (*round)(const Draw& draw, std::uint64_t first, const Element* source, std::size_t count, double inverse,
                std::int32_t limit, std::int32_t* integers) noexcept;
  /// values[i] = integer * factor: rounded to fp64, and then to the type of `values`.
  void (*scale)(const std::int32_t* integers, std::size_t count, double factor, Element* values) noexcept;
  /// The sum of (a[i] - b[i])^2 in fp64: element i is added to column i mod 32, and the columns are added in order.
  double (*square_distance)(const Element* a, const Element* b, std::size_t count) noexcept;
};

}  // namespace wiresum::numeric
