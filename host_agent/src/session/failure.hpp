// The reason why a session has failed, or could not be made.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace wiresum::session {

class Failure : public std::runtime_error {
 public:
  /// `kind` is the name of an exception in wiresum.agent.errors, or one of the constants below. `object` is the
  /// exception, if the failure came from Python.
  Failure(std::string kind, const std::string& text, std::shared_ptr<void> object = nullptr)
      : std::runtime_error(text), kind_(std::move(kind)), object_(std::move(object)) {}

  static constexpr const char* kArgument = "ValueError";
  static constexpr const char* kAborted = "JobAbortedError";
  static constexpr const char* kClosed = "SessionClosedError";
  static constexpr const char* kForked = "ForkedError";
  static constexpr const char* kJoin = "JoinError";
  static constexpr const char* kFull = "FullError";
  static constexpr const char* kMemory = "MemoryError";
  static constexpr const char* kSidecar = "SidecarError";

  [[nodiscard]] const std::string& kind() const noexcept { return kind_; }
  [[nodiscard]] const std::shared_ptr<void>& object() const noexcept { return object_; }

 private:
  std::string kind_;
  std::shared_ptr<void> object_;
};

}  // namespace wiresum::session
