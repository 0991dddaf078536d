// A plugin that makes no transports, and reports its configuration in an error.
#include <stdexcept>

#include "transport/plugin.hpp"

namespace {

std::vector<std::unique_ptr<wiresum::transport::Transport>> make(const wiresum::transport::DeviceConfig& config) {
  throw std::invalid_argument("asked for " + config.device);
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const wiresum::transport::PluginEntry wiresum_transport_plugin{
    wiresum::transport::kTransportAbi, &make};
