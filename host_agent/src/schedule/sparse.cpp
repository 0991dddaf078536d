// The scheduler's part for a collective that may be sparse, from its prologue to its stream.
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

constexpr numeric::Format kCounts{.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone, .bits = 32};
/// A prologue's signature is its request's with these bits inverted, to tell one from the other. Prologues of finer
/// blocks also differ by their level; there are no more levels than sizes.
constexpr std::uint32_t kPrologueTag = 0x5A5A0000;  // R6.4
constexpr unsigned kLevelShift = 16;
/// The bits that tell the stream of elements that were set aside from the packed stream.
constexpr std::uint32_t kSetAsideTag = 0x96960000;  // R6.7
/// The blocks that PresenceCounts returns in one call.
constexpr std::uint64_t kPresenceBits = 64;

/// The fewest slots of a stream (the congestion window's floor). A stream needs a slot for each packet in flight, and
/// each further slot costs a packet without payload, for its first exponent. The prologue has told all workers the
/// number of packets in a round trip. A stream gets twice as many slots, since queues and processors make round trips
/// longer.
constexpr std::uint64_t kStreamSlotsMin = 32;

std::uint32_t stream_slots(std::uint64_t round_trip_chunks) {
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(2 * round_trip_chunks, kStreamSlotsMin, worker::kSlotsSpreadMax));  // R4.3
}

/// The sample's runs whose chunk some worker has.
std::vector<std::uint32_t> present_runs(std::span<const std::uint32_t> runs, std::uint64_t chunks_present) {
  std::vector<std::uint32_t> present;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if ((chunks_present >> i & 1) != 0) present.push_back(runs[i]);
  }
  return present;
}

/// The counts of the sample follow those of the chunks: each run's chunk, then each run's elements. A sampled chunk's
/// presence is counted again, so that the choice depends on the counts alone, and not on each worker's sample.
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

Costs Scheduler::costs_of(const RequestState& state, std::uint64_t chunks,
                          std::uint64_t round_trip_chunks) const noexcept {
  return {.words_per_chunk = config_.lanes,
          .elements_per_word = numeric::elements_per_word(state.request.format),
          .counts_per_word = counts_per_word(config_.workers),
          .round_trip_words = round_trip_chunks * config_.lanes,
          .first_step_words = chunks * exponent_words(state.request.format, config_.workers)};
}

std::uint8_t Scheduler::vote_of(const RequestState& state) const {
  const Sample& sample = state.survey.sample;
  if (sample.runs.empty()) return sample.density;
  const std::uint64_t elements = state.survey.chunks * chunk_elements(state.request.format, config_.lanes);
  const UnionSize union_size{.size = 0, .blocks = 0, .elements = elements * sample.density / kDensityFull};
  const std::uint64_t present = state.survey.chunks * sample.density / kDensityFull;
  const Costs costs = costs_of(state, present, choice_.round_trip_chunks());
  const Step step =
      cheapest_step(costs, count_sampled_blocks(present_runs(sample.runs, sample.chunks_present)), union_size);
  if (!worth_refining(step.words, union_size.elements / costs.elements_per_word)) return sample.density;
  return static_cast<std::uint8_t>(quotient_up(step.words * kDensityFull, elements / costs.elements_per_word));
}

// ---- Prologue ----

void Scheduler::issue_counts(RequestState& state, Stage stage, PresenceCounts& counts, worker::Collective work) {
  auto* const bytes = reinterpret_cast<std::byte*>(counts.words().data());
  state.counts_region = {.source = bytes, .destination = bytes, .elements = counts.words().size()};
  work.format = kCounts;
  work.regions = {&state.counts_region, 1};
  const std::uint64_t packets = worker::chunks_of(state.counts_region.elements, kCounts, config_.lanes);
  state.counts_packets += packets;
  issue_shares(state, stage, work, packets);
}

/// False if every sampled block of a tensor is present: without a scan, all its blocks count as present.
bool Scheduler::is_worth_a_scan(const Survey& survey) noexcept { return survey.sample.density < kDensityFull; }

void Scheduler::ask(RequestState& state) {
  assert(asking_ == nullptr);
  ++stats_.prologues;
  asking_ = &state;
  if (state.survey.presence.scanned() || !is_worth_a_scan(state.survey)) {
    issue_prologue(state);
    return;
  }
  start_task(state, Stage::kScanning, [&state, lanes = config_.lanes] {
    state.survey.presence = scan(state.request, lanes, state.survey.chunks);
    return worker::Status::kOk;
  });
}

void Scheduler::issue_prologue(RequestState& state) {
  const Survey& survey = state.survey;
  state.counts.reset(survey.chunks + survey.sample.runs.size() * (1 + kRunElements), config_.workers);
  for (std::uint64_t chunk = 0; chunk < survey.chunks; ++chunk) {
    if (survey.presence.may_hold(chunk)) state.counts.add(chunk);
  }
  count_sample(survey.sample, survey.chunks, state.counts);
  const std::uint64_t round_trip =
      std::accumulate(round_trip_chunks_.begin(), round_trip_chunks_.end(), std::uint64_t{0});
  worker::Collective work = collective_of(state, kPrologueTag);
  work.vote = encode_cost(round_trip);
  issue_counts(state, Stage::kPrologue, state.counts, work);
}

void Scheduler::learn_union(RequestState& state) {
  if (state.vote > kDensityFull || !state.counts.collect()) {
    fail_at(state, worker::Status::kImpossible);
    finish(state);
    return;
  }
  state.round_trip_cost = state.vote;
  const std::uint64_t chunks = state.survey.chunks;
  for (std::uint64_t first = 0; first < chunks; first += kPresenceBits) {
    const auto count = static_cast<unsigned>(std::min(kPresenceBits, chunks - first));
    for (std::uint64_t rest = state.counts.present(first, count); rest != 0; rest &= rest - 1) {
      state.union_chunks.push_back(static_cast<std::uint32_t>(first + static_cast<unsigned>(std::countr_zero(rest))));
    }
  }
  state.present = state.union_chunks.size();
  state.sampled = sampled_blocks_of(state.counts, chunks);
  if (state.present == chunks || !needs_clearing(state.request)) {
    use_union(state);
    return;
  }
  start_task(state, Stage::kClearing, [&state, lanes = config_.lanes] {
    clear_absent(state.request, lanes, [&state](std::uint64_t chunk) { return state.counts.present(chunk, 1) != 0; });
    return worker::Status::kOk;
  });
}

void Scheduler::use_union(RequestState& state) {
  // Few chunks take little longer than another round trip.
  if (state.sampled.elements == 0 || state.present < config_.sparse_chunks_min) {
    issue_stream(state);
    return;
  }
  state.refinement = std::make_unique<Refinement>(
      state.request, config_.lanes, WorkerRank{.rank = config_.rank, .workers = config_.workers}, state.union_chunks);
  refine_or_stream(state);
}

// ---- Finer blocks ----

/// Takes the cheapest next step, by the newest counts.
void Scheduler::refine_or_stream(RequestState& state) {
  const Costs costs = costs_of(state, state.present, decode_cost(state.round_trip_cost));
  const UnionSize& union_size = state.refinement->union_size();
  const std::uint64_t unrefined = state.present * costs.words_per_chunk;
  const std::uint64_t set_aside = state.refinement->set_aside().size() * costs.words_per_chunk;
  const std::uint64_t packed = quotient_up(union_size.elements, costs.elements_per_word);
  const bool packed_pays = worth_refining(packed + set_aside, unrefined);
  // If the first counts leave out nothing, the sample was wrong, and is not used again.
  const bool may_refine =
      state.levels > 0 ? packed_pays
                       : choice_.refines(state.request.signature, static_cast<std::uint32_t>(state.survey.chunks));
  const Step step = cheapest_step(costs, state.sampled, union_size);
  if (may_refine && step.size != 0 && worth_refining(step.words + set_aside, unrefined)) {
    cut(state, step.size);
  } else if (state.levels > 0 && packed_pays) {
    start_task(state, Stage::kPacking, [&state] {
      state.refinement->pack();
      return worker::Status::kOk;
    });
  } else {
    issue_stream(state);
  }
}

void Scheduler::cut(RequestState& state, unsigned size) {
  const bool first = state.levels++ == 0;
  start_task(state, Stage::kCutting, [&state, first, size] {
    if (first) state.refinement->read(state.survey.presence);
    state.refinement->count(size);
    return worker::Status::kOk;
  });
}

void Scheduler::issue_refinement(RequestState& state) {
  ++stats_.refinements;
  assert(state.levels > 0 && state.levels <= kSizes);
  PresenceCounts& counts = state.refinement->counts();
  state.refining_words +=
      costs_of(state, state.present, decode_cost(state.round_trip_cost)).round_trip_words + counts.words().size();
  issue_counts(state, Stage::kRefinement, counts, collective_of(state, kPrologueTag ^ state.levels << kLevelShift));
}

void Scheduler::issue_refined(RequestState& state) {
  assert(&state == asking_);
  if (!has_set_aside(state)) asking_ = nullptr;
  ++stats_.refined;
  const PackedTensor& packed = state.refinement->packed();
  const auto chunks = static_cast<std::uint32_t>(state.survey.chunks);
  const std::uint64_t sent = packed.chunks + state.refinement->set_aside().size();
  const std::uint64_t spent = sent + quotient_up(state.refining_words, config_.lanes);
  choice_.on_refinement(state.request.signature, chunks,
                        worth_refining(spent * config_.lanes, state.present * config_.lanes));
  choice_.on_counts(state.request.signature, chunks, static_cast<std::uint32_t>(std::min<std::uint64_t>(spent, chunks)),
                    state.round_trip_cost);
  count_stream(state, packed.chunks, packed.presence, packed.chunks);
  issue_packed(state, Stage::kPackedStream, packed);
}

bool Scheduler::has_set_aside(const RequestState& state) noexcept {
  return state.refinement != nullptr && !state.refinement->set_aside().empty();
}

void Scheduler::issue_set_aside(RequestState& state) {
  assert(&state == asking_);
  asking_ = nullptr;
  worker::Collective work = stream_of(state, kSetAsideTag);
  work.chunks = state.refinement->set_aside();
  work.slots_spread_max = stream_slots(decode_cost(state.round_trip_cost));
  issue_shares(state, Stage::kStream, work, work.chunks.size());
}

// ---- Stream ----

void Scheduler::issue_stream(RequestState& state) {
  assert(&state == asking_);
  asking_ = nullptr;
  const auto chunks = static_cast<std::uint32_t>(state.survey.chunks);
  const std::uint64_t spent = state.present + quotient_up(state.refining_words, config_.lanes);
  if (state.levels > 0) choice_.on_refinement(state.request.signature, chunks, false);
  choice_.on_counts(state.request.signature, chunks, static_cast<std::uint32_t>(std::min<std::uint64_t>(spent, chunks)),
                    state.round_trip_cost);
  state.refinement.reset();
  assert(state.union_chunks.size() == state.present);
  if (state.present == chunks) state.union_chunks.clear();
  count_stream(state, state.present, state.survey.presence, state.survey.chunks);
  worker::Collective work = stream_of(state);
  work.slots_spread_max = stream_slots(decode_cost(state.round_trip_cost));
  issue_shares(state, Stage::kStream, work, state.present);
}

/// Counts `sent` chunks that all workers send, with those set aside; `presence` is that of `chunks`, which may be more.
void Scheduler::count_stream(const RequestState& state, std::uint64_t sent, const worker::ChunkPresence& presence,
                             std::uint64_t chunks) {
  std::uint64_t absent = 0;
  for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) absent += presence.may_hold(chunk) ? 0 : 1;
  const std::uint64_t mine = chunks - absent;
  std::uint64_t empty = sent - std::min(sent, mine);
  if (has_set_aside(state)) {
    for (const std::uint32_t chunk : state.refinement->set_aside()) {
      ++sent;
      empty += state.survey.presence.may_hold(chunk) ? 0 : 1;
    }
  }
  const std::uint64_t payload_bytes = config_.lanes * wire::kWordBytes;
  const std::uint64_t packet_bytes = payload_bytes + wire::kHeaderBytes;
  stats_.streams += state.present < state.survey.chunks ? 1 : 0;
  stats_.blocks_skipped += state.survey.chunks - state.present;
  stats_.blocks_empty += empty;
  stats_.bytes_saved += static_cast<std::int64_t>((state.survey.chunks - sent) * packet_bytes + empty * payload_bytes) -
                        static_cast<std::int64_t>(state.counts_packets * packet_bytes);
}

}  // namespace wiresum::schedule
