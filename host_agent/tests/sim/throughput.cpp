// Goodput under loss: the cost of loss recovery, compared with the same run without loss and with the physical bound.
//
//   sim_throughput [workers] [link_mbit] [megabytes] [seeds] [slots] [window_min] [link_us]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "engine/engine.hpp"
#include "simulation.hpp"

namespace wiresum::sim {
namespace {

struct Setup {
  std::uint32_t workers = 8;
  double link_mbit = 100;
  double megabytes = 8;
  std::uint32_t seeds = 5;
  std::uint32_t slots = 128;
  std::uint32_t window_min = 32;
  double link_us = 75;  // a round trip of 0.3 ms has four crossings, and two serialisations
};

struct ThroughputResult {
  double seconds = 0;
  double amplification = 0;  // packets sent by workers, relative to a run without loss
  double rto_ms = 0;
  std::uint64_t overflow = 0;
};

ThroughputResult measure(const Setup& setup, double loss, std::uint64_t seed) {
  Scenario scenario;
  scenario.seed = seed;
  scenario.workers = setup.workers;
  scenario.slots = setup.slots;
  scenario.window_min = setup.window_min;
  scenario.rto_min = engine::kRtoMinNs;
  LinkConfig link;
  link.loss = loss;
  link.delay_ns = static_cast<TimeNs>(setup.link_us * 1e3);
  link.rate_bps = setup.link_mbit * 1e6;
  scenario.up = scenario.down = link;

  std::vector<std::vector<float>> tensors(setup.workers,
                                          std::vector<float>(static_cast<std::size_t>(setup.megabytes * 1e6 / 4), 1));
  Task task;
  for (std::vector<float>& tensor : tensors) {
    auto* bytes = reinterpret_cast<std::byte*>(tensor.data());
    schedule::Request& request = task.requests.emplace_back();
    request.regions = {{.source = bytes, .destination = bytes, .elements = tensor.size()}};
    task.submit_at.push_back(0);
  }
  const std::uint64_t chunks = worker::chunks_of(tensors[0].size(), {}, scenario.lanes);
  const std::uint64_t rounds = chunks + std::min<std::uint64_t>(chunks, scenario.slots);
  std::vector<Task> tasks;
  tasks.push_back(std::move(task));
  const Report report = simulate(scenario, std::move(tasks));
  if (!report.finished) {
    std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed), report.failure.c_str());
    std::exit(1);
  }
  return {.seconds = static_cast<double>(report.time_ns) / 1e9,
          .amplification = static_cast<double>(report.packets_sent) / static_cast<double>(rounds * setup.workers),
          .rto_ms = static_cast<double>(report.rto_ns) / 1e6,
          .overflow = report.link_overflow};
}

void print_row(const Setup& setup, double loss, double lossless_s) {
  std::vector<ThroughputResult> outcomes;
  for (std::uint32_t seed = 1; seed <= setup.seeds; ++seed) outcomes.push_back(measure(setup, loss, seed));
  std::sort(outcomes.begin(), outcomes.end(),
            [](const ThroughputResult& a, const ThroughputResult& b) { return a.seconds < b.seconds; });
  const ThroughputResult& median = outcomes[outcomes.size() / 2];
  // 1440 of 1506 bytes of a shaped packet are payload.
  const double bound_s = setup.megabytes * 8 / setup.link_mbit * 1506 / 1440;
  std::printf(
      "%6.2f%%  %9.3f ms, worst %9.3f  %8.1f Mbit/s  %6.3f of the bound  %6.3f of lossless  %6.3f packets sent/needed  "
      "RTO %5.1f ms  %llu overflowed\n",
      100 * loss, 1e3 * median.seconds, 1e3 * outcomes.back().seconds, setup.megabytes * 8 / median.seconds,
      bound_s / median.seconds, lossless_s / median.seconds, median.amplification, median.rto_ms,
      static_cast<unsigned long long>(median.overflow));
}

}  // namespace
}  // namespace wiresum::sim

int main(int argc, char** argv) {
  using namespace wiresum::sim;
  Setup setup;
  if (argc > 1) setup.workers = static_cast<std::uint32_t>(std::atoi(argv[1]));
  if (argc > 2) setup.link_mbit = std::atof(argv[2]);
  if (argc > 3) setup.megabytes = std::atof(argv[3]);
  if (argc > 4) setup.seeds = static_cast<std::uint32_t>(std::atoi(argv[4]));
  if (argc > 5) setup.slots = static_cast<std::uint32_t>(std::atoi(argv[5]));
  if (argc > 6) setup.window_min = static_cast<std::uint32_t>(std::atoi(argv[6]));
  if (argc > 7) setup.link_us = std::atof(argv[7]);
  const double lossless_s = measure(setup, 0, 1).seconds;
  std::printf("%u workers, %.0f Mbit/s, links of %.1f us, %.1f MB fp32, %u slots, window at least %u\n", setup.workers,
              setup.link_mbit, setup.link_us, setup.megabytes, setup.slots, setup.window_min);
  for (const double loss : {0.0, 0.0001, 0.001, 0.01, 0.05}) print_row(setup, loss, lossless_s);
}
