// AF_XDP over veth pairs, opened by the plugin that the build has made.
#pragma once

#include <memory>
#include <string>

#include "veth_rig.hpp"

namespace wiresum::transport::testing {

/// The transport as in a real process: sockets reserve its ports, and AF_XDP receives their packets.
[[nodiscard]] std::unique_ptr<Transport> open_xdp(const std::string& interface, std::uint32_t address,
                                                  const EndOptions& options);

/// Over macvlan interfaces on a veth pair: their driver does not support XDP, so the kernel runs the program before its
/// stack (generic mode).
class MacvlanRig final : public VethRig {
 public:
  MacvlanRig(const RigOptions& options, OpenEnd left, OpenEnd right);

  static constexpr const char* kInterface = "over0";
};

}  // namespace wiresum::transport::testing
