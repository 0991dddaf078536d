// Transports over a device are shared objects of their own, loaded on demand: so only their users need the libraries
// that they are made with.
//
// A plugin exports one PluginEntry by the name kPluginSymbol:
//
//   extern "C" [[gnu::visibility("default")]] const PluginEntry wiresum_transport_plugin{kTransportAbi, &make};
//
// It shares this program's C++ runtime, so exceptions and virtual calls cross the boundary, and nothing else does. It
// is never unloaded, and refused if it was built against another version of the interface.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/device_config.hpp"
#include "transport/transport.hpp"

namespace wiresum::transport {

enum class PluginKind : std::uint8_t { kXdp, kDpdk };

/// A digest of the interface's headers at compilation, made by the build.
inline constexpr const char* kTransportAbi = WIRESUM_TRANSPORT_ABI;
inline constexpr const char* kPluginSymbol = "wiresum_transport_plugin";

struct PluginEntry {
  const char* abi;  // kTransportAbi of the plugin's build; first, so that it can be read from any version
  /// Makes as many transports as the configuration has threads; throws what the transport throws.
  std::vector<std::unique_ptr<Transport>> (*make)(const DeviceConfig& config);
};

/// Loads the plugin and makes transports, one for each of the configuration's threads. `path`: the shared object;
/// empty: the one beside the code that asks, which is where an installation has it. Throws std::runtime_error that says
/// what to install or to build if there is none that fits, and what the transport's constructor throws.
[[nodiscard]] std::vector<std::unique_ptr<Transport>> make_device_transports(PluginKind kind,
                                                                             const DeviceConfig& config,
                                                                             const std::string& path = {});

}  // namespace wiresum::transport
