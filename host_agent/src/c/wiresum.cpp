// The functions of wiresum.h: they check arguments, call session/session.hpp, and turn exceptions into codes.
#include "wiresum/wiresum.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "c/integer_sum.hpp"
#include "c/sidecar_membership.hpp"
#include "session/session.hpp"
#include "wire/packet.hpp"

using wiresum::numeric::Dtype;
using wiresum::session::Failure;
using wiresum::session::Session;
using wiresum::worker::Destination;
using wiresum::worker::Region;
using wiresum::worker::Source;

struct wiresum_session {
  std::shared_ptr<Session> session;
  std::atomic<std::int64_t> timeout_ns{std::chrono::nanoseconds(std::chrono::seconds(1800)).count()};
};

struct wiresum_operation {
  wiresum::session::Call call;
  std::optional<wiresum::c::IntegerSum> integers;  // for integers of 8 or 64 bits
};

namespace {

using std::chrono::nanoseconds;

constexpr std::size_t kElementsMax = std::size_t{1} << 48;
constexpr double kSecondsMax = 1e9;
constexpr double kJoinSecondsMax = 86'400;  // JOIN_TIMEOUT_S_MAX of wiresum/agent/config.py
constexpr std::size_t kSettingsMax = 48;
/// A wait without an end consists of such steps.
constexpr nanoseconds kWaitStep{1'000'000'000};

struct ErrorCode {
  int code;
  const char* name;
  std::string_view kind;  // a session::Failure's; empty: none
};

constexpr std::array<ErrorCode, 16> kErrorCodes{{
    {WIRESUM_OK, "WIRESUM_OK", ""},
    {WIRESUM_ERROR, "WIRESUM_ERROR", "WiresumError"},
    {WIRESUM_ERROR_ARGUMENT, "WIRESUM_ERROR_ARGUMENT", Failure::kArgument},
    {WIRESUM_ERROR_JOIN, "WIRESUM_ERROR_JOIN", "JoinError"},
    {WIRESUM_ERROR_WORKER_LOST, "WIRESUM_ERROR_WORKER_LOST", "WorkerLostError"},
    {WIRESUM_ERROR_SWITCH_UNREACHABLE, "WIRESUM_ERROR_SWITCH_UNREACHABLE", "SwitchUnreachableError"},
    {WIRESUM_ERROR_DIVERGED, "WIRESUM_ERROR_DIVERGED", "DivergedError"},
    {WIRESUM_ERROR_COLLECTIVE_TIMEOUT, "WIRESUM_ERROR_COLLECTIVE_TIMEOUT", "CollectiveTimeoutError"},
    {WIRESUM_ERROR_CLOSED, "WIRESUM_ERROR_CLOSED", Failure::kClosed},
    {WIRESUM_ERROR_ABORTED, "WIRESUM_ERROR_ABORTED", Failure::kAborted},
    {WIRESUM_ERROR_ABORTED, "WIRESUM_ERROR_ABORTED", "WorkerLeftError"},
    {WIRESUM_ERROR_FORKED, "WIRESUM_ERROR_FORKED", Failure::kForked},
    {WIRESUM_ERROR_SIDECAR, "WIRESUM_ERROR_SIDECAR", Failure::kSidecar},
    {WIRESUM_ERROR_FULL, "WIRESUM_ERROR_FULL", Failure::kFull},
    {WIRESUM_ERROR_SYSTEM, "WIRESUM_ERROR_SYSTEM", Failure::kMemory},
    {WIRESUM_IN_FLIGHT, "WIRESUM_IN_FLIGHT", ""},
}};

int code_of_kind(std::string_view kind) noexcept {
  const auto* const entry = std::ranges::find(kErrorCodes, kind, &ErrorCode::kind);
  return kind.empty() || entry == kErrorCodes.end() ? WIRESUM_ERROR : entry->code;
}

constexpr std::string_view kCut = " [...]";

/// The text of this thread's newest error. Destructors of threads, of static objects and exit handlers may call this
/// library after their thread's C++ objects are gone, so nothing destroys this memory.
thread_local constinit std::array<char, WIRESUM_ERROR_TEXT_BYTES_MAX> last_error{};
static_assert(std::is_trivially_destructible_v<decltype(last_error)>);

/// A text that is too long ends before the first character that does not fit, and with kCut.
int report(int code, const char* text) noexcept {
  std::size_t length = std::strlen(text);
  if (length < last_error.size()) {
    std::memcpy(last_error.data(), text, length + 1);
    return code;
  }
  const auto continues = [text](std::size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U; };
  length = last_error.size() - 1 - kCut.size();
  while (length > 0 && continues(length)) --length;
  std::memcpy(last_error.data(), text, length);
  std::memcpy(last_error.data() + length, kCut.data(), kCut.size());
  last_error[length + kCut.size()] = '\0';
  return code;
}

/// Runs the body of a function. No exception gets out.
template <typename Body>
int guarded(Body&& body) noexcept {
  try {
    return std::forward<Body>(body)();
  } catch (const Failure& failure) {
    return report(code_of_kind(failure.kind()), failure.what());
  } catch (const std::bad_alloc&) {
    return report(WIRESUM_ERROR_SYSTEM, "out of memory");
  } catch (const std::system_error& error) {
    return report(WIRESUM_ERROR_SYSTEM, error.what());
  } catch (const std::exception& error) {
    return report(WIRESUM_ERROR, error.what());
  }
}

/// The part of a request that does not depend on the session.
struct Collective {
  enum class Kind : std::uint8_t { kAllReduce = 1, kReduce, kReduceScatter, kBroadcast, kAllGather, kBarrier };
  Kind kind = Kind::kBarrier;
  Dtype dtype = Dtype::kI32;
  std::size_t element_bytes = 4;
  std::uint8_t integer_bits = 32;  // bits on the wire
  bool average = false;
  int root = -1;
  std::vector<Region> regions;
};

/// 16 bits that very likely differ between calls that do not belong together: FNV-1a, folded.
std::uint16_t signature_of(const Collective& collective, unsigned bits) {
  std::uint32_t hash = 2166136261u;
  const auto add = [&hash](std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ static_cast<std::uint8_t>(value >> (8 * byte))) * 16777619u;
    }
  };
  add(static_cast<std::uint64_t>(collective.kind));
  add(static_cast<std::uint64_t>(collective.dtype));
  add(collective.element_bytes);
  add(collective.average ? 1 : 0);
  add(static_cast<std::uint64_t>(static_cast<std::int64_t>(collective.root)));
  add(bits);
  for (const Region& region : collective.regions) add(region.elements);
  return static_cast<std::uint16_t>(hash ^ (hash >> 16));
}

wiresum::engine::Request request_of(Collective collective, const wiresum::session::Grant& grant, nanoseconds timeout) {
  const bool is_raw = collective.dtype == Dtype::kRaw;
  const bool is_scaled = wiresum::numeric::is_scaled(collective.dtype);
  const bool is_sum = !is_raw && collective.kind != Collective::Kind::kBarrier;
  const std::uint8_t bits = is_raw ? 8 : is_scaled ? grant.bits : collective.integer_bits;
  const std::uint16_t signature = signature_of(collective, bits);
  return {.work = {.format = {.dtype = collective.dtype,
                              .scaling = is_scaled ? wiresum::numeric::Scaling::kBlockExponent
                                                   : wiresum::numeric::Scaling::kNone,
                              .bits = bits},
                   .divisor = collective.average ? static_cast<float>(grant.world_size()) : 1.0F,
                   .regions = std::move(collective.regions),
                   .signature = signature,
                   .may_be_sparse = is_sum && grant.sparse,
                   .reduction = {}},
          .timeout_ns = timeout.count(),
          .notify = false};
}

void require(bool condition, const char* text) {
  if (!condition) throw Failure(Failure::kArgument, text);
}

Session& checked(const wiresum_session* session) {
  require(session != nullptr, "the session is NULL");
  session->session->check_process();
  return *session->session;
}

/// The type that a switch adds, and an element's size in memory.
struct Type {
  Dtype dtype;
  std::size_t bytes;
};

Type type_of(wiresum_dtype dtype) {
  switch (dtype) {
    case WIRESUM_FLOAT32:
      return {Dtype::kF32, 4};
    case WIRESUM_FLOAT16:
      return {Dtype::kF16, 2};
    case WIRESUM_BFLOAT16:
      return {Dtype::kBF16, 2};
    case WIRESUM_INT32:
      return {Dtype::kI32, 4};
    case WIRESUM_INT8:
      return {Dtype::kI32, 1};
    case WIRESUM_INT64:
      return {Dtype::kI32, 8};
    case WIRESUM_FLOAT8_E4M3:
      return {Dtype::kE4M3, 1};
    case WIRESUM_FLOAT8_E5M2:
      return {Dtype::kE5M2, 1};
  }
  throw Failure(Failure::kArgument, "no such dtype: there are those of wiresum_dtype");
}

bool is_average(wiresum_op op, Dtype dtype) {
  require(op == WIRESUM_SUM || op == WIRESUM_AVERAGE, "no such operator: there are WIRESUM_SUM and WIRESUM_AVERAGE");
  require(op == WIRESUM_SUM || dtype != Dtype::kI32, "WIRESUM_AVERAGE is not for integers");
  return op == WIRESUM_AVERAGE;
}

std::byte* bytes_of(void* memory) { return static_cast<std::byte*>(memory); }
const std::byte* bytes_of(const void* memory) { return static_cast<const std::byte*>(memory); }

void require_count(std::size_t count) { require(count <= kElementsMax, "there are too many elements"); }

/// Memory that begins so far into other memory. NULL stays NULL, which the session refuses.
template <class Byte>
Byte* part_of(Byte* memory, std::size_t offset) {
  return memory == nullptr ? nullptr : memory + offset;
}

bool overlap(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(a);
  const auto second = reinterpret_cast<std::uintptr_t>(b);
  return first <= second ? second - first < a_bytes : first - second < b_bytes;
}

/// Results are written while parts of the source are still to be sent. Therefore a result may overwrite no other part
/// than its own, in a collective in place. `whole` is the longer of both buffers, and `part` the other one; in place,
/// the part is `in_place` bytes from the beginning of the whole.
void require_apart(const void* whole, std::size_t whole_bytes, const void* part, std::size_t part_bytes,
                   std::size_t in_place, const char* text) {
  if (whole_bytes == 0 || part_bytes == 0 || bytes_of(part) == part_of(bytes_of(whole), in_place)) return;
  require(!overlap(bytes_of(whole), whole_bytes, bytes_of(part), part_bytes), text);
}

constexpr const char* kPartlyOverlap =
    "source and destination overlap, but are not the same memory: give the same memory twice, or memory that does not "
    "overlap";

void require_root(const Session& session, int root) {
  require(root >= 0 && root < session.world_size(), "the root must be a rank: 0 to world_size - 1");
}

void await(const wiresum::engine::Operation& operation) {
  while (!operation.wait(kWaitStep)) {
  }
}

int result_of(const wiresum_operation& complete) {
  if (const Failure* const failure = complete.call.failure()) throw Failure(*failure);
  if (complete.integers) complete.integers->finish();
  return WIRESUM_OK;
}

/// Starts a collective. Without `operation` the caller waits for its end.
int start(const wiresum_session* session, Collective collective, wiresum_operation** operation) {
  auto made = std::make_unique<wiresum_operation>();
  Session& member = *session->session;
  try {
    if (collective.dtype == Dtype::kI32 && collective.element_bytes != sizeof(std::int32_t)) {
      made->integers.emplace(collective.element_bytes, static_cast<unsigned>(member.world_size()),
                             std::move(collective.regions));
      collective.regions = made->integers->limbs();
      collective.integer_bits = made->integers->lane_bits();
    }
    const nanoseconds timeout(session->timeout_ns.load());
    wiresum::engine::Request request = request_of(std::move(collective), member.grant(), timeout);
    request.caller_waits = operation == nullptr;
    made->call = member.submit(std::move(request));
  } catch (const Failure&) {
    throw;
  } catch (const std::invalid_argument& error) {
    throw Failure(Failure::kArgument, error.what());
  } catch (const std::runtime_error& error) {
    throw Failure(Failure::kFull, error.what());
  }
  if (operation == nullptr) {
    await(*made->call.operation);
    return result_of(*made);
  }
  *operation = made.release();
  return WIRESUM_OK;
}

int start_sum(const wiresum_session* session, Collective::Kind kind, wiresum_dtype dtype, wiresum_op op, int root,
              std::vector<Region> regions, wiresum_operation** operation) {
  const Type type = type_of(dtype);
  return start(session,
               {.kind = kind,
                .dtype = type.dtype,
                .element_bytes = type.bytes,
                .average = is_average(op, type.dtype),
                .root = root,
                .regions = std::move(regions)},
               operation);
}

/// Frees a complete operation, and returns its code.
int finish(wiresum_operation** operation) {
  const std::unique_ptr<wiresum_operation> finished(std::exchange(*operation, nullptr));
  return result_of(*finished);
}

wiresum_operation& checked(wiresum_operation** operation) {
  require(operation != nullptr && *operation != nullptr, "the operation is NULL");
  (*operation)->call.session->check_process();
  return **operation;
}

/// The name of a job whose program gives none: WIRESUM_JOB, or the name of Slurm's job and of the workers' step. Empty
/// without either.
std::string name_by_default(const wiresum::session::Fields& settings) {
  const auto variable = [&settings](const char* name) -> std::string {
    const auto setting = settings.find(name);
    if (setting != settings.end()) return setting->second;
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (const std::string name = variable("WIRESUM_JOB"); !name.empty()) return name;
  const std::string job = variable("SLURM_JOB_ID");
  const std::string step = variable("SLURM_STEP_ID");
  if (job.empty()) return "";
  return "slurm-" + job + (step.empty() ? "" : "." + step);
}

wiresum::c::JoinRequest request_of(const char* job, int rank, int world_size, const char* const* settings,
                                   unsigned flags, double seconds) {
  require(world_size >= 1 && world_size <= static_cast<int>(wiresum::wire::kJobWorkersMax),
          "world_size must be 1 to 4096");
  require(rank >= 0 && rank < world_size, "rank must be 0 to world_size - 1");
  require((flags & ~(WIRESUM_NO_QUEUE | WIRESUM_FURTHER)) == 0,
          "no such flag: there are WIRESUM_NO_QUEUE and WIRESUM_FURTHER");
  require(seconds > 0 && seconds <= kJoinSecondsMax, "seconds must be more than 0, and a day at most");
  wiresum::c::JoinRequest request{.job = job == nullptr ? "" : job,
                                  .rank = rank,
                                  .world_size = world_size,
                                  .admission = flags == 0 ? "QUEUE" : "AT_ONCE",
                                  .timeout = std::chrono::milliseconds(std::llround(std::ceil(1000 * seconds))),
                                  .settings = {}};
  if ((flags & WIRESUM_FURTHER) != 0) request.admission = "FURTHER";
  for (std::size_t i = 0; settings != nullptr && settings[i] != nullptr; ++i) {
    require(i < kSettingsMax, "there are too many settings");
    const std::string_view setting = settings[i];
    const std::size_t equals = setting.find('=');
    require(setting.starts_with("WIRESUM_") && equals != std::string_view::npos,
            "a setting must be like \"WIRESUM_SWITCH=10.0.0.1:43487\"");
    request.settings[std::string(setting.substr(0, equals))] = setting.substr(equals + 1);
  }
  if (request.job.empty()) request.job = name_by_default(request.settings);
  require(!request.job.empty(), "the job has no name: give one, or set WIRESUM_JOB");
  return request;
}

nanoseconds duration_of(double seconds) {
  return nanoseconds(static_cast<std::int64_t>(std::min(seconds, kSecondsMax) * 1e9));
}

}  // namespace

const char* wiresum_version(void) { return WIRESUM_VERSION; }

const char* wiresum_error_text(void) {
  return last_error.front() == '\0' ? "nothing has gone wrong yet in this thread" : last_error.data();
}

const char* wiresum_code_name(int code) {
  const auto* const entry = std::ranges::find(kErrorCodes, code, &ErrorCode::code);
  return entry == kErrorCodes.end() ? "(no code of wiresum)" : entry->name;
}

int wiresum_join(const char* job, int rank, int world_size, const char* const* settings, unsigned flags, double seconds,
                 wiresum_session** session) {
  return guarded([&] {
    require(session != nullptr, "there is nowhere to put the session: its pointer is NULL");
    auto made = std::make_unique<wiresum_session>();
    wiresum::c::JoinRequest request = request_of(job, rank, world_size, settings, flags, seconds);
    const std::string name = request.job;
    made->session = Session::join(name, wiresum::process::Owned<wiresum::session::Membership>(
                                            new wiresum::c::SidecarMembership(std::move(request))));
    *session = made.release();
    return WIRESUM_OK;
  });
}

int wiresum_rank(const wiresum_session* session) { return session == nullptr ? -1 : session->session->rank(); }

int wiresum_world_size(const wiresum_session* session) {
  return session == nullptr ? -1 : session->session->world_size();
}

int wiresum_set_timeout(wiresum_session* session, double seconds) {
  return guarded([&] {
    require(!std::isnan(seconds), "the time is no number");
    (void)checked(session);
    session->timeout_ns.store(seconds < 0 ? -1 : duration_of(seconds).count());
    return WIRESUM_OK;
  });
}

int wiresum_all_reduce(wiresum_session* session, const void* source, void* destination, size_t elements,
                       wiresum_dtype dtype, wiresum_op op, wiresum_operation** operation) {
  return guarded([&] {
    (void)checked(session);
    require_count(elements);
    const std::size_t bytes = elements * type_of(dtype).bytes;
    require_apart(source, bytes, destination, bytes, 0, kPartlyOverlap);
    const Region region{.source = bytes_of(source), .destination = bytes_of(destination), .elements = elements};
    return start_sum(session, Collective::Kind::kAllReduce, dtype, op, -1, {region}, operation);
  });
}

int wiresum_reduce(wiresum_session* session, const void* source, void* destination, size_t elements,
                   wiresum_dtype dtype, wiresum_op op, int root, wiresum_operation** operation) {
  return guarded([&] {
    const Session& member = checked(session);
    require_root(member, root);
    require_count(elements);
    const bool is_root = member.rank() == root;
    if (is_root) {
      const std::size_t bytes = elements * type_of(dtype).bytes;
      require_apart(source, bytes, destination, bytes, 0, kPartlyOverlap);
    }
    const Region region{.source = bytes_of(source),
                        .destination = is_root ? bytes_of(destination) : Destination(),
                        .elements = elements};
    return start_sum(session, Collective::Kind::kReduce, dtype, op, root, {region}, operation);
  });
}

int wiresum_broadcast(wiresum_session* session, void* memory, size_t bytes, int root, wiresum_operation** operation) {
  return guarded([&] {
    const Session& member = checked(session);
    require_root(member, root);
    require_count(bytes);
    const bool is_root = member.rank() == root;
    return start(session,
                 {.kind = Collective::Kind::kBroadcast,
                  .dtype = Dtype::kRaw,
                  .root = root,
                  .regions = {{.source = is_root ? bytes_of(memory) : Source(),
                               .destination = is_root ? Destination() : bytes_of(memory),
                               .elements = bytes}}},
                 operation);
  });
}

int wiresum_all_gather(wiresum_session* session, const void* source, void* destination, size_t bytes,
                       wiresum_operation** operation) {
  return guarded([&] {
    const Session& member = checked(session);
    require_count(bytes);
    std::vector<Region> regions(static_cast<std::size_t>(member.world_size()));
    require_apart(destination, regions.size() * bytes, source, bytes, static_cast<std::size_t>(member.rank()) * bytes,
                  "source and destination overlap, but the source is not this worker's part of the destination, which "
                  "begins rank * bytes into it: let it be that part, or memory that does not overlap");
    for (std::size_t owner = 0; owner < regions.size(); ++owner) {
      regions[owner] = {.source = static_cast<int>(owner) == member.rank() ? bytes_of(source) : Source(),
                        .destination = part_of(bytes_of(destination), owner * bytes),
                        .elements = bytes};
    }
    return start(
        session,
        {.kind = Collective::Kind::kAllGather, .dtype = Dtype::kRaw, .root = -1, .regions = std::move(regions)},
        operation);
  });
}

int wiresum_reduce_scatter(wiresum_session* session, const void* source, void* destination, size_t elements,
                           wiresum_dtype dtype, wiresum_op op, wiresum_operation** operation) {
  return guarded([&] {
    const Session& member = checked(session);
    require_count(elements);
    const std::size_t part_bytes = elements * type_of(dtype).bytes;
    std::vector<Region> regions(static_cast<std::size_t>(member.world_size()));
    require_apart(source, regions.size() * part_bytes, destination, part_bytes,
                  static_cast<std::size_t>(member.rank()) * part_bytes,
                  "source and destination overlap, but the destination is not this worker's part of the source, which "
                  "begins rank * elements into it: let it be that part, or memory that does not overlap");
    for (std::size_t owner = 0; owner < regions.size(); ++owner) {
      regions[owner] = {.source = part_of(bytes_of(source), owner * part_bytes),
                        .destination = static_cast<int>(owner) == member.rank() ? bytes_of(destination) : Destination(),
                        .elements = elements};
    }
    return start_sum(session, Collective::Kind::kReduceScatter, dtype, op, -1, std::move(regions), operation);
  });
}

int wiresum_barrier(wiresum_session* session, wiresum_operation** operation) {
  return guarded([&] {
    (void)checked(session);
    return start(session, {.kind = Collective::Kind::kBarrier, .regions = {}}, operation);
  });
}

int wiresum_test(wiresum_operation** operation, int* done) {
  return guarded([&] {
    require(done != nullptr, "there is nowhere to say whether it is done: the pointer is NULL");
    *done = checked(operation).call.operation->done() ? 1 : 0;
    return *done == 1 ? finish(operation) : WIRESUM_OK;
  });
}

int wiresum_wait(wiresum_operation** operation, double seconds) {
  return guarded([&] {
    require(!std::isnan(seconds), "the time is no number");
    const wiresum::engine::Operation& waited = *checked(operation).call.operation;
    if (seconds < 0) {
      await(waited);
    } else if (!waited.wait(duration_of(seconds))) {
      return report(WIRESUM_IN_FLIGHT, "the operation is not complete yet");
    }
    return finish(operation);
  });
}

int wiresum_get_statistics(const wiresum_session* session, wiresum_statistics* statistics, size_t bytes) {
  return guarded([&] {
    const Session& member = checked(session);
    require(statistics != nullptr, "there is nowhere to put the statistics: the pointer is NULL");
    const wiresum::engine::EngineStats stats = member.stats();
    const wiresum_statistics all{.packets_sent = stats.packets_sent,
                                 .bytes_sent = stats.bytes_sent,
                                 .bytes_received = stats.bytes_received,
                                 .results = stats.results,
                                 .retransmissions = stats.retransmissions,
                                 .duplicates = stats.duplicates,
                                 .rejected = stats.rejected,
                                 .operations = member.standing().submitted - 1};
    std::memset(statistics, 0, bytes);
    std::memcpy(statistics, &all, std::min(bytes, sizeof all));
    return WIRESUM_OK;
  });
}

int wiresum_abort(wiresum_session* session, const char* reason) {
  return guarded([&] {
    checked(session).abort(
        {Failure::kAborted, reason == nullptr || *reason == '\0' ? "a worker ended the job" : reason});
    return WIRESUM_OK;
  });
}

int wiresum_leave(wiresum_session** session) {
  return guarded([&] {
    require(session != nullptr && *session != nullptr, "the session is NULL");
    std::unique_ptr<wiresum_session>(std::exchange(*session, nullptr))->session->leave();
    return WIRESUM_OK;
  });
}
