// Simulates N workers of T threads, the data plane of a switch or a tree of switches, and a bad network between them,
// in one thread under virtual time. Runs with the same seed are identical.
//
// The code under test is the code that ships: the session's dispatcher and shards (rank.hpp replaces their threads),
// the leaves of hosts with several workers, and the data plane of the software switch. Only the network is simulated
// (network.hpp): each worker's host, and each switch but the root, has a link upwards, whose two directions lose,
// duplicate, hold back and serialise packets. A RESULT for all workers crosses each link as a separate copy, so that
// single copies can be lost. Faults are simulated too: workers abort, close or die, switches restart, and the job moves
// to other leases.
//
// What a host needs to compute takes no time, unless a scenario says so (stalls, interruptions, tasks): times are those
// of the network and the protocol.
//
// Several jobs may share the switches, at the same time or one after the other on the same slots. Each has links of its
// own, or shares the hosts, and so the links, of another.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mover.hpp"
#include "network.hpp"
#include "placement.hpp"
#include "rank.hpp"

namespace wiresum::sim {

struct Fault {
  enum class Kind : std::uint8_t {
    kAbort,          // the worker aborts its session
    kClose,          // the worker closes its session
    kDeath,          // the worker is killed
    kSwitchRestart,  // the worker's switch loses all jobs and cells
    kSwitchReturn,   // the job is admitted there again with the same key, if it is gone
    kMove            // the job moves to another lease
  };
  Kind kind = Kind::kAbort;
  std::uint32_t worker = 0;
  TimeNs at = 0;
};

struct Scenario : NetworkConfig {
  std::uint64_t seed = 0;
  std::uint32_t workers = 2;
  std::vector<std::uint32_t> hosts;  // of each worker; those on one share a stream. Empty: worker i is on host i
  std::uint32_t threads = 1;
  std::uint32_t lanes = 360;  // words of a packet that carry elements
  bool check_word = false;    // ... which has one more
  WrongBits wrong_bits;
  std::uint32_t slots = 128;  // of the lease, shared by the threads
  std::uint32_t round_first = 1;
  std::uint32_t window_min = 32;
  std::uint32_t window_initial = 32;
  std::uint32_t collectives_max = 256;
  std::uint64_t sparse_chunks_min = 4;  // small, because tensors are small here
  std::uint64_t vote_lag_chunks = 20;
  std::uint64_t exact_elements_max = 0;
  bool exact_when_wide = false;
  TimeNs interruption_max = 0;  // see RankConfig
  TimeNs task_max = 0;
  TimeNs device_delay_max = 0;
  std::uint32_t device_packets = 64;
  bool callers_write = false;            // see RankConfig
  TimeNs message_delay_max = 1'000'000;  // of each message in a move
  TimeNs move_max = 60'000'000'000;      // within which all workers have halted, or the job ends
  TimeNs rto_initial = 20'000'000;
  TimeNs rto_min = 1'000'000;
  TimeNs rto_max = 200'000'000;
  TimeNs time_max = 600'000'000'000;  // a scenario that takes longer is reported as a hang
  std::vector<Stall> stalls;
  std::vector<Fault> faults;

  [[nodiscard]] std::uint32_t packet_words() const noexcept { return lanes + (check_word ? 1 : 0); }
};

/// A collective called by all workers, each with its own memory for the regions.
struct Task {
  std::vector<schedule::Request> requests;  // by worker
  std::vector<TimeNs> submit_at;            // by worker, never decreasing from one task to the next
  std::optional<TimeNs> timeout;
};

struct Report {
  bool finished = false;  // every operation of the workers that live has ended
  std::string failure;    // the reason, if not finished
  std::vector<std::vector<std::optional<worker::Status>>> results;  // by task and worker; none for dead workers
  TimeNs time_ns = 0;                                               // when the last operation ended
  std::uint64_t packets_sent = 0;
  std::uint64_t bytes_sent = 0;  // UDP payload that workers sent
  std::uint64_t retransmissions = 0;
  std::uint64_t questions = 0;
  std::uint64_t duplicates = 0;
  std::uint64_t rejected = 0;
  std::uint64_t chunks_exact = 0;
  std::uint64_t chunks_wide = 0;
  std::uint64_t sums_wrong = 0;
  std::uint64_t flips = 0;   // of wrong_bits
  std::uint64_t rto_ns = 0;  // the longest of any worker at the end
  // Of the network, whose links other jobs may share.
  std::uint64_t link_packets = 0;
  std::uint64_t link_lost = 0;
  std::uint64_t link_overflow = 0;
  std::uint64_t link_marked = 0;
  std::uint64_t cross_packets = 0;
  std::uint64_t cross_overflow = 0;
  std::uint64_t buffer_held_max = 0;          // bytes, of the switch that held most; 0 where no buffer is shared
  std::uint64_t packets_max = 0;              // in memory at a time, in this world; copies are not counted
  std::vector<schedule::SparseStats> sparse;  // by worker
};

/// A job, and the collectives that its workers call.
struct JobPlan {
  Scenario scenario;
  std::vector<Task> tasks;
  /// The earlier job whose slots this one takes over when that one has ended, and from whose end its times count. None:
  /// it has its own slots.
  std::optional<std::size_t> follows = std::nullopt;
  /// The earlier job whose hosts and links this one's workers share; its own scenario's network does not count then.
  /// None: it has its own.
  std::optional<std::size_t> shares = std::nullopt;
  /// For moves.
  RolesOf roles_of = nullptr;
};

/// One job in the world.
class Job {
 public:
  /// `leases`: the first, and one for each move; `network`: of an earlier job; none: one of its own. Throws
  /// std::invalid_argument if the scenario is invalid.
  Job(World& world, JobPlan plan, std::vector<Lease> leases, std::shared_ptr<Network> network);

  /// Sets the job's cells as an earlier job of these workers would have left them. To be called before any job is
  /// admitted.
  void leave_cells_used() const { placement().leave_cells_used(scenario_.round_first, scenario_.seed); }
  /// Admits the job at the switches; from now on its workers call.
  void admit();
  /// Evicts the job from the switches. Its late packets still arrive there.
  void evict();

  /// Whether every operation of the workers that live has ended.
  [[nodiscard]] bool is_done();
  [[nodiscard]] bool is_over() const noexcept { return stage_ == Stage::kOver; }
  /// Operations that have not ended by then hang.
  [[nodiscard]] TimeNs time_max() const noexcept { return began_ + scenario_.time_max; }
  [[nodiscard]] Report report(std::string failure);
  [[nodiscard]] const std::shared_ptr<Network>& network() const noexcept { return network_; }

 private:
  /// The workers on one host, which the switch knows as one.
  struct Stream {
    Network::Node host = 0;
    std::vector<std::uint32_t> workers;
  };
  void find_streams();
  void check() const;
  /// Where the job is, or is going to be.
  [[nodiscard]] const Placement& placement() const noexcept { return *placements_.back(); }
  void place_at(const Lease& lease);
  void build_ranks();
  [[nodiscard]] RankConfig config_of(std::uint32_t worker) const;
  [[nodiscard]] std::optional<Sharing> sharing_of(std::uint32_t worker) const;
  void schedule_faults();
  void happen(const Fault& fault);
  /// To which a worker is attached.
  [[nodiscard]] std::uint32_t switch_of(std::uint32_t worker) const noexcept;
  [[nodiscard]] std::unique_ptr<Mover> make_mover(RolesOf roles_of);
  /// In a move, once all workers have halted.
  void place_anew();

  World& world_;
  const Scenario scenario_;
  std::vector<Task> tasks_;
  const std::vector<Lease> leases_;
  enum class Stage : std::uint8_t { kWaits, kRuns, kOver };
  Stage stage_ = Stage::kWaits;
  TimeNs began_ = 0;
  TimeNs ended_ = 0;
  std::shared_ptr<Network> network_;
  std::vector<Stream> streams_;                         // by their first workers
  std::vector<std::uint32_t> stream_of_;                // by worker
  std::vector<std::unique_ptr<Placement>> placements_;  // those before the last one were left
  std::vector<std::unique_ptr<Rank>> ranks_;            // by worker
  std::unique_ptr<Mover> mover_;
  WrongBits wrong_bits_;
  std::size_t idle_through_ = 0;  // the workers before this one have nothing left to do
};

class Simulation {
 public:
  /// Jobs that share the switches, by the job numbers of the scenarios. The seed is the first scenario's. Throws
  /// std::invalid_argument if a scenario is invalid.
  explicit Simulation(std::vector<JobPlan> plans);
  /// By job.
  std::vector<Report> run();

 private:
  void end_those_that_are_done();

  World world_;
  std::vector<std::optional<std::size_t>> follows_;  // by job
  std::vector<std::unique_ptr<Job>> jobs_;
};

/// Runs a single job.
Report simulate(const Scenario& scenario, std::vector<Task> tasks);

}  // namespace wiresum::sim
