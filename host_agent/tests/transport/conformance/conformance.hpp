// The conformance suite: tests that every transport passes, between any two transports that reach each other. A test
// executable compiles conformance.cpp and names its rigs:
//
//   INSTANTIATE_TEST_SUITE_P(Xdp, Conformance, ::testing::Values(RigKind{...}), rig_name);
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>

#include "transport/ethernet/frame.hpp"
#include "transport/transport.hpp"

namespace wiresum::transport::testing {

enum class Side : std::uint8_t { kLeft, kRight };

/// The first UDP port of each side; the others follow.
inline constexpr std::uint16_t kFirstPort = wire::kSwitchPort;

struct EndOptions {
  std::size_t ports = 1;
  wire::Endpoint peer{};  // port 0 means any peer
  std::size_t datagram_bytes_max = 1464;
};

/// Two ends that reach each other in a separate network.
class Rig {
 public:
  virtual ~Rig() = default;

  /// Opens the transport of a side, on ports from kFirstPort on. A side has one transport at a time.
  [[nodiscard]] virtual std::unique_ptr<Transport> open(Side side, const EndOptions& options) = 0;
  [[nodiscard]] virtual std::uint32_t address(Side side) const = 0;

  /// Sends a frame as if it came from the left side. Returns false if this rig has no wire for frames.
  [[nodiscard]] virtual bool inject(std::span<const std::byte>) { return false; }
  /// The MAC addresses of frames from left to right.
  [[nodiscard]] virtual ethernet::MacAddress mac(Side) const { return {}; }

  [[nodiscard]] wire::Endpoint endpoint(Side side, std::size_t port = 0) const {
    return {.address = address(side), .port = static_cast<std::uint16_t>(kFirstPort + port)};
  }
};

struct RigOptions {
  std::size_t mtu = 1500;
  std::size_t queues = 1;  // of each side's interface, if it has one
};

struct RigKind {
  std::string name;
  /// Throws if it cannot be made here; check `why_not` first.
  std::function<std::unique_ptr<Rig>(const RigOptions&)> make;
  /// Why it cannot be made on this machine; empty if it can.
  std::function<std::string()> why_not;
  std::size_t datagram_bytes_max = 8972;  // for a sufficiently large MTU
};

/// Prints the name in GoogleTest's output, instead of the bytes of the struct.
inline void PrintTo(const RigKind& kind, std::ostream* out) { *out << kind.name; }

class Conformance : public ::testing::TestWithParam<RigKind> {
 protected:
  void SetUp() override;
  /// Makes the rig with the given options instead of the default ones.
  void build(const RigOptions& options);
  [[nodiscard]] Rig& rig() { return *rig_; }
  void open(const EndOptions& left = {}, const EndOptions& right = {});

  std::unique_ptr<Rig> rig_;
  std::unique_ptr<Transport> left_;
  std::unique_ptr<Transport> right_;
};

inline std::string rig_name(const ::testing::TestParamInfo<RigKind>& info) { return info.param.name; }

}  // namespace wiresum::transport::testing
