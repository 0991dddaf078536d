// wiresum_sim: the Python module of the simulation, for tests only; it is not installed.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/engine.hpp"
#include "session/session.hpp"
#include "simulation.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace wiresum;

std::vector<sim::Roles> call(nb::handle roles_of, const std::vector<sim::Positions>& positions) {
  const nb::gil_scoped_acquire locked;
  std::vector<sim::Roles> roles;
  for (const nb::handle mine : roles_of(positions)) {
    const auto bytes = nb::cast<nb::bytes>(mine);
    const auto* const first = static_cast<const std::uint8_t*>(bytes.data());
    roles.emplace_back(first, first + bytes.size());
  }
  return roles;
}

/// Source address, destination address (each may be none), number of elements.
using Side = std::optional<std::uintptr_t>;
using Region = std::tuple<Side, Side, std::uint64_t>;

class Job {
 public:
  explicit Job(const sim::Scenario& scenario) : scenario_(scenario) {}

  void add(numeric::Dtype dtype, numeric::Scaling scaling, std::uint8_t bits, float fixed_scale, float divisor,
           bool may_be_sparse, std::uint16_t signature, const std::vector<std::vector<Region>>& regions,
           std::vector<worker::TimeNs> submit_at, std::optional<worker::TimeNs> timeout) {
    sim::Task task;
    for (const std::vector<Region>& mine : regions) {
      schedule::Request& request = task.requests.emplace_back();
      request = {.format = {dtype, scaling, bits},
                 .fixed_scale = fixed_scale,
                 .divisor = divisor,
                 .regions = {},
                 .signature = signature,
                 .may_be_sparse = may_be_sparse};
      for (const auto& [source, destination, elements] : mine) {
        worker::Region& region = request.regions.emplace_back();
        if (source) region.source = reinterpret_cast<const std::byte*>(*source);
        if (destination) region.destination = reinterpret_cast<std::byte*>(*destination);
        region.elements = elements;
      }
    }
    task.submit_at = std::move(submit_at);
    task.timeout = timeout;
    tasks_.push_back(std::move(task));
  }

  sim::Report run(nb::handle roles_of) {
    sim::JobPlan plan = this->plan(std::nullopt, std::nullopt);
    if (!roles_of.is_none()) plan.roles_of = [roles_of](const auto& positions) { return call(roles_of, positions); };
    const nb::gil_scoped_release unlocked;
    return sim::Simulation({std::move(plan)}).run().front();
  }

  [[nodiscard]] sim::JobPlan plan(std::optional<std::size_t> follows, std::optional<std::size_t> shares) {
    return {.scenario = scenario_,
            .tasks = std::exchange(tasks_, {}),
            .follows = follows,
            .shares = shares,
            .roles_of = nullptr};
  }

 private:
  sim::Scenario scenario_;
  std::vector<sim::Task> tasks_;
};

std::vector<sim::Report> run_together(const std::vector<Job*>& jobs,
                                      const std::vector<std::optional<std::size_t>>& follows,
                                      const std::vector<std::optional<std::size_t>>& shares) {
  std::vector<sim::JobPlan> plans;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    plans.push_back(
        jobs[i]->plan(follows.empty() ? std::nullopt : follows.at(i), shares.empty() ? std::nullopt : shares.at(i)));
  }
  return sim::Simulation(std::move(plans)).run();
}

}  // namespace

NB_MODULE(wiresum_sim, module) {
  nb::enum_<numeric::Dtype>(module, "Dtype")
      .value("F32", numeric::Dtype::kF32)
      .value("F16", numeric::Dtype::kF16)
      .value("BF16", numeric::Dtype::kBF16)
      .value("E4M3", numeric::Dtype::kE4M3)
      .value("E5M2", numeric::Dtype::kE5M2)
      .value("I32", numeric::Dtype::kI32)
      .value("RAW", numeric::Dtype::kRaw);
  nb::enum_<numeric::Scaling>(module, "Scaling")
      .value("NONE", numeric::Scaling::kNone)
      .value("BLOCK_EXPONENT", numeric::Scaling::kBlockExponent)
      .value("FIXED", numeric::Scaling::kFixed);
  nb::class_<sim::LinkConfig>(module, "Link")
      .def(nb::init<>())
      .def_rw("loss", &sim::LinkConfig::loss)
      .def_rw("duplicate", &sim::LinkConfig::duplicate)
      .def_rw("reorder", &sim::LinkConfig::reorder)
      .def_rw("reorder_ns_max", &sim::LinkConfig::reorder_ns_max)
      .def_rw("delay_ns", &sim::LinkConfig::delay_ns)
      .def_rw("jitter_ns", &sim::LinkConfig::jitter_ns)
      .def_rw("rate_bps", &sim::LinkConfig::rate_bps)
      .def_rw("burst_bytes", &sim::LinkConfig::burst_bytes)
      .def_rw("queue_bytes", &sim::LinkConfig::queue_bytes)
      .def_rw("mark_bytes", &sim::LinkConfig::mark_bytes);
  nb::class_<sim::WrongBits>(module, "WrongBits")
      .def(nb::init<>())
      .def_rw("up", &sim::WrongBits::up)
      .def_rw("down", &sim::WrongBits::down)
      .def_rw("cell", &sim::WrongBits::cell)
      .def_rw("flips_max", &sim::WrongBits::flips_max);
  nb::class_<sim::CrossTraffic>(module, "CrossTraffic")
      .def(nb::init<>())
      .def_rw("rate_bps", &sim::CrossTraffic::rate_bps)
      .def_rw("packet_bytes", &sim::CrossTraffic::packet_bytes)
      .def_rw("begin", &sim::CrossTraffic::begin)
      .def_rw("end", &sim::CrossTraffic::end)
      .def_rw("burst", &sim::CrossTraffic::burst)
      .def_rw("period", &sim::CrossTraffic::period);
  nb::enum_<worker::Status>(module, "Status")
      .value("OK", worker::Status::kOk)
      .value("TIMED_OUT", worker::Status::kTimedOut)
      .value("DIVERGED", worker::Status::kDiverged)
      .value("ABORTED", worker::Status::kAborted)
      .value("NO_MEMORY", worker::Status::kNoMemory)
      .value("IMPOSSIBLE", worker::Status::kImpossible)
      .value("WRONG_SUM", worker::Status::kWrongSum);
  nb::enum_<sim::Fault::Kind>(module, "FaultKind")
      .value("ABORT", sim::Fault::Kind::kAbort)
      .value("CLOSE", sim::Fault::Kind::kClose)
      .value("DEATH", sim::Fault::Kind::kDeath)
      .value("SWITCH_RESTART", sim::Fault::Kind::kSwitchRestart)
      .value("SWITCH_RETURN", sim::Fault::Kind::kSwitchReturn)
      .value("MOVE", sim::Fault::Kind::kMove);
  nb::class_<sim::Fault>(module, "Fault").def(nb::init<sim::Fault::Kind, std::uint32_t, worker::TimeNs>());
  nb::class_<sim::Stall>(module, "Stall").def(nb::init<std::uint32_t, worker::TimeNs, worker::TimeNs>());
  nb::class_<sim::Scenario>(module, "Scenario")
      .def(nb::init<>())
      .def_rw("seed", &sim::Scenario::seed)
      .def_rw("workers", &sim::Scenario::workers)
      .def_rw("hosts", &sim::Scenario::hosts)
      .def_rw("parents", &sim::Scenario::parents)
      .def_rw("leaves", &sim::Scenario::leaves)
      .def_rw("buffer_bytes", &sim::Scenario::buffer_bytes)
      .def_rw("buffer_factor", &sim::Scenario::buffer_factor)
      .def(
          "set_link",
          [](sim::Scenario& scenario, std::uint32_t number, const sim::LinkConfig& up, const sim::LinkConfig& down,
             bool of_switch) { scenario.other_links.push_back({{of_switch, number}, up, down}); },
          "number"_a, "up"_a, "down"_a, "of_switch"_a = false,
          "The link of a host, or of a switch to its parent, in place of `up` and `down`.")
      .def(
          "add_cross_traffic",
          [](sim::Scenario& scenario, std::uint32_t number, const sim::CrossTraffic& traffic, bool up, bool of_switch) {
            scenario.cross_traffic.push_back({{of_switch, number}, up, traffic});
          },
          "number"_a, "traffic"_a, "up"_a, "of_switch"_a = false,
          "On the link of a host, or of a switch to its parent, in one direction.")
      .def_rw("threads", &sim::Scenario::threads)
      .def_rw("lanes", &sim::Scenario::lanes)
      .def_rw("check_word", &sim::Scenario::check_word)
      .def_rw("wrong_bits", &sim::Scenario::wrong_bits)
      .def_rw("slots", &sim::Scenario::slots)
      .def_rw("round_first", &sim::Scenario::round_first)
      .def_rw("window_min", &sim::Scenario::window_min)
      .def_rw("window_initial", &sim::Scenario::window_initial)
      .def_rw("collectives_max", &sim::Scenario::collectives_max)
      .def_rw("rto_min", &sim::Scenario::rto_min)
      .def_rw("sparse_chunks_min", &sim::Scenario::sparse_chunks_min)
      .def_rw("interruption_max", &sim::Scenario::interruption_max)
      .def_rw("task_max", &sim::Scenario::task_max)
      .def_rw("device_delay_max", &sim::Scenario::device_delay_max)
      .def_rw("device_packets", &sim::Scenario::device_packets)
      .def_rw("callers_write", &sim::Scenario::callers_write)
      .def_rw("message_delay_max", &sim::Scenario::message_delay_max)
      .def_rw("move_max", &sim::Scenario::move_max)
      .def_rw("vote_lag_chunks", &sim::Scenario::vote_lag_chunks)
      .def_rw("exact_elements_max", &sim::Scenario::exact_elements_max)
      .def_rw("exact_when_wide", &sim::Scenario::exact_when_wide)
      .def_rw("time_max", &sim::Scenario::time_max)
      .def_rw("up", &sim::Scenario::up)
      .def_rw("down", &sim::Scenario::down)
      .def_rw("stalls", &sim::Scenario::stalls)
      .def_rw("faults", &sim::Scenario::faults);
  nb::class_<schedule::SparseStats>(module, "SparseStats")
      .def_ro("prologues", &schedule::SparseStats::prologues)
      .def_ro("streams", &schedule::SparseStats::streams)
      .def_ro("whole", &schedule::SparseStats::whole)
      .def_ro("refined", &schedule::SparseStats::refined)
      .def_ro("refinements", &schedule::SparseStats::refinements)
      .def_ro("blocks_skipped", &schedule::SparseStats::blocks_skipped)
      .def_ro("blocks_empty", &schedule::SparseStats::blocks_empty)
      .def_ro("bytes_saved", &schedule::SparseStats::bytes_saved);
  nb::class_<sim::Report>(module, "Report")
      .def_ro("finished", &sim::Report::finished)
      .def_ro("failure", &sim::Report::failure)
      .def_ro("time_ns", &sim::Report::time_ns)
      .def_ro("packets_sent", &sim::Report::packets_sent)
      .def_ro("bytes_sent", &sim::Report::bytes_sent)
      .def_ro("retransmissions", &sim::Report::retransmissions)
      .def_ro("questions", &sim::Report::questions)
      .def_ro("results", &sim::Report::results, "By call and worker; None: of the dead.")
      .def_ro("duplicates", &sim::Report::duplicates)
      .def_ro("rejected", &sim::Report::rejected)
      .def_ro("chunks_exact", &sim::Report::chunks_exact)
      .def_ro("chunks_wide", &sim::Report::chunks_wide)
      .def_ro("sums_wrong", &sim::Report::sums_wrong)
      .def_ro("flips", &sim::Report::flips)
      .def_ro("link_packets", &sim::Report::link_packets)
      .def_ro("link_lost", &sim::Report::link_lost)
      .def_ro("link_overflow", &sim::Report::link_overflow)
      .def_ro("link_marked", &sim::Report::link_marked)
      .def_ro("cross_packets", &sim::Report::cross_packets)
      .def_ro("cross_overflow", &sim::Report::cross_overflow)
      .def_ro("buffer_held_max", &sim::Report::buffer_held_max)
      .def_ro("packets_max", &sim::Report::packets_max)
      .def_ro("sparse", &sim::Report::sparse);
  // The shipped value, which differs from a Scenario's default.
  module.attr("RTO_MIN_NS") = engine::kRtoMinNs;
  module.attr("GREETING_CHUNKS") = session::kGreetingChunksPerThread;
  module.attr("SPARSE_CHUNKS_MIN") = schedule::SchedulerConfig{}.sparse_chunks_min;
  nb::class_<Job>(module, "Job")
      .def(nb::init<const sim::Scenario&>())
      .def("add", &Job::add, "dtype"_a, "scaling"_a, "bits"_a, "fixed_scale"_a, "divisor"_a, "may_be_sparse"_a,
           "signature"_a, "regions"_a, "submit_at"_a, "timeout"_a = nb::none(),
           "Regions by worker; the memory they point to must live until run() returns.")
      .def("run", &Job::run, "roles_of"_a = nb::none(),
           "`roles_of` gives each worker's role in each slot from each worker's positions, where the job moves.");
  module.def("run_together", &run_together, "jobs"_a, "follows"_a = std::vector<std::optional<std::size_t>>(),
             "shares"_a = std::vector<std::optional<std::size_t>>(), nb::call_guard<nb::gil_scoped_release>(),
             "Runs jobs on the same switches. For each, in `follows`: None, or which one before it must have ended, "
             "whose slots and number it takes. In `shares`: None, or which one before it has the hosts and links that "
             "it uses, too. Empty: None for all.");
}
