// A plugin for another version of the interface, whose factory must not be called.
#include <cstdlib>

#include "transport/plugin.hpp"

namespace {

std::vector<std::unique_ptr<wiresum::transport::Transport>> make(const wiresum::transport::DeviceConfig&) {
  std::abort();
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const wiresum::transport::PluginEntry wiresum_transport_plugin{
    "0123456789abcdef", &make};
