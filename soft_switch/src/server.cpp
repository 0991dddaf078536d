#include "server.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "data_thread.hpp"
#include "transport/udp/socket.hpp"

namespace wiresum::soft_switch {
namespace {

using dataplane::JobCounters;

constexpr unsigned kDefaultThreadsMax = 4;
constexpr std::chrono::microseconds kDefaultSpin{50};

unsigned cores() { return std::max(1u, std::thread::hardware_concurrency()); }

/// Half of the cores: workers on the same machine, or the network stack, need the others. A device gets one thread by
/// default, since each takes a core, and queues of the device.
unsigned threads_for(const ServerConfig& config) {
  const bool over_a_device = config.transport.kind != transport::TransportKind::kUdp;
  const unsigned by_default = over_a_device ? 1 : std::clamp(cores() / 2, 1u, kDefaultThreadsMax);
  return std::min(config.threads != 0 ? config.threads : by_default, config.ports);
}

/// Busy polling pays only where no other thread needs the core.
std::chrono::microseconds spin_for(const ServerConfig& config, unsigned threads) {
  if (config.spin_us >= 0) return std::chrono::microseconds(config.spin_us);
  return cores() > 2 * threads ? kDefaultSpin : std::chrono::microseconds(0);
}

[[noreturn]] void refuse(std::uint16_t job, const char* objection) {
  throw std::invalid_argument("cannot admit job " + std::to_string(job) + ": " + objection);
}

void add(JobCounters& sum, const JobCounters& counters) {
  for (std::size_t i = 0; i < sum.packets.size(); ++i) sum.packets[i] += counters.packets[i];
  sum.results += counters.results;
  // Each thread has seen its share of a worker's packets.
  for (std::size_t worker = 0; worker < wire::kSwitchWorkersMax; ++worker) {
    sum.add_contributions(worker, counters.contributions[worker], counters.tensor_last[worker]);
  }
}

}  // namespace

SwitchServer::SwitchServer(const ServerConfig& config)
    : ports_(config.ports), sizes_(config.sizes), threads_(new Threads), cell_holders_(config.sizes.slots) {
  if (config.ports == 0 || config.ports > wire::kThreadsMax) {  // R2.3
    throw std::invalid_argument("a switch listens on 1 to 16 ports, not " + std::to_string(config.ports));
  }
  const unsigned count = threads_for(config);
  const transport::PathConfig place{.address = config.local.address,
                                    .peers = {},
                                    .datagram_bytes_max = wire::kHeaderBytes + sizes_.lanes_max * wire::kWordBytes,
                                    .receive_buffer_bytes = config.receive_buffer_bytes};
  // The kernel does not know DPDK's addresses.
  const bool is_kernels = config.transport.kind != transport::TransportKind::kDpdk;
  std::vector<transport::UdpSocket> sockets =
      transport::bind_consecutive({is_kernels ? config.local.address : 0, config.local.port}, ports_);
  local_ = {config.local.address, sockets.front().local().port};
  if (config.transport.kind == transport::TransportKind::kUdp &&
      local_.address != 0) {  // else the routes decide which interface leads to a group
    for (transport::UdpSocket& socket : sockets) socket.send_groups_by(local_.address);
  }
  std::vector<transport::DataPath> paths =
      transport::open_for_threads(config.transport, place, std::move(sockets), count);
  for (unsigned thread = 0; thread < count; ++thread) {
    std::vector<std::uint8_t> ports;
    for (unsigned port = thread; port < ports_; port += count) ports.push_back(static_cast<std::uint8_t>(port));
    threads_->push_back(std::make_unique<DataThread>(
        sizes_, std::move(paths[thread]), std::move(ports), spin_for(config, count), config.answer_max,
        "data thread " + std::to_string(thread + 1) + " of " + std::to_string(count) + " of the switch"));
  }
}

SwitchServer::~SwitchServer() { stop(); }

/// Called before the lock is taken: in a forked child a thread that does not exist there may hold it.
void SwitchServer::require_process() const {
  if (threads_.get_deleter().home.is_here()) return;
  throw std::runtime_error("this switch belongs to the process that started it, not to a forked child");
}

void SwitchServer::require_running() const {
  if (stopped_) throw std::runtime_error("the switch was stopped");
}

void SwitchServer::require_ports(const dataplane::JobEntry& entry) const {
  const unsigned last = entry.port_offset + entry.threads - 1u;
  if (last < ports_) return;
  throw std::invalid_argument("the switch listens on " + std::to_string(ports_) +
                              " ports, too few for a job at ports " + std::to_string(entry.port_offset) + " to " +
                              std::to_string(last));
}

void SwitchServer::admit(const dataplane::JobEntry& entry) {
  require_process();
  const std::lock_guard lock(control_);
  require_running();
  require_ports(entry);
  require_no_objection(entry.job, [&](const dataplane::Dataplane& plane) { return plane.objection(entry); });
  tell_all(entry.job, [&](dataplane::Dataplane& plane) { return plane.admit(entry); });
  // The planes' cells have only other jobs' sums; from now on each cell is used in one plane.
  for (const Run& run : runs_of(entry)) std::fill_n(cell_holders_.begin() + run.slot_base, run.slots, run.holder);
}

void SwitchServer::configure(const dataplane::JobEntry& entry, const dataplane::Admission& admission) {
  require_process();
  const std::lock_guard lock(control_);
  require_running();
  require_ports(entry);
  require_no_objection(entry.job, [&](const dataplane::Dataplane& plane) { return plane.objection(entry, admission); });
  gather_cells(entry);
  tell_all(entry.job, [&](dataplane::Dataplane& plane) { return plane.configure(entry, admission); });
}

/// Throws before anything changes: a refused entry must not end the job that has its number. All planes know the same
/// jobs, and would object alike.
void SwitchServer::require_no_objection(std::uint16_t job,
                                        const std::function<const char*(const dataplane::Dataplane&)>& ask) {
  const char* objection = nullptr;
  DataThread& first = *threads_->front();
  first.run([&] { objection = ask(first.plane()); });
  if (objection != nullptr) refuse(job, objection);
}

/// Installs a job in every thread's plane, of which none objects. If one does not answer, all forget the job: a job
/// that only some threads know would hang.
void SwitchServer::tell_all(std::uint16_t job, const std::function<bool(dataplane::Dataplane&)>& tell) {
  try {
    for (const auto& thread : *threads_) {
      bool is_told = false;
      thread->run([&] { is_told = tell(thread->plane()); });
      if (!is_told) refuse(job, "the data plane refused it");
    }
  } catch (const std::exception& cause) {
    try {
      make_all([job](dataplane::Dataplane& plane) { plane.evict(job); });
    } catch (const std::exception& another) {
      throw std::runtime_error(std::string(cause.what()) + ". Job " + std::to_string(job) +
                               " was taken back from all data threads that answer; the others forget it before they "
                               "hear of anything else (" +
                               another.what() + ")");
    }
    throw;
  }
}

/// Changes every thread's plane. If a thread does not answer, the change is queued there before any later one, and this
/// throws after it has asked all threads.
void SwitchServer::make_all(const std::function<void(dataplane::Dataplane&)>& change) {
  std::exception_ptr failure;
  for (const auto& thread : *threads_) {
    try {
      thread->run([&] { change(thread->plane()); });
    } catch (...) {
      if (!failure) failure = std::current_exception();
      thread->run_later([change, &thread = *thread] { change(thread.plane()); });
    }
  }
  if (failure) std::rethrow_exception(failure);
}

std::vector<SwitchServer::Run> SwitchServer::runs_of(const dataplane::JobEntry& entry) const {
  const std::uint32_t slots = entry.slots / entry.threads;
  std::vector<Run> runs;
  for (std::uint32_t thread = 0; thread < entry.threads; ++thread) {
    const std::size_t port = entry.port_offset + thread;
    // R2.5
    runs.push_back({entry.slot_base + thread * slots, slots, static_cast<std::uint8_t>(port % threads_->size())});
  }
  return runs;
}

/// Moves the cells of a job that is not installed yet to the planes that will use them. Each plane has cells for all
/// slots, but a slot's cells are valid in one plane at a time: the one of the thread that owned the slot last. The next
/// job may divide its slots among the threads differently.
void SwitchServer::gather_cells(const dataplane::JobEntry& entry) {
  const Threads& threads = *threads_;
  for (const Run& run : runs_of(entry)) {
    const std::uint32_t end = run.slot_base + run.slots;
    for (std::uint32_t slot = run.slot_base, next = slot; slot < end; slot = next) {
      const std::uint8_t holder = cell_holders_[slot];
      while (next < end && cell_holders_[next] == holder) ++next;
      if (holder == run.holder) continue;
      // The source thread waits between two bursts until the other one has copied.
      const auto copy = [&] { threads[run.holder]->plane().take_cells(threads[holder]->plane(), slot, next - slot); };
      threads[holder]->run([&] { threads[run.holder]->run(copy); });
      std::fill(cell_holders_.begin() + slot, cell_holders_.begin() + next, run.holder);
    }
  }
}

void SwitchServer::reset() {
  require_process();
  const std::lock_guard lock(control_);
  require_running();
  make_all([](dataplane::Dataplane& plane) { plane.reset(); });
}

bool SwitchServer::evict(std::uint16_t job) {
  require_process();
  const std::lock_guard lock(control_);
  require_running();
  const auto known =
      std::make_shared<std::atomic<bool>>(false);  // a thread may use it after this function has returned
  make_all([job, known](dataplane::Dataplane& plane) {
    if (plane.evict(job)) known->store(true);
  });
  return known->load();
}

JobCounters SwitchServer::counters(std::uint16_t job) {
  require_process();
  const std::lock_guard lock(control_);
  JobCounters sum;
  for (const auto& thread : *threads_) thread->run([&] { add(sum, thread->plane().counters(job)); });
  return sum;
}

ServerStats SwitchServer::stats() {
  require_process();
  const std::lock_guard lock(control_);
  ServerStats sum;
  sum.threads = static_cast<unsigned>(threads_->size());
  sum.transport = threads_->front()->transport_name();
  for (const auto& thread : *threads_) {
    thread->run([&] {
      const transport::TransportStats& transport = thread->transport_stats();
      sum.cpu_seconds += thread->cpu_seconds();
      sum.datagrams_received += transport.datagrams_received;
      sum.received_by_thread.push_back(transport.datagrams_received);
      sum.datagrams_passed += transport.datagrams_passed;
      sum.datagrams_sent += transport.datagrams_sent;
      sum.receive_calls += transport.receive_calls;
      sum.send_calls += transport.send_calls;
      sum.send_failures += transport.send_failures + thread->results_lost();
      add(sum.stray, thread->plane().stray());
    });
  }
  return sum;
}

void SwitchServer::stop() {
  if (!threads_.get_deleter().home.is_here()) return;
  const std::lock_guard lock(control_);
  stopped_ = true;
  for (const auto& thread : *threads_) thread->stop();
}

}  // namespace wiresum::soft_switch
