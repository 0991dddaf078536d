// One end of a session's socket to its sidecar.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "libwiresum/line.hpp"

namespace wiresum::capi {

/// A file descriptor that is closed with its owner.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) noexcept : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] bool is_open() const noexcept { return number_ >= 0; }

 private:
  int number_;
};

/// Both ends of a socket pair that exec() closes. Throws std::system_error.
struct SocketPair {
  SocketPair();
  Descriptor ours;
  Descriptor theirs;
};

/// Any thread may send, one receives.
class Channel {
 public:
  explicit Channel(Descriptor end) noexcept : end_(std::move(end)) {}

  /// False if nobody is there any more, or nobody takes it for seconds.
  bool send(const Line& line);
  /// The next message; nothing when the other end is closed. Throws LineError.
  [[nodiscard]] std::optional<Line> receive();
  /// Both ends see the end of the conversation. Idempotent.
  void hang_up() noexcept;

 private:
  Descriptor end_;
  std::mutex sending_;
  std::string received_;
};

}  // namespace wiresum::capi
