#include "schedule/scheduler.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <new>
#include <stdexcept>
#include <utility>

#include "worker/chunks.hpp"

namespace wiresum::schedule {

using worker::quotient_up;
using worker::Status;

// ---- Stages ----

bool Scheduler::may_follow(Stage before, Stage after) noexcept {
  using enum Stage;
  const auto any_of = [after](auto... stages) { return ((after == stages) || ...); };
  if (after == kEnded) return before != kEnded;
  switch (before) {
    case kWaiting:
      return any_of(kLooking, kPrologue, kWhole, kGathered, kMeasuring);
    case kLooking:
      return any_of(kPrologue);
    case kPrologue:
      return any_of(kClearing, kCutting, kStream);
    case kClearing:
      return any_of(kCutting, kStream);
    case kCutting:
      return any_of(kRefinement);
    case kRefinement:
      return any_of(kNarrowing);
    case kNarrowing:
      return any_of(kCutting, kGathering, kStream);
    case kGathering:
      return any_of(kPacked);
    case kPacked:
      return any_of(kScattering);
    case kMeasuring:
      return any_of(kPlanes);
    case kPlanes:
      return any_of(kSplitting);
    case kSplitting:
      return any_of(kLimbs);
    case kGathered:
    case kLimbs:
      return any_of(kJoining);
    case kScattering:
    case kJoining:
    case kStream:
    case kWhole:
    case kEnded:
      return false;
  }
  return false;
}

bool Scheduler::is_with_threads(Stage stage) noexcept {
  using enum Stage;
  switch (stage) {
    case kPrologue:
    case kRefinement:
    case kPacked:
    case kStream:
    case kWhole:
    case kGathered:
    case kPlanes:
    case kLimbs:
      return true;
    default:
      return false;
  }
}

void Scheduler::enter(Entry& entry, Stage stage) noexcept {
  assert(may_follow(entry.stage, stage));
  assert(entry.shares_left == 0);
  entry.stage = stage;
}

// ---- Submission ----

Survey Scheduler::survey(Request& request, std::uint64_t salt) const {
  if (!numeric::valid(request.format)) {
    throw std::invalid_argument("this combination of element type, scaling and lane width does not exist");
  }
  if (request.format.scaling != numeric::Scaling::kNone &&
      config_.workers > numeric::workers_max(request.format.lane_bits)) {
    throw std::invalid_argument("lanes of 8 bits carry the floats of 64 workers at most: use 16 or 32 bits");
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
  return request.may_be_sparse && !is_exact(request) && request.format.dtype != numeric::Dtype::kRaw &&
         chunks >= config_.sparse_chunks_min;
}

bool Scheduler::expects_look(const Request& request, const Survey& survey) const {
  return is_candidate(request, survey.chunks) && is_worth_a_look(survey) &&
         choice_.asks(request.signature, static_cast<std::uint32_t>(survey.chunks));
}

Ticket Scheduler::next_ticket(const Request& request) const noexcept {
  const auto sequence = static_cast<std::uint16_t>(sequence_ + 1U);
  return {.token = tokens_ + 1, .tensor = std::uint32_t{request.signature} << 16 | sequence};
}

Ticket Scheduler::submit(Request request, Survey survey) {
  const Ticket ticket = next_ticket(request);
  Entry entry;
  entry.candidate = is_candidate(request, survey.chunks);
  entry.candidate_number = candidates_;
  entry.ticket = ticket;
  entry.request = std::move(request);
  entry.survey = std::move(survey);
  // What throws comes first.
  finished_.reserve(entries_.size() + 1);
  waiting_.push_back(ticket.token);
  Entry* kept = nullptr;
  try {
    kept = &entries_.emplace(ticket.token, std::move(entry)).first->second;
  } catch (const std::bad_alloc&) {
    waiting_.pop_back();
    throw;
  }
  ++tokens_;
  ++sequence_;
  candidates_ += kept->candidate ? 1 : 0;
  if (failure_.has_value()) {
    waiting_.pop_back();
    kept->status = *failure_;
    finish(*kept);
    return ticket;
  }
  go_on([this] { deal_waiting(); });
  return ticket;
}

// ---- Dealing ----

template <class Step>
void Scheduler::go_on(const Step& step) noexcept {
  try {
    step();
  } catch (const std::bad_alloc&) {
    fail(Status::kNoMemory);
    // Wherever the step failed: a request that neither a thread nor a chore will report would never end.
    for (auto next = entries_.begin(); next != entries_.end();) {
      Entry& entry = (next++)->second;
      if (entry.shares_left != 0 || entry.has_chore) continue;
      if (entry.status == Status::kOk) entry.status = *failure_;
      finish(entry);
    }
  }
}

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
    assert(entry.candidate_number == votes_first_ + votes_.size());
    votes_.push_back({.signature = entry.request.signature,
                      .chunks = static_cast<std::uint32_t>(entry.survey.chunks),
                      .density = std::nullopt});
    votes_chunks_ += entry.survey.chunks;
    if (choice_.asks(votes_.back().signature, votes_.back().chunks)) {
      ask(entry);
      return;
    }
    ++stats_.whole;
  }
  if (is_exact(entry.request)) {
    deal_exact(entry);
    return;
  }
  worker::Collective work = collective_of(entry);
  work.vote = entry.candidate ? vote_of(entry) : 0;
  deal_shares(entry, Stage::kWhole, work, entry.survey.chunks);
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
          .chunks = entry.union_chunks,
          .presence = &entry.survey.presence,
          .deadline = request.deadline,
          .token = entry.ticket.token};
}

void Scheduler::deal_shares(Entry& entry, Stage stage, const worker::Collective& work, std::uint64_t chunks) {
  assert(!failure_.has_value());  // the threads may be gone
  assert(is_with_threads(stage));
  assert(work.chunks.empty() || work.chunks.size() == chunks);
  const std::uint64_t most = std::max(config_.chunks_per_thread_min, quotient_up(chunks, config_.threads));
  const auto shares = static_cast<unsigned>(quotient_up(chunks, most));
  assert(shares <= config_.threads);
  shares_.reserve(shares);
  enter(entry, stage);
  entry.vote = 0;
  entry.shares_left = shares;
  // Small collectives take turns over the threads; all workers deal in the same way.
  const std::uint64_t turn = collectives_dealt_++;
  for (std::uint64_t i = 0; i < entry.shares_left; ++i) {
    Share share{.thread = static_cast<unsigned>((turn + i) % config_.threads), .work = work};
    share.work.chunk_begin = static_cast<std::uint32_t>(i * most);
    share.work.chunk_end = static_cast<std::uint32_t>(std::min(chunks, (i + 1) * most));
    shares_.push(share);
  }
  if (entry.shares_left == 0) end_shares(entry);
}

// ---- Completion ----

void Scheduler::complete(unsigned thread, const worker::Completion& completion) {
  assert(thread < config_.threads);
  Entry& entry = entries_.at(completion.token);
  assert(is_with_threads(entry.stage) && entry.shares_left > 0);
  if (completion.status == Status::kOk) {
    round_trip_chunks_[thread] = completion.round_trip_chunks;
    entry.vote = std::max(entry.vote, completion.vote);
  } else {
    fail(completion.status);
    entry.status = entry.status == Status::kOk ? completion.status : entry.status;
  }
  if (--entry.shares_left != 0) return;
  go_on([&] {
    end_shares(entry);
    deal_waiting();
  });
}

void Scheduler::end_shares(Entry& entry) {
  const bool is_last = entry.stage == Stage::kWhole || entry.stage == Stage::kStream;
  const bool is_summed =
      is_last || entry.stage == Stage::kPacked || entry.stage == Stage::kGathered || entry.stage == Stage::kLimbs;
  if (failure_.has_value() && !is_summed) entry.status = *failure_;
  if (entry.status != Status::kOk || is_last) {
    if (entry.stage == Stage::kWhole && entry.candidate) {
      votes_[entry.candidate_number - votes_first_].density = entry.vote;
    }
    finish(entry);
    return;
  }
  switch (entry.stage) {
    case Stage::kPrologue:
      learn_union(entry);
      return;
    case Stage::kRefinement:
      start_chore(entry, Stage::kNarrowing, [&entry] { entry.refinement->narrow(); });
      return;
    case Stage::kPacked:
      start_chore(entry, Stage::kScattering, [&entry] { entry.refinement->scatter(); });
      return;
    case Stage::kPlanes:
      start_chore(entry, Stage::kSplitting, [&entry] { entry.exact->split(); });
      return;
    case Stage::kGathered:
    case Stage::kLimbs:
      start_chore(entry, Stage::kJoining, [&entry] { entry.exact->join(); });
      return;
    default:
      assert(false);
  }
}

void Scheduler::start_chore(Entry& entry, Stage stage, std::function<void()> work) {
  chores_.reserve(1);
  enter(entry, stage);
  entry.has_chore = true;
  chores_.push({.token = entry.ticket.token, .run = std::move(work)});
}

void Scheduler::complete(const Chore& chore, Status status) {
  Entry& entry = entries_.at(chore.token);
  assert(!is_with_threads(entry.stage) && entry.has_chore);
  entry.has_chore = false;
  if (status != Status::kOk) {
    fail(status);
    entry.status = status;
  }
  go_on([&] { end_chore(entry); });
}

void Scheduler::end_chore(Entry& entry) {
  const bool is_last = entry.stage == Stage::kScattering || entry.stage == Stage::kJoining;
  if (failure_.has_value() && !is_last) entry.status = *failure_;
  if (entry.status != Status::kOk || is_last) {
    finish(entry);
    deal_waiting();
    return;
  }
  switch (entry.stage) {
    case Stage::kLooking:
      deal_prologue(entry);
      break;
    case Stage::kClearing:
      use_union(entry);
      break;
    case Stage::kCutting:
      deal_refinement(entry);
      break;
    case Stage::kNarrowing:
      refine_or_stream(entry);
      break;
    case Stage::kGathering:
      deal_packed(entry);
      break;
    case Stage::kMeasuring:
      deal_planes(entry);
      break;
    case Stage::kSplitting:
      deal_packed_exact(entry);
      break;
    default:
      assert(false);
  }
  deal_waiting();
}

void Scheduler::finish(Entry& entry) {
  enter(entry, Stage::kEnded);
  if (&entry == asking_) asking_ = nullptr;
  if (entry.candidate && entry.candidate_number >= votes_first_ &&
      entry.candidate_number - votes_first_ < votes_.size()) {
    votes_[entry.candidate_number - votes_first_].complete = true;
  }
  finished_.push({.token = entry.ticket.token, .status = entry.status});
  entries_.erase(entry.ticket.token);
}

void Scheduler::fail(Status status) {
  assert(status != Status::kOk);
  if (failure_.has_value()) return;
  failure_ = status;
  for (; !waiting_.empty(); waiting_.pop_front()) {
    Entry& entry = entries_.at(waiting_.front());
    entry.status = status;
    finish(entry);
  }
}

// ---- Outputs ----

std::optional<Share> Scheduler::poll_share() { return shares_.take(); }

std::optional<Chore> Scheduler::poll_chore() { return chores_.take(); }

std::optional<Finished> Scheduler::poll_finished() { return finished_.take(); }

worker::TimeNs Scheduler::waiting_deadline() const noexcept {
  worker::TimeNs deadline = worker::kNever;
  if (asking_ != nullptr && !is_with_threads(asking_->stage)) deadline = asking_->request.deadline;
  for (const std::uint64_t token : waiting_) deadline = std::min(deadline, entries_.at(token).request.deadline);
  return deadline;
}

}  // namespace wiresum::schedule
