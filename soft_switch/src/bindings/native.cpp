// The module wiresum.switch._native: the software switch for Python. No logic.
//
// Addresses are 32-bit integers in host byte order, which wiresum.switch turns into text.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "server.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using wiresum::dataplane::JobCounters;
using wiresum::dataplane::JobEntry;
using wiresum::soft_switch::ServerStats;
using wiresum::soft_switch::SwitchServer;
using Address = std::pair<std::uint32_t, std::uint16_t>;

JobEntry entry_of(std::uint16_t job, std::uint32_t key, std::uint8_t threads, std::uint8_t port_offset,
                  std::uint16_t lanes, std::uint32_t slot_base, std::uint32_t slots,
                  const std::vector<Address>& endpoints) {
  JobEntry entry;
  if (endpoints.size() > entry.endpoints.size()) {
    throw std::invalid_argument("a job has at most 32 workers at a switch, not " + std::to_string(endpoints.size()));
  }
  entry.job = job;
  entry.key = key;
  entry.workers = static_cast<std::uint8_t>(endpoints.size());
  entry.threads = threads;
  entry.port_offset = port_offset;
  entry.lanes = lanes;
  entry.slot_base = slot_base;
  entry.slots = slots;
  for (std::size_t i = 0; i < endpoints.size(); ++i) entry.endpoints[i] = {endpoints[i].first, endpoints[i].second};
  return entry;
}

void admit(SwitchServer& server, std::uint16_t job, std::uint32_t key, std::uint8_t threads, std::uint8_t port_offset,
           std::uint16_t lanes, std::uint32_t slot_base, std::uint32_t slots, const std::vector<Address>& endpoints,
           const Address& results_group, const Address& parent, std::uint8_t number_at_parent) {
  JobEntry entry = entry_of(job, key, threads, port_offset, lanes, slot_base, slots, endpoints);
  entry.results_group = {results_group.first, results_group.second};
  entry.uplink = {.parent = {parent.first, parent.second}, .worker = number_at_parent};
  server.admit(entry);
}

void configure(SwitchServer& server, std::uint16_t job, std::uint32_t key, std::uint8_t threads,
               std::uint8_t port_offset, std::uint16_t lanes, std::uint32_t slot_base, std::uint32_t slots,
               const std::vector<Address>& endpoints,
               const std::array<std::uint32_t, wiresum::wire::kThreadsMax>& contributors,
               const std::array<Address, wiresum::wire::kSwitchWorkersMax>& sources, std::uint32_t receivers,
               const Address& results_group, const Address& parent, std::uint8_t number_at_parent) {
  wiresum::dataplane::Admission admission{.contributors = contributors, .receivers = receivers};
  for (std::size_t i = 0; i < sources.size(); ++i) admission.sources[i] = {sources[i].first, sources[i].second};
  JobEntry entry = entry_of(job, key, threads, port_offset, lanes, slot_base, slots, endpoints);
  entry.results_group = {results_group.first, results_group.second};
  entry.uplink = {.parent = {parent.first, parent.second}, .worker = number_at_parent};
  server.configure(entry, admission);
}

}  // namespace

// The macro declares the parameter.
NB_MODULE(_native, module) {  // NOLINT(performance-unnecessary-value-param)
  // A thread that is alive when the interpreter ends may hold a switch, which is no leak to warn of.
  nb::set_leak_warnings(false);
  nb::register_exception_translator([](const std::exception_ptr& exception, void*) {
    try {
      std::rethrow_exception(exception);
    } catch (const std::system_error& error) {
      const nb::object arguments = nb::make_tuple(error.code().value(), error.what());
      PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
  });

  nb::class_<JobCounters>(module, "JobCounters")
      .def_prop_ro("packets",
                   [](const JobCounters& c) { return std::vector<std::uint64_t>(c.packets.begin(), c.packets.end()); })
      .def_ro("results", &JobCounters::results)
      .def_prop_ro(
          "tensor_last",
          [](const JobCounters& c) { return std::vector<std::uint32_t>(c.tensor_last.begin(), c.tensor_last.end()); })
      .def_prop_ro("contributions", [](const JobCounters& c) {
        return std::vector<std::uint64_t>(c.contributions.begin(), c.contributions.end());
      });

  nb::class_<ServerStats>(module, "ServerStats")
      .def_ro("threads", &ServerStats::threads)
      .def_ro("transport", &ServerStats::transport)
      .def_ro("cpu_seconds", &ServerStats::cpu_seconds)
      .def_ro("datagrams_received", &ServerStats::datagrams_received)
      .def_ro("received_by_thread", &ServerStats::received_by_thread)
      .def_ro("datagrams_passed", &ServerStats::datagrams_passed)
      .def_ro("datagrams_sent", &ServerStats::datagrams_sent)
      .def_ro("receive_calls", &ServerStats::receive_calls)
      .def_ro("send_calls", &ServerStats::send_calls)
      .def_ro("send_failures", &ServerStats::send_failures)
      .def_ro("stray", &ServerStats::stray);

  nb::class_<SwitchServer>(module, "SwitchServer")
      .def(
          "__init__",
          [](SwitchServer* self, std::uint32_t address, std::uint16_t port, unsigned ports, unsigned threads,
             std::uint32_t slots, std::uint16_t lanes_max, std::uint16_t jobs_max, std::size_t receive_buffer_bytes,
             int spin_us, const std::string& transport) {
            new (self) SwitchServer({.local = {address, port},
                                     .ports = ports,
                                     .threads = threads,
                                     .sizes = {.slots = slots, .lanes_max = lanes_max, .jobs_max = jobs_max},
                                     .receive_buffer_bytes = receive_buffer_bytes,
                                     .spin_us = spin_us,
                                     .transport = wiresum::transport::spec_of(transport)});
          },
          nb::kw_only(), "address"_a, "port"_a, "ports"_a, "threads"_a, "slots"_a, "lanes_max"_a, "jobs_max"_a,
          "receive_buffer_bytes"_a, "spin_us"_a, "transport"_a)
      .def_prop_ro("local", [](const SwitchServer& s) { return Address(s.local().address, s.local().port); })
      .def("admit", &admit, nb::kw_only(), "job"_a, "key"_a, "threads"_a, "port_offset"_a, "lanes"_a, "slot_base"_a,
           "slots"_a, "endpoints"_a, "results_group"_a, "parent"_a, "number_at_parent"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("configure", &configure, nb::kw_only(), "job"_a, "key"_a, "threads"_a, "port_offset"_a, "lanes"_a,
           "slot_base"_a, "slots"_a, "endpoints"_a, "contributors"_a, "sources"_a, "receivers"_a, "results_group"_a,
           "parent"_a, "number_at_parent"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("reset", &SwitchServer::reset, nb::call_guard<nb::gil_scoped_release>())
      .def("evict", &SwitchServer::evict, "job"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("counters", &SwitchServer::counters, "job"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("stats", &SwitchServer::stats, nb::call_guard<nb::gil_scoped_release>())
      .def("stop", &SwitchServer::stop, nb::call_guard<nb::gil_scoped_release>());
}
