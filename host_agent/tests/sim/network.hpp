// The simulated network: hosts and switches in a tree, and the two directions of each one's link to the switch above.
//
// A link without jitter and reordering delivers in order, so of the packets under way on a link only the first is an
// event: with thousands of workers the agenda stays short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "agenda.hpp"
#include "link.hpp"
#include "packet.hpp"

namespace wiresum::sim {

/// One end of a link upwards: a host's, or that of a switch which is not the root.
struct Place {
  bool of_switch = false;
  std::uint32_t number = 0;  // of the host, or of the switch
};

struct NetworkConfig {
  // The parent of each switch, which has a lower number; switch 0 is the root.
  std::vector<std::uint32_t> parents = {0};
  std::vector<std::uint32_t> leaves;  // the switch of each host; empty means that all hang on the root
  LinkConfig up;                      // of all links ...
  LinkConfig down;
  struct OtherLink {
    Place place;
    LinkConfig up;
    LinkConfig down;
  };
  std::vector<OtherLink> other_links;  // ... but these
  struct Cross {
    Place place;
    bool up = true;  // or down
    CrossTraffic traffic;
  };
  std::vector<Cross> cross_traffic;
  std::uint64_t buffer_bytes = 0;  // of each switch, shared by its ports; 0 means that each port has a queue of its own
  double buffer_factor = 1;        // a port may hold so much times what is free
};

class Network {
 public:
  /// A host or a switch; hosts come first.
  using Node = std::uint32_t;
  /// Who a packet is for, at whichever node.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    Receiver() = default;
    Receiver(const Receiver&) = delete;
    Receiver& operator=(const Receiver&) = delete;
    /// At the switch above `node`, which sent it.
    virtual void arrive_from(Node node, std::uint32_t thread, const Packet& packet) = 0;
    /// At `node`, from the switch above.
    virtual void arrive_at(Node node, std::uint32_t thread, const Packet& packet) = 0;
  };
  struct Delivery {
    Receiver* receiver = nullptr;
    std::uint32_t thread = 0;
    Packet packet;
  };

  /// Throws std::invalid_argument if the configuration makes no sense.
  Network(const NetworkConfig& config, std::uint32_t hosts, const VirtualClock& clock, Agenda& agenda, Random& random);

  [[nodiscard]] std::uint32_t hosts() const noexcept { return hosts_; }
  [[nodiscard]] std::uint32_t switches() const noexcept { return static_cast<std::uint32_t>(config_.parents.size()); }
  [[nodiscard]] bool is_host(Node node) const noexcept { return node < hosts_; }
  [[nodiscard]] Node node_of_switch(std::uint32_t number) const noexcept { return hosts_ + number; }
  /// The switch above a node; the root's is the root itself.
  [[nodiscard]] std::uint32_t above(Node node) const noexcept;

  void send_up(Node from, Delivery delivery) { channels_[from].up->send(std::move(delivery)); }
  void send_down(Node to, Delivery delivery) { channels_[to].down->send(std::move(delivery)); }

  /// Of all links.
  [[nodiscard]] LinkCounters counters() const;
  /// The most bytes that a switch's shared buffer has held.
  [[nodiscard]] std::uint64_t buffer_held_max() const;

 private:
  class Channel {
   public:
    Channel(Network& network, Node node, bool up, const LinkConfig& link, SharedBuffer* buffer)
        : network_(network), node_(node), up_(up), link_(link, buffer) {}
    void send(Delivery delivery);
    [[nodiscard]] Link& link() noexcept { return link_; }
    [[nodiscard]] const Link& link() const noexcept { return link_; }

   private:
    struct UnderWay {
      TimeNs at;
      Delivery delivery;
    };
    void deliver_first();
    void deliver(const Delivery& delivery);

    Network& network_;
    Node node_;
    bool up_;
    Link link_;
    std::deque<UnderWay> under_way_;
  };
  struct Channels {
    std::unique_ptr<Channel> up;
    std::unique_ptr<Channel> down;
  };

  void check() const;
  [[nodiscard]] Channels& at(const Place& place);

  const NetworkConfig config_;
  const std::uint32_t hosts_;
  const VirtualClock& clock_;
  Agenda& agenda_;
  Random& random_;
  std::vector<std::unique_ptr<SharedBuffer>> buffers_;  // by switch; none if ports have queues of their own
  std::vector<Channels> channels_;                      // by node
};

}  // namespace wiresum::sim
