// Simulates N workers of T threads, the data plane of a switch or a tree of switches, and a bad network between them,
// in one thread under virtual time. Runs with the same seed are identical.
//
// The code under test is the code that ships: the session's dispatcher and shards (host.hpp replaces their threads) and
// the data plane of the software switch. Only the network is simulated: each worker, and each switch but the root, has
// a link upwards, whose two directions lose, duplicate, hold back and serialise packets. A RESULT for all workers
// crosses each link as a separate copy, so that single copies can be lost. Faults are simulated too: workers abort,
// close or die, and switches restart.
//
// Several jobs may share the switches, at the same time or one after the other on the same slots.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dataplane.hpp"
#include "host.hpp"
#include "network.hpp"

namespace wiresum::sim {

struct Fault {
  enum class Kind : std::uint8_t {
    kAbort,          // the worker aborts its session
    kClose,          // the worker closes its session
    kDeath,          // the worker is killed
    kSwitchRestart,  // the worker's switch loses all jobs and cells
    kSwitchReturn    // the job is admitted there again with the same key, if it is gone
  };
  Kind kind = Kind::kAbort;
  std::uint32_t worker = 0;
  TimeNs at = 0;
};

struct Scenario {
  std::uint64_t seed = 0;
  std::uint32_t workers = 2;
  // The parent of each switch, which has a lower number; switch 0 is the root.
  std::vector<std::uint32_t> parents = {0};
  std::vector<std::uint32_t> leaves;  // the switch of each worker; empty means that all hang on the root
  std::uint32_t threads = 1;
  std::uint32_t lanes = 360;
  std::uint32_t slots = 128;  // of the lease, shared by the threads
  std::uint32_t round_first = 1;
  std::uint32_t window_min = 32;
  std::uint32_t window_initial = 32;
  std::uint32_t collectives_max = 256;
  std::uint64_t sparse_chunks_min = 4;  // small, because tensors are small here
  std::uint64_t vote_lag_chunks = 20;
  std::uint64_t exact_elements_max = 0;
  bool exact_when_wide = false;
  TimeNs interruption_max = 0;  // see HostConfig
  TimeNs task_max = 0;
  TimeNs device_delay_max = 0;
  std::uint32_t device_packets = 64;
  TimeNs rto_initial = 20'000'000;
  TimeNs rto_min = 1'000'000;
  TimeNs rto_max = 200'000'000;
  TimeNs time_max = 600'000'000'000;  // a scenario that takes longer is reported as a hang
  LinkConfig up;
  LinkConfig down;
  std::vector<Stall> stalls;
  std::vector<Fault> faults;
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
  std::uint64_t rto_ns = 0;  // the longest of any worker at the end
  std::uint64_t link_packets = 0;
  std::uint64_t link_lost = 0;
  std::uint64_t link_overflow = 0;
  std::vector<schedule::SparseStats> sparse;  // by worker
};

/// A job, and the collectives that its workers call.
struct JobPlan {
  Scenario scenario;
  std::vector<Task> tasks;
  /// The earlier job whose slots this one takes over when that one has ended, and from whose end its times count. None:
  /// it has its own slots.
  std::optional<std::size_t> follows = std::nullopt;
};

/// Shared by all jobs: time, random numbers, and the switches.
struct World {
  explicit World(std::uint64_t seed) : random(seed) {}

  Random random;
  Agenda agenda;
  VirtualClock clock;
  std::vector<std::vector<std::unique_ptr<dataplane::Dataplane>>> ports;  // by switch and port
  std::uint32_t keys = 0;                                                 // the number of keys drawn so far
};

/// What the controller assigns to a job.
struct Lease {
  std::uint16_t job = 0;
  std::uint8_t port_offset = 0;
  std::uint32_t slot_base = 0;
};

/// One job in the world.
class Job {
 public:
  /// Throws std::invalid_argument if the scenario is invalid.
  Job(World& world, JobPlan plan, const Lease& lease);

  /// Sets the job's cells as an earlier job of these workers would have left them. To be called before any job is
  /// admitted.
  void leave_cells_used() const;
  /// Admits the job at the switches; from now on its workers call.
  void admit();
  /// Evicts the job from the switches. Its late packets still arrive there.
  void evict();

  /// Whether every operation of the workers that live has ended.
  [[nodiscard]] bool is_done() const;
  [[nodiscard]] bool is_over() const noexcept { return stage_ == Stage::kOver; }
  /// Operations that have not ended by then hang.
  [[nodiscard]] TimeNs time_max() const noexcept { return began_ + scenario_.time_max; }
  [[nodiscard]] Report report(std::string failure) const;

 private:
  /// A worker or a switch, which hangs on a switch by the link of the same number.
  using Node = std::uint32_t;
  struct Switch {
    std::vector<Node> children;  // in the order of the numbers by which the switch knows them
  };

  void check() const;
  [[nodiscard]] bool is_worker(Node node) const noexcept { return node < scenario_.workers; }
  [[nodiscard]] Node node_of_switch(std::uint32_t index) const noexcept { return scenario_.workers + index; }
  /// The switch above a node; the root's is the root itself.
  [[nodiscard]] std::uint32_t above(Node node) const noexcept;
  [[nodiscard]] std::uint8_t number_of(Node node) const noexcept;
  [[nodiscard]] wire::Endpoint endpoint_of(Node node) const noexcept;

  void build_switches();
  [[nodiscard]] dataplane::JobEntry entry_of(std::uint32_t index) const;
  [[nodiscard]] dataplane::Dataplane& port(std::uint32_t index, std::uint32_t thread) const;
  void admit_at(std::uint32_t index);
  void leave_cells_used(dataplane::Dataplane& machine, dataplane::JobEntry entry) const;
  void build_hosts();
  [[nodiscard]] HostConfig config_of(std::uint32_t worker) const;
  void schedule_faults();
  void happen(const Fault& fault);
  void send_up(Node from, std::uint32_t thread, const Datagram& datagram);
  void send_down(Node to, std::uint32_t thread, const Datagram& datagram);
  void arrive_at_switch(std::uint32_t index, Node from, std::uint32_t thread, const Datagram& datagram);

  World& world_;
  const Scenario scenario_;
  std::vector<Task> tasks_;
  const Lease lease_;
  const std::uint32_t key_;
  std::size_t packet_bytes_;
  enum class Stage : std::uint8_t { kWaits, kRuns, kOver };
  Stage stage_ = Stage::kWaits;
  TimeNs began_ = 0;
  TimeNs ended_ = 0;
  std::vector<Link> up_;  // by node
  std::vector<Link> down_;
  std::vector<Switch> switches_;
  std::vector<std::unique_ptr<Host>> hosts_;
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
