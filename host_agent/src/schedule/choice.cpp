#include "schedule/choice.hpp"

#include <algorithm>

#include "schedule/survey.hpp"

namespace wiresum::schedule {
namespace {

constexpr unsigned kCostFractionBits = 3;
/// At least this part of a tensor must be saved, to pay for reading the tensor once more, and for other costs besides
/// the round trip.
constexpr std::uint64_t kChunksPerOverhead = 16;

}  // namespace

std::uint64_t decode_cost(std::uint8_t code) noexcept {
  constexpr std::uint64_t kUnit = 1U << kCostFractionBits;
  return ((kUnit + code % kUnit) << (code / kUnit)) / kUnit;
}

std::uint8_t encode_cost(std::uint64_t chunks) noexcept {
  std::uint8_t code = 0;
  while (code < kDensityFull && decode_cost(code) < chunks) ++code;
  return code;
}

bool Choice::pays(std::uint32_t chunks, std::uint64_t present) const noexcept {
  return present < chunks && chunks - present > cost_ + chunks / kChunksPerOverhead;
}

bool Choice::asks(std::uint16_t signature, std::uint32_t chunks) const {
  if (!pays(chunks, 0)) return false;
  const auto found = records_.find(key(signature, chunks));
  return found == records_.end() || !found->second.dense;
}

void Choice::on_counts(std::uint16_t signature, std::uint32_t chunks, std::uint32_t present, std::uint8_t cost) {
  cost_ = decode_cost(cost);
  Record& record = record_of(signature, chunks);
  record.dense = !pays(chunks, present);
  record.votes_missing = record.patience;
  record.patience = record.dense ? std::min(2 * record.patience, kPatienceMax) : 1;
}

bool Choice::refines(std::uint16_t signature, std::uint32_t chunks) {
  Record& record = record_of(signature, chunks);
  if (record.refinements_to_skip == 0) return true;
  --record.refinements_to_skip;
  return false;
}

void Choice::on_refinement(std::uint16_t signature, std::uint32_t chunks, bool saved) {
  Record& record = record_of(signature, chunks);
  record.refinements_to_skip = saved ? 0 : record.refinement_patience;
  record.refinement_patience = saved ? 1 : std::min(2 * record.refinement_patience, kPatienceMax);
}

Choice::Record& Choice::record_of(std::uint16_t signature, std::uint32_t chunks) {
  const std::uint64_t of = key(signature, chunks);
  if (records_.size() >= kRecordsMax && !records_.contains(of)) records_.clear();
  return records_[of];
}

void Choice::on_vote(std::uint16_t signature, std::uint32_t chunks, std::uint8_t density) {
  const auto found = records_.find(key(signature, chunks));
  if (found == records_.end() || !found->second.dense) return;
  const std::uint64_t present = (std::uint64_t{chunks} * density + kDensityFull - 1) / kDensityFull;
  if (!pays(chunks, present)) return;
  Record& record = found->second;
  if (--record.votes_missing == 0) record.dense = false;
}

}  // namespace wiresum::schedule
