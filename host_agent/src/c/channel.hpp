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

/// A sidecar reads at once what it is sent, and a line fits its socket's buffer.
inline constexpr std::chrono::milliseconds kSendTimeout{5000};

/// Both ends of a socket pair that exec() closes. Throws std::system_error.
struct SocketPair {
  explicit SocketPair(std::chrono::milliseconds send_timeout = kSendTimeout);
  Descriptor ours;
  Descriptor theirs;
};

/// Any thread may send, one receives.
class Channel {
 public:
  using Line = session::Line;
  using Deadline = std::chrono::steady_clock::time_point;
  static constexpr Deadline kNever = Deadline::max();

  explicit Channel(Descriptor end) noexcept : end_(std::move(end)) {}

  /// False if nobody is there any more, or nobody takes it for seconds. If a part of it was taken, that was the last.
  bool send(const Line& line);
  /// The next message; nothing when the other end is closed. Throws LineError; std::system_error, if the time is over.
  [[nodiscard]] std::optional<Line> receive(Deadline deadline = kNever);
  /// Both ends see the end of the conversation. Idempotent.
  void hang_up() noexcept;

 private:
  Descriptor end_;
  std::mutex sending_;
  std::string received_;
};

}  // namespace wiresum::c
