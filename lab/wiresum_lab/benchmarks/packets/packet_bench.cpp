// The cost of a packet: in each layer by itself, and between two processes over a transport.
//
//   packet_bench layers
//       no network: a worker's sending and receiving, the switch's data plane, and what is compared with
//   packet_bench switch --transport T --workers N --address A --workers-at B
//       a switch of one job; says "ready" and its port when it serves, ends when its input ends
//   packet_bench workers --transport T --workers N --address B --switch-at A --switch-port P
//       --seconds S --cores 0,1
//       the workers of that job in one thread: all-reduces without a pause, then round trips of single chunks; and how
//       busy these cores were
//
// `make bench NAMES=packets` starts them, each pinned to a core, and makes a table. Everything is printed as JSON.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "dataplane.hpp"
#include "numeric/codec.hpp"
#include "server.hpp"
#include "transport/open.hpp"
#include "worker/chunks.hpp"
#include "worker/worker.hpp"

namespace {

using namespace wiresum;
using Clock = std::chrono::steady_clock;

constexpr std::uint16_t kJob = 1;
constexpr std::uint32_t kKey = 0xBEEF;
constexpr std::uint16_t kWorkerPort = 20'000;
constexpr std::uint8_t kWorkers = 8;  // for the cost of the data plane
constexpr std::uint16_t kLanes = 360;
constexpr std::size_t kPacketBytes = wire::kHeaderBytes + kLanes * wire::kWordBytes;
constexpr std::size_t kBurst = 44;
constexpr std::uint32_t kSlots = 512;
constexpr std::size_t kTensorFloats = 1'000'000;
constexpr numeric::Format kFormat{numeric::Dtype::kF32, numeric::Scaling::kBlockExponent, 32};
constexpr int kRepetitions = 9;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

worker::WorkerConfig worker_config(std::uint8_t worker, std::uint8_t workers) {
  worker::WorkerConfig config;
  config.job = kJob;
  config.key = kKey;
  config.worker = worker;
  config.workers = workers;
  config.lanes = kLanes;
  config.slots = kSlots;
  config.window_initial = kSlots;
  return config;
}

dataplane::JobEntry job_entry(std::uint32_t address, std::uint8_t workers, std::uint32_t slots) {
  dataplane::JobEntry entry{.job = kJob,
                            .key = kKey,
                            .workers = workers,
                            .threads = 1,
                            .lanes = kLanes,
                            .slot_base = 0,
                            .slots = slots,
                            .endpoints = {}};
  for (std::uint8_t i = 0; i < workers; ++i) {
    entry.endpoints[i] = {.address = address, .port = static_cast<std::uint16_t>(kWorkerPort + i)};
  }
  return entry;
}

/// A float all-reduce over memory that does not change, submitted again and again.
class Tensor {
 public:
  explicit Tensor(std::size_t floats, std::uint16_t element_words = kLanes)
      : element_words_(element_words), values_(floats, 0.5F), sums_(floats) {}

  worker::Collective work(std::uint32_t tensor) {
    region_ = {.source = reinterpret_cast<const std::byte*>(values_.data()),
               .destination = reinterpret_cast<std::byte*>(sums_.data()),
               .elements = values_.size()};
    worker::Collective work;
    work.tensor = tensor;
    work.format = kFormat;
    work.regions = {&region_, 1};
    work.chunk_end = static_cast<std::uint32_t>(worker::chunks_of(values_.size(), kFormat, element_words_));
    return work;
  }

 private:
  std::uint16_t element_words_;
  std::vector<float> values_;
  std::vector<float> sums_;
  worker::Region region_;
};

// ---- Layers ----

/// One worker, whose packets come back as its RESULTs: nanoseconds for each packet of `kLanes` words, for sending and
/// for receiving.
std::pair<double, double> worker_costs(bool check_word) {
  worker::WorkerConfig config = worker_config(0, 1);
  config.check_word = check_word;
  worker::Worker machine(config);
  Tensor tensor(kTensorFloats, config.element_words());
  std::vector<std::byte> memory(kBurst * kPacketBytes);
  std::array<wire::Packet, kBurst> buffers{};
  for (std::size_t i = 0; i < kBurst; ++i) buffers[i].data = memory.data() + i * kPacketBytes;
  std::int64_t send_ns = 0;
  std::int64_t receive_ns = 0;
  std::uint64_t packets = 0;
  for (std::uint32_t number = 0; number < 20; ++number) {
    if (!machine.submit(tensor.work(number))) throw std::logic_error("the worker takes no collective");
    while (!machine.poll_completion().has_value()) {
      const std::int64_t begin = now_ns();
      const std::size_t count = machine.poll_transmit(begin, buffers);
      const std::int64_t sent = now_ns();
      for (std::size_t i = 0; i < count; ++i) {
        wire::Header header;
        const std::span<std::byte> bytes(buffers[i].data, buffers[i].bytes);
        if (wire::decode(bytes, header) != wire::ParseError::kNone) throw std::logic_error("no packet of ours");
        header.kind = wire::Kind::kResult;
        wire::encode(header, bytes.first<wire::kHeaderBytes>());
      }
      const std::int64_t answered = now_ns();
      for (std::size_t i = 0; i < count; ++i) machine.handle_datagram(answered, {buffers[i].data, buffers[i].bytes});
      receive_ns += now_ns() - answered;
      send_ns += sent - begin;
      packets += count;
    }
  }
  const auto count = static_cast<double>(packets);
  return {static_cast<double>(send_ns) / count, static_cast<double>(receive_ns) / count};
}

/// Nanoseconds for each contribution, when eight workers' packets go to the slots of a lease in turn.
double dataplane_cost(std::uint32_t slots) {
  dataplane::Dataplane plane({.slots = slots, .lanes_max = kLanes, .jobs_max = 2});
  const dataplane::JobEntry entry = job_entry(0x0A000001, kWorkers, slots);
  if (!plane.admit(entry)) throw std::logic_error("the switch does not admit the job");
  // A received burst is in the cache, in whichever buffers it arrived.
  std::vector<std::byte> datagrams(kWorkers * kPacketBytes, std::byte{1});
  std::vector<std::byte> answer(kPacketBytes);
  std::array<dataplane::Arrival, kWorkers> arrivals{};
  constexpr std::uint32_t kRounds = 40;
  const std::int64_t begin = now_ns();
  for (std::uint32_t round = 1; round <= kRounds; ++round) {
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      for (std::uint8_t i = 0; i < kWorkers; ++i) {
        const std::span<std::byte> bytes(datagrams.data() + i * kPacketBytes, kPacketBytes);
        wire::encode({.kind = wire::Kind::kData,
                      .job = kJob,
                      .key = kKey,
                      .worker = i,
                      .cell = wire::cell_of(slot, round),
                      .round = round},
                     bytes.first<wire::kHeaderBytes>());
        arrivals[i] = dataplane::read(entry.endpoints[i], 0, bytes);
      }
      // Packets of several slots come in a burst, so the next slot's cell is prefetched while this slot's packets are
      // handled.
      dataplane::Arrival next = arrivals[0];
      next.header.cell = wire::cell_of((slot + 1) % slots, round);
      plane.prefetch(next);
      for (const dataplane::Arrival& arrival : arrivals) {
        const dataplane::Decision decision = plane.handle(arrival);
        if (decision.verdict == dataplane::Verdict::kMulticast) {
          wire::Packet packet{.data = answer.data(), .bytes = 0};
          decision.write(packet);
        }
      }
    }
  }
  return static_cast<double>(now_ns() - begin) / (double{kRounds} * slots * kWorkers);
}

double cost_of(const std::function<void()>& step) {
  constexpr int kSteps = 200'000;
  const std::int64_t begin = now_ns();
  for (int i = 0; i < kSteps; ++i) step();
  return static_cast<double>(now_ns() - begin) / kSteps;
}

void layers() {
  std::map<std::string, std::vector<double>> costs;
  std::vector<std::byte> lanes(kLanes * wire::kWordBytes);
  std::vector<std::byte> payload(lanes.size(), std::byte{1});
  const auto add_worker = [&costs](const std::string& with, bool check_word) {
    const auto [send, receive] = worker_costs(check_word);
    costs["worker send" + with].push_back(send);
    costs["worker receive" + with].push_back(receive);
  };
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    add_worker("", false);
    costs["data plane, 128 slots"].push_back(dataplane_cost(128));
    costs["data plane, 512 slots"].push_back(dataplane_cost(512));
    costs["add of a payload"].push_back(cost_of([&] { numeric::accumulate(lanes.data(), payload.data(), kLanes); }));
    costs["memcpy of a payload"].push_back(cost_of([&] {
      std::memcpy(lanes.data(), payload.data(), payload.size());
      asm volatile("" : : "r"(lanes.data()) : "memory");
    }));
  }
  // Not in turns with the others: where one run's tensors lie in memory changes what the next one costs, by a tenth.
  for (int repetition = 0; repetition < kRepetitions; ++repetition) add_worker(", check word", true);
  std::string out;
  for (const auto& [name, values] : costs) {
    out += (out.empty() ? "" : ", ") + ("\"" + name + "\": " + std::to_string(median(values)));
  }
  std::printf("{%s}\n", out.c_str());
}

// ---- Both ends of a transport ----

using Options = std::map<std::string, std::string>;

std::uint8_t workers_of(const Options& options) { return static_cast<std::uint8_t>(std::stoi(options.at("workers"))); }

void serve(const Options& options) {
  soft_switch::ServerConfig config{.local = {.address = transport::parse_ipv4(options.at("address"))},
                                   .ports = 1,
                                   .threads = 1,
                                   .sizes = {.slots = kSlots, .lanes_max = kLanes, .jobs_max = 2},
                                   .spin_us = std::stoi(options.at("spin-us")),
                                   .transport = transport::spec_of(options.at("transport"))};
  soft_switch::SwitchServer server(config);
  server.admit(job_entry(transport::parse_ipv4(options.at("workers-at")), workers_of(options), kSlots));
  std::printf("ready %u\n", static_cast<unsigned>(server.local().port));
  std::fflush(stdout);
  while (std::cin.get() != EOF) {
  }
  const soft_switch::ServerStats stats = server.stats();
  std::printf("{\"transport\": \"%s\", \"received\": %llu, \"sent\": %llu, \"failures\": %llu, \"cpu_s\": %.6f}\n",
              stats.transport.c_str(), static_cast<unsigned long long>(stats.datagrams_received),
              static_cast<unsigned long long>(stats.datagrams_sent),
              static_cast<unsigned long long>(stats.send_failures), stats.cpu_seconds);
}

/// Several state machines in one thread. Over sockets each has its own transport; over a device they share one.
class Workers {
 public:
  Workers(const transport::Spec& spec, std::uint8_t count, std::uint32_t address, wire::Endpoint switch_at)
      : switch_at_(switch_at), pending_(count) {
    const bool is_kernels = spec.kind != transport::TransportKind::kDpdk;
    std::vector<transport::UdpSocket> sockets =
        transport::bind_consecutive({.address = is_kernels ? address : 0, .port = kWorkerPort}, count);
    const transport::PathConfig place{
        .address = address, .peers = std::vector<wire::Endpoint>(count, switch_at), .datagram_bytes_max = kPacketBytes};
    const bool over_sockets = spec.kind == transport::TransportKind::kUdp;
    for (transport::UdpSocket& socket : sockets) {
      if (over_sockets) socket.connect(switch_at);
    }
    paths_ = transport::open_for_threads(spec, place, std::move(sockets), over_sockets ? count : 1U);
    for (std::uint8_t i = 0; i < count; ++i) {
      machines_.push_back(std::make_unique<worker::Worker>(worker_config(i, count)));
      tensors_.push_back(std::make_unique<Tensor>(kTensorFloats));
    }
  }

  /// Runs all-reduces for this long, and ends when all that were begun have completed. Returns how many there were.
  std::uint32_t stream(double seconds) {
    std::vector<std::uint32_t> begun(machines_.size());
    const std::int64_t end = now_ns() + static_cast<std::int64_t>(seconds * 1e9);
    std::uint32_t last = UINT32_MAX;  // the newest collective's number, the same at all workers
    for (std::size_t ended = 0; ended != machines_.size();) {
      if (now_ns() > end && last == UINT32_MAX) last = *std::max_element(begun.begin(), begun.end());
      step();
      ended = 0;
      for (std::size_t i = 0; i < machines_.size(); ++i) {
        while (machines_[i]->poll_completion().has_value()) --pending_[i];
        if (pending_[i] < 2 && begun[i] < last) {
          if (!machines_[i]->submit(tensors_[i]->work(begun[i]++))) throw std::logic_error("too many collectives");
          ++pending_[i];
        }
        ended += begun[i] >= last && pending_[i] == 0 ? 1 : 0;
      }
    }
    return last;
  }

  /// The median time in nanoseconds from the first worker's packet of a chunk to the last worker's RESULT. Each
  /// collective has one chunk and takes two rounds: one for the first exponents, one for the words.
  double round_trip_ns() {
    constexpr int kTrips = 5'000;
    std::vector<double> trips;
    Tensor chunk(kLanes);
    for (std::uint32_t trip = 0; trip < kTrips; ++trip) {
      const std::int64_t begin = now_ns();
      for (std::size_t i = 0; i < machines_.size(); ++i) {
        if (!machines_[i]->submit(chunk.work(1u << 15 | trip))) throw std::logic_error("too many collectives");
        ++pending_[i];
      }
      for (std::size_t pending = machines_.size(); pending != 0;) {
        step();
        for (std::size_t i = 0; i < machines_.size(); ++i) {
          while (machines_[i]->poll_completion().has_value()) {
            --pending_[i];
            --pending;
          }
        }
      }
      trips.push_back(static_cast<double>(now_ns() - begin) / 2);
    }
    return median(trips);
  }

  [[nodiscard]] const transport::Transport& transport() const { return *paths_.front().transport; }
  [[nodiscard]] std::uint64_t datagrams() const {
    std::uint64_t sum = 0;
    for (const transport::DataPath& path : paths_) {
      sum += path.transport->stats().datagrams_sent + path.transport->stats().datagrams_received;
    }
    return sum;
  }
  [[nodiscard]] std::uint64_t repeats() const {
    std::uint64_t sum = 0;
    for (const auto& machine : machines_) sum += machine->stats().retransmissions + machine->stats().questions;
    return sum;
  }

 private:
  void step() {
    for (std::size_t path = 0; path < paths_.size(); ++path) {
      transport::Transport& transport = *paths_[path].transport;
      const std::size_t count = transport.receive(datagrams_);
      const std::int64_t now = now_ns();
      for (const transport::RxDatagram& datagram : std::span(datagrams_).first(count)) {
        machines_[path + datagram.port]->handle_datagram(now, datagram.bytes);
      }
    }
    for (std::size_t i = 0; i < machines_.size(); ++i) {
      const bool shared = paths_.size() != machines_.size();
      transport::Transport& transport = *paths_[shared ? 0 : i].transport;
      for (std::size_t count = kBurst; count == kBurst;) {
        count = machines_[i]->poll_transmit(now_ns(), transport.buffers(kBurst));
        if (count != 0) transport.send(count, {&switch_at_, 1}, static_cast<std::uint8_t>(shared ? i : 0), false);
      }
    }
  }

  wire::Endpoint switch_at_;
  std::vector<transport::DataPath> paths_;
  std::vector<std::unique_ptr<worker::Worker>> machines_;
  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::vector<std::uint32_t> pending_;  // incomplete collectives, by worker
  std::array<transport::RxDatagram, 256> datagrams_{};
};

/// The time for which the cores, as in "0,1", have been busy since the system started, with anything.
double busy_seconds(const std::string& cores) {
  std::ifstream stat("/proc/stat");
  double ticks = 0;
  for (std::string line; std::getline(stat, line) && line.starts_with("cpu");) {
    std::istringstream fields(line);
    std::string name;
    std::array<double, 7> times{};  // user, nice, system, idle, iowait, irq, softirq
    fields >> name;
    for (double& time : times) fields >> time;
    const bool wanted = name.size() > 3 && ("," + cores + ",").find("," + name.substr(3) + ",") != std::string::npos;
    if (wanted) ticks += times[0] + times[1] + times[2] + times[5] + times[6];
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

void work(const Options& options) {
  const wire::Endpoint switch_at{.address = transport::parse_ipv4(options.at("switch-at")),
                                 .port = static_cast<std::uint16_t>(std::stoi(options.at("switch-port")))};
  Workers workers(transport::spec_of(options.at("transport")), workers_of(options),
                  transport::parse_ipv4(options.at("address")), switch_at);
  static_cast<void>(workers.stream(0.2));  // resolves neighbours, and warms caches and windows
  const std::uint64_t datagrams = workers.datagrams();
  const std::uint64_t repeats = workers.repeats();
  const double busy = busy_seconds(options.at("cores"));
  const std::int64_t begin = now_ns();
  const std::uint32_t sums = workers.stream(std::stod(options.at("seconds")));
  const double seconds = static_cast<double>(now_ns() - begin) * 1e-9;
  std::printf("{\"transport\": \"%s\", \"seconds\": %.6f, \"core_seconds\": %.2f, ", workers.transport().name(),
              seconds, busy_seconds(options.at("cores")) - busy);
  std::printf("\"goodput_gbit\": %.3f, ", 32e-9 * static_cast<double>(kTensorFloats) * sums / seconds);
  std::printf("\"datagrams\": %llu, \"repeats\": %llu, ",
              static_cast<unsigned long long>(workers.datagrams() - datagrams),
              static_cast<unsigned long long>(workers.repeats() - repeats));
  std::printf("\"round_trip_ns\": %.0f}\n", workers.round_trip_ns());
}

int usage() {
  std::fprintf(stderr, "usage: packet_bench layers | switch --OPTION VALUE ... | workers --OPTION VALUE ...\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc % 2 != 0) return usage();
  Options options;
  for (int i = 2; i < argc; i += 2) options[std::string(argv[i]).substr(2)] = argv[i + 1];
  numeric::set_default_float_environment();
  const std::string role = argv[1];
  try {
    if (role == "layers") {
      layers();
    } else if (role == "switch") {
      serve(options);
    } else if (role == "workers") {
      work(options);
    } else {
      return usage();
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "packet_bench %s: %s\n", role.c_str(), error.what());
    return 1;
  }
  return 0;
}
