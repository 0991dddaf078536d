#include "numeric/reduction.hpp"

#include <cassert>
#include <cmath>
#include <limits>
#include <type_traits>

#include "numeric/kernel_templates.hpp"

namespace wiresum::numeric {
namespace {

// A type has the value of an element, `load` and `store`.

template <class T>
struct Plain {
  using Value = T;
  static constexpr std::size_t kBytes = sizeof(T);
  static Value load(const std::byte* from) noexcept { return load_as<T>(from); }
  static void store(std::byte* to, Value value) noexcept { store_as(to, value); }
};

struct Bool {
  using Value = bool;
  static constexpr std::size_t kBytes = 1;
  static Value load(const std::byte* from) noexcept { return *from != std::byte{0}; }  // whatever a peer has sent
  static void store(std::byte* to, Value value) noexcept { *to = std::byte{value}; }
};

struct Half {
  using Value = float;
  static constexpr std::size_t kBytes = 2;
  static Value load(const std::byte* from) noexcept { return One::load_f16(from); }
  static void store(std::byte* to, Value value) noexcept { One::store_f16(to, value); }
};

struct BFloat {
  using Value = float;
  static constexpr std::size_t kBytes = 2;
  static Value load(const std::byte* from) noexcept { return One::load_bf16(from); }
  static void store(std::byte* to, Value value) noexcept { One::store_bf16(to, value); }
};

template <class Take>
auto with_type(Element element, const Take& take) noexcept {
  switch (element) {
    case Element::kF64:
      return take(Plain<double>{});
    case Element::kF32:
      return take(Plain<float>{});
    case Element::kF16:
      return take(Half{});
    case Element::kBF16:
      return take(BFloat{});
    case Element::kI64:
      return take(Plain<std::int64_t>{});
    case Element::kI32:
      return take(Plain<std::int32_t>{});
    case Element::kI8:
      return take(Plain<std::int8_t>{});
    case Element::kU8:
      return take(Plain<std::uint8_t>{});
    case Element::kBool:
      return take(Bool{});
  }
  __builtin_unreachable();
}

template <class T>
bool is_nan(T value) noexcept {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

/// Of two elements, that of the lower rank first.
template <class T>
T combined(Operator op, T a, T b) noexcept {
  if (op == Operator::kMin) return b < a || is_nan(b) ? b : a;
  if (op == Operator::kMax) return a < b || is_nan(b) ? b : a;
  if constexpr (std::is_floating_point_v<T>) {
    const T made = op == Operator::kSum ? a + b : a * b;
    return is_nan(made) ? std::numeric_limits<T>::quiet_NaN() : made;  // its bits are not the same on all processors
  } else {
    const auto one = static_cast<std::uint64_t>(a);    // NOLINT(bugprone-signed-char-misuse): an int8 is a number
    const auto other = static_cast<std::uint64_t>(b);  // NOLINT(bugprone-signed-char-misuse)
    switch (op) {
      case Operator::kSum:
        return static_cast<T>(one + other);
      case Operator::kProduct:
        return static_cast<T>(one * other);
      case Operator::kAnd:
        return static_cast<T>(one & other);
      case Operator::kOr:
        return static_cast<T>(one | other);
      default:
        return static_cast<T>(one ^ other);
    }
  }
}

}  // namespace

std::size_t element_bytes(Element element) noexcept {
  return with_type(element, []<class Type>(Type) { return Type::kBytes; });
}

bool valid(Reduction reduction) noexcept {
  if (reduction.element > Element::kBool || reduction.op > Operator::kXor) return false;
  const bool is_float =
      with_type(reduction.element, []<class Type>(Type) { return std::is_floating_point_v<typename Type::Value>; });
  return !is_float || reduction.op <= Operator::kMax;
}

void reduce(Reduction reduction, const std::byte* contributions, std::size_t stride, unsigned workers,
            std::size_t count, std::byte* destination) noexcept {
  assert(valid(reduction));
  with_type(reduction.element, [=]<class Type>(Type) {
    for (std::size_t at = 0; at < count * Type::kBytes; at += Type::kBytes) {
      Type::store(destination + at, Type::load(contributions + at));
      for (unsigned worker = 1; worker < workers; ++worker) {
        const auto next = Type::load(contributions + worker * stride + at);
        Type::store(destination + at, combined(reduction.op, Type::load(destination + at), next));  // rounds
      }
    }
  });
}

}  // namespace wiresum::numeric
