#include "transport/plugin.hpp"

#include "transport/dpdk/dpdk.hpp"

namespace {

wiresum::transport::Transport* make(const wiresum::transport::DeviceConfig& config) {
  return new wiresum::transport::dpdk::DpdkTransport(config);
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const wiresum::transport::PluginEntry wiresum_transport_plugin{
    wiresum::transport::kTransportAbi, &make};
