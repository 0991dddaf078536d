#include "transport/udp/socket.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "transport/udp/address.hpp"

namespace wiresum::transport {
namespace {

/// The most trials to find a block of consecutive free ports.
constexpr int kBlockTrialsMax = 256;

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

wire::Endpoint bound_endpoint(int descriptor) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail(errno, "cannot read the address of a UDP socket");
  }
  return from_sockaddr(address);
}

void set_option(int descriptor, int level, int name, int value) noexcept {
  static_cast<void>(setsockopt(descriptor, level, name, &value, sizeof value));
}

}  // namespace

std::string to_string(wire::Endpoint endpoint) {
  const in_addr address{.s_addr = htonl(endpoint.address)};
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, &address, text.data(), text.size());
  return std::string(text.data()) + ":" + std::to_string(endpoint.port);
}

std::uint32_t parse_ipv4(const std::string& text) {
  in_addr address{};
  if (inet_pton(AF_INET, text.c_str(), &address) != 1) {
    throw std::invalid_argument("'" + text + "' is not an IPv4 address in dotted form");
  }
  return ntohl(address.s_addr);
}

UdpSocket::UdpSocket() : descriptor_(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
  if (!descriptor_.valid()) {
    fail(errno, "cannot open a UDP socket");
  }
}

UdpSocket::UdpSocket(wire::Endpoint local) : UdpSocket() {
  const sockaddr_in address = to_sockaddr(local);
  if (bind(descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fail(errno, "cannot bind a UDP socket to " + to_string(local));
  }
  local_ = bound_endpoint(descriptor());
  // A datagram larger than the path's MTU is an error: no switch adds fragments, and one lost fragment loses the whole.
  set_option(descriptor(), IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
}

UdpSocket UdpSocket::in_group(wire::Endpoint group, std::uint32_t interface) {
  UdpSocket made;
  set_option(made.descriptor(), SOL_SOCKET, SO_REUSEADDR, 1);
  // Otherwise the socket would also get the group's packets from other interfaces at which this machine has joined.
  set_option(made.descriptor(), IPPROTO_IP, IP_MULTICAST_ALL, 0);
  ip_mreqn membership{};
  membership.imr_multiaddr.s_addr = htonl(group.address);
  membership.imr_address.s_addr = htonl(interface);
  const sockaddr_in address = to_sockaddr(group);
  if (bind(made.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      setsockopt(made.descriptor(), IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership, sizeof membership) != 0) {
    fail(errno, "cannot join the multicast group " + to_string(group) + " at the interface with the address " +
                    to_string({.address = interface, .port = 0}));
  }
  made.local_ = group;
  return made;
}

void UdpSocket::connect(wire::Endpoint peer) {
  const sockaddr_in address = to_sockaddr(peer);
  if (::connect(descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fail(errno, "no route from " + to_string(local_) + " to " + to_string(peer));
  }
  local_ = bound_endpoint(descriptor());
  connected_ = true;
}

std::size_t UdpSocket::path_mtu() const {
  int mtu = 0;
  socklen_t length = sizeof mtu;
  if (getsockopt(descriptor(), IPPROTO_IP, IP_MTU, &mtu, &length) != 0) {
    fail(errno, "cannot read the path MTU of " + to_string(local_));
  }
  return static_cast<std::size_t>(mtu);
}

void UdpSocket::send_groups_by(std::uint32_t interface) {
  ip_mreqn by{};
  by.imr_address.s_addr = htonl(interface);
  if (setsockopt(descriptor(), IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof by) != 0) {
    fail(errno, "cannot send to multicast groups from " + to_string(local_));
  }
}

void UdpSocket::set_buffers(std::size_t receive_bytes, std::size_t send_bytes) noexcept {
  const auto ask = [this](int forced, int plain, std::size_t bytes) {
    const int value = static_cast<int>(bytes);
    // The forced form needs CAP_NET_ADMIN; the plain one is capped by net.core.{r,w}mem_max.
    if (setsockopt(descriptor(), SOL_SOCKET, forced, &value, sizeof value) != 0) {
      set_option(descriptor(), SOL_SOCKET, plain, value);
    }
  };
  ask(SO_RCVBUFFORCE, SO_RCVBUF, receive_bytes);
  ask(SO_SNDBUFFORCE, SO_SNDBUF, send_bytes);
}

void UdpSocket::enable_marks() noexcept {
  set_option(descriptor(), IPPROTO_IP, IP_TOS, wire::kEcnCapable);  // R4.12
  set_option(descriptor(), IPPROTO_IP, IP_RECVTOS, 1);
}

bool UdpSocket::enable_receive_offload() noexcept {
  const int on = 1;
  return setsockopt(descriptor(), IPPROTO_UDP, UDP_GRO, &on, sizeof on) == 0;
}

bool UdpSocket::supports_segmentation() const noexcept {
  int size = 0;
  socklen_t length = sizeof size;
  return getsockopt(descriptor(), IPPROTO_UDP, UDP_SEGMENT, &size, &length) == 0;
}

std::vector<UdpSocket> bind_consecutive(wire::Endpoint local, std::size_t count) {
  for (int trial = 0;; ++trial) {
    std::vector<UdpSocket> sockets;
    try {
      sockets.emplace_back(local);
      const wire::Endpoint first = sockets.front().local();
      if (first.port + count - 1 > UINT16_MAX) {
        throw std::system_error(std::make_error_code(std::errc::address_not_available),
                                "no " + std::to_string(count) + " ports from " + to_string(first) + " on");
      }
      for (std::size_t i = 1; i < count; ++i) {
        sockets.emplace_back(wire::Endpoint{first.address, static_cast<std::uint16_t>(first.port + i)});
      }
      return sockets;
    } catch (const std::system_error&) {
      // There is no further trial of a certain block, or after a failure of another kind.
      if (local.port != 0 || sockets.empty() || trial == kBlockTrialsMax) {
        throw;
      }
    }
  }
}

std::vector<UdpSocket> bind_within(std::uint32_t address, PortRange range, std::size_t count) {
  if (range.first == 0) return bind_consecutive({.address = address, .port = 0}, count);
  std::vector<UdpSocket> sockets;
  for (std::uint32_t port = range.first; port <= range.last && sockets.size() < count; ++port) {
    try {
      sockets.emplace_back(wire::Endpoint{address, static_cast<std::uint16_t>(port)});
    } catch (const std::system_error& error) {
      if (error.code() != std::errc::address_in_use) throw;
      sockets.clear();
    }
  }
  if (sockets.size() == count) return sockets;
  throw std::system_error(std::make_error_code(std::errc::address_in_use),
                          "no " + std::to_string(count) + " consecutive UDP ports from " +
                              to_string({address, range.first}) + " to " + std::to_string(range.last) +
                              " are free, as WIRESUM_PORTS must have for each worker of this host");
}

std::uint32_t source_address_towards(wire::Endpoint remote) {
  UdpSocket probe(wire::Endpoint{});
  probe.connect(remote);
  return probe.local().address;
}

std::optional<std::string> interface_with(std::uint32_t address) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) fail(errno, "cannot list network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(all, &freeifaddrs);
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    sockaddr_in ipv4{};
    std::memcpy(&ipv4, entry->ifa_addr, sizeof ipv4);
    if (from_sockaddr(ipv4).address == address) return entry->ifa_name;
  }
  return std::nullopt;
}

}  // namespace wiresum::transport
