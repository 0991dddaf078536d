#include "session/session.hpp"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "engine/paths.hpp"
#include "transport/udp/socket.hpp"
#include "wire/constants.hpp"

namespace wiresum::session {
namespace {

using worker::Status;

const char* word_of(Status status) {
  switch (status) {
    case Status::kTimedOut:
      return "timed-out";
    case Status::kDiverged:
      return "diverged";
    case Status::kNoMemory:
      return "no-memory";
    case Status::kImpossible:
      return "impossible";
    case Status::kWrongSum:
      return "wrong-sum";
    case Status::kAborted:
    case Status::kOk:
      break;
  }
  return "aborted";
}

/// The first all-reduce of a session, times `factor`: full packets through every thread, each chunk with its own
/// number. It finds a blocked port or a small MTU at once, and workers whose chunks do not meet at the same
/// aggregators.
std::vector<std::int32_t> greeting(const Grant& grant, std::int32_t factor) {
  std::vector<std::int32_t> values(grant.lanes() * kGreetingChunksPerThread * grant.threads());
  for (std::size_t i = 0; i < values.size(); ++i) {
    // The number is unsigned: with many workers and threads it wraps, like the sum.
    values[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(i / grant.lanes() + 1) *
                                          static_cast<std::uint32_t>(factor));
  }
  return values;
}

/// The digits of a slot's position in text.
constexpr unsigned kPositionDigits = 8;

}  // namespace

const Failure* Call::failure() const { return session->failure_of(*operation); }

// ---- Joining and leaving ----

std::shared_ptr<Session> Session::join(const std::string& job, process::Owned<Membership> membership,
                                       const std::function<void()>& pause) {
  const std::shared_ptr<Session> session(new Session(job, std::move(membership)));
  try {
    session->begin(pause);
  } catch (...) {
    try {
      session->leave();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the first failure is the cause
    }
    throw;
  }
  return session;
}

Session::Session(const std::string& job, process::Owned<Membership> membership)
    : job_(job),
      owner_(getpid()),
      left_(Failure::kClosed, "the session of job '" + job + "' was left"),
      without_memory_(Failure::kMemory, "job '" + job + "' cannot go on: out of memory"),
      membership_(std::move(membership)) {}

Session::~Session() {
  if (is_forked()) return;
  try {
    leave();
  } catch (...) {  // NOLINT(bugprone-empty-catch): there is no caller
  }
}

void Session::begin(const std::function<void()>& pause) {
  std::vector<std::vector<transport::UdpSocket>> sockets;
  grant_ = membership_->join([&sockets](const std::string& address, std::size_t count, std::uint16_t first,
                                        std::uint16_t last) {
    if (sockets.size() >= wire::kAggregatorsMax) throw LineError("there are too many aggregators");
    sockets.push_back(transport::bind_within(transport::parse_ipv4(address), {.first = first, .last = last}, count));
    return sockets.back().at(0).local().port;
  });
  halted_early_.resize(grant_.engine.aggregators.size());
  // Attending begins first, since opening a device may take longer than a worker may be silent.
  membership_->attend(shared_from_this());
  open(std::move(sockets), pause);
  if (failure_.load() != nullptr) own_engine_->abort();
  greet(pause);
}

void Session::open(std::vector<std::vector<transport::UdpSocket>> sockets, const std::function<void()>& pause) {
  std::vector<engine::AggregatorConfig> at;
  {
    const std::lock_guard lock(moving_);
    at = grant_.engine.aggregators;
  }
  // The lock is free meanwhile: other ranks of this host may come late, and this one may be moved.
  engine::Engine::Transports shared = meet(at, sockets, pause);
  const std::lock_guard lock(moving_);
  for (std::size_t i = 0; i < shared.size(); ++i) {
    const engine::AggregatorConfig& now = grant_.engine.aggregators[i];
    if (now.worker.key != at[i].worker.key) engine::redirect(shared[i], grant_.engine.transport, now);
  }
  own_engine_ = std::make_unique<engine::Engine>(grant_.engine, std::move(sockets), std::move(shared));
  for (std::size_t i = 0; i < halted_early_.size(); ++i) {
    if (halted_early_[i]) static_cast<void>(own_engine_->halt(i));
  }
  // Either begin() sees a failure that came before, or fail() sees the engine.
  engine_.store(own_engine_.get());
}

engine::Engine::Transports Session::meet(const std::vector<engine::AggregatorConfig>& at,
                                         std::vector<std::vector<transport::UdpSocket>>& sockets,
                                         const std::function<void()>& pause) {
  engine::Engine::Transports shared(grant_.places.size());
  const leaf::Patience patience{.is_over = [&] {
    if (pause) pause();
    return failure_.load() != nullptr;
  }};
  try {
    for (std::size_t i = 0; i < shared.size(); ++i) {
      if (!grant_.places[i].is_shared()) continue;
      shared[i] =
          engine::open_shared(grant_.engine.transport, at[i], std::move(sockets[i]), grant_.places[i], patience);
    }
  } catch (const leaf::MeetingError& error) {
    end(Failure(Failure::kJoin, error.what()), true);
    throw Failure(*failure_.load());
  }
  return shared;
}

void Session::greet(const std::function<void()>& pause) {  // R7.10
  std::vector<std::int32_t> sums = greeting(grant_, rank() + 1);
  auto* const memory = reinterpret_cast<std::byte*>(sums.data());
  const std::shared_ptr<engine::Operation> operation =
      own_engine_->submit({.work = {.format = {.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone},
                                    .regions = {{.source = memory, .destination = memory, .elements = sums.size()}},
                                    .reduction = {}},
                           .timeout_ns = std::chrono::nanoseconds(grant_.greeting_timeout).count(),
                           .notify = false});
  try {
    while (!operation->wait(kPausePeriod)) {
      if (pause) pause();
    }
  } catch (...) {
    own_engine_->close();  // the greeting's memory ends after that
    throw;
  }
  if (const Failure* const failure = failure_of(*operation)) throw Failure(*failure);
  const std::vector<std::int32_t> expected = greeting(grant_, world_size() * (world_size() + 1) / 2);
  if (const auto wrong = std::ranges::mismatch(sums, expected); wrong.in1 != sums.end()) {
    throw Failure(
        explain("greeting-wrong", {{"found", std::to_string(*wrong.in1)}, {"expected", std::to_string(*wrong.in2)}}));
  }
  greeted_.store(true);
}

void Session::leave() {
  if (is_forked()) return;
  leaves_.store(true);
  fail(left_);
  if (engine::Engine* const engine = engine_.load()) engine->close();
  membership_->leave();
}

// ---- Work ----

Call Session::submit(engine::Request request) {
  check_process();
  if (const Failure* const failure = failure_.load()) throw Failure(*failure);
  return {shared_from_this(), own_engine_->submit(std::move(request))};
}

std::vector<Call> Session::take_completed(std::chrono::nanoseconds timeout) {
  const std::shared_ptr<Session> self = shared_from_this();
  std::vector<Call> calls;
  for (std::shared_ptr<engine::Operation>& operation : own_engine_->take_completed(timeout)) {
    calls.push_back({self, std::move(operation)});
  }
  return calls;
}

void Session::notify(const Call& call) { own_engine_->notify(call.operation); }

void Session::check_process() const {
  if (is_forked()) {
    throw Failure(Failure::kForked, "this session of job '" + job_ + "' belongs to the process that joined (" +
                                        std::to_string(owner_) + "): a forked child must join by itself");
  }
}

// ---- Moves ----

void Session::check_can_move() const {
  check_process();
  if (leaves_.load()) throw Failure(left_);
}

std::string Session::halt(std::size_t aggregator) {
  check_can_move();
  const std::lock_guard lock(moving_);
  if (aggregator >= grant_.engine.aggregators.size()) throw LineError("there is no such aggregator");
  std::vector<std::uint32_t> positions;
  if (own_engine_ != nullptr) {
    positions = own_engine_->halt(aggregator);
  } else {
    halted_early_[aggregator] = true;
    const worker::WorkerConfig& worker = grant_.engine.aggregators[aggregator].worker;
    positions.assign(worker.slots, worker.round_first);
  }
  std::string text;
  text.reserve(kPositionDigits * positions.size());
  for (const std::uint32_t position : positions) {
    for (unsigned digit = kPositionDigits; digit-- > 0;) text += "0123456789abcdef"[position >> 4 * digit & 15];
  }
  return text;
}

void Session::move(const Line& to) {
  check_can_move();
  const std::lock_guard lock(moving_);
  const std::size_t index = to.number("aggregator", 0, grant_.engine.aggregators.size() - 1);
  std::vector<std::uint8_t> roles;
  for (const char digit : to.text("roles")) roles.push_back(static_cast<std::uint8_t>(digit - '0'));
  engine::AggregatorConfig config = aggregator_of(to);
  if (own_engine_ != nullptr) {
    own_engine_->move(index, config, roles);
    return;
  }
  engine::AggregatorConfig& granted = grant_.engine.aggregators[index];
  if (!halted_early_[index] || roles != std::vector<std::uint8_t>(granted.worker.slots)) {
    throw LineError("a worker that has sent nothing has nothing to repeat");
  }
  config.worker.exact_when_wide = granted.worker.exact_when_wide;
  granted = config;
  halted_early_[index] = false;
}

// ---- Failures ----

bool Session::fail(const Failure& failure) noexcept {
  {
    const std::lock_guard lock(failing_);
    if (failure_.load() != nullptr) return false;
    try {
      failure_.store(&first_failure_.emplace(failure));
    } catch (const std::bad_alloc&) {
      failure_.store(&without_memory_);
    }
  }
  if (engine::Engine* const engine = engine_.load()) engine->abort();
  return true;
}

void Session::end(const Failure& failure, bool tell_others) {
  if (is_forked()) return;
  if (fail(failure) && tell_others) membership_->abort(failure.what());
}

const Failure& Session::explain(const std::string& what, Fields fields) {
  end(membership_->explain({.word = what, .fields = std::move(fields)}), true);
  return *failure_.load();
}

const Failure* Session::failure_of(const engine::Operation& operation) {
  if (!operation.done() || operation.status() == Status::kOk) return nullptr;
  if (const Failure* const failure = failure_.load()) return failure;
  Fields fields = state();                                 // has the data path's first failure, of any operation
  if (!fields.contains("status")) return failure_.load();  // the session has failed meanwhile
  return &explain("explain", std::move(fields));
}

Fields Session::state() const {
  const engine::Engine* const engine = engine_.load();
  if (engine == nullptr) return {};
  Fields fields{{"greeted", greeted_.load() ? "1" : "0"}};
  const std::vector<engine::TrafficStats> parts = engine->stats().aggregators;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (const engine::Counter& counter : engine::kCounters) {
      fields[counter.name + std::string(".") + std::to_string(i)] = std::to_string(parts[i].*counter.value);
    }
  }
  if (failure_.load() == nullptr) {
    if (const std::optional<schedule::Failure> failure = engine->failure()) {
      fields["status"] = word_of(failure->status);
      fields["tensor"] = std::to_string(failure->tensor);
    }
  }
  return fields;
}

}  // namespace wiresum::session
