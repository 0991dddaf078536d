#include "transport/xdp/device.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "process/descriptor.hpp"

namespace wiresum::transport::xdp {
namespace {

ifreq request_for(const std::string& name) {
  ifreq request{};
  if (name.empty() || name.size() >= sizeof request.ifr_name) {
    throw std::runtime_error("'" + name + "' is no name of a network interface");
  }
  std::copy(name.begin(), name.end(), std::begin(request.ifr_name));
  return request;
}

void ask(int socket, unsigned long what, ifreq& request, const std::string& name) {
  if (ioctl(socket, what, &request) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot look at the network interface " + name);
  }
}

std::string to_text(std::uint32_t address) {
  const in_addr in{.s_addr = htonl(address)};
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, &in, text.data(), text.size());
  return text.data();
}

bool has_address(const std::string& name, std::uint32_t address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot list this machine's addresses");
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == AF_INET && name == entry->ifa_name &&
        reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr.s_addr == htonl(address)) {
      return true;
    }
  }
  return false;
}

std::string driver_of(int socket, ifreq request) {
  ethtool_drvinfo info{};
  info.cmd = ETHTOOL_GDRVINFO;
  request.ifr_data = reinterpret_cast<char*>(&info);
  if (ioctl(socket, SIOCETHTOOL, &request) != 0) return "";
  return {info.driver, strnlen(info.driver, sizeof info.driver)};
}

std::uint32_t queues_of(int socket, ifreq request) {
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  request.ifr_data = reinterpret_cast<char*>(&channels);
  // A device that does not answer has one queue.
  if (ioctl(socket, SIOCETHTOOL, &request) != 0) return 1;
  return std::max(channels.combined_count + channels.rx_count, 1u);
}

}  // namespace

InterfaceInfo query_interface(const std::string& name, std::uint32_t address) {
  const process::Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) {
    throw std::system_error(errno, std::generic_category(), "cannot open a UDP socket");
  }
  InterfaceInfo device;
  device.name = name;
  ifreq request = request_for(name);
  ask(socket.get(), SIOCGIFINDEX, request, name);
  device.index = request.ifr_ifindex;
  ask(socket.get(), SIOCGIFHWADDR, request, name);
  if (request.ifr_hwaddr.sa_family != ARPHRD_ETHER) {
    throw std::runtime_error("AF_XDP needs an Ethernet interface, and " + name +
                             " is none: within one machine, or over a tunnel, use UDP");
  }
  std::memcpy(device.mac.bytes.data(), request.ifr_hwaddr.sa_data, device.mac.bytes.size());
  ask(socket.get(), SIOCGIFFLAGS, request, name);
  if ((request.ifr_flags & IFF_UP) == 0) {
    throw std::runtime_error("the network interface " + name + " is down: ip link set " + name + " up");
  }
  ask(socket.get(), SIOCGIFMTU, request, name);
  device.mtu = static_cast<std::size_t>(request.ifr_mtu);
  if (!has_address(name, address)) {
    throw std::runtime_error("the network interface " + name + " does not have the address " + to_text(address));
  }
  device.driver = driver_of(socket.get(), request);
  device.queues = queues_of(socket.get(), request);
  return device;
}

}  // namespace wiresum::transport::xdp
