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
//   the prologue, an all-reduce of one 8-bit count for each block: 1 from each worker that has it. Its sum tells all
//     workers which blocks any of them has, the *union*;
//   the stream, the request itself, cut down to the union. A worker without a block of the union sends EMPTY.
// What is in neither is zero. Later requests wait until the stream has been dealt: whether it is there when they come
// depends on this worker's speed, but its place before them does not. Nothing waits for ever: the prologue is a
// collective like any other, and the requests that wait are not yet in anybody's order.
//
// Who asks. choice.hpp decides whether a request gets a prologue, from common knowledge. The counts are common as soon
// as the prologue is complete, since no later request is dealt before. Votes are not: of collectives in flight, one
// worker may have completed more than another. So a vote counts from the first collective on that might be sparse and
// comes vote_lag_chunks or more of such collectives later; that one is not dealt before the vote is in. Since so many
// chunks are more than the slots hold, the slots are full all the while, and nobody waits for that.
//
// Tags. A request has one sequence number; a prologue has its request's, under a signature of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "schedule/choice.hpp"
#include "schedule/request.hpp"
#include "schedule/survey.hpp"

namespace wiresum::schedule {

struct SchedulerConfig {
  unsigned threads = 1;
  std::size_t lanes = 360;
  /// Below this, another thread costs more to wake than it saves.
  std::uint64_t chunks_per_thread_min = 16;
  /// What is smaller is always sent whole: it takes hardly longer than a round trip.
  std::uint64_t sparse_chunks_min = 64;
  /// At least twice the slots of the lease; the same at all workers.
  std::uint64_t vote_lag_chunks = 1024;
};

/// What a request gets when it is submitted.
struct Ticket {
  std::uint64_t token = 0;   // 1, 2, ... in order
  std::uint32_t tensor = 0;  // as on the wire
};

/// What was found out about a request before it was submitted.
struct Survey {
  std::uint64_t chunks = 0;
  std::uint8_t density = kDensityFull;    // estimated; of a request that may not be sparse, full
  std::vector<numeric::BlockScan> scans;  // by chunk; empty if nobody has looked
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
  std::uint64_t whole = 0;           // collectives that might have been sparse, and were sent whole without asking
  std::uint64_t blocks_skipped = 0;  // that no worker had, and nobody sent
  std::uint64_t blocks_empty = 0;    // that others had, and this worker sent without payload
  std::int64_t bytes_saved = 0;      // of UDP payload sent, first transmissions, less the prologues'
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config) : config_(config) {}

  /// Numbers the request's chunks, and samples its blocks if it may be sparse. Touches nothing else, so that it may be
  /// called without the lock that protects the scheduler. Throws std::invalid_argument if the request makes no sense.
  [[nodiscard]] Survey survey(Request& request, std::uint64_t salt) const;

  /// Would a scan of all blocks, made now, probably be used?
  [[nodiscard]] bool expects_scan(const Request& request, const Survey& survey) const;

  /// Appends a request. Its memory, and the memory of its regions, belong to the scheduler until it is finished.
  Ticket submit(Request request, Survey survey);

  /// A thread has completed its share.
  void complete(unsigned thread, const worker::Completion& completion);

  /// The next share to hand to a thread; each thread must get its shares in this order. What it points to stays until
  /// the share is complete.
  [[nodiscard]] std::optional<Share> poll_share();

  [[nodiscard]] std::optional<Finished> poll_finished();

  /// What is not dealt yet, and whatever comes later, ends with `status`. The first failure stays.
  void fail(worker::Status status);

  /// The earliest deadline among requests that wait to be dealt. What has been dealt is the threads' to watch.
  [[nodiscard]] worker::TimeNs waiting_deadline() const noexcept;

  [[nodiscard]] const SparseStats& stats() const noexcept { return stats_; }

 private:
  struct Entry {
    Request request;
    Survey survey;
    Ticket ticket;
    bool candidate = false;              // might be sparse
    std::uint64_t candidate_number = 0;  // counts those
    std::vector<std::int32_t> counts;    // prologue: my presence, then everybody's
    worker::Region counts_region;
    std::vector<std::uint32_t> chunks;  // stream: the union
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

  [[nodiscard]] bool is_candidate(const Request& request, std::uint64_t chunks) const noexcept;
  [[nodiscard]] bool may_deal(const Entry& entry);
  void deal_waiting();
  void deal(Entry& entry);
  void deal_prologue(Entry& entry);
  void deal_stream(Entry& entry);
  void deal_whole(Entry& entry);
  void deal_shares(Entry& entry, const worker::Collective& work, std::uint64_t chunks);
  [[nodiscard]] worker::Collective collective_of(const Entry& entry) const;
  void count_stream(const Entry& entry, std::uint64_t present);
  /// Counts the votes that the next candidate goes by. False if not all of them are in.
  [[nodiscard]] bool count_votes();
  void finish(Entry& entry);

  SchedulerConfig config_;
  Choice choice_;
  std::unordered_map<std::uint64_t, Entry> entries_;  // by token
  std::deque<std::uint64_t> waiting_;                 // tokens, in order of submission
  std::deque<Share> shares_;
  std::deque<Finished> finished_;
  Entry* asking_ = nullptr;  // its prologue is under way
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
