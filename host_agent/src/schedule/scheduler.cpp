#include "schedule/scheduler.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <new>
#include <stdexcept>
#include <utility>

#include "worker/chunks.hpp"

namespace wiresum::schedule {

using worker::quotient_up;
using worker::Status;

namespace {

/// An exact sum has other words than a rounded one: workers that disagree on the kind of sum must find out.
constexpr std::uint32_t kExactTag = 0x3C3C0000;  // R5.1

/// True if exact sums have this divisor.
bool has_whole_divisor(const Request& request) noexcept {
  return request.divisor >= 1.0F && request.divisor <= static_cast<float>(wire::kJobWorkersMax) &&
         std::trunc(request.divisor) == request.divisor;
}

/// Throws std::invalid_argument for a reduction that makes no sense.
void check_reduction(const Request& request) {
  if (!request.reduction.has_value()) return;
  if (!numeric::valid(*request.reduction) || request.format.dtype != numeric::Dtype::kRaw) {
    throw std::invalid_argument("there is no such reduction");
  }
  for (const worker::Region& region : request.regions) {
    const bool is_whole = region.elements % numeric::element_bytes(request.reduction->element) == 0;
    if (!is_whole || (!region.source.is_used() && region.elements > 0)) {
      throw std::invalid_argument("a reduction needs a contribution of whole elements to every region");
    }
  }
}

Status status_of(bool is_possible) noexcept { return is_possible ? Status::kOk : Status::kImpossible; }

}  // namespace

// ---- Stages ----

bool Scheduler::may_follow(Stage before, Stage after) noexcept {
  using enum Stage;
  const auto any_of = [after](auto... stages) { return ((after == stages) || ...); };
  if (after == kEnded) return before != kEnded;
  switch (before) {
    case kWaiting:
      return any_of(kScanning, kPrologue, kWhole, kAllGather);
    case kScanning:
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
      return any_of(kCutting, kPacking, kStream);
    case kPacking:
      return any_of(kPackedStream);
    case kPackedStream:
      return any_of(kUnpacking);
    case kUnpacking:
      return any_of(kStream);
    case kAllGather:
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
    case kPackedStream:
    case kStream:
    case kWhole:
    case kAllGather:
      return true;
    default:
      return false;
  }
}

void Scheduler::enter(RequestState& state, Stage stage) noexcept {
  assert(may_follow(state.stage, stage));
  assert(state.shares_left == 0);
  state.stage = stage;
}

// ---- Submission ----

Survey Scheduler::survey(Request& request, std::uint64_t salt) const {
  if (!numeric::valid(request.format)) {
    throw std::invalid_argument("this combination of element type, scaling and lane width does not exist");
  }
  if (request.format.scaling != numeric::Scaling::kNone &&
      config_.workers > numeric::workers_max(request.format.bits)) {
    throw std::invalid_argument("lanes of 8 bits carry the floats of 64 workers at most: use 16 or 32 bits");  // R8.14
  }
  if (numeric::is_fp8(request.format.dtype) && !has_whole_divisor(request)) {
    throw std::invalid_argument("a sum of fp8 is divided by a whole number of workers: 1 to 4096");
  }
  require_memory(request.regions);
  check_reduction(request);
  Survey survey;
  survey.chunks = number_chunks(request.regions, request.format, config_.lanes);
  if (survey.chunks > UINT32_MAX) {
    throw std::invalid_argument("a collective of more than 2^32 chunks; split the tensor");
  }
  if (is_candidate(request, survey.chunks)) {
    for (const worker::Region& region : request.regions) {
      if (!region.source.is_used() && region.elements > 0) {
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

bool Scheduler::is_exact(const Request& request) const noexcept {
  const bool is_fp8 = numeric::is_fp8(request.format.dtype);  // R5.29
  // The caller may choose the scale of other floats.
  if (!is_fp8 && request.format.scaling != numeric::Scaling::kBlockExponent) return false;
  std::uint64_t elements = 0;
  for (const worker::Region& region : request.regions) elements += region.elements;
  return elements > 0 && has_whole_divisor(request) && (is_fp8 || elements <= config_.exact_elements_max);
}

bool Scheduler::expects_scan(const Request& request, const Survey& survey) const {
  return is_candidate(request, survey.chunks) && is_worth_a_scan(survey) &&
         choice_.asks(request.signature, static_cast<std::uint32_t>(survey.chunks));
}

Ticket Scheduler::next_ticket(const Request& request) const noexcept {
  const auto sequence = static_cast<std::uint16_t>(sequence_ + 1U);
  return {.token = tokens_ + 1, .tensor = std::uint32_t{request.signature} << 16 | sequence};  // R2.20
}

Ticket Scheduler::submit(Request request, Survey survey) {
  const Ticket ticket = next_ticket(request);
  RequestState state;
  state.candidate = is_candidate(request, survey.chunks);
  state.candidate_number = candidates_;
  state.ticket = ticket;
  state.request = std::move(request);
  state.survey = std::move(survey);
  // Steps that throw come first.
  finished_.reserve(states_.size() + 1);
  waiting_.push_back(ticket.token);
  RequestState* kept = nullptr;
  try {
    kept = &states_.emplace(ticket.token, std::move(state)).first->second;
  } catch (const std::bad_alloc&) {
    waiting_.pop_back();
    throw;
  }
  ++tokens_;
  ++sequence_;
  candidates_ += kept->candidate ? 1 : 0;
  if (failure_.has_value()) {
    waiting_.pop_back();
    kept->status = failure_->status;
    finish(*kept);
    return ticket;
  }
  go_on(ticket, [this] { issue_waiting(); });
  return ticket;
}

// ---- Dealing ----

template <class Step>
void Scheduler::go_on(const Ticket& ticket, const Step& step) noexcept {
  const std::uint32_t tensor = ticket.tensor;  // the step may end the request
  try {
    step();
  } catch (const std::bad_alloc&) {
    fail({.status = Status::kNoMemory, .tensor = tensor});
    // After a failure in any place, a request that neither a thread nor a task reports would never end.
    for (auto next = states_.begin(); next != states_.end();) {
      RequestState& state = (next++)->second;
      if (state.shares_left != 0 || state.has_task) continue;
      if (state.status == Status::kOk) state.status = failure_->status;
      finish(state);
    }
  }
}

bool Scheduler::may_deal(const RequestState& state) {
  if (asking_ != nullptr) return false;
  return !state.candidate || count_votes();
}

void Scheduler::issue_waiting() {
  while (!waiting_.empty()) {
    RequestState& next = states_.at(waiting_.front());
    if (!may_deal(next)) return;
    waiting_.pop_front();
    issue(next);
  }
}

void Scheduler::issue(RequestState& state) {
  if (state.candidate) {
    assert(state.candidate_number == votes_first_ + votes_.size());
    votes_.push_back({.signature = state.request.signature,
                      .chunks = static_cast<std::uint32_t>(state.survey.chunks),
                      .density = std::nullopt});
    votes_chunks_ += state.survey.chunks;
    if (choice_.asks(votes_.back().signature, votes_.back().chunks)) {
      ask(state);
      return;
    }
    ++stats_.whole;
  }
  const bool is_exact = this->is_exact(state.request);
  const std::uint32_t tag = is_exact ? kExactTag : 0;
  exact_sums_ += is_exact ? 1 : 0;
  const WorkerRank self{.rank = config_.rank, .workers = config_.workers};
  const bool may_gather = is_exact || state.request.format.dtype == numeric::Dtype::kRaw;
  if (may_gather && Gathered::suits(state.request, state.survey.chunks, config_.lanes, self)) {
    state.gathered = std::make_unique<Gathered>(state.request, config_.lanes, self);
    issue_packed(state, Stage::kAllGather, state.gathered->packed(), tag);
    return;
  }
  worker::Collective work = stream_of(state, tag);
  work.exact = is_exact;
  work.vote = state.candidate ? vote_of(state) : 0;
  issue_shares(state, Stage::kWhole, work, state.survey.chunks);
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

worker::Collective Scheduler::collective_of(const RequestState& state, std::uint32_t tag) {
  worker::Collective work;
  work.tensor = state.ticket.tensor ^ tag;
  work.deadline = state.request.deadline;
  work.token = state.ticket.token;
  return work;
}

worker::Collective Scheduler::stream_of(const RequestState& state, std::uint32_t tag) {
  worker::Collective work = collective_of(state, tag);
  work.format = state.request.format;
  work.fixed_scale = state.request.fixed_scale;
  work.divisor = state.request.divisor;
  work.regions = state.request.regions;
  work.chunks = state.union_chunks;
  work.presence = &state.survey.presence;
  return work;
}

void Scheduler::issue_packed(RequestState& state, Stage stage, const PackedTensor& packed, std::uint32_t tag) {
  worker::Collective work = collective_of(state, tag);
  work.format = packed.request.format;
  work.regions = packed.request.regions;
  work.presence = &packed.presence;
  issue_shares(state, stage, work, packed.chunks);
}

void Scheduler::issue_shares(RequestState& state, Stage stage, const worker::Collective& work, std::uint64_t chunks) {
  assert(!failure_.has_value());  // the threads may be gone
  assert(is_with_threads(stage));
  assert(work.chunks.empty() || work.chunks.size() == chunks);
  const std::uint64_t most = std::max(config_.chunks_per_thread_min, quotient_up(chunks, config_.threads));
  const auto shares = static_cast<unsigned>(quotient_up(chunks, most));
  assert(shares <= config_.threads);
  shares_.reserve(shares);
  enter(state, stage);
  state.vote = 0;
  state.shares_left = shares;
  // Small collectives take turns over the threads; all workers issue in the same way.
  const std::uint64_t turn = collectives_issued_++;  // R4.1
  for (std::uint64_t i = 0; i < state.shares_left; ++i) {
    Share share{.thread = static_cast<unsigned>((turn + i) % config_.threads), .work = work};
    share.work.chunk_begin = static_cast<std::uint32_t>(i * most);
    share.work.chunk_end = static_cast<std::uint32_t>(std::min(chunks, (i + 1) * most));
    shares_.push(share);
  }
  if (state.shares_left == 0) end_shares(state);
}

// ---- Completion ----

void Scheduler::complete(unsigned thread, const worker::Completion& completion) {
  assert(thread < config_.threads);
  RequestState& state = states_.at(completion.token);
  assert(is_with_threads(state.stage) && state.shares_left > 0);
  if (completion.status == Status::kOk) {
    round_trip_chunks_[thread] = completion.round_trip_chunks;
    state.vote = std::max(state.vote, completion.vote);
  } else {
    fail_at(state, completion.status);
  }
  if (--state.shares_left != 0) return;
  go_on(state.ticket, [&] {
    end_shares(state);
    issue_waiting();
  });
}

void Scheduler::end_shares(RequestState& state) {
  const bool is_last = state.stage == Stage::kWhole || state.stage == Stage::kStream;
  const bool is_summed = is_last || state.stage == Stage::kPackedStream || state.stage == Stage::kAllGather;
  if (failure_.has_value() && !is_summed) state.status = failure_->status;
  if (state.status != Status::kOk || is_last) {
    if (state.stage == Stage::kWhole && state.candidate) {
      votes_[state.candidate_number - votes_first_].density = state.vote;
    }
    finish(state);
    return;
  }
  switch (state.stage) {
    case Stage::kPrologue:
      learn_union(state);
      return;
    case Stage::kRefinement:
      start_task(state, Stage::kNarrowing, [&state] { return status_of(state.refinement->narrow()); });
      return;
    case Stage::kPackedStream:
      start_task(state, Stage::kUnpacking, [&state] {
        state.refinement->unpack();
        return Status::kOk;
      });
      return;
    case Stage::kAllGather:
      // A few packets are added up sooner than another thread is awake.
      state.gathered->join();
      finish(state);
      return;
    default:
      assert(false);
  }
}

void Scheduler::start_task(RequestState& state, Stage stage, std::function<Status()> work) {
  tasks_.reserve(1);
  enter(state, stage);
  state.has_task = true;
  tasks_.push({.token = state.ticket.token, .run = std::move(work)});
}

void Scheduler::complete(const Task& task, Status status) {
  RequestState& state = states_.at(task.token);
  assert(!is_with_threads(state.stage) && state.has_task);
  state.has_task = false;
  if (status != Status::kOk) fail_at(state, status);
  go_on(state.ticket, [&] { end_task(state); });
}

void Scheduler::end_task(RequestState& state) {
  const bool is_last = state.stage == Stage::kUnpacking && !has_set_aside(state);
  if (failure_.has_value() && !is_last) state.status = failure_->status;
  if (state.status != Status::kOk || is_last) {
    finish(state);
    issue_waiting();
    return;
  }
  switch (state.stage) {
    case Stage::kScanning:
      issue_prologue(state);
      break;
    case Stage::kClearing:
      use_union(state);
      break;
    case Stage::kCutting:
      issue_refinement(state);
      break;
    case Stage::kNarrowing:
      refine_or_stream(state);
      break;
    case Stage::kPacking:
      issue_refined(state);
      break;
    case Stage::kUnpacking:
      issue_set_aside(state);
      break;
    default:
      assert(false);
  }
  issue_waiting();
}

void Scheduler::finish(RequestState& state) {
  enter(state, Stage::kEnded);
  if (&state == asking_) asking_ = nullptr;
  if (state.candidate && state.candidate_number >= votes_first_ &&
      state.candidate_number - votes_first_ < votes_.size()) {
    votes_[state.candidate_number - votes_first_].complete = true;
  }
  finished_.push({.token = state.ticket.token, .status = state.status});
  states_.erase(state.ticket.token);
}

void Scheduler::fail_at(RequestState& state, Status status) {
  fail({.status = status, .tensor = state.ticket.tensor});
  if (state.status == Status::kOk) state.status = status;
}

void Scheduler::fail(const Failure& failure) {
  assert(failure.status != Status::kOk);
  if (failure_.has_value()) return;
  failure_ = failure;
  for (; !waiting_.empty(); waiting_.pop_front()) {
    RequestState& state = states_.at(waiting_.front());
    state.status = failure.status;
    finish(state);
  }
}

void Scheduler::check_deadlines(worker::TimeNs now) {
  const RequestState* late = nullptr;
  const auto look = [&](const RequestState& state) {
    if (state.request.deadline > now) return;
    if (late == nullptr || state.request.deadline < late->request.deadline) late = &state;
  };
  if (asking_ != nullptr && !is_with_threads(asking_->stage)) look(*asking_);
  for (const std::uint64_t token : waiting_) look(states_.at(token));
  if (late != nullptr) fail({.status = Status::kTimedOut, .tensor = late->ticket.tensor});
}

// ---- Outputs ----

std::optional<Share> Scheduler::poll_share() { return shares_.take(); }

std::optional<Task> Scheduler::poll_task() { return tasks_.take(); }

std::optional<Finished> Scheduler::poll_finished() { return finished_.take(); }

}  // namespace wiresum::schedule
