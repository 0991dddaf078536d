// AF_XDP passes the conformance suite in native mode (in the driver) and in generic mode (before the kernel's stack),
// and with ordinary UDP sockets at the other end.
#include "conformance.hpp"
#include "xdp_rig.hpp"

namespace wiresum::transport::testing {
namespace {

template <typename Made>
RigKind kind(const char* name, OpenEnd left, OpenEnd right) {
  return {.name = name,
          .make = [left, right](const RigOptions& options) { return std::make_unique<Made>(options, left, right); },
          .why_not = &no_namespaces};
}

INSTANTIATE_TEST_SUITE_P(Xdp, Conformance,
                         ::testing::Values(kind<VethRig>("native", &open_xdp, &open_xdp),
                                           kind<MacvlanRig>("generic", &open_xdp, &open_xdp),
                                           kind<MacvlanRig>("generic_from_udp", &open_plain_udp, &open_xdp),
                                           kind<VethRig>("from_udp", &open_udp, &open_xdp),
                                           kind<VethRig>("to_udp", &open_xdp, &open_udp)),
                         rig_name);

}  // namespace
}  // namespace wiresum::transport::testing
