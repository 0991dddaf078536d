// The kernels of compressed gradients (stochastic.hpp), in terms of a vector type's lanes of 64 bits. Internal; the
// rules of kernel_templates.hpp hold.
//
// Philox multiplies 32 by 32 bits and needs both halves of the product. Therefore each word of a counter has a lane of
// 64 bits, in which only the low half counts: a multiplication gives the product's low half in place, and a shift the
// high one. Doubles, to which the words are added, have the same lanes. Two vectors of counters are hashed side by
// side, since one alone would wait for each multiplication.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/kernel_templates.hpp"

namespace wiresum::numeric {
namespace {

inline constexpr std::size_t kStripeBlocks = 16;  // blocks computed side by side
inline constexpr std::size_t kStripeWords = 4 * kStripeBlocks;
inline constexpr std::size_t kPhiloxRounds = 10;

/// Philox's constants, and a draw's keys by round.
template <class V>
struct WideDraw {
  typename V::Long multiplier[2];
  typename V::Long key[kPhiloxRounds][2];
  typename V::Long rest[3];  // the counter's worker, step and stream

  explicit WideDraw(const Draw& draw) noexcept {
    multiplier[0] = V::broadcast_long(0xD2511F53U);
    multiplier[1] = V::broadcast_long(0xCD9E8D57U);
    for (std::uint32_t round = 0; round < kPhiloxRounds; ++round) {
      key[round][0] = V::broadcast_long(draw.key[0] + round * 0x9E3779B9U);
      key[round][1] = V::broadcast_long(draw.key[1] + round * 0xBB67AE85U);
    }
    rest[0] = V::broadcast_long(draw.worker);
    rest[1] = V::broadcast_long(draw.step);
    rest[2] = V::broadcast_long(draw.stream);
  }
};

/// kDoubles blocks, word by word; bits above a word's 32 bits are undefined.
template <class V>
struct WideBlocks {
  typename V::Long word[4];

  WideBlocks(const WideDraw<V>& draw, std::uint32_t first) noexcept
      : word{V::count_from(first), draw.rest[0], draw.rest[1], draw.rest[2]} {}

  [[gnu::always_inline]] void mix(const WideDraw<V>& draw, std::size_t round) noexcept {
    const auto product0 = V::multiply_low(draw.multiplier[0], word[0]);
    const auto product1 = V::multiply_low(draw.multiplier[1], word[2]);
    word[0] = V::xor_three(V::high(product1), word[1], draw.key[round][0]);
    word[2] = V::xor_three(V::high(product0), word[3], draw.key[round][1]);
    word[1] = product1;
    word[3] = product0;
  }
};

/// Calls `at(place, words)` for all words of a stripe: `words` are its words `place` to `place + kDoubles`.
template <class V, class At>
[[gnu::always_inline]] inline void draw_stripe(const WideDraw<V>& draw, std::uint32_t stripe, const At& at) noexcept {
  constexpr auto kGroup = static_cast<std::uint32_t>(V::kDoubles);
  for (std::uint32_t block = 0; block < kStripeBlocks; block += 2 * kGroup) {
    const auto first = static_cast<std::uint32_t>(kStripeBlocks * stripe + block);
    WideBlocks<V> a(draw, first);
    WideBlocks<V> b(draw, first + kGroup);
    for (std::size_t round = 0; round < kPhiloxRounds; ++round) {
      a.mix(draw, round);
      b.mix(draw, round);
    }
    for (std::size_t word = 0; word < 4; ++word) {
      at(kStripeBlocks * word + block, a.word[word]);
      at(kStripeBlocks * word + block + kGroup, b.word[word]);
    }
  }
}

/// Covers the words `first` to `first + count`: calls `whole(stripe, at)` for each whole stripe among them, and
/// `part(words, at, n)` for n words of another stripe. `at` counts from the first word.
template <class V, class Whole, class Part>
[[gnu::always_inline]] inline void cover_stripes(const WideDraw<V>& draw, std::uint64_t first, std::size_t count,
                                                 const Whole& whole, const Part& part) noexcept {
  std::size_t at = 0;
  while (at < count) {
    const auto stripe = static_cast<std::uint32_t>((first + at) / kStripeWords);
    const auto begin = static_cast<std::size_t>((first + at) % kStripeWords);
    const std::size_t rest = count - at;
    if (begin == 0 && rest >= kStripeWords) {
      whole(stripe, at);
      at += kStripeWords;
      continue;
    }
    std::uint32_t words[kStripeWords];
    draw_stripe<V>(draw, stripe, [&](std::size_t place, typename V::Long value) __attribute__((always_inline)) {
      V::store_low(words + place, value);
    });
    const std::size_t n = rest < kStripeWords - begin ? rest : kStripeWords - begin;
    part(words + begin, at, n);
    at += n;
  }
}

template <class V>
void draw_words(const Draw& draw, std::uint64_t first, std::size_t count, std::uint32_t* words) noexcept {
  const WideDraw<V> wide(draw);
  cover_stripes<V>(
      wide, first, count,
      [&](std::uint32_t stripe, std::size_t at) __attribute__((always_inline)) {
        draw_stripe<V>(wide, stripe, [&](std::size_t place, typename V::Long value) __attribute__((always_inline)) {
          V::store_low(words + at + place, value);
        });
      },
      [&](const std::uint32_t* drawn, std::size_t at, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) words[at + i] = drawn[i];
      });
}

/// Rounds V::kDoubles elements.
template <class V, class Element>
[[gnu::always_inline]] inline void round_vector(const Element* from, typename V::Double inverse,
                                                typename V::Double limit, typename V::Long words,
                                                std::int32_t* to) noexcept {
  const auto shifted = V::load_double(from) * inverse + V::fraction(words);
  V::store_floor(to, V::clamp(shifted, limit));
}

template <class V, class Element>
void round_elements(const Draw& draw, std::uint64_t first, const Element* source, std::size_t count, double inverse,
                    std::int32_t limit, std::int32_t* integers) noexcept {
  const WideDraw<V> wide(draw);
  const auto wide_inverse = V::broadcast(inverse);
  const auto wide_limit = V::broadcast(static_cast<double>(limit));
  cover_stripes<V>(
      wide, first, count,
      [&](std::uint32_t stripe, std::size_t at) __attribute__((always_inline)) {
        draw_stripe<V>(wide, stripe, [&](std::size_t place, typename V::Long words) __attribute__((always_inline)) {
          round_vector<V>(source + at + place, wide_inverse, wide_limit, words, integers + at + place);
        });
      },
      [&](const std::uint32_t* drawn, std::size_t at, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
          round_vector<One>(source + at + i, inverse, static_cast<double>(limit), drawn[i], integers + at + i);
        }
      });
}

template <class V, class Element>
void scale_elements(const std::int32_t* integers, std::size_t count, double factor, Element* values) noexcept {
  const auto wide_factor = V::broadcast(factor);
  std::size_t at = 0;
  for (; at + V::kDoubles <= count; at += V::kDoubles) {
    V::store_double(values + at, V::load_double(integers + at) * wide_factor);
  }
  for (; at < count; ++at) One::store_double(values + at, One::load_double(integers + at) * factor);
}

inline constexpr std::size_t kColumns = 32;

template <class V, class Element>
double square_distance_of(const Element* a, const Element* b, std::size_t count) noexcept {
  double columns[kColumns] = {};
  std::size_t at = 0;
  constexpr std::size_t kVectors = kColumns / V::kDoubles;
  typename V::Double wide[kVectors];
  for (std::size_t i = 0; i < kVectors; ++i) wide[i] = V::broadcast(0.0);
  for (; at + kColumns <= count; at += kColumns) {
    for (std::size_t i = 0; i < kVectors; ++i) {
      const std::size_t place = at + i * V::kDoubles;
      const auto value = V::load_double(a + place) - V::load_double(b + place);
      wide[i] = wide[i] + value * value;
    }
  }
  for (std::size_t i = 0; i < kVectors; ++i) V::store_double(columns + i * V::kDoubles, wide[i]);
  for (std::size_t i = 0; at + i < count; ++i) {
    const double value = One::load_double(a + at + i) - One::load_double(b + at + i);
    columns[i] += value * value;
  }
  double total = 0;
  for (const double column : columns) total += column;
  return total;
}

}  // namespace
}  // namespace wiresum::numeric
