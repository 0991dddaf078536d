#include "schedule/scheduler.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "wire/packet.hpp"
#include "worker/worker.hpp"

namespace wiresum::schedule {
namespace {

using worker::Status;

constexpr numeric::Format kCounts{.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone, .lane_bits = 8};
/// A prologue's signature is its request's with these bits turned over, lest one be taken for the other.
constexpr std::uint32_t kPrologueTag = 0x5A5A0000;

}  // namespace

// ---- Submission ----

Survey Scheduler::survey(Request& request, std::uint64_t salt) const {
  if (!numeric::valid(request.format)) {
    throw std::invalid_argument("this combination of element type, scaling and lane width does not exist");
  }
  Survey survey;
  survey.chunks = number_chunks(request.regions, request.format, config_.lanes);
  if (survey.chunks > UINT32_MAX) {
    throw std::invalid_argument("a collective of more than 2^32 chunks; split the tensor");
  }
  if (is_candidate(request, survey.chunks)) {
    for (const worker::Region& region : request.regions) {
      if (region.source == nullptr && region.elements > 0) {
        throw std::invalid_argument("a collective that may be sparse needs a contribution to every region");
      }
    }
    survey.density = sample_density(request, config_.lanes, survey.chunks, salt);
  }
  return survey;
}

bool Scheduler::is_candidate(const Request& request, std::uint64_t chunks) const noexcept {
  return request.may_be_sparse && request.format.dtype != numeric::Dtype::kRaw && chunks >= config_.sparse_chunks_min;
}

bool Scheduler::expects_scan(const Request& request, const Survey& survey) const {
  return survey.density < kDensityFull && choice_.asks(request.signature, static_cast<std::uint32_t>(survey.chunks));
}

Ticket Scheduler::submit(Request request, Survey survey) {
  Entry entry;
  entry.candidate = is_candidate(request, survey.chunks);
  if (entry.candidate) entry.candidate_number = candidates_++;
  entry.ticket = {.token = ++tokens_, .tensor = std::uint32_t{request.signature} << 16 | ++sequence_};
  entry.request = std::move(request);
  entry.survey = std::move(survey);
  const Ticket ticket = entry.ticket;
  Entry& kept = entries_.emplace(ticket.token, std::move(entry)).first->second;
  if (failure_.has_value()) {
    kept.status = *failure_;
    finish(kept);
    return ticket;
  }
  waiting_.push_back(ticket.token);
  deal_waiting();
  return ticket;
}

// ---- Dealing ----

bool Scheduler::may_deal(const Entry& entry) {
  if (asking_ != nullptr) return false;
  return !entry.candidate || count_votes();
}

void Scheduler::deal_waiting() {
  while (!waiting_.empty()) {
    Entry& next = entries_.at(waiting_.front());
    if (!may_deal(next)) return;
    waiting_.pop_front();
    deal(next);
  }
}

void Scheduler::deal(Entry& entry) {
  if (entry.candidate) {
    votes_.push_back({.signature = entry.request.signature,
                      .chunks = static_cast<std::uint32_t>(entry.survey.chunks),
                      .density = std::nullopt});
    votes_chunks_ += entry.survey.chunks;
    if (choice_.asks(votes_.back().signature, votes_.back().chunks)) {
      deal_prologue(entry);
      return;
    }
    ++stats_.whole;
  }
  deal_whole(entry);
}

bool Scheduler::count_votes() {
  while (!votes_.empty() && votes_chunks_ - votes_.front().chunks >= config_.vote_lag_chunks) {
    const Vote& vote = votes_.front();
    if (!vote.complete) return false;
    if (vote.density.has_value()) choice_.on_vote(vote.signature, vote.chunks, *vote.density);
    votes_chunks_ -= vote.chunks;
    votes_.pop_front();
    ++votes_first_;
  }
  return true;
}

worker::Collective Scheduler::collective_of(const Entry& entry) const {
  const Request& request = entry.request;
  return {.tensor = entry.ticket.tensor,
          .format = request.format,
          .fixed_scale = request.fixed_scale,
          .divisor = request.divisor,
          .regions = request.regions,
          .chunks = entry.chunks,
          .scans = entry.survey.scans,
          .deadline = request.deadline,
          .token = entry.ticket.token};
}

void Scheduler::deal_whole(Entry& entry) {
  worker::Collective work = collective_of(entry);
  work.vote = entry.candidate ? entry.survey.density : 0;
  deal_shares(entry, work, entry.survey.chunks);
}

void Scheduler::deal_prologue(Entry& entry) {
  ++stats_.prologues;
  asking_ = &entry;
  Survey& survey = entry.survey;
  // A tensor of which every sampled block was present is not worth the look.
  if (survey.scans.empty() && survey.density < kDensityFull) {
    survey.scans = scan_blocks(entry.request, config_.lanes, survey.chunks);
  }
  entry.counts.assign(survey.chunks, 1);
  for (std::size_t i = 0; i < survey.scans.size(); ++i) entry.counts[i] = survey.scans[i].present ? 1 : 0;
  auto* const bytes = reinterpret_cast<std::byte*>(entry.counts.data());
  entry.counts_region = {.source = bytes, .destination = bytes, .elements = survey.chunks};
  const std::uint64_t round_trip =
      std::accumulate(round_trip_chunks_.begin(), round_trip_chunks_.end(), std::uint64_t{0});
  worker::Collective work;
  work.tensor = entry.ticket.tensor ^ kPrologueTag;
  work.format = kCounts;
  work.regions = {&entry.counts_region, 1};
  work.deadline = entry.request.deadline;
  work.token = entry.ticket.token;
  work.vote = encode_cost(round_trip);
  deal_shares(entry, work, worker::chunks_of(survey.chunks, kCounts, config_.lanes));
}

void Scheduler::deal_stream(Entry& entry) {
  asking_ = nullptr;
  const auto chunks = static_cast<std::uint32_t>(entry.survey.chunks);
  for (std::uint32_t i = 0; i < chunks; ++i) {
    if (entry.counts[i] != 0) entry.chunks.push_back(i);
  }
  const auto present = static_cast<std::uint32_t>(entry.chunks.size());
  choice_.on_counts(entry.request.signature, chunks, present, entry.vote);
  clear_absent(entry.request, config_.lanes, [&entry](std::uint32_t number) { return entry.counts[number] != 0; });
  count_stream(entry, present);
  if (present == chunks) entry.chunks.clear();
  deal_shares(entry, collective_of(entry), present);
}

void Scheduler::deal_shares(Entry& entry, const worker::Collective& work, std::uint64_t chunks) {
  const std::uint64_t share_chunks =
      std::max(config_.chunks_per_thread_min, (chunks + config_.threads - 1) / config_.threads);
  entry.shares_left = static_cast<unsigned>((chunks + share_chunks - 1) / share_chunks);
  entry.vote = 0;
  // Small collectives take turns over the threads; all workers deal in the same way.
  const std::uint64_t turn = collectives_dealt_++;
  for (std::uint64_t i = 0; i < entry.shares_left; ++i) {
    Share& share = shares_.emplace_back();
    share.thread = static_cast<unsigned>((turn + i) % config_.threads);
    share.work = work;
    share.work.chunk_begin = static_cast<std::uint32_t>(i * share_chunks);
    share.work.chunk_end = static_cast<std::uint32_t>(std::min(chunks, (i + 1) * share_chunks));
  }
  if (entry.shares_left == 0) finish(entry);
}

void Scheduler::count_stream(const Entry& entry, std::uint64_t present) {
  const std::uint64_t skipped = entry.survey.chunks - present;
  std::uint64_t mine = 0;
  for (const numeric::BlockScan& scan : entry.survey.scans) mine += scan.present ? 1 : 0;
  const std::uint64_t empty = entry.survey.scans.empty() ? 0 : present - mine;
  const std::uint64_t payload_bytes = config_.lanes * wire::kWordBytes;
  const std::uint64_t asked = worker::chunks_of(entry.survey.chunks, kCounts, config_.lanes);
  stats_.streams += skipped > 0 ? 1 : 0;
  stats_.blocks_skipped += skipped;
  stats_.blocks_empty += empty;
  stats_.bytes_saved +=
      static_cast<std::int64_t>(skipped * (payload_bytes + wire::kHeaderBytes) + empty * payload_bytes) -
      static_cast<std::int64_t>(asked * (payload_bytes + wire::kHeaderBytes));
}

// ---- Completion ----

void Scheduler::complete(unsigned thread, const worker::Completion& completion) {
  Entry& entry = entries_.at(completion.token);
  if (completion.status == Status::kOk) {
    round_trip_chunks_[thread] = completion.round_trip_chunks;
    entry.vote = std::max(entry.vote, completion.vote);
  } else {
    fail(completion.status);
    entry.status = entry.status == Status::kOk ? completion.status : entry.status;
  }
  if (--entry.shares_left != 0) return;
  if (&entry == asking_ && entry.status == Status::kOk) {
    deal_stream(entry);
  } else {
    if (entry.candidate && entry.counts.empty()) votes_[entry.candidate_number - votes_first_].density = entry.vote;
    finish(entry);
  }
  deal_waiting();
}

void Scheduler::finish(Entry& entry) {
  if (&entry == asking_) asking_ = nullptr;
  if (entry.candidate && entry.candidate_number >= votes_first_ &&
      entry.candidate_number - votes_first_ < votes_.size()) {
    votes_[entry.candidate_number - votes_first_].complete = true;
  }
  finished_.push_back({.token = entry.ticket.token, .status = entry.status});
  entries_.erase(entry.ticket.token);
}

void Scheduler::fail(Status status) {
  if (failure_.has_value()) return;
  failure_ = status;
  for (; !waiting_.empty(); waiting_.pop_front()) {
    Entry& entry = entries_.at(waiting_.front());
    entry.status = status;
    finish(entry);
  }
}

// ---- Outputs ----

std::optional<Share> Scheduler::poll_share() {
  if (shares_.empty()) return std::nullopt;
  const Share share = shares_.front();
  shares_.pop_front();
  return share;
}

std::optional<Finished> Scheduler::poll_finished() {
  if (finished_.empty()) return std::nullopt;
  const Finished finished = finished_.front();
  finished_.pop_front();
  return finished;
}

worker::TimeNs Scheduler::waiting_deadline() const noexcept {
  worker::TimeNs deadline = worker::kNever;
  for (const std::uint64_t token : waiting_) deadline = std::min(deadline, entries_.at(token).request.deadline);
  return deadline;
}

}  // namespace wiresum::schedule
