// N workers of T threads, a switch's data plane or a tree of them, and a bad network between them: all in one thread,
// under virtual time, and the same on every run with the same seed.
//
// What runs is what ships: from a call to the packets it is the session's own dispatcher and shards (host.hpp has what
// its threads do), and the data plane of the software switch. Only what lies between them is simulated: each worker,
// and each switch but the root, has a link of its own upwards, whose two directions lose, duplicate, hold back and
// serialise packets. A RESULT that goes to all crosses each link as a copy of its own, so that a single copy can be
// lost. And things go wrong: workers abort, close or die, and a switch starts anew.
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
    kAbort,          // the worker ends the job for itself
    kClose,          // it closes its session
    kDeath,          // it is killed
    kSwitchRestart,  // the worker's switch has lost all jobs and cells
    kSwitchReturn    // the job is admitted there again, with the same key, if it is not there
  };
  Kind kind = Kind::kAbort;
  std::uint32_t worker = 0;
  TimeNs at = 0;
};

struct Scenario {
  std::uint64_t seed = 0;
  std::uint32_t workers = 2;
  std::vector<std::uint32_t> parents = {0};  // by switch: one before it; switch 0 is the root
  std::vector<std::uint32_t> leaves;         // by worker: its switch. Empty: all hang on the root
  std::uint32_t threads = 1;
  std::uint32_t lanes = 360;
  std::uint32_t slots = 128;  // of the lease: shared out over the threads
  std::uint32_t round_first = 1;
  std::uint32_t window_min = 32;
  std::uint32_t window_initial = 32;
  std::uint32_t collectives_max = 256;
  std::uint64_t sparse_chunks_min = 4;  // small, as tensors are
  std::uint64_t vote_lag_chunks = 20;
  std::uint64_t exact_elements_max = 0;
  TimeNs interruption_max = 0;  // see HostConfig
  TimeNs task_max = 0;
  TimeNs device_delay_max = 0;
  std::uint32_t device_packets = 64;
  TimeNs rto_initial = 20'000'000;
  TimeNs rto_min = 1'000'000;
  TimeNs rto_max = 200'000'000;
  TimeNs time_max = 600'000'000'000;  // what is not finished by then hangs
  LinkConfig up;
  LinkConfig down;
  std::vector<Stall> stalls;
  std::vector<Fault> faults;
};

/// A collective of all workers, which differ in their regions' memory.
struct Task {
  std::vector<schedule::Request> requests;  // by worker
  std::vector<TimeNs> submit_at;            // by worker, not decreasing from task to task
  std::optional<TimeNs> timeout;
};

struct Report {
  bool finished = false;  // every operation has ended, but for those of the dead
  std::string failure;    // why not
  std::vector<std::vector<std::optional<worker::Status>>> results;  // by task and worker; none: of the dead
  TimeNs time_ns = 0;                                               // when the last operation ended
  std::uint64_t packets_sent = 0;
  std::uint64_t bytes_sent = 0;  // by workers: UDP payload
  std::uint64_t retransmissions = 0;
  std::uint64_t questions = 0;
  std::uint64_t duplicates = 0;
  std::uint64_t rejected = 0;
  std::uint64_t rto_ns = 0;  // the longest of all workers at the end
  std::uint64_t link_packets = 0;
  std::uint64_t link_lost = 0;
  std::uint64_t link_overflow = 0;
  std::vector<schedule::SparseStats> sparse;  // by worker
};

/// A job, and what its workers call.
struct JobPlan {
  Scenario scenario;
  std::vector<Task> tasks;
  /// It takes the slots of this one of the jobs, one before it, when that one has ended: its times begin then. None: it
  /// has slots of its own.
  std::optional<std::size_t> follows = std::nullopt;
};

/// What jobs share: time, chance, and the switches.
struct World {
  explicit World(std::uint64_t seed) : random(seed) {}

  Random random;
  Agenda agenda;
  VirtualClock clock;
  std::vector<std::vector<std::unique_ptr<dataplane::Dataplane>>> ports;  // by switch and port
  std::uint32_t keys = 0;                                                 // so many have been drawn
};

/// What the controller gives a job.
struct Lease {
  std::uint16_t job = 0;
  std::uint8_t port_offset = 0;
  std::uint32_t slot_base = 0;
};

/// One job in the world.
class Job {
 public:
  /// Throws std::invalid_argument if the scenario makes no sense.
  Job(World& world, JobPlan plan, const Lease& lease);

  /// The cells that it will use, as another job of these workers has left them. Before any job is admitted.
  void leave_cells_used() const;
  /// From now on the switches know it, and its workers call.
  void admit();
  /// The switches forget it. What is still under way comes to them afterwards.
  void evict();

  /// Has every operation ended, but for those of the dead?
  [[nodiscard]] bool is_done() const;
  [[nodiscard]] bool is_over() const noexcept { return stage_ == Stage::kOver; }
  /// What is not done by then hangs.
  [[nodiscard]] TimeNs time_max() const noexcept { return began_ + scenario_.time_max; }
  [[nodiscard]] Report report(std::string failure) const;

 private:
  /// A worker, or a switch: whatever hangs on a switch. Its link has the same number.
  using Node = std::uint32_t;
  struct Switch {
    std::vector<Node> children;  // in the order of the numbers that the switch knows them by
  };

  void check() const;
  [[nodiscard]] bool is_worker(Node node) const noexcept { return node < scenario_.workers; }
  [[nodiscard]] Node node_of_switch(std::uint32_t index) const noexcept { return scenario_.workers + index; }
  /// The switch that a node hangs on. The root hangs on itself.
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
  /// Jobs that share the switches, by their numbers in the scenarios. The seed is the first one's. Throws
  /// std::invalid_argument if a scenario makes no sense.
  explicit Simulation(std::vector<JobPlan> plans);
  /// By job.
  std::vector<Report> run();

 private:
  void end_those_that_are_done();

  World world_;
  std::vector<std::optional<std::size_t>> follows_;  // by job
  std::vector<std::unique_ptr<Job>> jobs_;
};

/// One job alone.
Report simulate(const Scenario& scenario, std::vector<Task> tasks);

}  // namespace wiresum::sim
