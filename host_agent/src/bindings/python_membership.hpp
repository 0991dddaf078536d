// A membership in this process: the calls of a wiresum.agent.job_membership.JobMembership, under the interpreter's
// lock.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "session/membership.hpp"

/// The failure for a Python exception. The caller has the GIL.
[[nodiscard]] wiresum::session::Failure failure_of(nanobind::handle error);
/// The exception for a failure; None for null. The caller has the GIL.
[[nodiscard]] nanobind::object error_of(const wiresum::session::Failure* failure);

class PythonMembership final : public wiresum::session::Membership {
 public:
  /// The caller has the GIL; callers of the methods need not.
  explicit PythonMembership(nanobind::object object) : object_(std::move(object)) {}
  ~PythonMembership() override;
  PythonMembership(const PythonMembership&) = delete;
  PythonMembership& operator=(const PythonMembership&) = delete;

  [[nodiscard]] wiresum::session::Grant join(const wiresum::session::Bind& bind) override;
  void attend(std::shared_ptr<wiresum::session::Session> session) override;
  [[nodiscard]] wiresum::session::Failure explain(const wiresum::session::Line& question) override;
  void abort(const std::string& reason) override;
  void leave() override;

 private:
  nanobind::object object_;  // changes under the GIL; null after leave(), since the attended session refers to it
};
