// Pairs of DPDK's virtual devices, opened by the plugin that the build has made.
#pragma once

#include <memory>
#include <string>

#include "transport/device_config.hpp"
#include "veth_rig.hpp"

namespace wiresum::transport::testing {

/// A transport with these EAL arguments, in addition to those of every test.
[[nodiscard]] std::unique_ptr<Transport> open_dpdk_device(const std::string& device, std::uint32_t address,
                                                          const EndOptions& options);

/// A transport over a kernel interface (net_af_packet), which loses its kernel address.
[[nodiscard]] std::unique_ptr<Transport> open_dpdk(const std::string& interface, std::uint32_t address,
                                                   const EndOptions& options);

/// UDP sockets without GSO: trains of datagrams stay together on a veth pair, where they are too long for
/// net_af_packet's ring and would be truncated.
[[nodiscard]] std::unique_ptr<Transport> open_udp_singly(const std::string& interface, std::uint32_t address,
                                                         const EndOptions& options);

/// A pair of net_memif devices, both ends in this process.
class MemifRig final : public Rig {
 public:
  MemifRig();
  ~MemifRig() override;

  [[nodiscard]] std::unique_ptr<Transport> open(Side side, const EndOptions& options) override;
  [[nodiscard]] std::uint32_t address(Side side) const override;

 private:
  std::string server_;
  std::string client_;
  std::string folder_;
};

}  // namespace wiresum::transport::testing
