// One end of a session's socket to its sidecar.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "process/descriptor.hpp"
#include "session/line.hpp"

namespace wiresum::c {

using process::Descriptor;

/// The longest wait to send. A sidecar reads lines at once, and a line fits its socket's buffer.
inline constexpr std::chrono::milliseconds kSendTimeout{5000};

/// Both ends of a socket pair that exec() closes. Throws std::system_error.
struct SocketPair {
  explicit SocketPair(std::chrono::milliseconds send_timeout = kSendTimeout);
  Descriptor ours;
  Descriptor theirs;
};

/// Any thread may send, and one thread receives.
class Channel {
 public:
  using Line = session::Line;
  using Deadline = std::chrono::steady_clock::time_point;
  static constexpr Deadline kNever = Deadline::max();

  explicit Channel(Descriptor end) noexcept : end_(std::move(end)) {}

  /// Sends a line. False if the other end is closed, or takes nothing for kSendTimeout; a line may then be cut off, and
  /// no other follows.
  bool send(const Line& line);
  /// Receives a line; nullopt when the other end is closed. Throws LineError; std::system_error after the deadline.
  [[nodiscard]] std::optional<Line> receive(Deadline deadline = kNever);
  /// Ends the conversation for both ends. Idempotent.
  void hang_up() noexcept;

 private:
  Descriptor end_;
  std::mutex sending_;
  std::string received_;
};

}  // namespace wiresum::c
