#include "transport/xdp/neighbours.hpp"

#include <arpa/inet.h>
#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "process/thread.hpp"

namespace wiresum::transport::xdp {
namespace {

constexpr std::uint64_t kKnown = std::uint64_t{1} << 63;
/// The time until the kernel is asked again. With an unknown address, the time is short at first, and doubles. With
/// known addresses, none must expire: the kernel may forget a neighbour that was not confirmed for a minute.
constexpr int kUnknownMs = 10;
constexpr int kUnknownMsMax = 1000;
constexpr int kKnownMs = 10'000;
constexpr std::uint16_t kDiscardPort = 9;
constexpr std::size_t kNewsBytes = 32 << 10;
/// The longest distance of a table's entry from its place.
constexpr std::size_t kProbesMax = 64;
static_assert((kNeighboursMax & (kNeighboursMax - 1)) == 0);

/// States of a neighbour whose address may be used.
constexpr unsigned kUsable = NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP;
/// States that the kernel does not have to confirm soon.
constexpr unsigned kFresh = NUD_REACHABLE | NUD_PERMANENT | NUD_NOARP;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

process::Descriptor netlink_socket(std::uint32_t groups, int flags) {
  process::Descriptor made(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | flags, NETLINK_ROUTE));
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = groups;
  if (!made.valid() || bind(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fail("cannot ask the kernel for routes and neighbours (rtnetlink)");
  }
  return made;
}

std::uint64_t to_word(const ethernet::MacAddress& mac) noexcept {
  std::uint64_t word = kKnown;
  std::memcpy(&word, mac.bytes.data(), mac.bytes.size());
  return word | kKnown;
}

ethernet::MacAddress from_word(std::uint64_t word) noexcept {
  ethernet::MacAddress mac;
  std::memcpy(mac.bytes.data(), &word, mac.bytes.size());
  return mac;
}

}  // namespace

/// Questions to rtnetlink, one at a time.
class Neighbours::Netlink {
 public:
  struct Route {
    std::uint32_t next_hop = 0;  // the address itself where there is no gateway
    int interface = 0;
  };
  struct Neighbour {
    ethernet::MacAddress mac;
    unsigned state = NUD_NONE;
  };

  Netlink() : socket_(netlink_socket(0, 0)), reply_(kReplyBytesMax) {}

  [[nodiscard]] bool route_to(std::uint32_t address, int interface, Route& out) {
    rtmsg body{};
    body.rtm_family = AF_INET;
    body.rtm_dst_len = 32;
    begin(RTM_GETROUTE, body);
    attribute(RTA_DST, htonl(address));
    attribute(RTA_OIF, interface);
    const nlmsghdr* const reply = ask(RTM_NEWROUTE);
    if (reply == nullptr) return false;
    out = {.next_hop = address, .interface = 0};
    const auto* const route = static_cast<const rtmsg*>(NLMSG_DATA(reply));
    if (route->rtm_type != RTN_UNICAST) return false;
    each_attribute(RTM_RTA(route), RTM_PAYLOAD(reply), [&](unsigned short type, const std::byte* data, std::size_t) {
      if (type == RTA_GATEWAY) out.next_hop = ntohl(value<std::uint32_t>(data));
      if (type == RTA_OIF) out.interface = value<int>(data);
    });
    return true;
  }

  [[nodiscard]] bool neighbour(std::uint32_t address, int interface, Neighbour& out) {
    ndmsg body{};
    body.ndm_family = AF_INET;
    body.ndm_ifindex = interface;
    begin(RTM_GETNEIGH, body);
    attribute(NDA_DST, htonl(address));
    const nlmsghdr* const reply = ask(RTM_NEWNEIGH);
    if (reply == nullptr) return false;
    const auto* const neighbour = static_cast<const ndmsg*>(NLMSG_DATA(reply));
    out = {.mac = {}, .state = neighbour->ndm_state};
    bool has_mac = false;
    const auto* const attributes =
        reinterpret_cast<const rtattr*>(reinterpret_cast<const std::byte*>(neighbour) + NLMSG_ALIGN(sizeof(ndmsg)));
    each_attribute(attributes, NLMSG_PAYLOAD(reply, sizeof(ndmsg)),
                   [&](unsigned short type, const std::byte* data, std::size_t bytes) {
                     if (type != NDA_LLADDR || bytes != out.mac.bytes.size()) return;
                     std::memcpy(out.mac.bytes.data(), data, bytes);
                     has_mac = true;
                   });
    return has_mac || (out.state & kUsable) == 0;
  }

 private:
  static constexpr std::size_t kRequestBytesMax = 256;
  static constexpr std::size_t kReplyBytesMax = 16 << 10;

  template <typename T>
  static T value(const std::byte* data) noexcept {
    T read{};
    std::memcpy(&read, data, sizeof read);
    return read;
  }

  template <typename Body>
  void begin(std::uint16_t type, const Body& body) noexcept {
    request_ = {};
    header().nlmsg_type = type;
    header().nlmsg_flags = NLM_F_REQUEST;
    header().nlmsg_seq = ++sequence_;
    header().nlmsg_len = NLMSG_LENGTH(sizeof body);
    std::memcpy(NLMSG_DATA(&header()), &body, sizeof body);
  }

  template <typename Value>
  void attribute(unsigned short type, const Value& value) noexcept {
    auto* const place = reinterpret_cast<rtattr*>(request_.data() + NLMSG_ALIGN(header().nlmsg_len));
    place->rta_type = type;
    place->rta_len = RTA_LENGTH(sizeof value);
    std::memcpy(RTA_DATA(place), &value, sizeof value);
    header().nlmsg_len = NLMSG_ALIGN(header().nlmsg_len) + place->rta_len;
  }

  /// The answer, if it is of type `wanted`; null for an error. Valid until the next question.
  [[nodiscard]] const nlmsghdr* ask(std::uint16_t wanted) {
    if (send(socket_.get(), request_.data(), header().nlmsg_len, 0) < 0) return nullptr;
    for (;;) {
      const ssize_t bytes = recv(socket_.get(), reply_.data(), reply_.size(), 0);
      if (bytes < 0 && errno == EINTR) continue;
      const auto* const reply = reinterpret_cast<const nlmsghdr*>(reply_.data());
      if (bytes < 0 || !NLMSG_OK(reply, static_cast<std::size_t>(bytes))) return nullptr;
      if (reply->nlmsg_seq != sequence_) continue;  // answers a question that was given up
      return reply->nlmsg_type == wanted ? reply : nullptr;
    }
  }

  template <typename Handler>
  static void each_attribute(const rtattr* first, std::size_t bytes, const Handler& handle) {
    auto left = static_cast<int>(bytes);
    for (const rtattr* entry = first; RTA_OK(entry, left); entry = RTA_NEXT(entry, left)) {
      handle(entry->rta_type, static_cast<const std::byte*>(RTA_DATA(entry)), RTA_PAYLOAD(entry));
    }
  }

  nlmsghdr& header() noexcept { return *reinterpret_cast<nlmsghdr*>(request_.data()); }

  process::Descriptor socket_;
  alignas(NLMSG_ALIGNTO) std::array<std::byte, kRequestBytesMax> request_{};
  std::vector<std::byte> reply_;
  std::uint32_t sequence_ = 0;
};

Neighbours::Neighbours(const std::string& name, int index)
    : index_(index),
      provoker_(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)),
      changes_(netlink_socket(RTMGRP_NEIGH | RTMGRP_IPV4_ROUTE, SOCK_NONBLOCK)),
      asked_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      netlink_(std::make_unique<Netlink>()),
      news_(kNewsBytes) {
  if (!provoker_.valid() || !asked_.valid()) {
    fail("cannot open a socket to find neighbours by");
  }
  // If the kernel does not permit this, the route decides, which leads to the same interface.
  static_cast<void>(
      setsockopt(provoker_.get(), SOL_SOCKET, SO_BINDTODEVICE, name.data(), static_cast<socklen_t>(name.size())));
  keeper_ = process::start_thread("the thread that looks after the neighbours behind " + name, [this] { keep(); });
}

Neighbours::~Neighbours() {
  stopping_.store(true);
  const std::uint64_t one = 1;
  static_cast<void>(!write(asked_.get(), &one, sizeof one));
  keeper_.join();
}

Neighbours::Neighbour* Neighbours::entry_for(std::uint32_t address) noexcept {
  std::size_t at = (address * std::uint64_t{0x9E3779B97F4A7C15}) >> 32;
  for (std::size_t probe = 0; probe != kProbesMax; ++probe, ++at) {
    Neighbour& entry = entries_[at % kNeighboursMax];
    const std::uint32_t found = entry.address.load(std::memory_order_relaxed);
    if (found == address || found == 0) return &entry;
  }
  return nullptr;
}

bool Neighbours::find(std::uint32_t address, ethernet::MacAddress& mac) noexcept {
  Neighbour* const entry = entry_for(address);
  if (entry == nullptr || address == 0) {
    error_.store(ENOBUFS, std::memory_order_relaxed);
    return false;
  }
  const std::uint64_t word = entry->mac.load(std::memory_order_acquire);
  if ((word & kKnown) != 0) {
    mac = from_word(word);
    return true;
  }
  if (entry->address.load(std::memory_order_relaxed) == 0) {
    entry->address.store(address, std::memory_order_release);
    const std::uint64_t one = 1;
    static_cast<void>(!write(asked_.get(), &one, sizeof one));
  }
  return false;
}

void Neighbours::keep() noexcept {
  std::array<pollfd, 2> events{
      {{.fd = asked_.get(), .events = POLLIN, .revents = 0}, {.fd = changes_.get(), .events = POLLIN, .revents = 0}}};
  int unknown_ms = kUnknownMs;
  while (!stopping_.load()) {
    bool all_known = true;
    for (Neighbour& entry : entries_) {
      if (entry.address.load(std::memory_order_acquire) != 0 && !refresh(entry)) all_known = false;
    }
    const int happened = poll(events.data(), events.size(), all_known ? kKnownMs : unknown_ms);
    unknown_ms = happened > 0 ? kUnknownMs : std::min(2 * unknown_ms, kUnknownMsMax);
    std::uint64_t count = 0;
    static_cast<void>(!read(asked_.get(), &count, sizeof count));
    // Changes are found by asking again, so the notifications need not be parsed, and lost ones do not matter.
    while (recv(changes_.get(), news_.data(), news_.size(), 0) > 0 || errno == ENOBUFS) {
    }
  }
}

bool Neighbours::refresh(Neighbour& entry) noexcept {
  const std::uint32_t address = entry.address.load(std::memory_order_relaxed);
  Netlink::Route route;
  Netlink::Neighbour neighbour;
  if (!netlink_->route_to(address, index_, route) || route.interface != index_) {
    entry.mac.store(0, std::memory_order_release);
    error_.store(ENETUNREACH, std::memory_order_relaxed);
    return false;
  }
  const bool answered = netlink_->neighbour(route.next_hop, index_, neighbour);
  const bool usable = answered && (neighbour.state & kUsable) != 0;
  entry.mac.store(usable ? to_word(neighbour.mac) : 0, std::memory_order_release);
  if (answered && (neighbour.state & NUD_FAILED) != 0) {
    error_.store(EHOSTUNREACH, std::memory_order_relaxed);
  }
  if (!answered || (neighbour.state & kFresh) == 0) {
    provoke(address);
  }
  return usable;
}

void Neighbours::provoke(std::uint32_t address) const noexcept {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(kDiscardPort);
  to.sin_addr.s_addr = htonl(address);
  static_cast<void>(sendto(provoker_.get(), nullptr, 0, MSG_DONTWAIT | MSG_NOSIGNAL,
                           reinterpret_cast<const sockaddr*>(&to), sizeof to));
}

}  // namespace wiresum::transport::xdp
