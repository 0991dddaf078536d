// From what callers ask for to what the threads' state machines do: order, shares, and sparse collectives.
//
// A sans-IO state machine, one for a session: requests and completed shares go in, shares and finished requests come
// out (poll_*). No clock, no thread; not thread-safe.
//
// Theory of operation
//
// Order. All workers submit the same requests in the same order, and the scheduler deals them to the threads in that
// order, in shares that depend on nothing but the request and what came before. So each thread's state machine sees
// the same collectives in the same order at all workers, which is what the agreed order of packets (worker.hpp)
// stands on.
//
// Sparse collectives. A block is a chunk. Where zeros are worth leaving out, a request is dealt as two collectives:
//   the prologue, an all-reduce of a count for each block (presence.hpp): 1 from each worker that has it. Its sum tells
//     all workers which blocks any of them has, the *union*;
//   the stream, the request itself, cut down to the union. A worker without a block of the union sends EMPTY.
// Where finer blocks are worth it (granularity.hpp), more prologues come between the two, each about smaller blocks of
// the union (refinement.hpp), and the stream is what is left, packed together.
// The prologue also tells the exponents of the stream's first chunks (opening.hpp). Where a request is likely to have
// its union streamed as it is, it is asked about in two parts, and the first part's stream, the *lead*, is under way
// while the rest is looked at, asked about and streamed in its turn.
// What is in none is zero. Later requests wait until the stream has been dealt: whether it is there when they come
// depends on this worker's speed, but its place before them does not. Nothing waits for ever: a prologue is a
// collective like any other, and the requests that wait are not yet in anybody's order.
//
// Who asks. choice.hpp decides whether a request gets a prologue, from common knowledge. The counts are common as soon
// as the prologue is complete, since no later request is dealt before. Votes are not: of collectives in flight, one
// worker may have completed more than another. So a vote counts from the first collective on that might be sparse and
// comes vote_lag_chunks or more of such collectives later; that one is not dealt before the vote is in. Since so many
// chunks are more than the slots hold, the slots are full all the while, and nobody waits for that.
//
// Chores. Looking at a tensor, cutting it into fine blocks, and gathering and scattering what is left, takes a while.
// That is not done here, under the lock that protects the scheduler, but handed out (poll_chore).
//
// Tags. A request has one sequence number; a prologue and a lead have their request's, under signatures of their own.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "schedule/choice.hpp"
#include "schedule/granularity.hpp"
#include "schedule/opening.hpp"
#include "schedule/presence.hpp"
#include "schedule/refinement.hpp"
#include "schedule/request.hpp"
#include "schedule/survey.hpp"
#include "wire/packet.hpp"

namespace wiresum::schedule {

struct SchedulerConfig {
  unsigned threads = 1;
  unsigned worker = 0;  // this one, of so many
  unsigned workers = wire::kWorkersMax;
  std::size_t lanes = 360;
  /// Below this, another thread costs more to wake than it saves.
  std::uint64_t chunks_per_thread_min = 16;
  /// What is smaller is always sent whole, and a union that is smaller in chunks: it takes hardly longer than a round
  /// trip.
  std::uint64_t sparse_chunks_min = 64;
  /// So much of a union is streamed ahead, if anything is, that it lasts while all workers look at the rest, and while
  /// the counts of that wait behind all that is in flight: four times the slots that a stream takes.
  std::uint64_t lead_chunks = 128;
  /// At least twice the slots of the lease; the same at all workers.
  std::uint64_t vote_lag_chunks = 1024;
};

/// What a request gets when it is submitted.
struct Ticket {
  std::uint64_t token = 0;   // 1, 2, ... in order
  std::uint32_t tensor = 0;  // as on the wire
};

/// A collective, or part of one, for a thread.
struct Share {
  unsigned thread = 0;
  worker::Collective work;
};

struct Finished {
  std::uint64_t token = 0;
  worker::Status status = worker::Status::kOk;
};

struct SparseStats {
  std::uint64_t prologues = 0;       // collectives that asked which blocks there are
  std::uint64_t streams = 0;         // ... and then left blocks out
  std::uint64_t ahead = 0;           // ... and asked in two parts, the first of which was streamed ahead
  std::uint64_t whole = 0;           // collectives that might have been sparse, and were sent whole without asking
  std::uint64_t refined = 0;         // ... and then sent only finer blocks, packed together
  std::uint64_t refinements = 0;     // prologues about finer blocks
  std::uint64_t blocks_skipped = 0;  // that no worker had, and nobody sent
  std::uint64_t blocks_empty = 0;    // that others had, and this worker sent without payload
  std::int64_t bytes_saved = 0;      // of UDP payload sent, first transmissions, less the prologues'
};

/// A chore (below) that is done at one go.
template <typename Work>
auto in_one_piece(Work work) {
  return [work] {
    work();
    return true;
  };
}

class Scheduler {
  struct Entry;

 public:
  /// Work on a request's memory.
  class Chore {
   public:
    /// Does a piece of it; true if it was the last.
    bool run() const { return work_(); }
    /// What is in flight is in more of a hurry: it had better be begun when a RESULT has come, for then no worker waits
    /// for a processor to send its part.
    [[nodiscard]] bool can_wait() const { return can_wait_; }

   private:
    friend class Scheduler;
    std::uint64_t token_ = 0;
    bool can_wait_ = false;
    std::function<bool()> work_;
    void (Scheduler::*then_)(Entry&) = nullptr;
  };

  explicit Scheduler(const SchedulerConfig& config) : config_(config) {}

  /// Numbers the request's chunks, and samples its blocks if it may be sparse. Touches nothing else, so that it may be
  /// called without the lock that protects the scheduler. Throws std::invalid_argument if the request makes no sense.
  [[nodiscard]] Survey survey(Request& request, std::uint64_t salt) const;

  /// Up to which chunk will what look() finds, called now, probably be used at once?
  [[nodiscard]] std::uint64_t expects_look(const Request& request, const Survey& survey) const;

  /// Appends a request. Its memory, and the memory of its regions, belong to the scheduler until it is finished.
  Ticket submit(Request request, Survey survey);

  /// A thread has completed its share.
  void complete(unsigned thread, const worker::Completion& completion);

  /// The next share to hand to a thread; each thread must get its shares in this order. What it points to stays until
  /// the share is complete.
  [[nodiscard]] std::optional<Share> poll_share();

  /// Something to run, without the lock that protects the scheduler, and then to complete. For a thread that has the
  /// default floating-point environment.
  [[nodiscard]] std::optional<Chore> poll_chore();
  void complete(const Chore& chore);

  [[nodiscard]] std::optional<Finished> poll_finished();

  /// What is not dealt yet, and whatever comes later, ends with `status`. The first failure stays.
  void fail(worker::Status status);

  /// The earliest deadline among requests that wait to be dealt. What has been dealt is the threads' to watch.
  [[nodiscard]] worker::TimeNs waiting_deadline() const noexcept;

  [[nodiscard]] const SparseStats& stats() const noexcept { return stats_; }

 private:
  /// Set in the token of a share that is streamed ahead of its request's others.
  static constexpr std::uint64_t kLeadToken = std::uint64_t{1} << 63;
  /// What is under way for a request that has been dealt.
  enum class Stage : std::uint8_t { kWhole, kPrologue, kRefinement, kStream, kPacked, kEnded };
  /// Chunks to be streamed, by number.
  struct Listed {
    std::vector<std::uint32_t> chunks;    // empty: all
    std::vector<std::uint8_t> exponents;  // of the first
  };
  struct Entry {
    Request request;
    Survey survey;
    Ticket ticket;
    Stage stage = Stage::kWhole;
    bool candidate = false;              // might be sparse
    std::uint64_t candidate_number = 0;  // counts those
    ChunkRun asked;                      // what the prologue is about
    PresenceCounts counts;               // prologue
    Opening opening;                     // ... of which it is a part
    worker::Region counts_region;        // of the prologue, or of a refinement's counts
    Listed lead;                         // the part of the union that is streamed ahead
    Listed rest;                         // all of it, if none is
    unsigned lead_shares_left = 0;
    std::uint64_t present = 0;         // chunks in the union
    std::uint8_t round_trip_cost = 0;  // as agreed in the prologue
    std::uint64_t counts_packets = 0;  // sent for all the counts
    std::unique_ptr<Refinement> refinement;
    Hits hits;                         // of the union's sample
    std::uint64_t refining_words = 0;  // spent on finer counts, round trips included
    unsigned levels = 0;               // of refinement
    unsigned shares_left = 0;
    worker::Status status = worker::Status::kOk;
    std::uint8_t vote = 0;
  };
  struct Vote {
    std::uint16_t signature = 0;
    std::uint32_t chunks = 0;
    std::optional<std::uint8_t> density;  // none: it asked
    bool complete = false;
  };

  // scheduler.cpp
  [[nodiscard]] bool is_candidate(const Request& request, std::uint64_t chunks) const noexcept;
  [[nodiscard]] bool may_deal(const Entry& entry);
  void deal_waiting();
  void deal(Entry& entry);
  [[nodiscard]] std::uint64_t share_chunks(std::uint64_t chunks) const noexcept;
  unsigned deal_shares(const worker::Collective& work, std::uint64_t chunks);
  void deal_stage(Entry& entry, const worker::Collective& work, std::uint64_t chunks);
  [[nodiscard]] worker::Collective collective_of(const Entry& entry) const;
  Chore& start_chore(Entry& entry, std::function<bool()> work, void (Scheduler::*then)(Entry&));
  /// The network, or a chore, has done the entry's stage.
  void advance(Entry& entry);
  void end_whole(Entry& entry);
  void finish(Entry& entry);

  // sparse.cpp
  [[nodiscard]] Prices prices_of(const Entry& entry, std::uint64_t chunks,
                                 std::uint64_t round_trip_chunks) const noexcept;
  [[nodiscard]] std::uint8_t vote_of(const Entry& entry) const;
  void deal_counts(Entry& entry, PresenceCounts& counts, worker::Collective& work);
  void deal_prologue(Entry& entry);
  [[nodiscard]] std::uint64_t lead_of(const Request& request, std::uint64_t chunks) const;
  void ask(Entry& entry, ChunkRun run);
  void ask_rest(Entry& entry);
  void learn_union(Entry& entry);
  void deal_lead(Entry& entry);
  void refine_or_stream(Entry& entry);
  void start_refinement(Entry& entry, unsigned size);
  void deal_refinement(Entry& entry);
  void deal_packed(Entry& entry);
  void deal_stream(Entry& entry);
  [[nodiscard]] std::uint32_t streamed(const Entry& entry) const;
  void deal_openings(Listed& listed) const;
  void count_stream(const Entry& entry, std::uint64_t sent, std::span<const numeric::BlockScan> scans);
  /// Counts the votes that the next candidate goes by. False if not all of them are in.
  [[nodiscard]] bool count_votes();

  SchedulerConfig config_;
  Choice choice_;
  std::unordered_map<std::uint64_t, Entry> entries_;  // by token
  std::deque<std::uint64_t> waiting_;                 // tokens, in order of submission
  std::deque<Share> shares_;
  std::deque<Chore> chores_;
  std::deque<Finished> finished_;
  Entry* asking_ = nullptr;  // its stream is not dealt yet
  std::deque<Vote> votes_;   // of candidates, from number votes_first_ on
  std::uint64_t votes_first_ = 0;
  std::uint64_t votes_chunks_ = 0;  // of those candidates
  std::uint64_t candidates_ = 0;
  std::uint64_t tokens_ = 0;
  std::uint16_t sequence_ = 0;
  std::uint64_t collectives_dealt_ = 0;
  std::vector<std::uint32_t> round_trip_chunks_ = std::vector<std::uint32_t>(config_.threads);
  std::optional<worker::Status> failure_;
  SparseStats stats_;
};

}  // namespace wiresum::schedule
