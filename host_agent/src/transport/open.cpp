#include "transport/open.hpp"

#include <cassert>
#include <optional>
#include <stdexcept>
#include <utility>

#include "transport/device_config.hpp"
#include "transport/exchange.hpp"
#include "transport/plugin.hpp"
#include "transport/udp/udp.hpp"

namespace wiresum::transport {
namespace {

DeviceConfig device_config(const Spec& spec, const PathConfig& place, const std::vector<UdpSocket>& sockets,
                           unsigned threads) {
  DeviceConfig config{.device = spec.device,
                      .address = place.address,
                      .ports = {},
                      .peers = place.peers,
                      .datagram_bytes_max = place.datagram_bytes_max,
                      .threads = threads};
  if (spec.kind == TransportKind::kXdp && spec.device.empty()) {
    const std::optional<std::string> interface = interface_with(place.address);
    if (!interface) {
      throw std::runtime_error("no network interface has the address " +
                               to_string({.address = place.address, .port = 0}) +
                               ": name the interface, or choose an address that one has");
    }
    config.device = *interface;
  }
  for (const UdpSocket& socket : sockets) config.ports.push_back(socket.local().port);
  return config;
}

}  // namespace

Spec spec_of(const std::string& text) {
  if (text == "udp") return {};
  if (text == "udp:plain") return {.device = {}, .offload = false};
  if (text == "xdp") return {.kind = TransportKind::kXdp, .device = {}};
  if (text.starts_with("xdp:")) return {.kind = TransportKind::kXdp, .device = text.substr(4)};
  if (text.starts_with("dpdk:") && text.size() > 5) return {.kind = TransportKind::kDpdk, .device = text.substr(5)};
  throw std::invalid_argument("no such transport: '" + text +
                              "'; there are udp, udp:plain, xdp, xdp:INTERFACE and dpdk:ARGUMENTS");
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
