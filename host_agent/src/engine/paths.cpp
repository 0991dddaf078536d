#include "engine/paths.hpp"

#include <stdexcept>
#include <utility>

namespace wiresum::engine {
namespace {

std::size_t packet_bytes_max(const AggregatorConfig& aggregator) {
  return wire::kHeaderBytes + std::size_t{aggregator.worker.lanes} * wire::kWordBytes;
}

}  // namespace

wire::Endpoint thread_port(wire::Endpoint base, unsigned index) {
  return {.address = base.address, .port = static_cast<std::uint16_t>(base.port + index)};
}

std::vector<transport::UdpSocket> open_groups(const AggregatorConfig& aggregator) {
  std::vector<transport::UdpSocket> sockets;
  for (unsigned thread = 0; aggregator.results_group.port != 0 && thread < aggregator.threads; ++thread) {
    const wire::Endpoint group = thread_port(aggregator.results_group, thread);
    sockets.push_back(transport::UdpSocket::in_group(group, aggregator.own_address));
    sockets.back().connect(thread_port(aggregator.switch_endpoint, thread));
  }
  return sockets;
}

std::vector<transport::DataPath> open_paths(const transport::Spec& spec, const AggregatorConfig& aggregator,
                                            std::vector<transport::UdpSocket> sockets) {
  transport::PathConfig place{
      .address = aggregator.own_address, .peers = {}, .datagram_bytes_max = packet_bytes_max(aggregator)};
  sockets.erase(sockets.begin() + aggregator.threads, sockets.end());
  for (unsigned thread = 0; thread < aggregator.threads; ++thread) {
    const wire::Endpoint peer = thread_port(aggregator.switch_endpoint, thread);
    if (spec.kind != transport::TransportKind::kUdp) {
      place.peers.push_back(peer);
      continue;
    }
    sockets[thread].connect(peer);  // R2.2
    if (aggregator.results_group.port == 0) continue;
    const wire::Endpoint group = thread_port(aggregator.results_group, thread);
    sockets.push_back(transport::UdpSocket::in_group(group, sockets[thread].local().address));  // R3.29
    sockets.back().connect(peer);
  }
  return transport::open_for_threads(spec, place, std::move(sockets), aggregator.threads);
}

leaf::Transports open_shared(const transport::Spec& spec, const AggregatorConfig& aggregator,
                             std::vector<transport::UdpSocket> sockets, const leaf::Place& place,
                             const leaf::Patience& patience) {
  const worker::WorkerConfig& worker = aggregator.worker;
  if (place.index != 0) {
    return leaf::reach(place, aggregator.threads, packet_bytes_max(aggregator),
                       leaf::Leaf::results_bytes(worker.lanes, worker.slots), patience);
  }
  const bool has_switch = aggregator.switch_endpoint.port != 0;
  std::vector<transport::DataPath> paths(aggregator.threads);
  if (has_switch) paths = open_paths(spec, aggregator, std::move(sockets));
  std::vector<std::unique_ptr<leaf::Leaf>> leaves;
  for (unsigned thread = 0; thread < aggregator.threads; ++thread) {
    leaf::Job job{.number = worker.job,
                  .key = worker.key,
                  .ranks = static_cast<std::uint8_t>(place.ranks.size()),
                  .threads = static_cast<std::uint8_t>(aggregator.threads),
                  .thread = static_cast<std::uint8_t>(thread),
                  .lanes = worker.lanes,
                  .slots = worker.slots};
    if (has_switch) job.uplink = {.parent = aggregator.switch_endpoint, .worker = aggregator.host};  // R8.13
    leaves.push_back(std::make_unique<leaf::Leaf>(job, std::move(paths[thread])));
  }
  leaf::share(place, leaves, patience);
  return {std::make_move_iterator(leaves.begin()), std::make_move_iterator(leaves.end())};
}

std::vector<wire::Endpoint> peers_of(const transport::Spec& spec, const AggregatorConfig& aggregator, unsigned thread) {
  if (spec.kind == transport::TransportKind::kUdp) return {thread_port(aggregator.switch_endpoint, thread)};
  std::vector<wire::Endpoint> peers;
  for (unsigned each = 0; each < aggregator.threads; ++each) {
    peers.push_back(thread_port(aggregator.switch_endpoint, each));
  }
  return peers;
}

void redirect(leaf::Transports& shared, const transport::Spec& spec, const AggregatorConfig& aggregator) {
  const transport::JobAt lease{.job = aggregator.worker.job,
                               .key = aggregator.worker.key,
                               .host = aggregator.host,
                               .parent = aggregator.switch_endpoint};
  if (shared.empty()) return;
  std::vector<transport::UdpSocket> groups = open_groups(aggregator);
  for (unsigned thread = 0; thread < shared.size(); ++thread) {
    transport::Transport& each = *shared[thread];
    transport::UdpSocket* const group = groups.empty() ? nullptr : &groups[thread];
    if (!each.serve(lease) || !each.hear(peers_of(spec, aggregator, thread), group)) {
      throw std::runtime_error("the ranks of this host cannot go on at the job's lease");
    }
  }
}

}  // namespace wiresum::engine
