#include "engine/dispatcher.hpp"

#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <string>
#include <utility>

namespace wiresum::engine {

using worker::Status;

namespace {

constexpr std::size_t kReservedMin = 64;

}  // namespace

Dispatcher::Dispatcher(const schedule::SchedulerConfig& config, std::vector<Shard*> shards,
                       std::function<void()> on_task)
    : lanes_(config.lanes), shards_(std::move(shards)), on_task_(std::move(on_task)), scheduler_(config) {
  assert(shards_.size() == config.threads);
}

// ---- Callers ----

Dispatcher::Prepared Dispatcher::prepare(schedule::Request request, bool notify) {
  std::unique_lock lock(mutex_);
  const std::uint64_t salt = preparations_++;
  lock.unlock();
  Prepared prepared{.request = std::move(request), .survey = {}, .notify = notify};
  prepared.survey = scheduler_.survey(prepared.request, salt);
  lock.lock();
  const bool expects_scan = scheduler_.expects_scan(prepared.request, prepared.survey);
  lock.unlock();
  if (expects_scan) prepared.survey.presence = schedule::scan(prepared.request, lanes_, prepared.survey.chunks);
  return prepared;
}

std::shared_ptr<Operation> Dispatcher::submit(Prepared prepared) {
  const std::lock_guard lock(mutex_);
  if (pending_.size() + completed_.size() >= kOperationsMax) {
    throw std::runtime_error(std::to_string(kOperationsMax) +
                             " operations are in flight, or complete and not taken: wait for some before more");
  }
  reserve(pending_.size() + 1);
  const schedule::Ticket ticket = scheduler_.next_ticket(prepared.request);
  auto operation = std::make_shared<Operation>(ticket.token, ticket.tensor, prepared.notify);
  const auto place = pending_.emplace(ticket.token, operation).first;
  try {
    scheduler_.submit(std::move(prepared.request), std::move(prepared.survey));
  } catch (...) {
    pending_.erase(place);
    throw;
  }
  dispatch();
  return operation;
}

void Dispatcher::fail(Status status) {
  const std::lock_guard lock(mutex_);
  scheduler_.fail(status);
  dispatch();
}

schedule::SparseStats Dispatcher::stats() const {
  const std::lock_guard lock(mutex_);
  return scheduler_.stats();
}

std::uint64_t Dispatcher::exact_sums() const {
  const std::lock_guard lock(mutex_);
  return scheduler_.exact_sums();
}

std::optional<schedule::Failure> Dispatcher::failure() const {
  const std::lock_guard lock(mutex_);
  return scheduler_.failure();
}

std::size_t Dispatcher::pending() const {
  const std::lock_guard lock(mutex_);
  assert(pending_.size() == scheduler_.unfinished());
  return pending_.size();
}

Standing Dispatcher::standing() const {
  const std::lock_guard lock(mutex_);
  Standing standing{.submitted = scheduler_.submitted(), .oldest = 0};
  for (const auto& [token, operation] : pending_) {
    if (standing.oldest == 0 || token < standing.oldest) standing.oldest = token;
  }
  return standing;
}

// ---- Shards and tasks ----

void Dispatcher::complete_share(unsigned shard, const worker::Completion& completion) {
  const std::lock_guard lock(mutex_);
  scheduler_.complete(shard, completion);
  dispatch();
}

std::optional<schedule::Task> Dispatcher::take_task() {
  const std::lock_guard lock(mutex_);
  return scheduler_.poll_task();
}

void Dispatcher::complete_task(const schedule::Task& task, Status status) {
  const std::lock_guard lock(mutex_);
  scheduler_.complete(task, status);
  dispatch();
}

void Dispatcher::check_deadlines(TimeNs now) {
  const std::lock_guard lock(mutex_);
  scheduler_.check_deadlines(now);
  dispatch();
}

// ---- Under the lock ----

void Dispatcher::dispatch() {
  while (const std::optional<schedule::Share> share = scheduler_.poll_share()) {
    shards_[share->thread]->post(share->work);
  }
  while (const std::optional<schedule::Finished> finished = scheduler_.poll_finished()) retire(*finished);
  if (scheduler_.has_task()) on_task_();
  if (const std::optional<schedule::Failure>& failure = scheduler_.failure(); failure.has_value() && !has_failed()) {
    has_failed_.store(true, std::memory_order_relaxed);
    for (Shard* const shard : shards_) shard->post_failure(failure->status);
  }
}

void Dispatcher::reserve(std::size_t operations) {
  if (operations <= reserved_) return;
  const std::size_t wanted = std::max({operations, kReservedMin, std::min(2 * reserved_, kOperationsMax)});
  for (Shard* const shard : shards_) shard->reserve(wanted);
  reserved_ = wanted;
}

void Dispatcher::retire(const schedule::Finished& finished) {
  const auto found = pending_.find(finished.token);
  assert(found != pending_.end());
  const std::shared_ptr<Operation> operation = std::move(found->second);
  pending_.erase(found);
  if (operation->end(finished.status)) completed_.push(operation);
}

}  // namespace wiresum::engine
