#include "veth_rig.hpp"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "transport/udp/udp.hpp"

namespace wiresum::transport::testing {

namespace {

std::unique_ptr<Transport> open_sockets(std::uint32_t address, const EndOptions& options, bool offload) {
  std::vector<UdpSocket> sockets = bind_consecutive({.address = address, .port = kFirstPort}, options.ports);
  if (options.peer.port != 0) sockets.front().connect(options.peer);
  const UdpConfig config{.datagram_bytes_max = options.datagram_bytes_max, .offload = offload};
  return std::make_unique<UdpTransport>(config, std::move(sockets));
}

}  // namespace

std::unique_ptr<Transport> open_udp(const std::string&, std::uint32_t address, const EndOptions& options) {
  return open_sockets(address, options, true);
}

std::unique_ptr<Transport> open_plain_udp(const std::string&, std::uint32_t address, const EndOptions& options) {
  return open_sockets(address, options, false);
}

VethRig::VethRig(const RigOptions& options, OpenEnd left, OpenEnd right)
    : pair_(options.mtu, options.queues), left_(std::move(left)), right_(std::move(right)) {
  pair_.left.enter([&] {
    raw_ = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = 0;  // for sending only
    address.sll_ifindex = static_cast<int>(if_nametoindex(VethPair::kInterface));
    if (raw_ < 0 || bind(raw_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      throw std::system_error(errno, std::generic_category(), "a packet socket");
    }
  });
}

VethRig::~VethRig() { close(raw_); }

std::unique_ptr<Transport> VethRig::open(Side side, const EndOptions& options) {
  std::unique_ptr<Transport> opened;
  space(side).enter([&] { opened = (side == Side::kLeft ? left_ : right_)(interface_, address(side), options); });
  return opened;
}

std::uint32_t VethRig::address(Side side) const {
  return side == Side::kLeft ? VethPair::kLeftAddress : VethPair::kRightAddress;
}

bool VethRig::inject(std::span<const std::byte> frame) {
  return send(raw_, frame.data(), frame.size(), 0) == static_cast<ssize_t>(frame.size());
}

ethernet::MacAddress VethRig::mac(Side side) const {
  ethernet::MacAddress mac;
  space(side).enter([&] {
    const int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ifreq request{};
    std::memcpy(request.ifr_name, interface_.data(), interface_.size());
    const int result = ioctl(any, SIOCGIFHWADDR, &request);
    close(any);
    if (result != 0) throw std::system_error(errno, std::generic_category(), "SIOCGIFHWADDR");
    std::memcpy(mac.bytes.data(), request.ifr_hwaddr.sa_data, mac.bytes.size());
  });
  return mac;
}

}  // namespace wiresum::transport::testing
