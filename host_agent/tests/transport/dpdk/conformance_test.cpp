// DPDK passes the conformance suite over shared memory, over a veth pair, and with ordinary UDP sockets at the other
// end, where the kernel answers ARP and verifies checksums.
#include "conformance.hpp"
#include "dpdk_rig.hpp"

namespace wiresum::transport::testing {
namespace {

RigKind veth(const char* name, OpenEnd left, OpenEnd right) {
  return {.name = name,
          .make = [left, right](const RigOptions& options) { return std::make_unique<VethRig>(options, left, right); },
          .why_not = &no_namespaces};
}

RigKind memif() {
  return {.name = "memif",
          .make = [](const RigOptions&) { return std::make_unique<MemifRig>(); },
          .why_not = [] { return std::string(); }};
}

INSTANTIATE_TEST_SUITE_P(Dpdk, Conformance,
                         ::testing::Values(memif(), veth("af_packet", &open_dpdk, &open_dpdk),
                                           veth("from_udp", &open_udp_singly, &open_dpdk),
                                           veth("to_udp", &open_dpdk, &open_udp_singly)),
                         rig_name);

}  // namespace
}  // namespace wiresum::transport::testing
