#include "transport/plugin.hpp"

#include "transport/xdp/xdp.hpp"

namespace {

std::vector<std::unique_ptr<wiresum::transport::Transport>> make(const wiresum::transport::DeviceConfig& config) {
  return wiresum::transport::XdpTransport::open(config);
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const wiresum::transport::PluginEntry wiresum_transport_plugin{
    wiresum::transport::kTransportAbi, &make};
