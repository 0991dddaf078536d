// By what an engine's threads reach an aggregator: sockets or a device of their own, or a leaf that the ranks of this
// host share.
#pragma once

#include <vector>

#include "engine/aggregator.hpp"
#include "leaf/meeting.hpp"
#include "transport/open.hpp"
#include "transport/udp/socket.hpp"

namespace wiresum::engine {

[[nodiscard]] wire::Endpoint thread_port(wire::Endpoint base, unsigned index);

/// Sockets in the multicast group that RESULTs come to, for each thread; none if there is no group.
[[nodiscard]] std::vector<transport::UdpSocket> open_groups(const AggregatorConfig& aggregator);

/// For each thread, over its own socket, which all packets leave by, and one in the group if there is one. They hear
/// the switch alone. Throws what transport::open_for_threads() throws.
[[nodiscard]] std::vector<transport::DataPath> open_paths(const transport::Spec& spec,
                                                          const AggregatorConfig& aggregator,
                                                          std::vector<transport::UdpSocket> sockets);

/// For each thread, where ranks of this host share a leaf. The first of them opens the paths to the switch, which the
/// job need not have (port 0): then all its ranks are on this host. Returns when this rank has what it needs of the
/// others. Throws leaf::MeetingError too.
[[nodiscard]] leaf::Transports open_shared(const transport::Spec& spec, const AggregatorConfig& aggregator,
                                           std::vector<transport::UdpSocket> sockets, const leaf::Place& place,
                                           const leaf::Patience& patience);

/// What a thread of an aggregator hears: its own port of the switch, or over a device all of them.
[[nodiscard]] std::vector<wire::Endpoint> peers_of(const transport::Spec& spec, const AggregatorConfig& aggregator,
                                                   unsigned thread);

/// What was opened for another lease of this aggregator is from now on for this one, in case the job has moved
/// meanwhile. Throws std::runtime_error if it cannot be.
void redirect(leaf::Transports& shared, const transport::Spec& spec, const AggregatorConfig& aggregator);

}  // namespace wiresum::engine
