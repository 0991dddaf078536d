#include "dpdk_rig.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "transport/plugin.hpp"
#include "transport/udp/udp.hpp"

namespace wiresum::transport::testing {
namespace {

/// EAL has one set of arguments for all transports of a process, with enough memory for those that are open together.
constexpr const char* kEalArguments = "--no-huge -m 512 --log-level=error --log-level=pmd.net.memif:1 ";

std::string unique_name(const char* driver) {
  static std::atomic<int> made{0};
  return driver + std::to_string(made.fetch_add(1));
}

}  // namespace

std::unique_ptr<Transport> open_dpdk_device(const std::string& device, std::uint32_t address,
                                            const EndOptions& options) {
  DeviceConfig config;
  config.device = kEalArguments + device;
  config.address = address;
  for (std::size_t i = 0; i < options.ports; ++i) config.ports.push_back(static_cast<std::uint16_t>(kFirstPort + i));
  if (options.peer.port != 0) config.peers.assign(options.ports, options.peer);
  config.datagram_bytes_max = options.datagram_bytes_max;
  return std::move(make_device_transports(PluginKind::kDpdk, config, WIRESUM_DPDK_PLUGIN).front());
}

std::unique_ptr<Transport> open_dpdk(const std::string& interface, std::uint32_t address, const EndOptions& options) {
  // Otherwise the kernel would also answer: to ARP, and that our ports are closed.
  if (std::system(("ip address flush dev " + interface).c_str()) != 0) throw std::runtime_error("ip address flush");
  const std::string frames = options.datagram_bytes_max > 1464 ? ",framesz=10240,blocksz=20480" : "";
  return open_dpdk_device("--vdev=" + unique_name("net_af_packet") + ",iface=" + interface + frames, address, options);
}

std::unique_ptr<Transport> open_udp_singly(const std::string&, std::uint32_t address, const EndOptions& options) {
  std::vector<UdpSocket> sockets = bind_consecutive({.address = address, .port = kFirstPort}, options.ports);
  if (options.peer.port != 0) sockets.front().connect(options.peer);
  return std::make_unique<UdpTransport>(UdpConfig{.datagram_bytes_max = options.datagram_bytes_max, .offload = false},
                                        std::move(sockets));
}

MemifRig::MemifRig() : server_(unique_name("net_memif")), client_(unique_name("net_memif")) {
  std::array<char, 32> name{"/tmp/wiresum-memif-XXXXXX"};
  if (mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), "mkdtemp");
  folder_ = name.data();
}

MemifRig::~MemifRig() { std::filesystem::remove_all(folder_); }

std::unique_ptr<Transport> MemifRig::open(Side side, const EndOptions& options) {
  const bool server = side == Side::kLeft;
  // A process can open a socket of one name only once.
  const std::string socket = folder_ + (server ? "/" : "/./") + "socket";
  return open_dpdk_device("--vdev=" + (server ? server_ : client_) + ",role=" + (server ? "server" : "client") +
                              ",socket-abstract=no,socket=" + socket +
                              (options.datagram_bytes_max > 1464 ? ",bsize=16384" : ""),
                          address(side), options);
}

std::uint32_t MemifRig::address(Side side) const {
  return side == Side::kLeft ? VethPair::kLeftAddress : VethPair::kRightAddress;
}

}  // namespace wiresum::transport::testing
