#include "libwiresum/session.hpp"

#include <unistd.h>

#include <cassert>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/greeting.hpp"
#include "libwiresum/sidecar.hpp"
#include "process/thread.hpp"
#include "wire/packet.hpp"
#include "wiresum/wiresum.h"

namespace wiresum::capi {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using worker::Status;

/// sidecar/service.py has the same.
constexpr std::string_view kVersion = "4";
/// Until an interpreter that has everything to load from a cold disk says its first word.
constexpr milliseconds kStartTimeout{120'000};
/// How much longer than the sidecar's own limit it may take to join and to say so.
constexpr milliseconds kJoinMargin{30'000};
/// The sidecar asks each aggregator for a second at most.
constexpr milliseconds kExplainTimeout{15'000};
/// A sidecar leaves each aggregator in two seconds at most.
constexpr milliseconds kLeaveTimeout{20'000};
constexpr seconds kCollectiveTimeout{1800};
constexpr std::uint64_t kSlotsMax = 32768;
constexpr const char* kPythonSetting = "WIRESUM_PYTHON";

std::string python_of(const JoinRequest& request) {
  const auto setting = request.settings.find(kPythonSetting);
  if (setting != request.settings.end()) return setting->second;
  const char* const variable = getenv(kPythonSetting);
  return variable == nullptr ? "" : variable;
}

Line join_line(const JoinRequest& request) {
  Line line{.word = "join", .fields = request.settings};
  line.fields.erase(kPythonSetting);
  line.fields["version"] = kVersion;
  line.fields["job"] = request.job;
  line.fields["rank"] = std::to_string(request.rank);
  line.fields["world_size"] = std::to_string(request.world_size);
  line.fields["queue"] = request.queue ? "1" : "0";
  return line;
}

/// 16 bits that differ, very likely, between two calls that do not belong together: FNV-1a, folded.
std::uint16_t signature_of(const Collective& collective, unsigned lane_bits) {
  std::uint32_t hash = 2166136261u;
  const auto add = [&hash](std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ static_cast<std::uint8_t>(value >> (8 * byte))) * 16777619u;
    }
  };
  add(static_cast<std::uint64_t>(collective.kind));
  add(static_cast<std::uint64_t>(collective.dtype));
  add(collective.average ? 1 : 0);
  add(static_cast<std::uint64_t>(static_cast<std::int64_t>(collective.root)));
  add(lane_bits);
  for (const worker::Region& region : collective.regions) add(region.elements);
  return static_cast<std::uint16_t>(hash ^ (hash >> 16));
}

const char* word_of(Status status) {
  switch (status) {
    case Status::kTimedOut:
      return "timed-out";
    case Status::kDiverged:
      return "diverged";
    case Status::kNoMemory:
      return "no-memory";
    case Status::kAborted:
    case Status::kOk:
      break;
  }
  return "aborted";
}

/// What the data path says of itself: each counter, for each aggregator.
void add_states(const engine::Engine& engine, Line& line) {
  const std::vector<engine::TrafficStats> parts = engine.stats().aggregators;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (const engine::Counter& counter : engine::kCounters) {
      line.fields[counter.name + std::string(".") + std::to_string(i)] = std::to_string(parts[i].*counter.value);
    }
  }
}

}  // namespace

Session::Session(const JoinRequest& request)
    : owner_(getpid()),
      job_(request.job),
      python_(python_of(request)),
      channel_(open_channel(python_)),
      no_memory_(WIRESUM_ERROR_SYSTEM, "job '" + job_ + "' cannot go on: out of memory"),
      rank_(request.rank),
      timeout_ns_(std::chrono::nanoseconds(kCollectiveTimeout).count()) {
  attendant_ = process::start_thread("the thread that listens to the sidecar", [this] { attend(); });
  try {
    channel_.send(join_line(request));
    const Line joined = await_grants();
    open_data_path(joined);
    greet(milliseconds(joined.number("greeting_ms", 1, 3'600'000)));
  } catch (...) {
    leave();
    throw;
  }
}

Session::~Session() { leave(); }

bool Session::is_forked() const noexcept { return getpid() != owner_; }

void Session::check_process() const {
  if (is_forked()) {
    throw Error(WIRESUM_ERROR_FORKED, "this session of job '" + job_ + "' belongs to process " +
                                          std::to_string(owner_) +
                                          ", of which this one is a child: a child must join by itself");
  }
}

// ---- joining ----

Line Session::await_grants() {
  std::unique_lock lock(mutex_);
  const auto is_over = [this] { return failure_ || grants_.joined; };
  if (!changed_.wait_for(lock, kStartTimeout, [&] { return is_over() || join_timeout_; })) {
    throw Error(WIRESUM_ERROR_SIDECAR, "the sidecar has not said anything in two minutes");
  }
  const milliseconds timeout = join_timeout_.value_or(milliseconds(0)) + kJoinMargin;
  if (!changed_.wait_for(lock, timeout, is_over)) {
    throw Error(WIRESUM_ERROR_SIDECAR,
                "the sidecar (process " + sidecar_process_ + ") does not say how joining job '" + job_ + "' went");
  }
  if (!failure_ && grants_.joined) return *grants_.joined;
  throw Error(failure_.value_or(Error(WIRESUM_ERROR_SIDECAR, "the sidecar did not join job '" + job_ + "'")));
}

void Session::open_data_path(const Line& joined) {
  std::vector<std::vector<transport::UdpSocket>> sockets;
  engine::EngineConfig config;
  {
    const std::lock_guard lock(mutex_);
    sockets = std::move(sockets_);
    config.aggregators = grants_.aggregators;
  }
  if (config.aggregators.empty()) throw LineError("'joined' came before an aggregator");
  config.spin_ns = static_cast<std::int64_t>(joined.number("spin_ns", 0, 1'000'000'000));
  config.transport = {.kind = transport::kind_of(joined.text("transport")),
                      .device = joined.text("device"),
                      .offload = joined.number("offload", 0, 1) == 1};
  config.exact_elements_max = joined.number("exact_elements_max", 0, UINT64_MAX);
  lane_bits_ = static_cast<std::uint8_t>(joined.number("lane_bits", 8, 32));
  sparse_ = joined.number("sparse", 0, 1) == 1;
  config.rank = static_cast<std::uint32_t>(rank_);
  world_size_ = config.aggregators.front().worker.workers;
  auto engine = std::make_unique<engine::Engine>(config, std::move(sockets));
  const std::lock_guard lock(mutex_);
  engine_ = std::move(engine);
  if (failure_) engine_->abort();
}

void Session::greet(milliseconds timeout) {
  engine::Greeting greeting(*engine_, std::chrono::nanoseconds(timeout).count());
  while (!greeting.operation()->wait(timeout)) {
  }
  const Status status = greeting.operation()->status();
  if (status == Status::kTimedOut) {
    Line question{.word = "greeting-unanswered", .fields = {}};
    add_states(*engine_, question);
    throw Error(ask_why(question));
  }
  check(*greeting.operation());
  if (const auto wrong = greeting.wrong()) {
    const auto word = [](std::int32_t value) { return std::to_string(static_cast<std::uint32_t>(value)); };
    throw Error(ask_why(
        {.word = "greeting-wrong", .fields = {{"found", word(wrong->found)}, {"expected", word(wrong->expected)}}}));
  }
  greeted_ = true;
}

// ---- while the job runs ----

std::shared_ptr<engine::Operation> Session::submit(Collective collective) {
  check_process();
  if (const std::optional<Error> error = failure()) throw Error(*error);
  const bool is_raw = collective.dtype == numeric::Dtype::kRaw;
  const bool is_float = !is_raw && collective.dtype != numeric::Dtype::kI32;
  const bool is_sum = !is_raw && collective.kind != Collective::Kind::kBarrier;
  const std::uint8_t lane_bits = is_raw ? 8 : is_float ? lane_bits_ : 32;
  const std::uint16_t signature = signature_of(collective, lane_bits);
  engine::Request request{
      .work = {.format = {.dtype = collective.dtype,
                          .scaling = is_float ? numeric::Scaling::kBlockExponent : numeric::Scaling::kNone,
                          .lane_bits = lane_bits},
               .divisor = collective.average ? static_cast<float>(world_size_) : 1.0F,
               .regions = std::move(collective.regions),
               .signature = signature,
               .may_be_sparse = is_sum && sparse_},
      .timeout_ns = timeout_ns_.load(),
      .notify = false};
  std::shared_ptr<engine::Operation> operation;
  try {
    operation = engine_->submit(std::move(request));
  } catch (const std::invalid_argument& error) {
    throw Error(WIRESUM_ERROR_ARGUMENT, error.what());
  } catch (const std::runtime_error& error) {
    throw Error(WIRESUM_ERROR_FULL, error.what());
  }
  operations_.fetch_add(1);
  return operation;
}

void Session::check(const engine::Operation& operation) {
  assert(operation.done());
  if (operation.status() == Status::kOk) return;
  if (const std::optional<Error> error = failure()) throw Error(*error);
  Line question{.word = "explain",
                .fields = {{"status", word_of(operation.status())},
                           {"tensor", std::to_string(operation.tensor())},
                           {"greeted", greeted_ ? "1" : "0"}}};
  add_states(*engine_, question);
  throw Error(ask_why(question));
}

engine::EngineStats Session::stats() const {
  check_process();
  return engine_->stats();
}

void Session::abort(const std::string& reason) {
  check_process();
  if (fail(Error(WIRESUM_ERROR_ABORTED, reason))) channel_.send({.word = "abort", .fields = {{"reason", reason}}});
}

void Session::leave() noexcept {
  assert(!is_forked());
  if (std::exchange(left_, true)) return;
  fail(Error(WIRESUM_ERROR_CLOSED, "the session of job '" + job_ + "' was left"));
  if (engine_) engine_->close();
  channel_.send({.word = "leave", .fields = {}});
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLeaveTimeout, [this] { return hung_up_; });
  }
  channel_.hang_up();
  if (attendant_.joinable()) attendant_.join();
}

bool Session::fail(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (failure_) return false;
  failure_.emplace(error);
  if (engine_) engine_->abort();
  changed_.notify_all();
  return true;
}

std::optional<Error> Session::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

Error Session::ask_why(const Line& question) {
  channel_.send(question);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kExplainTimeout, [this] { return failure_.has_value(); });
  return failure_.value_or(Error(WIRESUM_ERROR, "a collective of job '" + job_ + "' failed (" + question.word +
                                                    "), and the sidecar does not say why"));
}

// ---- what the sidecar says ----

void Session::attend() noexcept {
  try {
    listen();
  } catch (const std::bad_alloc&) {
    channel_.hang_up();
    hang_up(no_memory_);
  }
}

void Session::listen() {
  std::string end = "has ended";
  try {
    while (const std::optional<Line> line = channel_.receive()) take(*line);
  } catch (const LineError& error) {
    end = std::string("said what makes no sense: ") + error.what();
    channel_.hang_up();
  } catch (const std::exception& error) {
    end = std::string("cannot be answered: ") + error.what();
    channel_.hang_up();
  }
  std::unique_lock lock(mutex_);
  const bool has_spoken = join_timeout_.has_value();
  const std::string who = has_spoken ? "process " + sidecar_process_
                                     : "started with '" + (python_.empty() ? default_python() : python_) + "'";
  lock.unlock();
  hang_up(Error(WIRESUM_ERROR_SIDECAR,
                "the sidecar that attends job '" + job_ + "' (" + who + ") " + end +
                    (has_spoken ? ": the job cannot go on without it"
                                : " before it said a word. It needs the Python package wiresum: WIRESUM_PYTHON must "
                                  "name an interpreter for which that is installed")));
}

void Session::hang_up(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    hung_up_ = true;
  }
  changed_.notify_all();
  fail(error);
}

void Session::take(const Line& line) {
  if (line.word == "ask-state") {
    answer_state(line);
  } else if (line.word == "bind") {
    bind(line);
  } else if (line.word == "aggregator") {
    add_aggregator(line);
  } else if (line.word == "ended" || line.word == "failed") {
    fail(Error(code_of_exception(line.text("error")), line.text("text")));
  } else if (line.word == "joining") {
    const std::lock_guard lock(mutex_);
    sidecar_process_ = std::to_string(line.number("process", 1, INT32_MAX));
    join_timeout_ = milliseconds(line.number("timeout_ms", 0, 100'000'000));
    changed_.notify_all();
  } else if (line.word == "joined") {
    const std::lock_guard lock(mutex_);
    grants_.joined = line;
    changed_.notify_all();
  } else {
    throw LineError("'" + line.word + "' is nothing that a sidecar says");
  }
}

void Session::bind(const Line& line) {
  const std::string& address = line.text("address");
  const std::size_t count = line.number("count", 1, wire::kThreadsMax);
  const transport::PortRange range{.first = static_cast<std::uint16_t>(line.number("first", 0, UINT16_MAX)),
                                   .last = static_cast<std::uint16_t>(line.number("last", 0, UINT16_MAX))};
  Line answer{.word = "bound", .fields = {{"id", line.text("id")}}};
  try {
    std::vector<transport::UdpSocket> sockets = transport::bind_within(transport::parse_ipv4(address), range, count);
    answer.fields["port"] = std::to_string(sockets.at(0).local().port);
    const std::lock_guard lock(mutex_);
    if (sockets_.size() >= engine::kAggregatorsMax) throw LineError("there are too many aggregators");
    sockets_.push_back(std::move(sockets));
  } catch (const std::system_error& error) {
    answer.word = "unbound";
    answer.fields["text"] = error.what();
  }
  channel_.send(answer);
}

void Session::answer_state(const Line& line) {
  Line answer{.word = "state", .fields = {{"id", line.text("id")}}};
  {
    const std::lock_guard lock(mutex_);
    if (engine_) {
      add_states(*engine_, answer);
    } else {
      answer.word = "no-state";
    }
  }
  channel_.send(answer);
}

void Session::add_aggregator(const Line& line) {
  engine::AggregatorConfig config;
  config.worker.job = static_cast<std::uint16_t>(line.number("job", 0, UINT16_MAX));
  config.worker.key = static_cast<std::uint32_t>(line.number("key", 0, UINT32_MAX));
  config.worker.workers = static_cast<std::uint16_t>(line.number("workers", 1, numeric::kWorkersMax));
  config.worker.worker = static_cast<std::uint8_t>(line.number("worker", 0, wire::kWorkersMax - 1));
  config.worker.lanes = static_cast<std::uint16_t>(line.number("lanes", 1, wire::kLanesMax));
  config.worker.slots = static_cast<std::uint32_t>(line.number("slots", 1, kSlotsMax));
  config.threads = static_cast<unsigned>(line.number("threads", 1, wire::kThreadsMax));
  config.own_address = transport::parse_ipv4(line.text("own_address"));
  config.switch_endpoint = {.address = transport::parse_ipv4(line.text("switch_address")),
                            .port = static_cast<std::uint16_t>(line.number("switch_port", 1, UINT16_MAX))};
  config.results_group = {.address = transport::parse_ipv4(line.text("group_address")),
                          .port = static_cast<std::uint16_t>(line.number("group_port", 0, UINT16_MAX))};
  const std::lock_guard lock(mutex_);
  if (grants_.aggregators.size() >= engine::kAggregatorsMax) throw LineError("there are too many aggregators");
  grants_.aggregators.push_back(config);
}

}  // namespace wiresum::capi
