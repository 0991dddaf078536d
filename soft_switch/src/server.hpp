// The software switch at work: threads and sockets around the data plane.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dataplane.hpp"
#include "process/home.hpp"
#include "transport/open.hpp"
#include "wire/packet.hpp"

namespace wiresum::soft_switch {

struct ServerConfig {
  wire::Endpoint local{.address = 0, .port = wire::kSwitchPort};  // base port; 0: some free block of ports
  unsigned ports = wire::kThreadsMax;  // consecutive; a job talks to a run of them, JobEntry::port_offset
  unsigned threads = 0;                // 0: by the number of cores; ports go to threads in turn
  dataplane::SwitchSizes sizes;
  std::size_t receive_buffer_bytes = wire::kSocketBufferBytes;  // for each port
  int spin_us = -1;  // busy-poll for so long before sleeping; -1: by the number of cores
  transport::Spec transport;
  std::chrono::milliseconds answer_max{10'000};  // time for a data thread to do what it is asked
};

struct ServerStats {
  unsigned threads = 0;
  std::string transport;   // Transport::name(): what packets go by
  double cpu_seconds = 0;  // CPU time of all data threads
  std::uint64_t datagrams_received = 0;
  std::vector<std::uint64_t> received_by_thread;  // datagrams received, by thread
  std::uint64_t datagrams_passed = 0;             // datagrams that came to another thread first
  std::uint64_t datagrams_sent = 0;
  std::uint64_t receive_calls = 0;
  std::uint64_t send_calls = 0;
  std::uint64_t send_failures = 0;
  dataplane::JobCounters stray;  // packets that belong to no job
};

class DataThread;

/// Every method may be called from any thread, until the destructor runs. A forked child has the object, but not its
/// threads: there all calls are refused, stop() does nothing, and destroying it leaves its parts alone
/// (process/home.hpp).
class SwitchServer {
 public:
  /// Binds the ports and starts the threads. Throws std::invalid_argument for sizes that make no sense,
  /// std::system_error, which names the address, if a port or a thread cannot be had, and what
  /// transport::open_for_threads() throws.
  explicit SwitchServer(const ServerConfig& config);
  ~SwitchServer();
  SwitchServer(const SwitchServer&) = delete;
  SwitchServer& operator=(const SwitchServer&) = delete;

  /// The address and base port of the server.
  [[nodiscard]] wire::Endpoint local() const noexcept { return local_; }
  [[nodiscard]] unsigned ports() const noexcept { return ports_; }
  [[nodiscard]] const dataplane::SwitchSizes& sizes() const noexcept { return sizes_; }

  /// Admits a job; when it returns, every thread knows the job. Throws std::invalid_argument, and changes nothing, if
  /// the switch refuses the entry. This and the calls below throw std::runtime_error if a data thread does not answer
  /// in time or, for changes, the server was stopped. A job that could not be installed in all threads is removed from
  /// all: a thread that does not answer removes it before any later request.
  void admit(const dataplane::JobEntry& entry);
  /// Admits, or changes, a job entry by entry, as in a P4 switch: Dataplane::configure.
  void configure(const dataplane::JobEntry& entry, const dataplane::Admission& admission);
  /// Removes all jobs; when it returns, no thread knows any job, and all cells are as at the start. Counters stay.
  void reset();
  /// Removes a job; when it returns, no thread knows the job any more. Returns false if none did.
  bool evict(std::uint16_t job);
  [[nodiscard]] dataplane::JobCounters counters(std::uint16_t job);
  [[nodiscard]] ServerStats stats();

  /// Ends the threads; packets are no longer answered. Idempotent. counters() and stats() keep the last figures.
  void stop();

 private:
  void require_process() const;
  void require_running() const;
  void require_ports(const dataplane::JobEntry& entry) const;
  void require_no_objection(std::uint16_t job, const std::function<const char*(const dataplane::Dataplane&)>& ask);
  void tell_all(std::uint16_t job, const std::function<bool(dataplane::Dataplane&)>& tell);
  void make_all(const std::function<void(dataplane::Dataplane&)>& change);
  /// Slots that one data thread serves for a job.
  struct Run {
    std::uint32_t slot_base;
    std::uint32_t slots;
    std::uint8_t holder;
  };
  [[nodiscard]] std::vector<Run> runs_of(const dataplane::JobEntry& entry) const;
  void gather_cells(const dataplane::JobEntry& entry);

  using Threads = std::vector<std::unique_ptr<DataThread>>;

  // One control call at a time, so that all threads see the same jobs in the same order.
  std::mutex control_;
  wire::Endpoint local_;
  unsigned ports_;
  dataplane::SwitchSizes sizes_;
  bool stopped_ = false;
  process::Owned<Threads> threads_;
  std::vector<std::uint8_t> cell_holders_;  // by slot: the data thread whose plane has its cells
};

}  // namespace wiresum::soft_switch
