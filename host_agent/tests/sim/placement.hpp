// Where a job is, or was before a move: what the controller tells the switches, and what these do with its packets.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "agenda.hpp"
#include "dataplane.hpp"
#include "network.hpp"
#include "packet.hpp"
#include "sim_transport.hpp"

namespace wiresum::sim {

/// Shared by all jobs: time, random numbers, and the switches.
struct World {
  World(std::uint64_t seed, std::size_t bytes_max) : packet_bytes_max(bytes_max), packets(bytes_max), random(seed) {}

  std::size_t packet_bytes_max;
  PacketPool packets;
  std::map<std::uint32_t, DeviceMemory> devices;  // those that read at once, by the number of packets
  Random random;
  Agenda agenda;
  VirtualClock clock;
  using Ports = std::vector<std::unique_ptr<dataplane::Dataplane>>;
  /// By set, switch and port. Jobs begin at the first set of switches; those of another set are at the same places in
  /// the network.
  std::vector<std::vector<Ports>> ports;
  std::uint32_t keys = 0;  // the number of keys drawn so far
};

/// What the controller assigns to a job.
struct Lease {
  std::uint16_t job = 0;
  std::uint32_t key = 0;
  std::uint8_t port_offset = 0;
  std::uint32_t slot_base = 0;
  std::uint32_t set = 0;       // of switches
  std::uint32_t rotation = 0;  // of the numbers by which each switch knows its workers
};

/// The tree of a job's switches: who is below which.
class Tree {
 public:
  using Node = Network::Node;
  /// `hosts`: by stream, that of all the job's workers on a host.
  Tree(std::shared_ptr<Network> network, std::vector<Node> hosts);
  /// Gives other numbers to what is below each switch.
  void rotate(std::uint32_t by);

  [[nodiscard]] Network& network() const noexcept { return *network_; }
  [[nodiscard]] std::uint32_t switches() const noexcept { return static_cast<std::uint32_t>(children_.size()); }
  /// In the order of the numbers by which the switch knows them; none: the job does not use it.
  [[nodiscard]] const std::vector<Node>& children(std::uint32_t index) const noexcept { return children_[index]; }
  [[nodiscard]] bool is_used(std::uint32_t index) const noexcept { return !children_[index].empty(); }
  [[nodiscard]] Node host_of(std::uint32_t stream) const noexcept { return hosts_[stream]; }
  [[nodiscard]] std::uint32_t stream_of(Node host) const noexcept { return streams_[host]; }
  [[nodiscard]] std::uint8_t number_of(Node node) const noexcept;
  [[nodiscard]] wire::Endpoint endpoint_of(Node node) const noexcept;

 private:
  std::shared_ptr<Network> network_;
  std::vector<std::vector<Node>> children_;  // by switch
  std::vector<Node> hosts_;                  // by stream
  std::vector<std::uint32_t> streams_;       // by host
};

/// A job's packets: how many lanes, threads and slots it has.
struct Shape {
  std::uint32_t threads = 1;
  std::uint32_t lanes = 360;
  std::uint32_t slots = 128;
};

/// Bits that are wrong and that no checksum sees: for each packet with words, the probability that one of them flips.
struct WrongBits {
  double up = 0;    // of its words, on its way to a switch
  double down = 0;  // ... to a host
  double cell = 0;  // of the sum, in the cell of the switch that sends it
  std::uint64_t flips_max = UINT64_MAX;
  std::uint64_t flips = 0;
};

class Placement final : public Network::Receiver {
 public:
  using Node = Network::Node;
  /// `deliver` is called with what arrives of a stream.
  Placement(World& world, Tree tree, const Shape& shape, const Lease& lease, WrongBits& wrong_bits,
            std::function<void(std::uint32_t stream, std::uint32_t thread, const Packet&)> deliver)
      : world_(world),
        tree_(std::move(tree)),
        shape_(shape),
        lease_(lease),
        wrong_bits_(wrong_bits),
        deliver_(std::move(deliver)) {
    tree_.rotate(lease.rotation);
  }

  [[nodiscard]] const Lease& lease() const noexcept { return lease_; }
  /// The number by which its switch knows a stream.
  [[nodiscard]] std::uint8_t number_of(std::uint32_t stream) const noexcept {
    return tree_.number_of(tree_.host_of(stream));
  }
  /// Has any of the switches of this set a job of that number?
  [[nodiscard]] bool is_there(std::uint32_t set) const;

  /// Sets the job's cells as an earlier job of these workers would have left them: each in a different round, half
  /// summed, many of them in rounds with which this job begins. The job must not be affected.
  void leave_cells_used(std::uint32_t round_first, std::uint64_t seed) const;
  void admit() const;
  /// Again, if the switch does not have it.
  void admit_at(std::uint32_t index) const;
  /// Its late packets still arrive there.
  void evict() const;
  /// The switch loses all jobs and cells.
  void restart(std::uint32_t index) const;

  void arrive_from(Node node, std::uint32_t thread, const Packet& packet) override;
  void arrive_at(Node node, std::uint32_t thread, const Packet& packet) override;

 private:
  [[nodiscard]] dataplane::JobEntry entry_of(std::uint32_t index) const;
  [[nodiscard]] dataplane::Dataplane& port(std::uint32_t index, std::uint32_t thread) const;
  void leave_cells_used(dataplane::Dataplane& machine, dataplane::JobEntry entry, std::uint32_t round_first,
                        std::uint64_t seed) const;
  void handle(std::uint32_t index, Node from, std::uint32_t thread, const Packet& sent);
  void flip(std::span<const std::byte> words, double probability);
  [[nodiscard]] Packet arrived(const Packet& sent, double flip_probability);

  World& world_;
  Tree tree_;
  const Shape shape_;
  const Lease lease_;
  WrongBits& wrong_bits_;
  std::function<void(std::uint32_t, std::uint32_t, const Packet&)> deliver_;
};

}  // namespace wiresum::sim
