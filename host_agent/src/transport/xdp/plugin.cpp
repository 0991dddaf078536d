#include "transport/plugin.hpp"

#include "transport/xdp/xdp.hpp"

namespace {

wiresum::transport::Transport* make(const wiresum::transport::DeviceConfig& config) {
  return new wiresum::transport::XdpTransport(config);
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const wiresum::transport::PluginEntry wiresum_transport_plugin{
    wiresum::transport::kTransportAbi, &make};
