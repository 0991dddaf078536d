// The calls of a job's workers, drawn from a seed, and the expected value of every element. Sums are of small integers,
// so that they are exact in every format, except for the short sums that are rounded once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "engine/engine.hpp"

namespace wiresum::stress {

using Random = std::mt19937_64;

inline std::uint64_t below(Random& random, std::uint64_t bound) { return random() % bound; }
inline bool happens(Random& random, double probability) {
  return static_cast<double>(random() >> 11) * 0x1p-53 < probability;
}
template <typename T>
const T& one_of(Random& random, const std::vector<T>& choices) {
  return choices[below(random, choices.size())];
}

using Bytes = std::vector<std::byte>;

/// Sums of at most so many floats are exact and rounded once.
inline constexpr std::size_t kExactElementsMax = 1024;

struct Call {
  enum class Pattern : std::uint8_t { kSum, kBroadcast, kGather, kBarrier };
  Pattern pattern = Pattern::kSum;
  numeric::Format format;
  bool may_be_sparse = false;
  bool in_place = false;
  std::size_t root = 0;
  std::size_t elements = 0;    // of a region
  std::vector<Bytes> sources;  // by worker
  Bytes expected;              // of all regions

  [[nodiscard]] std::size_t region_bytes() const { return elements * numeric::element_bytes(format.dtype); }

  /// A worker's request. Its contribution is copied to `memory`, where the result will be stored.
  [[nodiscard]] engine::Request request(std::size_t worker, Bytes& memory) const {
    engine::Request made;
    made.work.format = format;
    made.work.may_be_sparse = may_be_sparse;
    made.work.signature = static_cast<std::uint16_t>(1 + static_cast<unsigned>(pattern) + 8U * format.bits);
    memory.assign(expected.size(), std::byte{0xEE});
    const std::byte* const source = sources[worker].data();
    if (pattern == Pattern::kSum) {
      if (in_place) std::memcpy(memory.data(), source, memory.size());
      made.work.regions = {
          {.source = in_place ? memory.data() : source, .destination = memory.data(), .elements = elements}};
    } else if (pattern == Pattern::kBroadcast) {
      if (worker == root) memory = sources[worker];
      made.work.regions = {{.source = worker == root ? worker::Source(source) : worker::Source(),
                            .destination = worker == root ? worker::Destination() : memory.data(),
                            .elements = elements}};
    } else if (pattern == Pattern::kGather) {
      for (std::size_t owner = 0; owner < sources.size(); ++owner) {
        made.work.regions.push_back({.source = owner == worker ? worker::Source(source) : worker::Source(),
                                     .destination = memory.data() + owner * region_bytes(),
                                     .elements = elements});
      }
    }
    return made;
  }
};

/// The sum of the elements where doubles hold it exactly.
template <typename T>
Bytes sum_of(const std::vector<Bytes>& sources) {
  Bytes sum(sources.front().size());
  for (std::size_t at = 0; at < sum.size(); at += sizeof(T)) {
    double total = 0;
    for (const Bytes& source : sources) {
      T value;
      std::memcpy(&value, source.data() + at, sizeof value);
      total += static_cast<double>(value);
    }
    // 32-bit integers wrap around.
    const T rounded = std::is_integral_v<T> ? static_cast<T>(static_cast<std::int64_t>(total)) : static_cast<T>(total);
    std::memcpy(sum.data() + at, &rounded, sizeof rounded);
  }
  return sum;
}

template <typename T>
void store(Bytes& bytes, std::size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof value, &value, sizeof value);
}

/// One worker's contribution to a sum.
inline Bytes contribution(Random& random, const Call& call, std::size_t lanes) {
  Bytes bytes(call.region_bytes());
  const bool is_short = call.elements <= kExactElementsMax;
  // Most blocks or most single elements are zero, different ones at each worker.
  const double present = call.may_be_sparse ? std::vector<double>{0, 0.01, 0.1, 0.6}[below(random, 4)] : 1.0;
  const std::size_t grain = happens(random, 0.3) ? 1 : lanes;
  bool here = true;
  for (std::size_t i = 0; i < call.elements; ++i) {
    if (i % grain == 0) here = happens(random, present);
    if (!here) continue;
    if (call.format.dtype == numeric::Dtype::kI32) {
      store(bytes, i, static_cast<std::int32_t>(random()));
    } else if (is_short && call.format.scaling == numeric::Scaling::kBlockExponent) {
      const auto whole = static_cast<float>(static_cast<std::int64_t>(below(random, 1 << 24)) - (1 << 23));
      store(bytes, i, whole * static_cast<float>(1 << below(random, 20)));
    } else {
      store(bytes, i, static_cast<float>(static_cast<std::int64_t>(below(random, 201)) - 100));
    }
  }
  return bytes;
}

inline Call draw_call(Random& random, std::size_t workers, std::size_t lanes) {
  using Pattern = Call::Pattern;
  constexpr numeric::Format kInteger{.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone, .bits = 32};
  constexpr numeric::Format kBlock{};
  constexpr numeric::Format kBlock16{.bits = 16};
  constexpr numeric::Format kFixed{.scaling = numeric::Scaling::kFixed};
  constexpr numeric::Format kRaw{.dtype = numeric::Dtype::kRaw, .scaling = numeric::Scaling::kNone, .bits = 8};
  Call call;
  call.pattern = one_of<Pattern>(random, {Pattern::kSum, Pattern::kSum, Pattern::kSum, Pattern::kSum, Pattern::kSum,
                                          Pattern::kSum, Pattern::kBroadcast, Pattern::kGather, Pattern::kBarrier});
  call.in_place = happens(random, 0.5);
  call.root = below(random, workers);
  const std::size_t chunks = one_of<std::size_t>(random, {1, 2, 10, 70, 200});
  call.elements = call.pattern == Pattern::kBarrier ? 0 : 1 + below(random, chunks * lanes);
  if (call.pattern == Pattern::kSum) {
    call.format = one_of<numeric::Format>(random, {kInteger, kBlock, kBlock, kBlock16, kFixed});
    call.may_be_sparse = happens(random, 0.5);
    for (std::size_t worker = 0; worker < workers; ++worker) {
      call.sources.push_back(contribution(random, call, lanes));
    }
    call.expected =
        call.format.dtype == numeric::Dtype::kI32 ? sum_of<std::int32_t>(call.sources) : sum_of<float>(call.sources);
    return call;
  }
  call.format = kRaw;
  for (std::size_t worker = 0; worker < workers; ++worker) {
    Bytes& bytes = call.sources.emplace_back(call.elements);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (call.pattern == Pattern::kGather) call.expected.insert(call.expected.end(), bytes.begin(), bytes.end());
  }
  if (call.pattern == Pattern::kBroadcast) call.expected = call.sources[call.root];
  return call;
}

}  // namespace wiresum::stress
