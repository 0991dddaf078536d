#include "network.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace wiresum::sim {

Network::Network(const NetworkConfig& config, std::uint32_t hosts, const VirtualClock& clock, Agenda& agenda,
                 Random& random)
    : config_(config), hosts_(hosts), clock_(clock), agenda_(agenda), random_(random) {
  check();
  for (std::uint32_t i = 0; config_.buffer_bytes > 0 && i < switches(); ++i) {
    buffers_.push_back(std::make_unique<SharedBuffer>(config_.buffer_bytes, config_.buffer_factor));
  }
  const auto buffer_of = [&](std::uint32_t number) { return buffers_.empty() ? nullptr : buffers_[number].get(); };
  for (Node node = 0; node < hosts_ + switches(); ++node) {
    const LinkConfig* up = &config_.up;
    const LinkConfig* down = &config_.down;
    for (const NetworkConfig::OtherLink& other : config_.other_links) {
      if (node != other.place.number + (other.place.of_switch ? hosts_ : 0)) continue;
      up = &other.up;
      down = &other.down;
    }
    SharedBuffer* const own = is_host(node) ? nullptr : buffer_of(node - hosts_);
    channels_.push_back({.up = std::make_unique<Channel>(*this, node, true, *up, own),
                         .down = std::make_unique<Channel>(*this, node, false, *down, buffer_of(above(node)))});
  }
  for (const NetworkConfig::Cross& cross : config_.cross_traffic) {
    const Channels& there = at(cross.place);
    (cross.up ? there.up : there.down)->link().add(cross.traffic);
  }
}

void Network::check() const {
  for (std::size_t i = 0; i < config_.parents.size(); ++i) {
    if (i == 0 ? config_.parents[i] != 0 : config_.parents[i] >= i) {
      throw std::invalid_argument("a switch's parent comes before it, and the root is its own");
    }
  }
  const std::vector<std::uint32_t>& leaves = config_.leaves;
  if (!leaves.empty() && (leaves.size() != hosts_ || std::ranges::max(leaves) >= config_.parents.size())) {
    throw std::invalid_argument("each host hangs on a switch");
  }
  const auto is_there = [&](const Place& place) {
    return place.number < (place.of_switch ? config_.parents.size() : hosts_);
  };
  if (!std::ranges::all_of(config_.other_links, is_there, &NetworkConfig::OtherLink::place) ||
      !std::ranges::all_of(config_.cross_traffic, is_there, &NetworkConfig::Cross::place)) {
    throw std::invalid_argument("a link of a host or switch that is not there");
  }
}

std::uint32_t Network::above(Node node) const noexcept {
  if (!is_host(node)) return config_.parents[node - hosts_];
  return config_.leaves.empty() ? 0 : config_.leaves[node];
}

Network::Channels& Network::at(const Place& place) {
  return channels_[place.of_switch ? node_of_switch(place.number) : place.number];
}

LinkCounters Network::counters() const {
  LinkCounters sum;
  for (const Channels& channels : channels_) {
    for (const Channel* channel : {channels.up.get(), channels.down.get()}) {
      const LinkCounters& each = channel->link().counters();
      sum.packets += each.packets;
      sum.lost += each.lost;
      sum.overflow += each.overflow;
      sum.marked += each.marked;
      sum.cross_packets += each.cross_packets;
      sum.cross_overflow += each.cross_overflow;
    }
  }
  return sum;
}

std::uint64_t Network::buffer_held_max() const {
  std::uint64_t most = 0;
  for (const auto& buffer : buffers_) most = std::max(most, buffer->held_max());
  return most;
}

void Network::Channel::send(Delivery delivery) {
  const TimeNs now = network_.clock_.now();
  link_.carry(now, delivery.packet.size(), network_.random_, [&](TimeNs at, bool marked) {
    if (marked) delivery.packet.mark();
    if (!under_way_.empty() && at < under_way_.back().at) {  // it overtakes
      network_.agenda_.at(at, [this, delivery] { deliver(delivery); });
      return;
    }
    under_way_.push_back({at, delivery});
    if (under_way_.size() == 1) network_.agenda_.at(at, [this] { deliver_first(); });
  });
}

void Network::Channel::deliver_first() {
  const Delivery delivery = std::move(under_way_.front().delivery);
  under_way_.pop_front();
  if (!under_way_.empty()) network_.agenda_.at(under_way_.front().at, [this] { deliver_first(); });
  deliver(delivery);
}

void Network::Channel::deliver(const Delivery& delivery) {
  if (up_) {
    delivery.receiver->arrive_from(node_, delivery.thread, delivery.packet);
  } else {
    delivery.receiver->arrive_at(node_, delivery.thread, delivery.packet);
  }
}

}  // namespace wiresum::sim
