// Whether the next collective with a signature asks which blocks the workers have, or is sent whole. Pure.
//
// Theory of operation
//
// Asking costs a round trip, and saves the blocks that no worker has. All workers must choose alike without talking, so
// the choice depends only on what earlier collectives *of the same signature* have told all workers:
//
//   The first collective of a signature asks. Its counts say exactly what asking saves. If that pays, the signature
//   goes on asking. If not, its collectives are sent whole, and each worker's packets carry a vote (worker.hpp): the
//   density of a sample of its blocks. The largest vote is a lower bound of the union's density. When votes say that
//   asking would pay, the signature asks again. Each time that this is wrong, the next attempt needs twice as many such
//   votes.
//
// So a dense tensor pays one round trip when it is new, and then a vote, which costs nothing; a sparse one pays a round
// trip each time; and a change is noticed in both cases.
//
// A worker votes for the fraction of its tensor that it would send after asking: of its blocks, or of finer blocks if
// that is less. The counts come with a sample of the union, so finer blocks need no votes of their own. But a sample
// may be wrong: each time that counting finer blocks did not pay, twice as many collectives pass before the next
// attempt.
//
// Costs are counted in chunks, which are the same at all workers. A worker knows about how many chunks it could send in
// a round trip (what was in flight, less what was queueing). The largest such number of all workers comes back with the
// counts.
#pragma once

#include <cstdint>
#include <unordered_map>

namespace wiresum::schedule {

/// Encodes a number of chunks in a byte, rounded up, with three significant bits, by exact arithmetic, the same at all
/// workers.
[[nodiscard]] std::uint8_t encode_cost(std::uint64_t chunks) noexcept;
[[nodiscard]] std::uint64_t decode_cost(std::uint8_t code) noexcept;

class Choice {
 public:
  /// True if a collective of `chunks` chunks should ask.
  [[nodiscard]] bool asks(std::uint16_t signature, std::uint32_t chunks) const;

  /// Records a collective that asked: the workers together have to send `present` of its chunks, or what costs as much,
  /// and a round trip is worth `cost` (see encode_cost).
  void on_counts(std::uint16_t signature, std::uint32_t chunks, std::uint32_t present, std::uint8_t cost);

  /// True if a collective that has asked, and for which finer blocks would pay (granularity.hpp), should try them. Call
  /// it once for each such collective.
  [[nodiscard]] bool refines(std::uint16_t signature, std::uint32_t chunks);

  /// Records whether a collective that tried finer blocks saved anything.
  void on_refinement(std::uint16_t signature, std::uint32_t chunks, bool saved);

  /// The worth of a round trip, in chunks.
  [[nodiscard]] std::uint64_t round_trip_chunks() const noexcept { return cost_; }

  /// Records the largest vote of a collective that was sent whole. kExponentNotFinite counts as dense.
  void on_vote(std::uint16_t signature, std::uint32_t chunks, std::uint8_t density);

 private:
  struct Record {
    bool dense = false;
    std::uint32_t patience = 1;  // number of votes needed to ask again
    std::uint32_t votes_missing = 0;
    std::uint32_t refinement_patience = 1;  // collectives to let pass after a refinement that saved nothing
    std::uint32_t refinements_to_skip = 0;
  };
  /// More signatures than a training has. Beyond this number all are forgotten, at every worker at the same collective.
  static constexpr std::size_t kRecordsMax = 4096;
  static constexpr std::uint32_t kPatienceMax = 64;

  static std::uint64_t key(std::uint16_t signature, std::uint32_t chunks) noexcept {
    return std::uint64_t{signature} << 32 | chunks;
  }
  Record& record_of(std::uint16_t signature, std::uint32_t chunks);
  [[nodiscard]] bool pays(std::uint32_t chunks, std::uint64_t present) const noexcept;

  std::unordered_map<std::uint64_t, Record> records_;
  std::uint64_t cost_ = 0;  // the last agreed cost
};

}  // namespace wiresum::schedule
