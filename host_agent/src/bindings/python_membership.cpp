#include "python_membership.hpp"

#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "session/session.hpp"

namespace nb = nanobind;
using wiresum::session::Failure;
using wiresum::session::Fields;
using wiresum::session::Grant;
using wiresum::session::Line;

namespace {

/// Drops a reference, in any thread. An object that outlives the interpreter is not freed.
void release(void* object) {
  if (Py_IsInitialized() == 0) return;
  const nb::gil_scoped_acquire locked;
  Py_DECREF(static_cast<PyObject*>(object));
}

}  // namespace

Failure failure_of(nb::handle error) {
  const auto kind = nb::cast<std::string>(nb::handle(error.type()).attr("__name__"));
  return {kind, nb::cast<std::string>(nb::str(error)), std::shared_ptr<void>(error.inc_ref().ptr(), release)};
}

nb::object error_of(const Failure* failure) {
  if (failure == nullptr) return nb::none();
  if (failure->object()) return nb::borrow(static_cast<PyObject*>(failure->object().get()));
  const nb::module_ errors = nb::module_::import_("wiresum.agent.errors");
  const nb::object kind = nb::getattr(errors, failure->kind().c_str(), nb::handle(PyExc_RuntimeError));
  return kind(failure->what());
}

PythonMembership::~PythonMembership() {
  if (object_) release(object_.release().ptr());
}

Grant PythonMembership::join(const wiresum::session::Bind& bind) {
  const nb::gil_scoped_acquire locked;
  using Within = std::pair<std::uint16_t, std::uint16_t>;
  const nb::object bind_ports = nb::cpp_function([&bind](const std::string& address, std::size_t count, Within within) {
    return bind(address, count, within.first, within.second);
  });
  Grant grant;
  using Said = std::vector<std::pair<std::string, Fields>>;
  for (auto& [word, fields] : nb::cast<Said>(object_.attr("join")(bind_ports))) {
    const Line line{.word = word, .fields = std::move(fields)};
    line.word == "aggregator" ? grant.add_aggregator(line) : grant.complete(line);
  }
  return grant;
}

void PythonMembership::attend(std::shared_ptr<wiresum::session::Session> session) {
  const nb::gil_scoped_acquire locked;
  object_.attr("attend")(nb::cpp_function([session] { return session->state(); }),
                         nb::cpp_function([session](nb::handle error, bool tell_others) {
                           const Failure failure = failure_of(error);
                           const nb::gil_scoped_release unlocked;
                           session->end(failure, tell_others);
                         }),
                         nb::cpp_function([session](std::size_t aggregator) {
                           const nb::gil_scoped_release unlocked;
                           return session->halt(aggregator);
                         }),
                         nb::cpp_function([session](Fields to) {
                           const nb::gil_scoped_release unlocked;
                           session->move({.word = "move", .fields = std::move(to)});
                         }));
}

Failure PythonMembership::explain(const Line& question) {
  const nb::gil_scoped_acquire locked;
  const nb::object object = object_;
  if (!object) return {Failure::kClosed, "the session was left"};
  return failure_of(object.attr("explain")(question.word, question.fields));
}

void PythonMembership::abort(const std::string& reason) {
  const nb::gil_scoped_acquire locked;
  if (const nb::object object = object_) object.attr("abort")(reason);
}

void PythonMembership::leave() {
  const nb::gil_scoped_acquire locked;
  if (const nb::object object = object_) {
    object.attr("leave")();
    object_.reset();
  }
}
