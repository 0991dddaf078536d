// A rig over a veth pair, with any transport at each side.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "conformance.hpp"
#include "namespace.hpp"

namespace wiresum::transport::testing {

/// Makes the transport of a side; called in its namespace.
using OpenEnd = std::function<std::unique_ptr<Transport>(const std::string& interface, std::uint32_t address,
                                                         const EndOptions& options)>;

/// UDP sockets on consecutive ports from kFirstPort on.
[[nodiscard]] std::unique_ptr<Transport> open_udp(const std::string& interface, std::uint32_t address,
                                                  const EndOptions& options);

/// The same without GSO: each datagram is a separate packet from the start.
[[nodiscard]] std::unique_ptr<Transport> open_plain_udp(const std::string& interface, std::uint32_t address,
                                                        const EndOptions& options);

class VethRig : public Rig {
 public:
  VethRig(const RigOptions& options, OpenEnd left, OpenEnd right);
  ~VethRig() override;

  [[nodiscard]] std::unique_ptr<Transport> open(Side side, const EndOptions& options) override;
  [[nodiscard]] std::uint32_t address(Side side) const override;
  [[nodiscard]] bool inject(std::span<const std::byte> frame) override;
  [[nodiscard]] ethernet::MacAddress mac(Side side) const override;

  [[nodiscard]] const Namespace& space(Side side) const { return side == Side::kLeft ? pair_.left : pair_.right; }

 protected:
  /// The interface that transports are opened on, which has the address.
  std::string interface_ = VethPair::kInterface;

 private:
  VethPair pair_;
  OpenEnd left_;
  OpenEnd right_;
  int raw_ = -1;  // a packet socket at the left side
};

}  // namespace wiresum::transport::testing
