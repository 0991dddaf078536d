#include "parts.hpp"

#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <span>
#include <utility>

namespace nb = nanobind;

namespace wiresum::capi {

struct Operation {
  session::Call call;
};

namespace {

void* session_of(PyObject* session) {
  session::Session* found = nullptr;
  if (nb::try_cast(nb::handle(session), found) && found != nullptr) return found;
  PyErr_SetString(PyExc_TypeError, "not a _native.Session");
  return nullptr;
}

bool form_of(PyObject* object, Form* form) {
  const Form* found = nullptr;
  if (!nb::try_cast(nb::handle(object), found) || found == nullptr) {
    PyErr_SetString(PyExc_TypeError, "not a _native.Form");
    return false;
  }
  *form = *found;
  return true;
}

bool is_usable(void* session) { return static_cast<session::Session*>(session)->is_usable(); }

Operation* submit(void* session, const Form* form, const Region* regions, std::size_t count, std::int64_t timeout_ns,
                  bool caller_waits) {
  try {
    engine::Request request = request_of(*form, timeout_ns, false);
    request.caller_waits = caller_waits;
    request.work.regions.reserve(count);
    for (const Region& region : std::span(regions, count)) {
      request.work.regions.push_back(
          {.source = region.gives ? worker::Source(static_cast<const std::byte*>(region.source)) : worker::Source(),
           .destination = static_cast<std::byte*>(region.destination),
           .elements = region.elements});
    }
    return new Operation{static_cast<session::Session*>(session)->submit(std::move(request))};
  } catch (const std::exception&) {
    return nullptr;  // the caller then asks Python, which raises the exception again
  }
}

bool wait(const Operation* operation, std::int64_t timeout_ns) {
  return operation->call.operation->wait(std::chrono::nanoseconds(timeout_ns));
}

bool is_done(const Operation* operation) { return operation->call.operation->done(); }

bool has_failed(const Operation* operation) { return operation->call.operation->status() != worker::Status::kOk; }

std::uint16_t number(const Operation* operation) {
  return static_cast<std::uint16_t>(operation->call.operation->tensor() & 0xFFFFU);
}

void release(Operation* operation) { delete operation; }

PyObject* object_of(const Operation* operation) {
  try {
    return nb::cast(operation->call).release().ptr();
  } catch (const std::exception&) {
    PyErr_NoMemory();
    return nullptr;
  }
}

constexpr Capi kCapi{.session_of = session_of,
                     .form_of = form_of,
                     .is_usable = is_usable,
                     .submit = submit,
                     .wait = wait,
                     .is_done = is_done,
                     .has_failed = has_failed,
                     .number = number,
                     .release = release,
                     .object_of = object_of};

}  // namespace
}  // namespace wiresum::capi

wiresum::engine::Request request_of(const wiresum::capi::Form& form, std::int64_t timeout_ns, bool notify) {
  std::optional<wiresum::numeric::Reduction> reduction;
  if (form.reduces) {
    reduction = {.element = static_cast<wiresum::numeric::Element>(form.element),
                 .op = static_cast<wiresum::numeric::Operator>(form.op)};
  }
  return {.work = {.format = {.dtype = static_cast<wiresum::numeric::Dtype>(form.dtype),
                              .scaling = static_cast<wiresum::numeric::Scaling>(form.scaling),
                              .bits = form.bits},
                   .fixed_scale = form.fixed_scale,
                   .divisor = form.divisor,
                   .regions = {},
                   .signature = form.signature,
                   .may_be_sparse = form.may_be_sparse,
                   .reduction = reduction},
          .timeout_ns = timeout_ns,
          .notify = notify};
}

void bind_capi(nb::module_& module) { module.attr("CAPI") = nb::capsule(&wiresum::capi::kCapi, wiresum::capi::kName); }
