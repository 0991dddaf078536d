#include "libwiresum/channel.hpp"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace wiresum::capi {
namespace {

/// A sidecar reads at once what it is sent, and a line fits its socket's buffer.
constexpr timeval kSendTimeout{.tv_sec = 5, .tv_usec = 0};

}  // namespace

Descriptor::~Descriptor() {
  if (is_open()) ::close(number_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

SocketPair::SocketPair() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot make a socket for the sidecar");
  }
  ours = Descriptor(ends[0]);
  theirs = Descriptor(ends[1]);
  setsockopt(ours.number(), SOL_SOCKET, SO_SNDTIMEO, &kSendTimeout, sizeof kSendTimeout);
}

bool Channel::send(const Line& line) {
  const std::string text = encode(line);
  const std::lock_guard lock(sending_);
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count = ::send(end_.number(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    sent += static_cast<std::size_t>(count);
  }
  return true;
}

std::optional<Line> Channel::receive() {
  std::size_t end = received_.find('\n');
  while (end == std::string::npos) {
    if (received_.size() >= kLineBytesMax) throw LineError("a line does not end");
    std::array<char, 4096> more{};
    const ssize_t count = ::recv(end_.number(), more.data(), more.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;
    received_.append(more.data(), static_cast<std::size_t>(count));
    end = received_.find('\n');
  }
  Line line = decode(std::string_view(received_).substr(0, end));
  received_.erase(0, end + 1);
  return line;
}

void Channel::hang_up() noexcept { ::shutdown(end_.number(), SHUT_RDWR); }

}  // namespace wiresum::capi
