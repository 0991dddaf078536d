#include "transport/open.hpp"

#include <utility>

#include "transport/device_config.hpp"
#include "transport/plugin.hpp"
#include "transport/udp/udp.hpp"

namespace wiresum::transport {
namespace {

DeviceConfig device_config(const Spec& spec, const Place& place, const std::vector<UdpSocket>& sockets) {
  DeviceConfig config{.device = spec.device,
                      .address = place.address,
                      .ports = {},
                      .peer = place.peer,
                      .datagram_bytes_max = place.datagram_bytes_max};
  for (const UdpSocket& socket : sockets) config.ports.push_back(socket.local().port);
  return config;
}

}  // namespace

DataPath open(const Spec& spec, const Place& place, std::vector<UdpSocket> sockets) {
  DataPath path;
  if (spec.kind == Kind::kUdp) {
    const UdpConfig config{.datagram_bytes_max = place.datagram_bytes_max,
                           .receive_buffer_bytes = place.receive_buffer_bytes,
                           .offload = spec.offload};
    path.transport = std::make_unique<UdpTransport>(config, std::move(sockets));
    return path;
  }
  const PluginKind plugin = spec.kind == Kind::kXdp ? PluginKind::kXdp : PluginKind::kDpdk;
  path.transport = make_device_transport(plugin, device_config(spec, place, sockets));
  path.reserved = std::move(sockets);
  return path;
}

}  // namespace wiresum::transport
