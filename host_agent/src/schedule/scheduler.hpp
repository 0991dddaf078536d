// Turns requests into work for the threads' state machines: in which order, in which shares, dense or sparse.
//
// A sans-IO state machine, one for a session: requests and completed shares go in, shares and finished requests come
// out (poll_*). No clock, no thread; not thread-safe.
//
// Theory of operation
//
// Order. All workers submit the same requests in the same order, and the shares of a request depend only on it and on
// those before it. So each thread's state machine sees the same collectives in the same order at all workers, which the
// agreed order of packets (worker.hpp) needs.
//
// Sparse collectives. A block is a chunk. Where zeros are worth leaving out, a request is issued as two collectives:
//   the prologue, an all-reduce of a count for each block (presence.hpp): 1 from each worker that has it. Its sum tells
//     all workers which blocks any of them has, the *union*;
//   the stream, the request itself, cut down to the union. A worker without a block of the union sends EMPTY.
// Where finer blocks are worth it (granularity.hpp), more prologues follow, each about smaller blocks of the union
// (refinement.hpp), and the stream is what is left, packed together; chunks that were set aside follow it. A block that
// no worker has becomes +0.0 without a packet. Later requests wait until the stream has been issued, whose place in the
// order is before theirs.
//
// Exact sums. Short tensors of floats, and all of fp8, are rounded once: those of few elements as an all-gather
// (gathered.hpp), as reductions are and small copies, others by the threads' state machines (worker.hpp).
//
// Which requests get a prologue: choice.hpp decides that from what all workers know alike. Counts are known to all when
// a prologue is complete. Votes are not: of the collectives in flight, one worker may have completed more than another.
// So a vote takes effect vote_lag_chunks later, counted in chunks of collectives that might be sparse, and no later
// collective is issued before the vote has arrived. The slots hold fewer chunks than that, so they stay full.
//
// Tasks. What reads or writes a whole tensor is handed out (poll_task), to be done without the scheduler's lock. Only
// an all-gather's few elements are added up at once: who calls has the default floating-point environment.
//
// Stages. Each request is in one Stage; scheduler.cpp has the table of which may follow which. After a failure nothing
// is issued any more: each request ends with its present stage.
//
// Memory. What a request needs is allocated as it goes on. If that fails, the scheduler fails with Status::kNoMemory;
// to end what is under way takes no memory.
//
// What comes back. The words of a sum are as little to be trusted as a packet: a peer, the switch, or what lies between
// them may have made them. Counts, exponents and votes that decide what is sent, and where, are checked where
// they are read. A sum that the workers cannot have made ends the job with Status::kImpossible.
//
// Tags. A request has one sequence number; a prologue has its request's, under a signature of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "schedule/choice.hpp"
#include "schedule/gathered.hpp"
#include "schedule/granularity.hpp"
#include "schedule/presence.hpp"
#include "schedule/refinement.hpp"
#include "schedule/request.hpp"
#include "schedule/reserved_queue.hpp"
#include "schedule/survey.hpp"
#include "wire/packet.hpp"

namespace wiresum::schedule {

struct SchedulerConfig {
  unsigned threads = 1;
  unsigned rank = 0;  // this worker's rank, below `workers`
  unsigned workers = 1;
  std::size_t lanes = 360;  // words of a packet that carry elements
  /// With fewer chunks, waking another thread costs more than it saves.
  std::uint64_t chunks_per_thread_min = 16;
  /// Smaller requests are always sent whole, and smaller unions in chunks: sending them takes little longer than the
  /// round trip of asking.
  std::uint64_t sparse_chunks_min = 64;
  /// At least twice the slots of the lease; the same at all workers.
  std::uint64_t vote_lag_chunks = 1024;
  /// Sums of floats of so many elements or fewer are rounded once, whatever their neighbours are; the same at all
  /// workers. Longer sums are block floating point.
  std::uint64_t exact_elements_max = 0;
};

/// The result of submit().
struct Ticket {
  std::uint64_t token = 0;   // 1, 2, ... in order
  std::uint32_t tensor = 0;  // the tag on the wire
};

/// A collective, or part of one, for a thread.
struct Share {
  unsigned thread = 0;
  worker::Collective work;
};

/// Work on a request's memory, for a thread with the default floating-point environment.
struct Task {
  std::uint64_t token = 0;  // the request's token
  /// Returns kOk, or kImpossible for a sum that the workers cannot have made. Throws std::bad_alloc.
  std::function<worker::Status()> run;
};

struct Finished {
  std::uint64_t token = 0;
  worker::Status status = worker::Status::kOk;
};

struct Failure {
  worker::Status status = worker::Status::kOk;
  std::uint32_t tensor = 0;  // the wire tag of the request that failed; 0: the failure came from outside
};

struct SparseStats {
  std::uint64_t prologues = 0;       // collectives that asked which blocks there are
  std::uint64_t streams = 0;         // prologues after which blocks were left out
  std::uint64_t whole = 0;           // collectives that might have been sparse, and were sent whole without asking
  std::uint64_t refined = 0;         // streams of finer blocks only, packed together
  std::uint64_t refinements = 0;     // prologues about finer blocks
  std::uint64_t blocks_skipped = 0;  // blocks that no worker had, and nobody sent
  std::uint64_t blocks_empty = 0;    // blocks that others had, and this worker sent without payload
  std::int64_t bytes_saved = 0;      // UDP payload not sent, in first transmissions, less the prologues' bytes
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config) : config_(config) {}

  /// Numbers the request's chunks, and samples its blocks if it may be sparse. Touches nothing else, so the caller need
  /// not hold the scheduler's lock. Throws std::invalid_argument for a senseless request.
  [[nodiscard]] Survey survey(Request& request, std::uint64_t salt) const;

  /// True if the result of scan(), called now, would probably be used. A scan now saves the request a task when its
  /// turn comes.
  [[nodiscard]] bool expects_scan(const Request& request, const Survey& survey) const;

  /// The ticket that submit() will give this request, if it is the next.
  [[nodiscard]] Ticket next_ticket(const Request& request) const noexcept;
  /// Appends a request. The scheduler owns its memory, and the memory of its regions, until it is finished. Throws
  /// std::bad_alloc, and changes nothing, without memory.
  Ticket submit(Request request, Survey survey);

  /// Notes that a thread has completed its share.
  void complete(unsigned thread, const worker::Completion& completion);

  /// The next share to hand to a thread; each thread must get its shares in this order. The memory behind a share stays
  /// until the share is complete.
  [[nodiscard]] std::optional<Share> poll_share();

  [[nodiscard]] bool has_task() const noexcept { return !tasks_.empty(); }
  /// A task to run, without the scheduler's lock, and then to complete.
  [[nodiscard]] std::optional<Task> poll_task();
  /// Completes a task; `status` is its result, or kNoMemory.
  void complete(const Task& task, worker::Status status);

  [[nodiscard]] std::optional<Finished> poll_finished();

  /// Ends requests that are not issued yet, and all later ones, with `status`. Requests under way end with it after
  /// their present shares or task, unless that is the last stage. No share is issued any more. Only the first failure
  /// is recorded.
  void fail(worker::Status status) { fail({.status = status}); }
  /// The first failure, the scheduler's own or the argument of fail().
  [[nodiscard]] const std::optional<Failure>& failure() const noexcept { return failure_; }

  /// Fails if the deadline has passed of a request that waits, or that has a task before its stream. The threads watch
  /// all other deadlines.
  void check_deadlines(worker::TimeNs now);

  /// The number of requests that are not finished.
  [[nodiscard]] std::size_t unfinished() const noexcept { return states_.size(); }
  /// The newest request's token, which is also the number of requests so far.
  [[nodiscard]] std::uint64_t submitted() const noexcept { return tokens_; }

  [[nodiscard]] const SparseStats& stats() const noexcept { return stats_; }
  /// The number of collectives whose sums were rounded once.
  [[nodiscard]] std::uint64_t exact_sums() const noexcept { return exact_sums_; }

 private:
  /// The stage of a request. N: its shares are with the threads. C: a task runs for it.
  enum class Stage : std::uint8_t {
    kWaiting,       //    its turn has not come
    kScanning,      // C  which blocks does this worker have?
    kPrologue,      // N  which blocks does any worker have?
    kClearing,      // C  blocks that nobody has
    kCutting,       // C  the union, into finer blocks: which of these does this worker have?
    kRefinement,    // N  which of these does any worker have?
    kNarrowing,     // C  the union down to these
    kPacking,       // C  what is left
    kPackedStream,  // N  the stream of what is left
    kUnpacking,     // C  its sum
    kStream,        // N  the blocks of the union, or those of them that were set aside
    kWhole,         // N  all blocks
    kAllGather,     // N  the elements of all workers (gathered.hpp)
    kEnded,
  };
  struct RequestState {
    Request request;
    Survey survey;
    Ticket ticket;
    Stage stage = Stage::kWaiting;
    bool candidate = false;                   // might be sparse
    std::uint64_t candidate_number = 0;       // number among the candidates
    PresenceCounts counts;                    // prologue
    worker::Region counts_region;             // the memory of the prologue's, or a refinement's, counts
    std::vector<std::uint32_t> union_chunks;  // the union after the prologue; empty: all chunks
    std::uint64_t present = 0;                // chunks in the union
    std::uint8_t round_trip_cost = 0;         // the cost agreed in the prologue
    std::uint64_t counts_packets = 0;         // packets sent for all the counts
    std::unique_ptr<Refinement> refinement;
    std::unique_ptr<Gathered> gathered;
    SampledBlocks sampled;             // blocks in the union's sample
    std::uint64_t refining_words = 0;  // words spent on finer counts, round trips included
    unsigned levels = 0;               // levels of refinement
    unsigned shares_left = 0;          // shares that are with the threads
    bool has_task = false;             // the task is handed out, or about to be
    worker::Status status = worker::Status::kOk;
    std::uint8_t vote = 0;
  };
  struct Vote {
    std::uint16_t signature = 0;
    std::uint32_t chunks = 0;
    std::optional<std::uint8_t> density;  // none: the request asked
    bool complete = false;
  };

  // scheduler.cpp
  [[nodiscard]] static bool may_follow(Stage before, Stage after) noexcept;
  [[nodiscard]] static bool is_with_threads(Stage stage) noexcept;
  void enter(RequestState& state, Stage stage) noexcept;
  [[nodiscard]] bool is_candidate(const Request& request, std::uint64_t chunks) const noexcept;
  [[nodiscard]] bool is_exact(const Request& request) const noexcept;
  [[nodiscard]] bool may_deal(const RequestState& state);
  void issue_waiting();
  /// Runs a step that goes on with a request, whose ticket is given, and with others. Without memory for the step, all
  /// of them end.
  template <class Step>
  void go_on(const Ticket& ticket, const Step& step) noexcept;
  void fail(const Failure& failure);
  void issue(RequestState& state);
  /// A collective for the request, without memory yet; `tag` tells its packets from packets of the request's other
  /// collectives.
  [[nodiscard]] static worker::Collective collective_of(const RequestState& state, std::uint32_t tag = 0);
  /// A collective over the request's own memory.
  [[nodiscard]] static worker::Collective stream_of(const RequestState& state, std::uint32_t tag = 0);
  void issue_packed(RequestState& state, Stage stage, const PackedTensor& packed, std::uint32_t tag = 0);
  void issue_shares(RequestState& state, Stage stage, const worker::Collective& work, std::uint64_t chunks);
  void start_task(RequestState& state, Stage stage, std::function<worker::Status()> work);
  /// Continues a request when all shares of its stage are complete.
  void end_shares(RequestState& state);
  /// Continues a request when its task is done, or could not be.
  void end_task(RequestState& state);
  void finish(RequestState& state);
  /// Fails this request, if it is the first failure, and all later ones.
  void fail_at(RequestState& state, worker::Status status);

  // sparse.cpp
  [[nodiscard]] Costs costs_of(const RequestState& state, std::uint64_t chunks,
                               std::uint64_t round_trip_chunks) const noexcept;
  [[nodiscard]] std::uint8_t vote_of(const RequestState& state) const;
  [[nodiscard]] static bool is_worth_a_scan(const Survey& survey) noexcept;
  void issue_counts(RequestState& state, Stage stage, PresenceCounts& counts, worker::Collective work);
  void ask(RequestState& state);
  void issue_prologue(RequestState& state);
  void learn_union(RequestState& state);
  void use_union(RequestState& state);
  void refine_or_stream(RequestState& state);
  void cut(RequestState& state, unsigned size);
  void issue_refinement(RequestState& state);
  void issue_refined(RequestState& state);
  [[nodiscard]] static bool has_set_aside(const RequestState& state) noexcept;
  /// Issues the chunks that were set aside, whole, after the packed stream.
  void issue_set_aside(RequestState& state);
  void issue_stream(RequestState& state);
  void count_stream(const RequestState& state, std::uint64_t sent, const worker::ChunkPresence& presence,
                    std::uint64_t chunks);
  /// Counts the votes that the next candidate depends on. Returns false if some are missing.
  [[nodiscard]] bool count_votes();

  SchedulerConfig config_;
  Choice choice_;
  std::unordered_map<std::uint64_t, RequestState> states_;  // by token
  std::deque<std::uint64_t> waiting_;                       // tokens, in order of submission
  ReservedQueue<Share> shares_;
  ReservedQueue<Task> tasks_;
  ReservedQueue<Finished> finished_;  // has room for all requests without allocating
  RequestState* asking_ = nullptr;    // the request whose stream is not issued yet
  std::deque<Vote> votes_;            // votes of candidates, from number votes_first_ on
  std::uint64_t votes_first_ = 0;
  std::uint64_t votes_chunks_ = 0;  // chunks of those candidates
  std::uint64_t candidates_ = 0;
  std::uint64_t tokens_ = 0;
  std::uint16_t sequence_ = 0;
  std::uint64_t collectives_issued_ = 0;
  std::vector<std::uint32_t> round_trip_chunks_ = std::vector<std::uint32_t>(config_.threads);
  std::optional<Failure> failure_;
  SparseStats stats_;
  std::uint64_t exact_sums_ = 0;
};

}  // namespace wiresum::schedule
