// DPDK's virtual devices between two ends, by the plugin that the build has made.
#pragma once

#include <memory>
#include <string>

#include "transport/device_config.hpp"
#include "veth_rig.hpp"

namespace wiresum::transport::testing {

/// A transport with these EAL arguments, and those that every test has.
[[nodiscard]] std::unique_ptr<Transport> open_dpdk_device(const std::string& device, std::uint32_t address,
                                                          const EndOptions& options);

/// Over an interface of the kernel's (net_af_packet), from which the kernel's own address is taken away.
[[nodiscard]] std::unique_ptr<Transport> open_dpdk(const std::string& interface, std::uint32_t address,
                                                   const EndOptions& options);

/// UDP sockets that send each datagram by itself: trains of them (GSO) stay together on a veth pair, and are too long
/// for net_af_packet's ring, which cuts them off.
[[nodiscard]] std::unique_ptr<Transport> open_udp_singly(const std::string& interface, std::uint32_t address,
                                                         const EndOptions& options);

/// A pair of net_memif, both ends in this process.
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
