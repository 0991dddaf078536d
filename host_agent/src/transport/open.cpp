#include "transport/open.hpp"

#include <ifaddrs.h>

#include <cassert>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "transport/device_config.hpp"
#include "transport/exchange.hpp"
#include "transport/plugin.hpp"
#include "transport/udp/address.hpp"
#include "transport/udp/udp.hpp"

namespace wiresum::transport {
namespace {

/// The name of the interface that has this address. Throws std::runtime_error if there is none.
std::string interface_with(std::uint32_t address) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) throw std::system_error(errno, std::generic_category(), "cannot list network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(all, &freeifaddrs);
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    sockaddr_in ipv4{};
    std::memcpy(&ipv4, entry->ifa_addr, sizeof ipv4);
    if (from_sockaddr(ipv4).address == address) return entry->ifa_name;
  }
  throw std::runtime_error("no network interface has the address " + to_string({.address = address, .port = 0}) +
                           ": name the interface, or choose an address that one has");
}

DeviceConfig device_config(const Spec& spec, const PathConfig& place, const std::vector<UdpSocket>& sockets,
                           unsigned threads) {
  DeviceConfig config{.device = spec.device,
                      .address = place.address,
                      .ports = {},
                      .peers = place.peers,
                      .datagram_bytes_max = place.datagram_bytes_max,
                      .threads = threads};
  if (spec.kind == TransportKind::kXdp && spec.device.empty()) config.device = interface_with(place.address);
  for (const UdpSocket& socket : sockets) config.ports.push_back(socket.local().port);
  return config;
}

}  // namespace

TransportKind kind_of(const std::string& name) {
  if (name == "udp") return TransportKind::kUdp;
  if (name == "xdp") return TransportKind::kXdp;
  if (name == "dpdk") return TransportKind::kDpdk;
  throw std::invalid_argument("no such transport: '" + name + "'; there are udp, xdp and dpdk");
}

DataPath open(const Spec& spec, const PathConfig& place, std::vector<UdpSocket> sockets) {
  return std::move(open_for_threads(spec, place, std::move(sockets), 1).front());
}

std::vector<DataPath> open_for_threads(const Spec& spec, const PathConfig& place, std::vector<UdpSocket> sockets,
                                       unsigned threads) {
  assert(threads != 0 && sockets.size() >= threads);
  const bool over_a_device = spec.kind != TransportKind::kUdp;
  std::vector<std::unique_ptr<Transport>> transports;
  if (over_a_device) {
    const PluginKind plugin = spec.kind == TransportKind::kXdp ? PluginKind::kXdp : PluginKind::kDpdk;
    transports = thread_transports(make_device_transports(plugin, device_config(spec, place, sockets, threads)),
                                   place.datagram_bytes_max);
  }
  std::vector<DataPath> paths(threads);
  for (std::size_t thread = 0; thread != threads; ++thread) {
    std::vector<UdpSocket> own;
    for (std::size_t i = thread; i < sockets.size(); i += threads) own.push_back(std::move(sockets[i]));
    if (over_a_device) {
      paths[thread] = {.reserved = std::move(own), .transport = std::move(transports[thread])};
    } else {
      const UdpConfig config{.datagram_bytes_max = place.datagram_bytes_max,
                             .receive_buffer_bytes = place.receive_buffer_bytes,
                             .offload = spec.offload};
      paths[thread].transport = std::make_unique<UdpTransport>(config, std::move(own));
    }
    if (spec.around) paths[thread].transport = spec.around(std::move(paths[thread].transport));
  }
  return paths;
}

}  // namespace wiresum::transport
