#include "schedule/scheduler.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "worker/worker.hpp"

namespace wiresum::schedule {

using worker::Status;

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
    survey.sample = take_sample(request, config_.lanes, survey.chunks, salt);
  }
  return survey;
}

bool Scheduler::is_candidate(const Request& request, std::uint64_t chunks) const noexcept {
  return request.may_be_sparse && request.format.dtype != numeric::Dtype::kRaw && chunks >= config_.sparse_chunks_min;
}

std::uint64_t Scheduler::expects_look(const Request& request, const Survey& survey) const {
  if (survey.sample.density == kDensityFull) return 0;
  if (!choice_.asks(request.signature, static_cast<std::uint32_t>(survey.chunks))) return 0;
  const std::uint64_t lead = lead_of(request, survey.chunks);
  return lead == 0 ? survey.chunks : lead;
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
  worker::Collective work = collective_of(entry);
  work.vote = entry.candidate ? vote_of(entry) : 0;
  deal_stage(entry, work, entry.survey.chunks);
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
          .chunks = entry.rest.chunks,
          .exponents = entry.rest.exponents,
          .scans = entry.survey.scans,
          .deadline = request.deadline,
          .token = entry.ticket.token};
}

std::uint64_t Scheduler::share_chunks(std::uint64_t chunks) const noexcept {
  return std::max(config_.chunks_per_thread_min, (chunks + config_.threads - 1) / config_.threads);
}

unsigned Scheduler::deal_shares(const worker::Collective& work, std::uint64_t chunks) {
  const std::uint64_t most = share_chunks(chunks);
  const auto shares = static_cast<unsigned>((chunks + most - 1) / most);
  const std::size_t exponents = shares == 0 ? 0 : work.exponents.size() / shares;
  // Small collectives take turns over the threads; all workers deal in the same way.
  const std::uint64_t turn = collectives_dealt_++;
  for (std::uint64_t i = 0; i < shares; ++i) {
    Share& share = shares_.emplace_back();
    share.thread = static_cast<unsigned>((turn + i) % config_.threads);
    share.work = work;
    share.work.chunk_begin = static_cast<std::uint32_t>(i * most);
    share.work.chunk_end = static_cast<std::uint32_t>(std::min(chunks, (i + 1) * most));
    share.work.exponents = work.exponents.subspan(i * exponents, exponents);
  }
  return shares;
}

void Scheduler::deal_stage(Entry& entry, const worker::Collective& work, std::uint64_t chunks) {
  entry.vote = 0;
  entry.shares_left = deal_shares(work, chunks);
  if (entry.shares_left == 0) advance(entry);
}

// ---- Completion ----

void Scheduler::complete(unsigned thread, const worker::Completion& completion) {
  const bool ahead = (completion.token & kLeadToken) != 0;
  Entry& entry = entries_.at(completion.token & ~kLeadToken);
  if (completion.status == Status::kOk) {
    round_trip_chunks_[thread] = completion.round_trip_chunks;
    if (!ahead) entry.vote = std::max(entry.vote, completion.vote);
  } else {
    fail(completion.status);
    entry.status = entry.status == Status::kOk ? completion.status : entry.status;
  }
  if (--(ahead ? entry.lead_shares_left : entry.shares_left) != 0) return;
  if (!ahead) {
    advance(entry);
  } else if (entry.stage == Stage::kEnded) {
    finish(entry);
  }
  deal_waiting();
}

void Scheduler::complete(const Chore& chore) {
  Entry& entry = entries_.at(chore.token_);
  // After a failure the threads take no more collectives.
  if (failure_.has_value() && entry.stage != Stage::kPacked) entry.status = *failure_;
  if (entry.status == Status::kOk) {
    (this->*chore.then_)(entry);
  } else {
    finish(entry);
  }
  deal_waiting();
}

Scheduler::Chore& Scheduler::start_chore(Entry& entry, std::function<bool()> work, void (Scheduler::*then)(Entry&)) {
  Chore& chore = chores_.emplace_back();
  chore.token_ = entry.ticket.token;
  chore.work_ = std::move(work);
  chore.then_ = then;
  return chore;
}

void Scheduler::advance(Entry& entry) {
  if (entry.status != Status::kOk) {
    finish(entry);
    return;
  }
  switch (entry.stage) {
    case Stage::kWhole:
      end_whole(entry);
      return;
    case Stage::kPrologue:
      learn_union(entry);
      return;
    case Stage::kRefinement:
      start_chore(entry, in_one_piece([&entry] { entry.refinement->narrow(); }), &Scheduler::refine_or_stream);
      return;
    case Stage::kPacked:
      start_chore(entry, in_one_piece([&entry] { entry.refinement->scatter(); }), &Scheduler::finish);
      return;
    case Stage::kStream:
    case Stage::kEnded:
      finish(entry);
      return;
  }
}

void Scheduler::end_whole(Entry& entry) {
  if (entry.candidate) votes_[entry.candidate_number - votes_first_].density = entry.vote;
  finish(entry);
}

void Scheduler::finish(Entry& entry) {
  entry.stage = Stage::kEnded;
  if (entry.lead_shares_left != 0) return;  // the last of them comes here again
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

std::optional<Scheduler::Chore> Scheduler::poll_chore() {
  if (chores_.empty()) return std::nullopt;
  Chore chore = std::move(chores_.front());
  chores_.pop_front();
  return chore;
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
