#include "xdp_rig.hpp"

#include <utility>
#include <vector>

#include "transport/plugin.hpp"
#include "transport/udp/socket.hpp"

namespace wiresum::transport::testing {
namespace {

/// A transport, with the sockets that reserve its ports.
class Reserved final : public Transport {
 public:
  Reserved(std::vector<UdpSocket> sockets, std::unique_ptr<Transport> transport)
      : sockets_(std::move(sockets)), transport_(std::move(transport)) {}

  const char* name() const noexcept override { return transport_->name(); }
  std::size_t receive(std::span<RxDatagram> out) noexcept override { return transport_->receive(out); }
  std::span<wire::Packet> buffers(std::size_t wanted) noexcept override { return transport_->buffers(wanted); }
  std::size_t train_packets(std::size_t bytes) const noexcept override { return transport_->train_packets(bytes); }
  void send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t port, bool marked) noexcept override {
    transport_->send(count, to, port, marked);
  }
  bool hear(std::span<const wire::Endpoint> peers, UdpSocket* group) noexcept override {
    return transport_->hear(peers, group);
  }
  void wait(std::int64_t timeout_ns) noexcept override { transport_->wait(timeout_ns); }
  void wake() noexcept override { transport_->wake(); }
  const TransportStats& stats() const noexcept override { return transport_->stats(); }
  int take_error() noexcept override { return transport_->take_error(); }

 private:
  std::vector<UdpSocket> sockets_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace

std::unique_ptr<Transport> open_xdp(const std::string& interface, std::uint32_t address, const EndOptions& options) {
  std::vector<UdpSocket> sockets = bind_consecutive({.address = address, .port = kFirstPort}, options.ports);
  DeviceConfig config;
  config.device = interface;
  config.address = address;
  for (const UdpSocket& socket : sockets) config.ports.push_back(socket.local().port);
  if (options.peer.port != 0) config.peers.assign(options.ports, options.peer);
  config.datagram_bytes_max = options.datagram_bytes_max;
  return std::make_unique<Reserved>(
      std::move(sockets), std::move(make_device_transports(PluginKind::kXdp, config, WIRESUM_XDP_PLUGIN).front()));
}

MacvlanRig::MacvlanRig(const RigOptions& options, OpenEnd left, OpenEnd right)
    : VethRig(options, std::move(left), std::move(right)) {
  const std::string under = interface_;
  interface_ = kInterface;
  for (const Side side : {Side::kLeft, Side::kRight}) {
    const std::string queues = " numrxqueues " + std::to_string(options.queues) + " numtxqueues " +
                               std::to_string(options.queues) + " mtu " + std::to_string(options.mtu);
    const std::string last = side == Side::kLeft ? "1" : "2";
    // The lower interface must not answer ARP: Linux would let it answer for the upper one, with the wrong MAC address.
    space(side).command("ip address flush dev " + under + " && ip link set " + under + " arp off && ip link add link " +
                        under + " name " + interface_ + queues +
                        " type macvlan mode bridge && ip address add 10.77.0." + last + "/24 dev " + interface_ +
                        " && ip link set " + interface_ + " up");
  }
}

}  // namespace wiresum::transport::testing
