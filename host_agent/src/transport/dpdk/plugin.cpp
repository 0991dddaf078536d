#include "transport/plugin.hpp"

#include "transport/dpdk/dpdk.hpp"

namespace {

std::vector<std::unique_ptr<wiresum::transport::Transport>> make(const wiresum::transport::DeviceConfig& config) {
  return wiresum::transport::dpdk::DpdkTransport::open(config);
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const wiresum::transport::PluginEntry wiresum_transport_plugin{
    wiresum::transport::kTransportAbi, &make};
