// The module wiresum.agent._native: sessions for Python. No logic; blocking calls release the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
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

#include "numeric/codec.hpp"
#include "parts.hpp"
#include "python_membership.hpp"
#include "session/session.hpp"
#include "transport/open.hpp"
#include "transport/udp/socket.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace wiresum;
using Address = std::uintptr_t;

/// The longest single wait in native code; longer ones consist of several, so that Python sees its signals.
constexpr std::chrono::nanoseconds kWaitMax{500'000'000};

std::chrono::nanoseconds duration_of(double seconds) {
  constexpr double kSecondsMax = 1e9;
  const double bounded = std::clamp(std::isnan(seconds) ? 0.0 : seconds, 0.0, kSecondsMax);
  return std::chrono::nanoseconds(static_cast<std::int64_t>(bounded * 1e9));
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

/// Opens a transport for so many threads at some free ports of `address`, and closes it. Returns Transport::name().
std::string try_transport(const std::string& transport, const std::string& address, unsigned threads) {
  const transport::Spec spec = transport::spec_of(transport);
  const std::uint32_t own = transport::parse_ipv4(address);
  const bool is_kernels = spec.kind != transport::TransportKind::kDpdk;
  std::vector<transport::UdpSocket> sockets = transport::bind_consecutive({is_kernels ? own : 0, 0}, threads);
  return transport::open_for_threads(spec, {.address = own, .peers = {}}, std::move(sockets), threads)
      .front()
      .transport->name();
}

/// None stands for memory that this worker does not read or write; 0 is a null pointer, which is refused.
using Side = std::optional<Address>;
using Regions = std::vector<std::tuple<Side, Side, std::uint64_t>>;

engine::Request make_request(const Regions& regions, const capi::Form& form, double timeout_s, bool notify) {
  const std::int64_t timeout_ns = timeout_s < 0 ? -1 : duration_of(timeout_s).count();
  engine::Request request = request_of(form, timeout_ns, notify);
  request.work.regions.reserve(regions.size());
  for (const auto& [source, destination, elements] : regions) {
    worker::Region& region = request.work.regions.emplace_back();
    if (source) region.source = reinterpret_cast<const std::byte*>(*source);
    if (destination) region.destination = reinterpret_cast<std::byte*>(*destination);
    region.elements = elements;
  }
  return request;
}

capi::Form make_form(numeric::Dtype dtype, unsigned bits, numeric::Scaling scaling, float fixed_scale, float divisor,
                     std::uint16_t signature, bool may_be_sparse,
                     std::optional<std::pair<numeric::Element, numeric::Operator>> reduction) {
  const auto [element, op] = reduction.value_or(std::pair<numeric::Element, numeric::Operator>{});
  return {.fixed_scale = fixed_scale,
          .divisor = divisor,
          .signature = signature,
          .dtype = static_cast<std::uint8_t>(dtype),
          .scaling = static_cast<std::uint8_t>(scaling),
          .bits = static_cast<std::uint8_t>(bits),
          .may_be_sparse = may_be_sparse,
          .reduces = reduction.has_value(),
          .element = static_cast<std::uint8_t>(element),
          .op = static_cast<std::uint8_t>(op)};
}

void bind_enums(nb::module_& module) {
  nb::enum_<numeric::Dtype>(module, "Dtype")
      .value("F32", numeric::Dtype::kF32)
      .value("F16", numeric::Dtype::kF16)
      .value("BF16", numeric::Dtype::kBF16)
      .value("E4M3", numeric::Dtype::kE4M3)
      .value("E5M2", numeric::Dtype::kE5M2)
      .value("I32", numeric::Dtype::kI32)
      .value("RAW", numeric::Dtype::kRaw);
  nb::enum_<numeric::Element>(module, "Element")
      .value("F64", numeric::Element::kF64)
      .value("F32", numeric::Element::kF32)
      .value("F16", numeric::Element::kF16)
      .value("BF16", numeric::Element::kBF16)
      .value("I64", numeric::Element::kI64)
      .value("I32", numeric::Element::kI32)
      .value("I8", numeric::Element::kI8)
      .value("U8", numeric::Element::kU8)
      .value("BOOL", numeric::Element::kBool);
  nb::enum_<numeric::Operator>(module, "Operator")
      .value("SUM", numeric::Operator::kSum)
      .value("PRODUCT", numeric::Operator::kProduct)
      .value("MIN", numeric::Operator::kMin)
      .value("MAX", numeric::Operator::kMax)
      .value("BAND", numeric::Operator::kAnd)
      .value("BOR", numeric::Operator::kOr)
      .value("BXOR", numeric::Operator::kXor);
  nb::enum_<numeric::Scaling>(module, "Scaling")
      .value("NONE", numeric::Scaling::kNone)
      .value("BLOCK_EXPONENT", numeric::Scaling::kBlockExponent)
      .value("FIXED", numeric::Scaling::kFixed);
}

nb::dict dict_of(const engine::TrafficStats& stats) {
  nb::dict out;
  for (const engine::Counter& counter : engine::kCounters) out[counter.name] = stats.*counter.value;
  return out;
}

nb::dict stats_of(const session::Session& session) {
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

/// Raises the exception of a signal that interrupted a wait. Needs no GIL.
void check_signals() {
  const nb::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

std::shared_ptr<session::Session> join(const nb::object& object, const std::string& job) {
  process::Owned<session::Membership> membership(new PythonMembership(object));
  const nb::gil_scoped_release unlocked;
  return session::Session::join(job, std::move(membership), check_signals);
}

session::Call submit(session::Session& session, const Regions& regions, const capi::Form& form, double timeout_s,
                     bool notify, bool caller_waits) {
  engine::Request request = make_request(regions, form, timeout_s, notify);
  request.caller_waits = caller_waits;
  const nb::gil_scoped_release unlocked;
  return session.submit(std::move(request));
}

std::vector<session::Call> take_completed(session::Session& session, double timeout_s) {
  const nb::gil_scoped_release unlocked;
  return session.take_completed(std::min(duration_of(timeout_s), kWaitMax));
}

void abort_session(session::Session& session, nb::handle error) {
  const session::Failure failure = failure_of(error);
  const nb::gil_scoped_release unlocked;
  session.abort(failure);
}

[[noreturn]] void raise_error(nb::handle error) {
  PyErr_SetObject(error.type().ptr(), error.ptr());
  throw nb::python_error();
}

nb::object error_of_call(const session::Call& call) {
  const session::Failure* failure = nullptr;
  {
    const nb::gil_scoped_release unlocked;  // the membership may be asked
    failure = call.failure();
  }
  return error_of(failure);
}

void wait(const session::Call& call, std::optional<double> timeout_s) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = timeout_s ? Clock::now() + duration_of(*timeout_s) : Clock::time_point::max();
  while (true) {
    bool is_done = false;
    {
      const nb::gil_scoped_release unlocked;
      const auto left = timeout_s ? std::chrono::nanoseconds(deadline - Clock::now()) : kWaitMax;
      is_done = call.operation->wait(std::clamp(left, std::chrono::nanoseconds(0), kWaitMax));
    }
    if (is_done) break;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (Clock::now() >= deadline) {
      PyErr_Format(PyExc_TimeoutError, "the collective was not complete after %S s", nb::cast(*timeout_s).ptr());
      throw nb::python_error();
    }
  }
  if (const nb::object error = error_of_call(call); !error.is_none()) raise_error(error);
}

void bind_session(nb::module_& module) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const session::Failure& failure) {
      const nb::object error = error_of(&failure);
      PyErr_SetObject(error.type().ptr(), error.ptr());
    }
  });
  nb::class_<session::Call>(module, "Operation")
      .def_prop_ro("token", [](const session::Call& call) { return call.operation->token(); })
      .def_prop_ro("number", [](const session::Call& call) { return call.operation->tensor() & 0xFFFFU; })
      .def("done", [](const session::Call& call) { return call.operation->done(); })
      .def_prop_ro("error", &error_of_call)
      .def("wait", &wait, "timeout_s"_a = nb::none());
  nb::class_<session::Session>(module, "Session")
      .def_static("join", &join, "membership"_a, "job_name"_a)
      .def_prop_ro("rank", &session::Session::rank)
      .def_prop_ro("world_size", &session::Session::world_size)
      .def_prop_ro("lanes", [](const session::Session& session) { return session.grant().lanes(); })
      .def_prop_ro("threads", [](const session::Session& session) { return session.grant().threads(); })
      .def_prop_ro("sparse", [](const session::Session& session) { return session.grant().sparse; })
      .def_prop_ro("switches", [](const session::Session& session) { return session.grant().switches; })
      .def("submit", &submit, "regions"_a, "form"_a, nb::kw_only(), "timeout_s"_a, "notify"_a, "caller_waits"_a = false)
      .def("take_completed", &take_completed, "timeout_s"_a)
      .def("notify", &session::Session::notify, "operation"_a)
      .def_prop_ro("failure", [](const session::Session& session) { return error_of(session.failure()); })
      .def_prop_ro("standing",
                   [](const session::Session& session) {
                     const engine::Standing standing = session.standing();
                     return std::pair(standing.submitted, standing.oldest);
                   })
      .def("abort", &abort_session, "error"_a)
      .def("leave", &session::Session::leave, nb::call_guard<nb::gil_scoped_release>())
      .def("stats", &stats_of);
}

}  // namespace

NB_MODULE(_native, module) {
  // An exception that is alive when the interpreter ends holds our objects, which is no leak to warn of.
  nb::set_leak_warnings(false);
  bind_enums(module);
  bind_capi(module);
  bind_compression(module);
  bind_digit_sums(module);
  module.def("instruction_set", &numeric::instruction_set);
  module.def("path_mtu", &path_mtu, "local"_a, "remote"_a);
  module.def("source_address", &source_address, "remote"_a);
  module.def(
      "interface_with",
      [](const std::string& address) { return transport::interface_with(transport::parse_ipv4(address)); },
      "address"_a);
  module.def("try_transport", &try_transport, "transport"_a, "address"_a, "threads"_a,
             nb::call_guard<nb::gil_scoped_release>());

  nb::class_<capi::Form>(module, "Form")
      .def(nb::new_(&make_form), nb::kw_only(), "dtype"_a, "bits"_a, "scaling"_a, "fixed_scale"_a, "divisor"_a,
           "signature"_a, "may_be_sparse"_a, "reduction"_a);

  bind_session(module);
}
