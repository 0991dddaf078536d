#include "placement.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace wiresum::sim {
namespace {

constexpr std::uint16_t kWorkerPort = 20'000;

}  // namespace

Tree::Tree(std::shared_ptr<Network> network, std::vector<Node> hosts)
    : network_(std::move(network)),
      children_(network_->switches()),
      hosts_(std::move(hosts)),
      streams_(network_->hosts()) {
  const auto add = [&](Node node) { children_[network_->above(node)].push_back(node); };
  for (std::uint32_t stream = 0; stream < hosts_.size(); ++stream) {
    streams_[hosts_[stream]] = stream;
    add(hosts_[stream]);
  }
  // A switch's number is above its parent's: so when its turn comes, all that is below it has been added.
  for (std::uint32_t index = network_->switches(); index-- > 1;) {
    if (is_used(index)) add(network_->node_of_switch(index));
  }
}

void Tree::rotate(std::uint32_t by) {
  for (std::vector<Node>& below : children_) {
    if (!below.empty()) std::ranges::rotate(below, below.begin() + by % below.size());
  }
}

std::uint8_t Tree::number_of(Node node) const noexcept {
  const std::vector<Node>& children = children_[network_->above(node)];
  return static_cast<std::uint8_t>(std::ranges::find(children, node) - children.begin());
}

wire::Endpoint Tree::endpoint_of(Node node) const noexcept {
  return {.address = 0x0A000001 + node, .port = network_->is_host(node) ? kWorkerPort : wire::kSwitchPort};
}

// ---- What the controller does ----

dataplane::Dataplane& Placement::port(std::uint32_t index, std::uint32_t thread) const {
  return *world_.ports[lease_.set][index][lease_.port_offset + thread];
}

void Placement::admit_at(std::uint32_t index) const {
  if (!tree_.is_used(index)) return;
  const dataplane::JobEntry entry = entry_of(index);
  for (std::uint32_t thread = 0; thread < shape_.threads; ++thread) {
    dataplane::Dataplane& machine = port(index, thread);
    if (machine.find(lease_.job) == nullptr && !machine.admit(entry)) {
      throw std::invalid_argument("a switch does not admit this job");
    }
  }
}

void Placement::admit() const {
  for (std::uint32_t index = 0; index < tree_.switches(); ++index) admit_at(index);
}

void Placement::evict() const {
  for (std::uint32_t index = tree_.switches(); index-- > 0;) {
    for (std::uint32_t thread = 0; thread < shape_.threads; ++thread) {
      dataplane::Dataplane& machine = port(index, thread);
      const dataplane::JobEntry* const entry = machine.find(lease_.job);
      if (entry != nullptr && entry->key == lease_.key) machine.evict(lease_.job);
    }
  }
}

bool Placement::is_there(std::uint32_t set) const {
  return std::ranges::any_of(world_.ports[set], [this](const World::Ports& machines) {
    return std::ranges::any_of(machines, [this](const auto& machine) { return machine->find(lease_.job) != nullptr; });
  });
}

void Placement::restart(std::uint32_t index) const {
  for (const auto& machine : world_.ports[lease_.set][index]) machine->reset();
}

dataplane::JobEntry Placement::entry_of(std::uint32_t index) const {
  const std::vector<Node>& children = tree_.children(index);
  dataplane::JobEntry entry{.job = lease_.job,
                            .key = lease_.key,
                            .workers = static_cast<std::uint8_t>(children.size()),
                            .threads = static_cast<std::uint8_t>(shape_.threads),
                            .port_offset = lease_.port_offset,
                            .lanes = static_cast<std::uint16_t>(shape_.lanes),
                            .slot_base = lease_.slot_base,
                            .slots = shape_.slots,
                            .endpoints = {}};
  for (std::size_t i = 0; i < children.size() && i < entry.endpoints.size(); ++i) {
    entry.endpoints[i] = tree_.endpoint_of(children[i]);
  }
  if (index != 0) {
    const Network& network = tree_.network();
    const Node node = network.node_of_switch(index);
    entry.uplink = {.parent = tree_.endpoint_of(network.node_of_switch(network.above(node))),
                    .worker = tree_.number_of(node)};
  }
  return entry;
}

void Placement::leave_cells_used(std::uint32_t round_first, std::uint64_t seed) const {
  for (std::uint32_t index = 0; index < tree_.switches(); ++index) {
    for (std::uint32_t thread = 0; tree_.is_used(index) && thread < shape_.threads; ++thread) {
      leave_cells_used(port(index, thread), entry_of(index), round_first, seed);
    }
  }
}

void Placement::leave_cells_used(dataplane::Dataplane& machine, dataplane::JobEntry entry, std::uint32_t round_first,
                                 std::uint64_t seed) const {
  entry.key = ~lease_.key;
  entry.threads = 1;
  entry.uplink = {};
  if (!machine.admit(entry)) throw std::invalid_argument("the switch does not admit the job before this one");
  std::vector<std::byte> datagram(wire::kHeaderBytes + shape_.lanes * wire::kWordBytes, std::byte{0xA5});
  Random random(seed);
  for (std::uint32_t cell = 0; cell < 2 * shape_.slots; ++cell) {
    const std::uint32_t first = round_first + ((round_first ^ cell) & 1);
    const std::uint64_t ahead = random.below(3) == 0 ? random.below(std::uint64_t{1} << 31) : random.below(3);
    const std::uint32_t round = first + 2 * static_cast<std::uint32_t>(ahead) - 2;
    const wire::Header header{.job = entry.job,
                              .key = entry.key,
                              .worker = static_cast<std::uint8_t>(random.below(entry.workers)),
                              .exponent = 255,
                              .cell = static_cast<std::uint16_t>(cell),
                              .round = round};
    wire::encode(header, std::span<std::byte, wire::kHeaderBytes>(datagram.data(), wire::kHeaderBytes));
    const dataplane::Decision decision =
        machine.handle(dataplane::read(entry.endpoints[header.worker], entry.port_offset, datagram));
    if (decision.reason != dataplane::Reason::kAdmitted) throw std::logic_error("the job before this one is refused");
  }
  machine.evict(entry.job);
}

// ---- What the switches do ----

void Placement::arrive_from(Node node, std::uint32_t thread, const Packet& packet) {
  handle(tree_.network().above(node), node, thread, packet);
}

void Placement::arrive_at(Node node, std::uint32_t thread, const Packet& packet) {
  const Network& network = tree_.network();
  if (network.is_host(node)) {
    deliver_(tree_.stream_of(node), thread, arrived(packet, wrong_bits_.down));
  } else {
    handle(node - network.hosts(), network.node_of_switch(network.above(node)), thread, packet);
  }
}

Packet Placement::arrived(const Packet& sent, double flip_probability) {
  if (flip_probability == 0 || sent.size() == wire::kHeaderBytes) return sent;
  Packet packet = world_.packets.copy(sent.bytes());
  if (sent.marked()) packet.mark();
  flip(packet.bytes().subspan(wire::kHeaderBytes), flip_probability);
  return packet;
}

void Placement::flip(std::span<const std::byte> words, double probability) {
  if (words.empty() || wrong_bits_.flips == wrong_bits_.flips_max || !world_.random.happens(probability)) return;
  const auto bit = static_cast<std::size_t>(world_.random.below(static_cast<TimeNs>(8 * words.size())));
  const_cast<std::byte&>(words[bit / 8]) ^= std::byte{1} << bit % 8;
  ++wrong_bits_.flips;
}

void Placement::handle(std::uint32_t index, Node from, std::uint32_t thread, const Packet& sent) {
  const Packet packet = arrived(sent, wrong_bits_.up);
  wire::Endpoint source = tree_.endpoint_of(from);
  source.port = static_cast<std::uint16_t>(source.port + thread);
  const dataplane::Decision decision =
      port(index, thread)
          .handle(dataplane::read(source, static_cast<std::uint8_t>(lease_.port_offset + thread), packet.bytes()));
  if (decision.verdict == dataplane::Verdict::kDrop || decision.verdict == dataplane::Verdict::kHold) return;
  flip(decision.payload, wrong_bits_.cell);
  Packet answer = world_.packets.make([&](std::byte* data) {
    wire::Packet written{.data = data, .bytes = 0};
    decision.write(written);
    return std::size_t{written.bytes};
  });
  if (packet.marked()) answer.mark();
  Network& network = tree_.network();
  const std::vector<Node>& children = tree_.children(index);
  if (decision.verdict == dataplane::Verdict::kRaise) {
    network.send_up(network.node_of_switch(index), {this, thread, answer});
  } else if (decision.verdict == dataplane::Verdict::kResend) {
    network.send_down(children[decision.worker], {this, thread, answer});
  } else {
    for (const Node child : children) network.send_down(child, {this, thread, answer});
  }
}

}  // namespace wiresum::sim
