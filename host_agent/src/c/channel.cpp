#include "c/channel.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace wiresum::c {
namespace {

/// Throws std::system_error if nothing comes before `deadline`.
void await_data(int descriptor, Channel::Deadline deadline) {
  if (deadline == Channel::kNever) return;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd watched{.fd = descriptor, .events = POLLIN, .revents = 0};
    const int found = left.count() <= 0 ? 0 : ::poll(&watched, 1, static_cast<int>(left.count()));
    if (found > 0) return;
    if (found == 0) throw std::system_error(ETIMEDOUT, std::generic_category());
    if (errno != EINTR) throw std::system_error(errno, std::generic_category());
  }
}

}  // namespace

SocketPair::SocketPair(std::chrono::milliseconds send_timeout) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot make a socket for the sidecar");
  }
  ours = Descriptor(ends[0]);
  theirs = Descriptor(ends[1]);
  const timeval timeout{.tv_sec = send_timeout.count() / 1000, .tv_usec = send_timeout.count() % 1000 * 1000};
  setsockopt(ours.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
}

bool Channel::send(const Line& line) {
  const std::string text = session::encode(line);
  const std::lock_guard lock(sending_);
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count = ::send(end_.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      if (sent > 0) hang_up();  // the other end would take the next line for the rest of this one
      return false;
    }
    sent += static_cast<std::size_t>(count);
  }
  return true;
}

std::optional<session::Line> Channel::receive(Deadline deadline) {
  std::size_t end = received_.find('\n');
  while (end == std::string::npos) {
    if (received_.size() >= session::kLineBytesMax) throw session::LineError("a line does not end");
    std::array<char, 4096> more{};
    await_data(end_.get(), deadline);
    const ssize_t count = ::recv(end_.get(), more.data(), more.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;
    received_.append(more.data(), static_cast<std::size_t>(count));
    end = received_.find('\n');
  }
  Line line = session::decode(std::string_view(received_).substr(0, end));
  received_.erase(0, end + 1);
  return line;
}

void Channel::hang_up() noexcept { ::shutdown(end_.get(), SHUT_RDWR); }

}  // namespace wiresum::c
