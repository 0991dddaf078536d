// wiresum.agent._native: the engine, as Python sees it. No logic; blocking calls release the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "capi.hpp"
#include "compression.hpp"
#include "engine/greeting.hpp"
#include "engine/engine.hpp"
#include "numeric/codec.hpp"
#include "transport/open.hpp"
#include "transport/udp/socket.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace wiresum;
using Address = std::uintptr_t;

/// Longest single wait in native code; longer ones are made of several, so that Python sees its signals.
constexpr double kWaitMaxS = 0.5;

std::chrono::nanoseconds bounded_wait(double seconds) {
  const double bounded = std::clamp(std::isnan(seconds) ? 0.0 : seconds, 0.0, kWaitMaxS);
  return std::chrono::nanoseconds(static_cast<std::int64_t>(bounded * 1e9));
}

/// Consecutive UDP ports on one address, bound before the job is joined, since joining says where they are.
class Ports {
 public:
  Ports(const std::string& address, std::size_t count, std::pair<std::uint16_t, std::uint16_t> within)
      : sockets_(transport::bind_within(transport::parse_ipv4(address), {.first = within.first, .last = within.second},
                                        count)) {}
  Ports(const Ports&) = delete;
  Ports& operator=(const Ports&) = delete;
  [[nodiscard]] std::uint16_t base_port() const { return sockets_.at(0).local().port; }
  std::vector<transport::UdpSocket> release() { return std::exchange(sockets_, {}); }

 private:
  std::vector<transport::UdpSocket> sockets_;
};

/// One of a session's aggregators, and the sockets for it, until the session takes them.
class Aggregator {
 public:
  Aggregator(const engine::AggregatorConfig& config, Ports& ports) : config_(config), sockets_(ports.release()) {}
  Aggregator(const Aggregator&) = delete;
  Aggregator& operator=(const Aggregator&) = delete;
  [[nodiscard]] const engine::AggregatorConfig& config() const { return config_; }
  std::vector<transport::UdpSocket> release() { return std::exchange(sockets_, {}); }

 private:
  engine::AggregatorConfig config_;
  std::vector<transport::UdpSocket> sockets_;
};

std::unique_ptr<Aggregator> make_aggregator(Ports& ports, std::uint16_t job, std::uint32_t key, std::uint8_t worker,
                                            std::uint16_t workers, std::uint16_t lanes, std::uint32_t slots,
                                            unsigned threads, const std::string& own_address,
                                            const std::string& switch_address, std::uint16_t switch_port,
                                            const std::string& group_address, std::uint16_t group_port) {
  engine::AggregatorConfig config;
  config.worker.job = job;
  config.worker.key = key;
  config.worker.worker = worker;
  config.worker.workers = workers;
  config.worker.lanes = lanes;
  config.worker.slots = slots;
  config.threads = threads;
  config.own_address = transport::parse_ipv4(own_address);
  config.switch_endpoint = {.address = transport::parse_ipv4(switch_address), .port = switch_port};
  if (group_port != 0) {
    config.results_group = {.address = transport::parse_ipv4(group_address), .port = group_port};
  }
  return std::make_unique<Aggregator>(config, ports);
}

std::unique_ptr<engine::Engine> make_session(const std::vector<Aggregator*>& aggregators, std::uint32_t rank,
                                              double spin_s, bool offload, const std::string& transport,
                                              const std::string& device, std::uint64_t exact_elements_max) {
  engine::EngineConfig config{
      .rank = rank,
      .aggregators = {},
      .spin_ns = static_cast<std::int64_t>(spin_s * 1e9),
      .transport = {.kind = transport::kind_of(transport), .device = device, .offload = offload},
      .exact_elements_max = exact_elements_max};
  std::vector<std::vector<transport::UdpSocket>> sockets;
  for (Aggregator* const aggregator : aggregators) {
    config.aggregators.push_back(aggregator->config());
    sockets.push_back(aggregator->release());
  }
  return std::make_unique<engine::Engine>(config, std::move(sockets));
}

std::size_t path_mtu(const std::string& local, const std::string& remote) {
  transport::UdpSocket socket({.address = transport::parse_ipv4(local), .port = 0});
  socket.connect({.address = transport::parse_ipv4(remote), .port = wire::kSwitchPort});
  return socket.path_mtu();
}

std::string source_address(const std::string& remote) {
  const std::uint32_t address =
      transport::source_address_towards({.address = transport::parse_ipv4(remote), .port = wire::kSwitchPort});
  const std::string text = transport::to_string({.address = address, .port = 0});
  return text.substr(0, text.find(':'));
}

/// Opens a transport for so many threads at some free ports of `address`, and closes it. What was obtained, as
/// Transport::name() says it.
std::string try_transport(const std::string& transport, const std::string& device, const std::string& address,
                          unsigned threads) {
  const transport::Spec spec{.kind = transport::kind_of(transport), .device = device};
  const std::uint32_t own = transport::parse_ipv4(address);
  const bool is_kernels = spec.kind != transport::Kind::kDpdk;
  std::vector<transport::UdpSocket> sockets = transport::bind_consecutive({is_kernels ? own : 0, 0}, threads);
  return transport::open_shares(spec, {.address = own, .peers = {}}, std::move(sockets), threads)
      .front()
      .transport->name();
}

using Regions = std::vector<std::tuple<Address, Address, std::uint64_t>>;

engine::Request make_request(const Regions& regions, const capi::Form& form, double timeout_s, bool notify) {
  const std::int64_t timeout_ns = timeout_s < 0 ? -1 : static_cast<std::int64_t>(std::min(timeout_s, 1e9) * 1e9);
  engine::Request request = request_of(form, timeout_ns, notify);
  request.work.regions.reserve(regions.size());
  for (const auto& [source, destination, elements] : regions) {
    request.work.regions.push_back({.source = reinterpret_cast<const std::byte*>(source),
                                    .destination = reinterpret_cast<std::byte*>(destination),
                                    .elements = elements});
  }
  return request;
}

capi::Form make_form(numeric::Dtype dtype, unsigned lane_bits, numeric::Scaling scaling, float fixed_scale,
                     float divisor, std::uint16_t signature, bool may_be_sparse) {
  return {.fixed_scale = fixed_scale,
          .divisor = divisor,
          .signature = signature,
          .dtype = static_cast<std::uint8_t>(dtype),
          .scaling = static_cast<std::uint8_t>(scaling),
          .lane_bits = static_cast<std::uint8_t>(lane_bits),
          .may_be_sparse = may_be_sparse};
}

void bind_enums(nb::module_& module) {
  nb::enum_<numeric::Dtype>(module, "Dtype")
      .value("F32", numeric::Dtype::kF32)
      .value("F16", numeric::Dtype::kF16)
      .value("BF16", numeric::Dtype::kBF16)
      .value("I32", numeric::Dtype::kI32)
      .value("RAW", numeric::Dtype::kRaw);
  nb::enum_<numeric::Scaling>(module, "Scaling")
      .value("NONE", numeric::Scaling::kNone)
      .value("BLOCK_EXPONENT", numeric::Scaling::kBlockExponent)
      .value("FIXED", numeric::Scaling::kFixed);
  nb::enum_<worker::Status>(module, "Status")
      .value("OK", worker::Status::kOk)
      .value("TIMED_OUT", worker::Status::kTimedOut)
      .value("DIVERGED", worker::Status::kDiverged)
      .value("ABORTED", worker::Status::kAborted)
      .value("NO_MEMORY", worker::Status::kNoMemory);
}

nb::dict dict_of(const engine::TrafficStats& stats) {
  nb::dict out;
  for (const engine::Counter& counter : engine::kCounters) out[counter.name] = stats.*counter.value;
  return out;
}

nb::dict stats_of(const engine::Engine& session) {
  const engine::EngineStats stats = session.stats();
  nb::dict out = dict_of(stats);
  nb::list aggregators;
  for (const engine::TrafficStats& aggregator : stats.aggregators) {
    aggregators.append(dict_of(aggregator));
  }
  out["aggregators"] = aggregators;
  out["transport"] = stats.transport;
  nb::dict sparse;
  sparse["prologues"] = stats.sparse.prologues;
  sparse["streams"] = stats.sparse.streams;
  sparse["whole"] = stats.sparse.whole;
  sparse["refined"] = stats.sparse.refined;
  sparse["refinements"] = stats.sparse.refinements;
  sparse["blocks_skipped"] = stats.sparse.blocks_skipped;
  sparse["blocks_empty"] = stats.sparse.blocks_empty;
  sparse["bytes_saved"] = stats.sparse.bytes_saved;
  out["sparse"] = sparse;
  out["exact_sums"] = stats.exact_sums;
  return out;
}

}  // namespace

NB_MODULE(_native, module) {
  // An exception that is alive when the interpreter ends holds objects of ours; that is no leak worth a user's time.
  nb::set_leak_warnings(false);
  bind_enums(module);
  bind_capi(module);
  bind_compression(module);
  module.def("instruction_set", &numeric::instruction_set);
  module.def("path_mtu", &path_mtu, "local"_a, "remote"_a);
  module.def("source_address", &source_address, "remote"_a);
  module.def("try_transport", &try_transport, "transport"_a, "device"_a, "address"_a, "threads"_a,
             nb::call_guard<nb::gil_scoped_release>());
  module.attr("LANES_MAX") = wire::kLanesMax;
  module.attr("WORKERS_MAX") = wire::kWorkersMax;
  module.attr("THREADS_MAX") = wire::kThreadsMax;
  module.attr("AGGREGATORS_MAX") = engine::kAggregatorsMax;
  module.attr("HEADER_BYTES") = wire::kHeaderBytes;
  module.attr("WIRE_VERSION") = wire::kVersion;

  nb::class_<Ports>(module, "Ports")
      .def(nb::init<const std::string&, std::size_t, std::pair<std::uint16_t, std::uint16_t>>(), "address"_a, "count"_a,
           "within"_a)
      .def_prop_ro("base_port", &Ports::base_port);

  nb::class_<engine::Operation>(module, "Operation")
      .def_prop_ro("token", &engine::Operation::token)
      .def_prop_ro("tensor", &engine::Operation::tensor)
      .def_prop_ro("done", &engine::Operation::done)
      .def_prop_ro("status", &engine::Operation::status)
      .def(
          "wait",
          [](const engine::Operation& operation, double timeout_s) { return operation.wait(bounded_wait(timeout_s)); },
          "timeout_s"_a, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<Aggregator>(module, "Aggregator")
      .def(nb::new_(&make_aggregator), nb::kw_only(), "ports"_a, "job"_a, "key"_a, "worker"_a, "workers"_a, "lanes"_a,
           "slots"_a, "threads"_a, "own_address"_a, "switch_address"_a, "switch_port"_a, "group_address"_a,
           "group_port"_a);

  nb::class_<capi::Form>(module, "Form")
      .def(nb::new_(&make_form), nb::kw_only(), "dtype"_a, "lane_bits"_a, "scaling"_a, "fixed_scale"_a, "divisor"_a,
           "signature"_a, "may_be_sparse"_a);

  nb::class_<engine::Engine>(module, "Session")
      .def(nb::new_(&make_session), "aggregators"_a, nb::kw_only(), "rank"_a, "spin_s"_a, "offload"_a, "transport"_a,
           "device"_a, "exact_elements_max"_a)
      .def(
          "submit",
          [](engine::Engine& session, const Regions& regions, const capi::Form& form, double timeout_s, bool notify) {
            engine::Request request = make_request(regions, form, timeout_s, notify);
            const nb::gil_scoped_release unlocked;
            return session.submit(std::move(request));
          },
          "regions"_a, "form"_a, nb::kw_only(), "timeout_s"_a, "notify"_a)
      .def(
          "take_completed",
          [](engine::Engine& session, double timeout_s) {
            std::vector<std::shared_ptr<engine::Operation>> taken;
            {
              const nb::gil_scoped_release unlocked;
              taken = session.take_completed(bounded_wait(timeout_s));
            }
            return taken;
          },
          "timeout_s"_a)
      .def("notify", &engine::Engine::notify, "operation"_a)
      .def_prop_ro("failed", &engine::Engine::failed)
      .def_prop_ro("standing",
                   [](const engine::Engine& session) {
                     const engine::Standing standing = session.standing();
                     return std::pair(standing.submitted, standing.oldest);
                   })
      .def("abort", &engine::Engine::abort, nb::call_guard<nb::gil_scoped_release>())
      .def("close", &engine::Engine::close, nb::call_guard<nb::gil_scoped_release>())
      .def("stats", &stats_of);

  nb::class_<engine::Greeting>(module, "Greeting")
      .def(nb::init<engine::Engine&, std::int64_t>(), "session"_a, "timeout_ns"_a, nb::keep_alive<1, 2>())
      .def_prop_ro("operation", &engine::Greeting::operation)
      .def("wrong", [](const engine::Greeting& greeting) -> std::optional<std::pair<std::int32_t, std::int32_t>> {
        const std::optional<engine::Greeting::Wrong> wrong = greeting.wrong();
        if (!wrong) return std::nullopt;
        return std::pair(wrong->found, wrong->expected);
      });
}
