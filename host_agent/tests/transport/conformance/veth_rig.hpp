// A rig over a veth pair, whose sides are any transports that go there.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "conformance.hpp"
#include "namespace.hpp"

namespace wiresum::transport::testing {

/// Makes a side's transport; called inside of its namespace.
using OpenEnd = std::function<std::unique_ptr<Transport>(const std::string& interface, std::uint32_t address,
                                                         const EndOptions& options)>;

/// UDP sockets on consecutive ports from kFirstPort on.
[[nodiscard]] std::unique_ptr<Transport> open_udp(const std::string& interface, std::uint32_t address,
                                                  const EndOptions& options);

/// The same, each datagram in a packet of its own from the start (no GSO).
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
  /// What transports are opened at, and what has the address.
  std::string interface_ = VethPair::kInterface;

 private:
  VethPair pair_;
  OpenEnd left_;
  OpenEnd right_;
  int raw_ = -1;  // a packet socket of the left side
};

}  // namespace wiresum::transport::testing
