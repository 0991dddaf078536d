#include "transport/shm/shm.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <ctime>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace wiresum::transport::shm {
namespace {

/// The least wait of a sender without room, for a leaf that works through its packets. Its timers can wait, since it
/// cannot send.
constexpr std::int64_t kRoomNs = 1'000'000;

Link checked(Link link, const Shape& shape) {
  if (link.channel.size() < shape.channel_bytes()) throw std::invalid_argument("the shared memory is too small");
  return link;
}

}  // namespace

process::Descriptor make_event() {
  process::Descriptor event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!event.valid()) throw std::system_error(errno, std::generic_category(), "cannot create an event");
  return event;
}

void await_event(int event, std::int64_t timeout_ns) noexcept {
  const timespec timeout{.tv_sec = timeout_ns / 1'000'000'000, .tv_nsec = timeout_ns % 1'000'000'000};
  pollfd wanted{.fd = event, .events = POLLIN, .revents = 0};
  if (ppoll(&wanted, 1, timeout_ns < 0 ? nullptr : &timeout, nullptr) <= 0) return;
  std::uint64_t count = 0;
  static_cast<void>(!read(event, &count, sizeof count));
}

void write_event(int event) noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!write(event, &one, sizeof one));
}

ShmTransport::ShmTransport(Link link, std::size_t packet_bytes_max)
    : link_(checked(std::move(link), Shape(packet_bytes_max))),
      end_(link_.channel.data(), {link_.results.data(), link_.results.size()}, Shape(packet_bytes_max),
           link_.event.get(), link_.leaf.get()) {}

std::size_t ShmTransport::receive(std::span<RxDatagram> out) noexcept {
  const std::size_t count = end_.receive(std::span(lent_).first(std::min(out.size(), lent_.size())));
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = {.bytes = lent_[i].bytes, .source = {}, .port = 0, .marked = lent_[i].marked, .stays = !lent_[i].is_copy};
  }
  ++stats_.receive_calls;
  stats_.datagrams_received += count;
  stats_.messages_received += count != 0 ? 1 : 0;
  return count;
}

std::span<wire::Packet> ShmTransport::buffers(std::size_t wanted) noexcept {
  const std::size_t most = std::min(wanted, packets_.size());
  if (offered_ < most) offered_ = end_.offer(std::span(packets_).first(most));
  const std::size_t count = std::min(offered_, most);
  lacked_room_ = count == 0;  // a caller that uses fewer may want none, with a full window
  return std::span(packets_).first(count);
}

void ShmTransport::send(std::size_t count, std::span<const wire::Endpoint> /*to*/, std::uint8_t /*port*/,
                        bool /*marked*/) noexcept {
  assert(count <= packets_.size());
  end_.send(std::span(packets_).first(count));
  offered_ = 0;
  ++stats_.send_calls;
  stats_.datagrams_sent += count;
}

bool ShmTransport::hear(std::span<const wire::Endpoint> /*peers*/, UdpSocket* /*group*/) noexcept { return true; }

void ShmTransport::wait(std::int64_t timeout_ns) noexcept {
  end_.bell().sleep(lacked_room_ ? Bell::kForRoom : Bell::kForPackets);
  if (!is_ready()) {
    await_event(link_.event.get(), lacked_room_ && timeout_ns >= 0 ? std::max(timeout_ns, kRoomNs) : timeout_ns);
  }
  end_.bell().awake();
}

}  // namespace wiresum::transport::shm
