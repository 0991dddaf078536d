#include "c/sidecar_membership.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "c/sidecar.hpp"
#include "process/thread.hpp"
#include "session/session.hpp"
#include "wire/constants.hpp"

namespace wiresum::c {
namespace {

using session::Failure;
using session::Line;
using session::LineError;
using std::chrono::milliseconds;

/// The longest wait for the first word of an interpreter that loads everything from a cold disk.
constexpr milliseconds kStartTimeout{120'000};
constexpr const char* kSaysNothing = "has said nothing in two minutes";
/// The wait for the outcome of joining, beyond the sidecar's own limit.
constexpr milliseconds kJoinMargin{30'000};
/// The sidecar asks each aggregator for a second at most.
constexpr milliseconds kExplainTimeout{15'000};
/// A sidecar leaves each aggregator in two seconds at most.
constexpr milliseconds kLeaveTimeout{20'000};
constexpr std::string_view kPrefix = "WIRESUM_";
constexpr const char* kPythonSetting = "WIRESUM_PYTHON";

std::string python_of(const JoinRequest& request) {
  const auto setting = request.settings.find(kPythonSetting);
  if (setting != request.settings.end()) return setting->second;
  const char* const variable = std::getenv(kPythonSetting);
  return variable == nullptr ? "" : variable;
}

/// All variables that may be settings, in the sidecar's format: NAME=value, each with a NUL after it. They are read
/// again for each session, since the sidecar's own environment stays that of its start.
std::string environment() {
  std::string all;
  for (const char* const* variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    if (std::string_view(*variable).starts_with(kPrefix)) all.append(*variable).push_back('\0');
  }
  return all;
}

std::string in_one_text(const session::Fields& settings) {
  std::string all;
  for (const auto& [name, value] : settings) {
    if (name != kPythonSetting) all.append(name).append("=").append(value).push_back('\0');
  }
  return all;
}

Line join_line(const JoinRequest& request) {
  Line line{.word = "join", .fields = {}};
  line.fields["version"] = std::to_string(wire::kSidecarVersion);
  line.fields["job"] = request.job;
  line.fields["rank"] = std::to_string(request.rank);
  line.fields["world_size"] = std::to_string(request.world_size);
  line.fields["admission"] = request.admission;
  line.fields["timeout_ms"] = std::to_string(request.timeout.count());
  line.fields["settings"] = in_one_text(request.settings);
  line.fields["environment"] = environment();
  return line;
}

/// Binds the ports that the sidecar names, and returns the answer.
Line bound(const Line& line, const session::Bind& bind) {
  Line answer{.word = "bound", .fields = {{"id", line.text("id")}}};
  const auto port = [&line](const char* name) { return static_cast<std::uint16_t>(line.number(name, 0, UINT16_MAX)); };
  try {
    const std::uint16_t first =
        bind(line.text("address"), line.number("count", 1, wire::kThreadsMax), port("first"), port("last"));
    answer.fields["port"] = std::to_string(first);
  } catch (const std::system_error& error) {
    answer.word = "unbound";
    answer.fields["text"] = error.what();
  }
  return answer;
}

Failure said_in(const Line& line) { return {line.text("error"), line.text("text")}; }

}  // namespace

SidecarMembership::SidecarMembership(JoinRequest request)
    : request_(std::move(request)),
      python_(python_of(request_)),
      without_memory_(Failure::kMemory, "job '" + request_.job + "' cannot go on: out of memory"),
      channel_(open_channel(python_)) {
  if (!await_start(std::chrono::steady_clock::now() + kStartTimeout)) throw failure_of(kSaysNothing);
}

session::Grant SidecarMembership::join(const session::Bind& bind) {
  try {
    channel_.send(join_line(request_));
  } catch (const LineError&) {
    throw Failure(Failure::kArgument,
                  "the job's name, the settings and the WIRESUM_ variables are too long together: they may have " +
                      std::to_string(session::kLineBytesMax) + " bytes");
  }
  try {
    return await_grants(bind);
  } catch (const LineError& error) {
    throw failure_of(std::string("said what makes no sense: ") + error.what());
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::timed_out) throw;
    throw failure_of(process_.empty() ? kSaysNothing : "does not say how joining went");
  }
}

session::Grant SidecarMembership::await_grants(const session::Bind& bind) {
  session::Grant grant;
  Channel::Deadline deadline = std::chrono::steady_clock::now() + kStartTimeout;
  while (const std::optional<Line> line = channel_.receive(deadline)) {
    if (line->word == "joining") {
      process_ = std::to_string(line->number("process", 1, INT32_MAX));
      deadline = std::chrono::steady_clock::now() + request_.timeout + kJoinMargin;
    } else if (line->word == "bind") {
      channel_.send(bound(*line, bind));
    } else if (line->word == "aggregator") {
      grant.add_aggregator(*line);
    } else if (line->word == "failed") {
      throw said_in(*line);
    } else if (line->word == "joined") {
      grant.complete(*line);
      return grant;
    } else {
      throw LineError("'" + line->word + "' is nothing that a sidecar says while a job is joined");
    }
  }
  throw process_.empty() ? never_began() : failure_of("has ended");
}

void SidecarMembership::attend(std::shared_ptr<session::Session> session) {
  session_ = session.get();
  listener_ = process::start_thread("the thread that listens to the sidecar", [this] { listen(); });
}

Failure SidecarMembership::explain(const Line& question) {
  const std::lock_guard one_at_a_time(asking_);
  Line line = question;
  std::unique_lock lock(mutex_);
  explanation_.reset();
  line.fields["id"] = std::to_string(++asked_);
  lock.unlock();
  channel_.send(line);
  lock.lock();
  changed_.wait_for(lock, kExplainTimeout, [this] { return explanation_ || hung_up_; });
  return explanation_.value_or(Failure("WiresumError", "a collective of job '" + request_.job + "' failed (" +
                                                           question.word + "), and the sidecar does not say why"));
}

void SidecarMembership::abort(const std::string& reason) {
  channel_.send({.word = "abort", .fields = {{"reason", reason}}});
}

void SidecarMembership::leave() {
  const std::lock_guard one_at_a_time(leaving_);
  if (std::exchange(left_, true)) return;
  channel_.send({.word = "leave", .fields = {}});
  if (listener_.joinable()) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLeaveTimeout, [this] { return hung_up_; });
  } else {
    try {
      const Channel::Deadline deadline = std::chrono::steady_clock::now() + kLeaveTimeout;
      while (channel_.receive(deadline)) {
      }
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the conversation is over
    }
  }
  channel_.hang_up();
  if (listener_.joinable()) listener_.join();
}

// ---- The sidecar's lines ----

void SidecarMembership::listen() noexcept {
  try {
    const std::string has = converse();
    channel_.hang_up();
    hang_up(failure_of(has));
  } catch (const std::bad_alloc&) {
    channel_.hang_up();
    hang_up(without_memory_);
  }
}

std::string SidecarMembership::converse() {
  try {
    while (const std::optional<Line> line = channel_.receive()) take(*line);
  } catch (const LineError& error) {
    return std::string("said what makes no sense: ") + error.what();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return std::string("cannot be answered: ") + error.what();
  }
  return "has ended";
}

void SidecarMembership::take(const Line& line) {
  if (line.word == "ask-state") {
    session::Fields state = session_->state();
    state["id"] = line.text("id");
    channel_.send({.word = "state", .fields = std::move(state)});
  } else if (line.word == "ask-halt" || line.word == "ask-move") {
    channel_.send(moving(line));
  } else if (line.word == "explained") {
    const std::lock_guard lock(mutex_);
    if (line.number("id", 1, UINT64_MAX) != asked_) return;  // the wait for this answer is over
    explanation_.emplace(said_in(line));
    changed_.notify_all();
  } else if (line.word == "ended") {
    session_->end(said_in(line), line.number("tell_others", 0, 1) == 1);
  } else {
    throw LineError("'" + line.word + "' is nothing that a sidecar says");
  }
}

Line SidecarMembership::moving(const Line& line) {
  Line answer{.word = "halted", .fields = {{"id", line.text("id")}}};
  try {
    if (line.word == "ask-halt") {
      answer.fields["positions"] = session_->halt(line.number("aggregator", 0, wire::kAggregatorsMax - 1));
    } else {
      session_->move(line);
      answer.word = "moved";
    }
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    const auto* const failure = dynamic_cast<const Failure*>(&error);
    answer.word = "unmoved";
    answer.fields["error"] = failure != nullptr ? failure->kind() : "WiresumError";
    answer.fields["text"] = error.what();
  }
  return answer;
}

void SidecarMembership::hang_up(const Failure& failure) {
  session_->end(failure, false);
  const std::lock_guard lock(mutex_);
  hung_up_ = true;
  changed_.notify_all();
}

Failure SidecarMembership::failure_of(const std::string& has) const {
  const std::string who = process_.empty() ? "started with '" + interpreter_of(python_) + "'" : "process " + process_;
  return {Failure::kSidecar, "the sidecar that attends job '" + request_.job + "' (" + who + ") " + has +
                                 ": the job cannot go on without it"};
}

Failure SidecarMembership::never_began() const {
  const std::string problem = start_problem();
  return {Failure::kSidecar, "cannot start the sidecar that attends job '" + request_.job + "' with '" +
                                 interpreter_of(python_) +
                                 "': " + (problem.empty() ? "it ended without a word" : problem) +
                                 ". WIRESUM_PYTHON must name an interpreter for which the Python package wiresum is "
                                 "installed"};
}

}  // namespace wiresum::c
