// Reductions that each worker does by itself, of the contributions of all workers. The result has the same bits at
// every worker, since all reduce in the order of ranks. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wiresum::numeric {

enum class Element : std::uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI8, kU8, kBool };
enum class Operator : std::uint8_t { kSum, kProduct, kMin, kMax, kAnd, kOr, kXor };

struct Reduction {
  Element element = Element::kI64;
  Operator op = Operator::kSum;
};

[[nodiscard]] std::size_t element_bytes(Element element) noexcept;

/// False for an unknown value, and for bits of floats.
[[nodiscard]] bool valid(Reduction reduction) noexcept;

/// Reduces `count` elements of `workers` workers, of which those of worker k are at contributions + k * stride; memory
/// need not be aligned. The caller has the default floating-point environment.
///
/// Integers wrap around. Sums and products of floats are rounded to the type after each step, and a NaN is the positive
/// quiet one. A minimum or maximum is the first of equal elements (of 0.0 and -0.0), and NaN if an element is. A bool
/// is true if its byte is not 0, and is written as 0 or 1: its sum and its maximum are OR, its product and its minimum
/// are AND.
void reduce(Reduction reduction, const std::byte* contributions, std::size_t stride, unsigned workers,
            std::size_t count, std::byte* destination) noexcept;

}  // namespace wiresum::numeric
