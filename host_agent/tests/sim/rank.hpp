// One worker of the simulation: the parts of a session, driven in virtual time.
//
// Its threads have network devices of their own; or they share those of the first worker on their host, through that
// one's leaves and through memory, as the product's do. Only the bells that wake who sleeps there are replaced: after
// each step of a thread, the others that share its leaf are asked whether there is something for them.
//
// The dispatcher and the shards are the session's own. The work of its threads is here a chain of events, which may be
// interrupted wherever a thread may be: between the steps of a shard, between a task and its completion, between the
// scan of a request and its submission, between the end of one engine thread and that of the next.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "agenda.hpp"
#include "engine/dispatcher.hpp"
#include "engine/shard.hpp"
#include "leaf/leaf.hpp"
#include "link.hpp"
#include "mover.hpp"
#include "packet.hpp"
#include "sim_transport.hpp"

namespace wiresum::sim {

/// From `begin` to `end` the worker receives nothing and sends nothing; what arrives meanwhile waits.
struct Stall {
  std::uint32_t worker = 0;
  TimeNs begin = 0;
  TimeNs end = 0;
};

class Rank;

/// Of a worker that shares a stream with others of its host.
struct Sharing {
  leaf::Job job;           // what the first worker makes its leaves of
  std::uint8_t index = 0;  // of this worker among those of its host
  Rank* first = nullptr;   // who drives the leaves; null for that one itself
};

struct RankConfig {
  std::optional<Sharing> sharing;
  wire::Endpoint switch_endpoint;
  schedule::SchedulerConfig scheduler;
  std::vector<worker::WorkerConfig> shards;  // by thread
  std::vector<Stall> stalls;                 // this worker's
  TimeNs interruption_max = 0;               // a thread may be held up for up to so long between any two of its steps
  TimeNs task_max = 0;                       // a task takes up to so long, drawn each time
  TimeNs device_delay_max = 0;               // the network device reads a packet up to so long after it got it
  std::uint32_t device_packets = 64;         // ... and has room for so many packets
  bool callers_write = false;                // callers write to a collective's memory as soon as it has ended
};

class Rank {
 public:
  struct Hooks {
    /// A shard's packet enters the network.
    std::function<void(std::uint32_t thread, const Packet&, wire::Endpoint to)> carry;
    /// All threads have halted, as halt() with that number said.
    std::function<void(std::uint32_t number, Positions)> halted;
    /// A thread has done something that others of its host may have waited for. Null where it shares nothing.
    std::function<void(std::uint32_t thread)> stepped;
  };
  /// `shared`: the memory of all devices that read at once.
  Rank(const RankConfig& config, const VirtualClock& clock, Agenda& agenda, Random& random, PacketPool& packets,
       DeviceMemory& shared, Hooks hooks);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  /// Submits a request at `at`, but not before the earlier ones. Its time-out, if it has one, starts then.
  void submit_at(TimeNs at, schedule::Request request, std::optional<TimeNs> timeout);
  void arrive(std::uint32_t thread, const Packet& packet, wire::Endpoint source);
  /// Lets the thread go on if there is something for it in the memory that it shares.
  void look(std::uint32_t thread);

  /// Of a move: halts the threads, or sends those that have halted to another lease.
  void halt(std::uint32_t number);
  void move(std::uint32_t number, const engine::Destination& destination, const Roles& roles);

  void abort();
  /// Ends the session as its close() does: the dispatcher, then one engine thread after the other, then the tasks.
  void close();
  /// From now on the worker does nothing, as if its process had been killed.
  void kill() noexcept { dead_ = true; }

  [[nodiscard]] bool dead() const noexcept { return dead_; }
  /// Whether every request that was to be submitted has ended.
  [[nodiscard]] bool idle() const;
  /// How each request ended, in order; none if it was not submitted or has not ended.
  [[nodiscard]] std::vector<std::optional<worker::Status>> results() const;
  [[nodiscard]] engine::TrafficStats traffic(std::uint32_t thread) const {
    threads_[thread].shard->publish_stats();
    return threads_[thread].shard->stats();
  }
  [[nodiscard]] schedule::SparseStats sparse() const { return dispatcher_->stats(); }

 private:
  enum class Step : std::uint8_t { kMail, kReceive, kTransmit, kReport, kEnd };
  struct Thread {
    std::unique_ptr<DeviceMemory> memory;  // of a device that reads late
    std::unique_ptr<transport::Transport> transport;
    SimTransport* device = nullptr;                  // its own, which a leaf may have; or none
    leaf::Leaf* leaf = nullptr;                      // the transport, of a host's first worker
    transport::shm::ShmTransport* shared = nullptr;  // the transport, of another one
    std::unique_ptr<engine::Shard> shard;
    bool running = false;  // one of its events is on the agenda
    bool again = false;    // something arrived while it was running
    bool ended = false;
    TimeNs wake_at = worker::kNever;
    std::optional<Positions> positions;  // since it has halted
  };

  void open(std::uint32_t thread, PacketPool& packets, DeviceMemory& shared);
  /// The thread's network device has been given a packet, and reads it now or later.
  void run_device(std::uint32_t thread, SimTransport::Place place, const Packet& sent, wire::Endpoint to);
  void rouse(std::uint32_t thread);
  void run(std::uint32_t thread, Step step);
  [[nodiscard]] bool has_something(const Thread& thread) const noexcept;
  void sleep(std::uint32_t thread);
  void on_halted(std::uint32_t thread, Positions positions);
  void submit_next();
  /// Callers write to the memory of operations that have ended.
  void let_callers_write();
  void start_tasks();
  void run_task(const schedule::Task& task);
  void watch_deadlines();
  void end_threads(std::uint32_t next);
  void check_closed();
  /// Calls `act` at `at`, or after the worker's stall, unless the worker has been killed by then.
  template <class Act>
  void when_awake(TimeNs at, Act act) {
    agenda_.at(after_stalls(at), [this, act = std::move(act)]() mutable {
      if (!dead_) act();
    });
  }
  [[nodiscard]] TimeNs after_stalls(TimeNs at) const noexcept;
  [[nodiscard]] TimeNs interruption();

  RankConfig config_;
  const VirtualClock& clock_;
  Agenda& agenda_;
  Random& random_;
  Hooks hooks_;
  std::vector<Thread> threads_;
  std::unique_ptr<engine::Dispatcher> dispatcher_;

  struct Call {
    TimeNs at = 0;
    schedule::Request request;
    std::optional<TimeNs> timeout;
    std::shared_ptr<engine::Operation> operation;
    bool written = false;
  };
  struct Written {
    std::byte* memory = nullptr;
    std::vector<std::byte> before;
  };
  std::vector<Call> calls_;
  std::vector<Written> written_;
  std::uint32_t move_number_ = 0;  // the latest that it was halted for
  std::size_t submitted_ = 0;
  bool submitting_ = false;
  bool choring_ = false;
  bool watching_ = false;
  bool closing_ = false;
  bool dead_ = false;
};

}  // namespace wiresum::sim
