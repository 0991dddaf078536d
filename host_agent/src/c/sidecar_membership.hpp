// A membership that a sidecar has (sidecar.hpp), over a socket.
//
// After joining, a thread reads the sidecar's lines, and answers its questions at once. Either process hears of the
// other's end as soon as the kernel has closed the other's sockets.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "c/channel.hpp"
#include "session/membership.hpp"

namespace wiresum::c {

struct JoinRequest {
  std::string job;
  int rank = 0;
  int world_size = 1;
  std::string admission;  // as in join.proto
  std::chrono::milliseconds timeout{};
  session::Fields settings;  // WIRESUM_...; they win over the environment
};

class SidecarMembership final : public session::Membership {
 public:
  /// Starts a sidecar if none runs. Throws Failure or std::system_error.
  explicit SidecarMembership(JoinRequest request);
  ~SidecarMembership() override { leave(); }
  SidecarMembership(const SidecarMembership&) = delete;
  SidecarMembership& operator=(const SidecarMembership&) = delete;

  [[nodiscard]] session::Grant join(const session::Bind& bind) override;
  void attend(std::shared_ptr<session::Session> session) override;
  [[nodiscard]] session::Failure explain(const session::Line& question) override;
  void abort(const std::string& reason) override;
  void leave() override;

 private:
  session::Grant await_grants(const session::Bind& bind);
  // The reading thread calls these.
  void listen() noexcept;
  /// Returns why the conversation is over.
  std::string converse();
  void take(const session::Line& line);
  /// Does a step of a move, and returns the answer.
  [[nodiscard]] session::Line moving(const session::Line& line);
  /// Ends the session and all waits, since the sidecar has gone.
  void hang_up(const session::Failure& failure);
  /// The failure of a sidecar that `has` ended, or `has` said nonsense.
  [[nodiscard]] session::Failure failure_of(const std::string& has) const;
  /// The failure of a sidecar that has ended before its first word.
  [[nodiscard]] session::Failure never_began() const;

  const JoinRequest request_;
  const std::string python_;
  const session::Failure without_memory_;  // made before it is needed
  Channel channel_;
  std::string process_;                  // the sidecar's process, after its first word
  session::Session* session_ = nullptr;  // lives as long as the thread, which leave() ends
  std::thread listener_;
  std::mutex leaving_;
  bool left_ = false;
  std::mutex asking_;

  std::mutex mutex_;  // protects all later members
  std::condition_variable changed_;
  bool hung_up_ = false;
  std::uint64_t asked_ = 0;
  std::optional<session::Failure> explanation_;  // answers the newest question
};

}  // namespace wiresum::c
