// A membership that a sidecar has (sidecar.hpp): what they say to each other goes over a socket.
//
// Once the job is joined, one thread reads what the sidecar says, and answers at once what it asks. So the end of
// either is known to the other as soon as the kernel has closed its sockets.
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
  session::Fields settings;  // WIRESUM_..., beside the environment
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
  // The thread that reads.
  void listen() noexcept;
  /// Why the conversation is over.
  std::string converse();
  void take(const session::Line& line);
  /// What a move wants of the session, and the answer.
  [[nodiscard]] session::Line moving(const session::Line& line);
  /// It will say no more.
  void hang_up(const session::Failure& failure);
  /// That the sidecar `has` gone, or makes no sense.
  [[nodiscard]] session::Failure failure_of(const std::string& has) const;
  /// That it has ended before its first word.
  [[nodiscard]] session::Failure never_began() const;

  const JoinRequest request_;
  const std::string python_;
  const session::Failure without_memory_;  // made before it is needed
  Channel channel_;
  std::string process_;                  // the sidecar's, once it has spoken
  session::Session* session_ = nullptr;  // lives for as long as the thread, which leave() ends
  std::thread listener_;
  std::mutex leaving_;
  bool left_ = false;
  std::mutex asking_;

  std::mutex mutex_;  // of all that follows
  std::condition_variable changed_;
  bool hung_up_ = false;
  std::uint64_t asked_ = 0;
  std::optional<session::Failure> explanation_;  // of the question asked last
};

}  // namespace wiresum::c
