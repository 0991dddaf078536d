#include "c/collective.hpp"

#include <utility>

namespace wiresum::c {
namespace {

/// 16 bits that differ, very likely, between two calls that do not belong together: FNV-1a, folded.
std::uint16_t signature_of(const Collective& collective, unsigned bits) {
  std::uint32_t hash = 2166136261u;
  const auto add = [&hash](std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ static_cast<std::uint8_t>(value >> (8 * byte))) * 16777619u;
    }
  };
  add(static_cast<std::uint64_t>(collective.kind));
  add(static_cast<std::uint64_t>(collective.dtype));
  add(collective.average ? 1 : 0);
  add(static_cast<std::uint64_t>(static_cast<std::int64_t>(collective.root)));
  add(bits);
  for (const worker::Region& region : collective.regions) add(region.elements);
  return static_cast<std::uint16_t>(hash ^ (hash >> 16));
}

}  // namespace

engine::Request request_of(Collective collective, const session::Grant& grant, std::chrono::nanoseconds timeout) {
  const bool is_raw = collective.dtype == numeric::Dtype::kRaw;
  const bool is_float = !is_raw && collective.dtype != numeric::Dtype::kI32;
  const bool is_sum = !is_raw && collective.kind != Collective::Kind::kBarrier;
  const std::uint8_t bits = is_raw ? 8 : is_float ? grant.bits : 32;
  const std::uint16_t signature = signature_of(collective, bits);
  return {.work = {.format = {.dtype = collective.dtype,
                              .scaling = is_float ? numeric::Scaling::kBlockExponent : numeric::Scaling::kNone,
                              .bits = bits},
                   .divisor = collective.average ? static_cast<float>(grant.world_size()) : 1.0F,
                   .regions = std::move(collective.regions),
                   .signature = signature,
                   .may_be_sparse = is_sum && grant.sparse},
          .timeout_ns = timeout.count(),
          .notify = false};
}

}  // namespace wiresum::c
