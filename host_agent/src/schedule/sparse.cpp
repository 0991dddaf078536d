// What the scheduler does for a collective that may be sparse, from its prologue to its stream.
#include <algorithm>
#include <bit>
#include <cassert>
#include <numeric>

#include "schedule/scheduler.hpp"
#include "worker/chunks.hpp"

namespace wiresum::schedule {

using worker::chunk_elements;
using worker::quotient_up;

namespace {

constexpr numeric::Format kCounts{.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone, .lane_bits = 32};
/// A prologue's signature is its request's with these bits inverted, so that neither can be taken for the other. Those
/// of finer blocks also differ by their level; there are no more levels than sizes.
constexpr std::uint32_t kPrologueTag = 0x5A5A0000;
constexpr unsigned kLevelShift = 16;
/// Blocks that PresenceCounts returns in one call.
constexpr std::uint64_t kPresenceBits = 64;

/// A stream needs a slot for each packet in flight. Each further slot costs a packet without payload, for its first
/// exponent. The prologue has told all workers how many packets a round trip holds; queues and processors make it
/// longer. So a stream gets twice that, and at least this many (the congestion window's floor).
constexpr std::uint64_t kStreamSlotsMin = 32;

std::uint32_t stream_slots(std::uint64_t round_trip_chunks) {
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(2 * round_trip_chunks, kStreamSlotsMin, worker::kSlotsSpreadMax));
}

/// The runs of the sample whose chunk some worker has.
std::vector<std::uint32_t> present_runs(std::span<const std::uint32_t> runs, std::uint64_t chunks_present) {
  std::vector<std::uint32_t> present;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if ((chunks_present >> i & 1) != 0) present.push_back(runs[i]);
  }
  return present;
}

/// After the counts of the chunks come those of the sample: of each run's chunk, then of each run's elements. Whether a
/// sampled chunk is in the union is counted again, so that the choice depends on nothing but the counts, whatever each
/// worker has sampled.
void count_sample(const Sample& sample, std::uint64_t first, PresenceCounts& counts) {
  for (std::size_t i = 0; i < sample.runs.size(); ++i) {
    if ((sample.chunks_present >> i & 1) != 0) counts.add(first + i);
    const std::uint64_t elements = first + sample.runs.size() + i * kRunElements;
    for (std::uint32_t rest = sample.runs[i]; rest != 0; rest &= rest - 1) {
      counts.add(elements + static_cast<unsigned>(std::countr_zero(rest)));
    }
  }
}

SampledBlocks sampled_blocks_of(const PresenceCounts& counts, std::uint64_t first) {
  std::vector<std::uint32_t> runs((counts.size() - first) / (1 + kRunElements));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    runs[i] = static_cast<std::uint32_t>(counts.present(first + runs.size() + i * kRunElements, kRunElements));
  }
  return count_sampled_blocks(present_runs(runs, counts.present(first, static_cast<unsigned>(runs.size()))));
}

}  // namespace

// ---- Choices ----

Costs Scheduler::costs_of(const Entry& entry, std::uint64_t chunks, std::uint64_t round_trip_chunks) const noexcept {
  return {.words_per_chunk = config_.lanes,
          .elements_per_word = numeric::elements_per_word(entry.request.format),
          .counts_per_word = counts_per_word(config_.workers),
          .round_trip_words = round_trip_chunks * config_.lanes,
          .first_step_words = chunks * exponent_words(entry.request.format, config_.workers)};
}

std::uint8_t Scheduler::vote_of(const Entry& entry) const {
  const Sample& sample = entry.survey.sample;
  if (sample.runs.empty()) return sample.density;
  const std::uint64_t elements = entry.survey.chunks * chunk_elements(entry.request.format, config_.lanes);
  const UnionSize union_size{.size = 0, .blocks = 0, .elements = elements * sample.density / kDensityFull};
  const std::uint64_t present = entry.survey.chunks * sample.density / kDensityFull;
  const Costs costs = costs_of(entry, present, choice_.round_trip_chunks());
  const Step step =
      cheapest_step(costs, count_sampled_blocks(present_runs(sample.runs, sample.chunks_present)), union_size);
  if (!worth_refining(step.words, union_size.elements / costs.elements_per_word)) return sample.density;
  return static_cast<std::uint8_t>(quotient_up(step.words * kDensityFull, elements / costs.elements_per_word));
}

// ---- Prologue ----

void Scheduler::deal_counts(Entry& entry, Stage stage, PresenceCounts& counts, worker::Collective& work) {
  auto* const bytes = reinterpret_cast<std::byte*>(counts.words().data());
  entry.counts_region = {.source = bytes, .destination = bytes, .elements = counts.words().size()};
  work.format = kCounts;
  work.regions = {&entry.counts_region, 1};
  work.deadline = entry.request.deadline;
  work.token = entry.ticket.token;
  const std::uint64_t packets = worker::chunks_of(entry.counts_region.elements, kCounts, config_.lanes);
  entry.counts_packets += packets;
  deal_shares(entry, stage, work, packets);
}

/// If every sampled block of a tensor is present, scanning it does not pay: all its blocks count as present.
bool Scheduler::is_worth_a_look(const Survey& survey) noexcept { return survey.sample.density < kDensityFull; }

void Scheduler::ask(Entry& entry) {
  assert(asking_ == nullptr);
  ++stats_.prologues;
  asking_ = &entry;
  if (entry.survey.presence.looked() || !is_worth_a_look(entry.survey)) {
    deal_prologue(entry);
    return;
  }
  start_chore(entry, Stage::kLooking, [&entry, lanes = config_.lanes] {
    entry.survey.presence = look(entry.request, lanes, entry.survey.chunks);
  });
}

void Scheduler::deal_prologue(Entry& entry) {
  const Survey& survey = entry.survey;
  entry.counts.reset(survey.chunks + survey.sample.runs.size() * (1 + kRunElements), config_.workers);
  for (std::uint64_t chunk = 0; chunk < survey.chunks; ++chunk) {
    if (survey.presence.may_hold(chunk)) entry.counts.add(chunk);
  }
  count_sample(survey.sample, survey.chunks, entry.counts);
  const std::uint64_t round_trip =
      std::accumulate(round_trip_chunks_.begin(), round_trip_chunks_.end(), std::uint64_t{0});
  worker::Collective work;
  work.tensor = entry.ticket.tensor ^ kPrologueTag;
  work.vote = encode_cost(round_trip);
  deal_counts(entry, Stage::kPrologue, entry.counts, work);
}

void Scheduler::learn_union(Entry& entry) {
  entry.round_trip_cost = entry.vote;
  entry.counts.collect();
  const std::uint64_t chunks = entry.survey.chunks;
  for (std::uint64_t first = 0; first < chunks; first += kPresenceBits) {
    const auto count = static_cast<unsigned>(std::min(kPresenceBits, chunks - first));
    for (std::uint64_t rest = entry.counts.present(first, count); rest != 0; rest &= rest - 1) {
      entry.union_chunks.push_back(static_cast<std::uint32_t>(first + static_cast<unsigned>(std::countr_zero(rest))));
    }
  }
  entry.present = entry.union_chunks.size();
  entry.sampled = sampled_blocks_of(entry.counts, chunks);
  if (entry.present == chunks || !needs_clearing(entry.request)) {
    use_union(entry);
    return;
  }
  start_chore(entry, Stage::kClearing, [&entry, lanes = config_.lanes] {
    clear_absent(entry.request, lanes, [&entry](std::uint64_t chunk) { return entry.counts.present(chunk, 1) != 0; });
  });
}

void Scheduler::use_union(Entry& entry) {
  // Few chunks take little longer than another round trip.
  if (entry.sampled.elements == 0 || entry.present < config_.sparse_chunks_min) {
    deal_stream(entry);
    return;
  }
  entry.refinement = std::make_unique<Refinement>(
      entry.request, config_.lanes, Place{.rank = config_.rank, .workers = config_.workers}, entry.union_chunks);
  refine_or_stream(entry);
}

// ---- Finer blocks ----

/// After each step's counts: what is cheapest now?
void Scheduler::refine_or_stream(Entry& entry) {
  const Costs costs = costs_of(entry, entry.present, decode_cost(entry.round_trip_cost));
  const UnionSize& union_size = entry.refinement->union_size();
  const std::uint64_t unrefined = entry.present * costs.words_per_chunk;
  const bool packed_pays = worth_refining(quotient_up(union_size.elements, costs.elements_per_word), unrefined);
  // If the first counts leave out nothing, the sample was wrong: do not trust it again.
  const bool may_refine =
      entry.levels > 0 ? packed_pays
                       : choice_.refines(entry.request.signature, static_cast<std::uint32_t>(entry.survey.chunks));
  const Step step = cheapest_step(costs, entry.sampled, union_size);
  if (may_refine && step.size != 0 && worth_refining(step.words, unrefined)) {
    cut(entry, step.size);
  } else if (entry.levels > 0 && packed_pays) {
    start_chore(entry, Stage::kGathering, [&entry] { entry.refinement->gather(); });
  } else {
    deal_stream(entry);
  }
}

void Scheduler::cut(Entry& entry, unsigned size) {
  const bool first = entry.levels++ == 0;
  start_chore(entry, Stage::kCutting, [&entry, first, size] {
    if (first) entry.refinement->read(entry.survey.presence);
    entry.refinement->count(size);
  });
}

void Scheduler::deal_refinement(Entry& entry) {
  ++stats_.refinements;
  assert(entry.levels > 0 && entry.levels <= kSizes);
  worker::Collective work;
  work.tensor = entry.ticket.tensor ^ kPrologueTag ^ entry.levels << kLevelShift;
  PresenceCounts& counts = entry.refinement->counts();
  entry.refining_words +=
      costs_of(entry, entry.present, decode_cost(entry.round_trip_cost)).round_trip_words + counts.words().size();
  deal_counts(entry, Stage::kRefinement, counts, work);
}

void Scheduler::deal_packed(Entry& entry) {
  assert(&entry == asking_);
  asking_ = nullptr;
  ++stats_.refined;
  const Refinement& refinement = *entry.refinement;
  const auto chunks = static_cast<std::uint32_t>(entry.survey.chunks);
  const std::uint64_t packets = refinement.packed_chunks();
  const std::uint64_t spent = packets + quotient_up(entry.refining_words, config_.lanes);
  choice_.on_refinement(entry.request.signature, chunks,
                        worth_refining(spent * config_.lanes, entry.present * config_.lanes));
  choice_.on_counts(entry.request.signature, chunks, static_cast<std::uint32_t>(std::min<std::uint64_t>(spent, chunks)),
                    entry.round_trip_cost);
  count_stream(entry, packets, refinement.packed_presence(), packets);
  worker::Collective work;
  work.tensor = entry.ticket.tensor;
  work.format = refinement.packed().format;
  work.regions = refinement.packed().regions;
  work.presence = &refinement.packed_presence();
  work.deadline = entry.request.deadline;
  work.token = entry.ticket.token;
  deal_shares(entry, Stage::kPacked, work, packets);
}

// ---- Stream ----

void Scheduler::deal_stream(Entry& entry) {
  assert(&entry == asking_);
  asking_ = nullptr;
  const auto chunks = static_cast<std::uint32_t>(entry.survey.chunks);
  const std::uint64_t spent = entry.present + quotient_up(entry.refining_words, config_.lanes);
  if (entry.levels > 0) choice_.on_refinement(entry.request.signature, chunks, false);
  choice_.on_counts(entry.request.signature, chunks, static_cast<std::uint32_t>(std::min<std::uint64_t>(spent, chunks)),
                    entry.round_trip_cost);
  entry.refinement.reset();
  assert(entry.union_chunks.size() == entry.present);
  if (entry.present == chunks) entry.union_chunks.clear();
  count_stream(entry, entry.present, entry.survey.presence, entry.survey.chunks);
  worker::Collective work = collective_of(entry);
  work.slots_spread_max = stream_slots(decode_cost(entry.round_trip_cost));
  deal_shares(entry, Stage::kStream, work, entry.present);
}

/// Of `sent` chunks that all workers send; `presence` is of `chunks`, which may be more.
void Scheduler::count_stream(const Entry& entry, std::uint64_t sent, const worker::ChunkPresence& presence,
                             std::uint64_t chunks) {
  std::uint64_t absent = 0;
  for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) absent += presence.may_hold(chunk) ? 0 : 1;
  const std::uint64_t mine = chunks - absent;
  const std::uint64_t empty = sent - std::min(sent, mine);
  const std::uint64_t payload_bytes = config_.lanes * wire::kWordBytes;
  const std::uint64_t packet_bytes = payload_bytes + wire::kHeaderBytes;
  stats_.streams += entry.present < entry.survey.chunks ? 1 : 0;
  stats_.blocks_skipped += entry.survey.chunks - entry.present;
  stats_.blocks_empty += empty;
  stats_.bytes_saved += static_cast<std::int64_t>((entry.survey.chunks - sent) * packet_bytes + empty * payload_bytes) -
                        static_cast<std::int64_t>(entry.counts_packets * packet_bytes);
}

}  // namespace wiresum::schedule
