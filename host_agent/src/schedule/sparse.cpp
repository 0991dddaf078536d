// What the scheduler does for a collective that may be sparse, from its prologue to its stream.
#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "schedule/scheduler.hpp"
#include "worker/worker.hpp"

namespace wiresum::schedule {
namespace {

constexpr numeric::Format kCounts{.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone, .lane_bits = 32};
/// A prologue's signature is its request's with these bits turned over, lest one be taken for the other; those of finer
/// blocks differ by their level, of which there are no more than sizes.
constexpr std::uint32_t kPrologueTag = 0x5A5A0000;
constexpr unsigned kLevelShift = 16;
/// The same of what is asked about, and streamed, ahead of a request's other chunks.
constexpr std::uint32_t kLeadTag = 0x800000;
/// What PresenceCounts tells at once.
constexpr std::uint64_t kPresenceBits = 64;

/// A stream needs a slot for each packet that is in flight; each more costs a packet without payload, for its first
/// exponent. A round trip holds what the prologue has told everybody, which queues and processors stretch: at least so
/// many (the congestion window's floor), and twice what it holds.
constexpr std::uint64_t kStreamSlotsMin = 32;

/// What is streamed ahead lasts so many round trips at least.
constexpr std::uint64_t kLeadRoundTrips = 4;
/// The rest is looked at in pieces of about so much. Between them packets are seen to.
constexpr std::uint64_t kLookBytes = 1U << 20;

std::uint32_t stream_slots(std::uint64_t round_trip_chunks) {
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(2 * round_trip_chunks, kStreamSlotsMin, worker::kSlotsSpreadMax));
}

std::uint64_t quotient_up(std::uint64_t dividend, std::uint64_t divisor) noexcept {
  return (dividend + divisor - 1) / divisor;
}

/// The runs of the sample whose chunk somebody has.
std::vector<std::uint32_t> present_runs(std::span<const std::uint32_t> runs, std::uint64_t chunks_present) {
  std::vector<std::uint32_t> present;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if ((chunks_present >> i & 1) != 0) present.push_back(runs[i]);
  }
  return present;
}

/// After the counts of the chunks come those of the sample: of each run's chunk, then of each run's elements. Whether a
/// sampled chunk is in the union is counted again, so that what is chosen depends on nothing but the counts, wherever
/// each worker has looked.
void count_sample(const Sample& sample, std::uint64_t first, PresenceCounts& counts) {
  for (std::size_t i = 0; i < sample.runs.size(); ++i) {
    if ((sample.chunks_present >> i & 1) != 0) counts.add(first + i);
    const std::uint64_t elements = first + sample.runs.size() + i * kRunElements;
    for (std::uint32_t rest = sample.runs[i]; rest != 0; rest &= rest - 1) {
      counts.add(elements + static_cast<unsigned>(std::countr_zero(rest)));
    }
  }
}

Hits sampled_hits(const PresenceCounts& counts, std::uint64_t first) {
  std::vector<std::uint32_t> runs((counts.size() - first) / (1 + kRunElements));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    runs[i] = static_cast<std::uint32_t>(counts.present(first + runs.size() + i * kRunElements, kRunElements));
  }
  return count_hits(present_runs(runs, counts.present(first, static_cast<unsigned>(runs.size()))));
}

}  // namespace

// ---- Choices ----

Prices Scheduler::prices_of(const Entry& entry, std::uint64_t chunks, std::uint64_t round_trip_chunks) const noexcept {
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
  const Known known{.size = 0, .blocks = 0, .elements = elements * sample.density / kDensityFull};
  const std::uint64_t present = entry.survey.chunks * sample.density / kDensityFull;
  const Prices prices = prices_of(entry, present, choice_.round_trip_chunks());
  const Step step = cheapest_step(prices, count_hits(present_runs(sample.runs, sample.chunks_present)), known);
  if (!worth_refining(step.words, known.elements / prices.elements_per_word)) return sample.density;
  return static_cast<std::uint8_t>(quotient_up(step.words * kDensityFull, elements / prices.elements_per_word));
}

// ---- Prologue ----

void Scheduler::deal_counts(Entry& entry, PresenceCounts& counts, worker::Collective& work) {
  auto* const bytes = reinterpret_cast<std::byte*>(counts.words().data());
  entry.counts_region = {.source = bytes, .destination = bytes, .elements = counts.words().size()};
  work.format = kCounts;
  work.regions = {&entry.counts_region, 1};
  work.deadline = entry.request.deadline;
  work.token = entry.ticket.token;
  const std::uint64_t packets = worker::chunks_of(entry.counts_region.elements, kCounts, config_.lanes);
  entry.counts_packets += packets;
  deal_stage(entry, work, packets);
}

void Scheduler::deal_prologue(Entry& entry) {
  ++stats_.prologues;
  asking_ = &entry;
  entry.stage = Stage::kPrologue;
  const std::uint64_t lead = lead_of(entry.request, entry.survey.chunks);
  ask(entry, {.begin = 0, .end = lead == 0 ? entry.survey.chunks : lead});
}

/// How many chunks to ask about ahead of the others: those that are likely to bring as much of the union as is wanted,
/// or half of it. 0: all are asked about at once.
std::uint64_t Scheduler::lead_of(const Request& request, std::uint64_t chunks) const {
  const std::uint64_t present = choice_.streamed(request.signature, static_cast<std::uint32_t>(chunks));
  if (present == 0) return 0;
  const std::uint64_t wanted = std::max(config_.lead_chunks, kLeadRoundTrips * choice_.round_trip_chunks());
  // Counts of one packet, which leave room for an opening.
  const std::uint64_t fitting = config_.lanes * 3 / 5 * counts_per_word(config_.workers);
  const std::uint64_t lead = std::min(quotient_up(wanted * chunks, present), fitting);
  const bool is_enough = 2 * lead * present >= wanted * chunks;
  return is_enough && lead <= chunks / 2 ? lead : 0;
}

void Scheduler::ask(Entry& entry, ChunkRun run) {
  Survey& survey = entry.survey;
  entry.asked = run;
  // A tensor of which every sampled block was present is not worth the look.
  if (survey.sample.density < kDensityFull) look(survey, entry.request, config_.lanes, run.end);
  const bool is_last = run.end == survey.chunks;
  const std::uint64_t blocks = run.end - run.begin;
  const std::uint64_t counts = blocks + (is_last ? survey.sample.runs.size() * (1 + kRunElements) : 0);
  if (entry.request.format.scaling == numeric::Scaling::kBlockExponent) {
    const std::uint64_t words = quotient_up(counts, counts_per_word(config_.workers));
    // Round trips are not told before the prologue: as many slots as the last one's need.
    entry.opening =
        Opening(stream_slots(choice_.round_trip_chunks()), survey.chunks, config_.workers, words, config_.lanes);
  }
  entry.counts.reset(counts, config_.workers, entry.opening.words());
  for (std::uint64_t i = 0; i < blocks; ++i) {
    if (survey.scans.empty() || survey.scans[run.begin + i].present) entry.counts.add(i);
  }
  if (is_last) count_sample(survey.sample, blocks, entry.counts);
  entry.opening.write(entry.request, config_.lanes, run, survey.scans, config_.worker, entry.counts.more_words());
  const std::uint64_t round_trip =
      std::accumulate(round_trip_chunks_.begin(), round_trip_chunks_.end(), std::uint64_t{0});
  worker::Collective work;
  work.tensor = entry.ticket.tensor ^ kPrologueTag ^ (is_last ? 0 : kLeadTag);
  work.vote = encode_cost(round_trip);
  deal_counts(entry, entry.counts, work);
}

void Scheduler::ask_rest(Entry& entry) { ask(entry, {.begin = entry.asked.end, .end = entry.survey.chunks}); }

void Scheduler::learn_union(Entry& entry) {
  entry.round_trip_cost = entry.vote;
  entry.counts.collect();
  const std::uint64_t begin = entry.asked.begin;
  const std::uint64_t end = entry.asked.end;
  for (std::uint64_t first = begin; first < end; first += kPresenceBits) {
    std::uint64_t rest =
        entry.counts.present(first - begin, static_cast<unsigned>(std::min(kPresenceBits, end - first)));
    for (; rest != 0; rest &= rest - 1) {
      entry.rest.chunks.push_back(static_cast<std::uint32_t>(first + static_cast<unsigned>(std::countr_zero(rest))));
    }
  }
  entry.present += entry.rest.chunks.size();
  clear_absent(entry.request, config_.lanes, entry.asked,
               [&entry, begin](std::uint32_t number) { return entry.counts.present(number - begin, 1) != 0; });
  entry.rest.exponents = entry.opening.read(entry.counts.more_words(), entry.rest.chunks);
  if (end < entry.survey.chunks) {
    deal_lead(entry);
    return;
  }
  entry.hits = sampled_hits(entry.counts, end - begin);
  // Few chunks take hardly longer than another round trip, and of what is on its way nothing can be left out.
  if (entry.hits.elements == 0 || entry.present < config_.sparse_chunks_min || begin != 0) {
    deal_stream(entry);
    return;
  }
  entry.refinement = std::make_unique<Refinement>(
      entry.request, config_.lanes, Place{.worker = config_.worker, .workers = config_.workers}, entry.rest.chunks);
  refine_or_stream(entry);
}

/// Streams the part of the union that is known, and has the rest of the tensor looked at.
void Scheduler::deal_lead(Entry& entry) {
  ++stats_.ahead;
  entry.lead = std::exchange(entry.rest, {});
  deal_openings(entry.lead);
  worker::Collective work = collective_of(entry);
  work.tensor ^= kLeadTag;
  work.token |= kLeadToken;
  work.chunks = entry.lead.chunks;
  work.exponents = entry.lead.exponents;
  // The counts of the rest come after it in the order of packets. They shall find room even in the smallest window.
  const std::uint32_t slots = stream_slots(decode_cost(entry.round_trip_cost));
  work.slots_spread_max = slots - slots / 4;
  entry.lead_shares_left = deal_shares(work, entry.lead.chunks.size());
  const std::uint64_t chunk_bytes = config_.lanes * wire::kWordBytes;
  const auto look_on = [&entry, lanes = config_.lanes, piece = std::max(kLookBytes / chunk_bytes, std::uint64_t{1})] {
    Survey& survey = entry.survey;
    if (survey.scans.empty()) return true;  // all count as present
    look(survey, entry.request, lanes, std::min(survey.scanned + piece, survey.chunks));
    return survey.scanned == survey.chunks;
  };
  start_chore(entry, look_on, &Scheduler::ask_rest).can_wait_ = true;
}

// ---- Finer blocks ----

/// After any counts: what is cheapest now?
void Scheduler::refine_or_stream(Entry& entry) {
  const Prices prices = prices_of(entry, entry.present, decode_cost(entry.round_trip_cost));
  const Known& known = entry.refinement->known();
  const std::uint64_t unrefined = entry.present * prices.words_per_chunk;
  const bool packed_pays = worth_refining(quotient_up(known.elements, prices.elements_per_word), unrefined);
  // Where the first counts leave out nothing, the sample was wrong, and is not to be trusted any more.
  const bool may_refine =
      entry.levels > 0 ? packed_pays
                       : choice_.refines(entry.request.signature, static_cast<std::uint32_t>(entry.survey.chunks));
  const Step step = cheapest_step(prices, entry.hits, known);
  if (may_refine && step.size != 0 && worth_refining(step.words, unrefined)) {
    start_refinement(entry, step.size);
  } else if (entry.levels > 0 && packed_pays) {
    start_chore(entry, in_one_piece([&entry] { entry.refinement->gather(); }), &Scheduler::deal_packed);
  } else {
    deal_stream(entry);
  }
}

void Scheduler::start_refinement(Entry& entry, unsigned size) {
  const bool first = entry.levels++ == 0;
  const auto work = [&entry, first, size] {
    if (first) entry.refinement->look(entry.survey.scans);
    entry.refinement->count(size);
  };
  start_chore(entry, in_one_piece(work), &Scheduler::deal_refinement);
}

void Scheduler::deal_refinement(Entry& entry) {
  ++stats_.refinements;
  entry.stage = Stage::kRefinement;
  worker::Collective work;
  work.tensor = entry.ticket.tensor ^ kPrologueTag ^ entry.levels << kLevelShift;
  PresenceCounts& counts = entry.refinement->counts();
  entry.refining_words +=
      prices_of(entry, entry.present, decode_cost(entry.round_trip_cost)).round_trip_words + counts.words().size();
  deal_counts(entry, counts, work);
}

void Scheduler::deal_packed(Entry& entry) {
  asking_ = nullptr;
  entry.stage = Stage::kPacked;
  ++stats_.refined;
  const Refinement& refinement = *entry.refinement;
  const auto chunks = static_cast<std::uint32_t>(entry.survey.chunks);
  const std::uint64_t packets = refinement.packed_chunks();
  const std::uint64_t spent = packets + quotient_up(entry.refining_words, config_.lanes);
  choice_.on_refinement(entry.request.signature, chunks,
                        worth_refining(spent * config_.lanes, entry.present * config_.lanes));
  choice_.on_counts(entry.request.signature, chunks, static_cast<std::uint32_t>(std::min<std::uint64_t>(spent, chunks)),
                    entry.round_trip_cost);
  choice_.on_stream(entry.request.signature, chunks, 0);
  count_stream(entry, packets, refinement.packed_scans());
  worker::Collective work;
  work.tensor = entry.ticket.tensor;
  work.format = refinement.packed().format;
  work.regions = refinement.packed().regions;
  work.scans = refinement.packed_scans();
  work.deadline = entry.request.deadline;
  work.token = entry.ticket.token;
  deal_stage(entry, work, packets);
}

// ---- Stream ----

void Scheduler::deal_stream(Entry& entry) {
  asking_ = nullptr;
  entry.stage = Stage::kStream;
  const auto chunks = static_cast<std::uint32_t>(entry.survey.chunks);
  const std::uint64_t spent = entry.present + quotient_up(entry.refining_words, config_.lanes);
  if (entry.levels > 0) choice_.on_refinement(entry.request.signature, chunks, false);
  choice_.on_counts(entry.request.signature, chunks, static_cast<std::uint32_t>(std::min<std::uint64_t>(spent, chunks)),
                    entry.round_trip_cost);
  choice_.on_stream(entry.request.signature, chunks, streamed(entry));
  entry.refinement.reset();
  if (entry.rest.chunks.size() == chunks) {
    entry.rest = {};
  } else {
    deal_openings(entry.rest);
  }
  count_stream(entry, entry.present, entry.survey.scans);
  worker::Collective work = collective_of(entry);
  work.slots_spread_max = stream_slots(decode_cost(entry.round_trip_cost));
  deal_stage(entry, work, entry.present - entry.lead.chunks.size());
}

/// Of a union that is streamed as it is, its size: the next one like it can go in two parts. 0 if finer blocks seem
/// cheaper.
std::uint32_t Scheduler::streamed(const Entry& entry) const {
  const std::uint64_t elements = entry.present * chunk_elements(entry.request.format, config_.lanes);
  const Prices prices = prices_of(entry, entry.present, decode_cost(entry.round_trip_cost));
  const Step step = cheapest_step(prices, entry.hits, {.size = 0, .blocks = 0, .elements = elements});
  const bool refinable = entry.hits.elements != 0 && entry.present >= config_.sparse_chunks_min && step.size != 0 &&
                         worth_refining(step.words, entry.present * prices.words_per_chunk);
  return refinable ? 0 : static_cast<std::uint32_t>(entry.present);
}

/// Every share begins with as many of the chunks whose exponents are known.
void Scheduler::deal_openings(Listed& listed) const {
  const std::uint64_t chunks = listed.chunks.size();
  const std::uint64_t share = share_chunks(chunks);
  const std::uint64_t shares = (chunks + share - 1) / share;
  if (shares == 0) return;
  const std::uint64_t least = chunks - (shares - 1) * share;
  const auto part = static_cast<std::ptrdiff_t>(std::min(listed.exponents.size() / shares, least));
  listed.exponents.resize(static_cast<std::size_t>(part) * shares);
  auto first = listed.chunks.begin();
  for (auto others = static_cast<std::ptrdiff_t>(shares) - 1; others > 0; --others) {
    const auto rest = first + (1 + others) * part;
    std::rotate(first + part, rest, rest + (static_cast<std::ptrdiff_t>(share) - part));
    first += static_cast<std::ptrdiff_t>(share);
  }
}

void Scheduler::count_stream(const Entry& entry, std::uint64_t sent, std::span<const numeric::BlockScan> scans) {
  std::uint64_t mine = 0;
  for (const numeric::BlockScan& scan : scans) mine += scan.present ? 1 : 0;
  const std::uint64_t empty = scans.empty() ? 0 : sent - mine;
  const std::uint64_t payload_bytes = config_.lanes * wire::kWordBytes;
  const std::uint64_t packet_bytes = payload_bytes + wire::kHeaderBytes;
  stats_.streams += entry.present < entry.survey.chunks ? 1 : 0;
  stats_.blocks_skipped += entry.survey.chunks - entry.present;
  stats_.blocks_empty += empty;
  stats_.bytes_saved += static_cast<std::int64_t>((entry.survey.chunks - sent) * packet_bytes + empty * payload_bytes) -
                        static_cast<std::int64_t>(entry.counts_packets * packet_bytes);
}

}  // namespace wiresum::schedule
