// N workers of T threads, the switch's data plane, and a bad network between them: all in one thread, under
// virtual time, and the same on every run with the same seed.
//
// The state machines are the real ones. Only what lies between them is simulated: each worker has a link of its
// own, whose two directions lose, duplicate, hold back and serialise packets. A RESULT that goes to all workers
// crosses each worker's link as a copy of its own, so that a single copy can be lost.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dataplane.hpp"
#include "network.hpp"
#include "schedule/scheduler.hpp"
#include "worker/worker.hpp"

namespace wiresum::sim {

/// From `begin` to `end` the worker takes nothing in and sends nothing; what arrives meanwhile waits.
struct Stall {
  std::uint32_t worker = 0;
  TimeNs begin = 0;
  TimeNs end = 0;
};

struct Scenario {
  std::uint64_t seed = 0;
  std::uint32_t workers = 2;
  std::uint32_t threads = 1;
  std::uint32_t lanes = 360;
  std::uint32_t slots = 128;  // of the lease: shared out over the threads
  std::uint32_t round_first = 1;
  std::uint32_t window_min = 32;
  std::uint32_t window_initial = 32;
  std::uint32_t collectives_max = 256;
  std::uint64_t sparse_chunks_min = 4;  // small, as tensors are
  std::uint64_t lead_chunks = 4;
  std::uint64_t vote_lag_chunks = 20;
  TimeNs chore_max = 0;  // a chore takes up to so long, each time another time
  TimeNs rto_initial = 20'000'000;
  TimeNs rto_min = 1'000'000;
  TimeNs rto_max = 200'000'000;
  TimeNs time_max = 600'000'000'000;  // what is not finished by then hangs
  LinkConfig up;
  LinkConfig down;
  std::vector<Stall> stalls;
};

/// A collective of all workers, which differ in their regions' memory.
struct Task {
  std::vector<schedule::Request> requests;  // by worker
  std::vector<TimeNs> submit_at;            // by worker, not decreasing from task to task
};

struct Report {
  bool finished = false;
  std::string failure;  // why not
  TimeNs time_ns = 0;   // when the last completion came
  std::uint64_t packets_sent = 0;
  std::uint64_t bytes_sent = 0;  // by workers: UDP payload
  std::uint64_t retransmissions = 0;
  std::uint64_t questions = 0;
  std::uint64_t results = 0;
  std::uint64_t duplicates = 0;
  std::uint64_t rejected = 0;
  std::uint64_t rto_ns = 0;  // the longest of all workers at the end
  std::uint64_t link_packets = 0;
  std::uint64_t link_lost = 0;
  std::uint64_t link_overflow = 0;
  std::vector<schedule::SparseStats> sparse;  // by worker
};

class Simulation {
 public:
  /// Throws std::invalid_argument if the scenario makes no sense.
  Simulation(const Scenario& scenario, std::vector<Task> tasks);
  Report run();

 private:
  /// One thread of one worker.
  struct Shard {
    std::uint32_t worker = 0;
    std::uint32_t thread = 0;
    std::vector<std::byte> frames;
    std::unique_ptr<worker::Worker> machine;
    TimeNs wake_at = worker::kNever;
  };
  /// One worker's scheduler, and what it has been given.
  struct Host {
    std::unique_ptr<schedule::Scheduler> scheduler;
    std::uint64_t submissions = 0;
  };
  /// The switch's share of one thread.
  struct Port {
    std::vector<std::byte> frames;
    std::unique_ptr<dataplane::Dataplane> machine;
  };

  void build_ports();
  void leave_cells_used(dataplane::Dataplane& machine, dataplane::JobEntry entry) const;
  void build_shards();
  void schedule_submissions();
  void submit(std::uint32_t worker, std::size_t task);
  /// Hands out what a worker's scheduler has for its threads, and counts what it has finished.
  void dispatch(std::uint32_t worker);
  void do_chore(std::uint32_t worker, const schedule::Scheduler::Chore& chore);
  void activate(Shard& shard);
  void send(Shard& shard, const worker::Transmit& transmit);
  void arrive_at_switch(std::uint32_t worker, std::uint32_t thread, const std::vector<std::byte>& datagram);
  void send_result(std::uint32_t worker, std::uint32_t thread, const std::vector<std::byte>& datagram);
  void arrive_at_worker(std::uint32_t worker, std::uint32_t thread, std::vector<std::byte> datagram);
  /// Runs `action` now, or when the worker's stall is over.
  void when_awake(std::uint32_t worker, Agenda::Action action);
  [[nodiscard]] Shard& shard(std::uint32_t worker, std::uint32_t thread) {
    return shards_[worker * scenario_.threads + thread];
  }
  [[nodiscard]] Report report() const;

  Scenario scenario_;
  std::vector<Task> tasks_;
  std::size_t frame_stride_;
  Random random_;
  Agenda agenda_;
  TimeNs now_ = 0;
  std::vector<Link> up_;
  std::vector<Link> down_;
  std::vector<Port> ports_;
  std::vector<Host> hosts_;
  std::vector<Shard> shards_;
  std::size_t completions_left_ = 0;
  std::string failure_;
};

}  // namespace wiresum::sim
