// The ways from an engine's threads to an aggregator: sockets or a device of their own, or a leaf that the ranks of
// this host share.
#pragma once

#include <vector>

#include "engine/aggregator.hpp"
#include "leaf/meeting.hpp"
#include "transport/open.hpp"
#include "transport/udp/socket.hpp"

namespace wiresum::engine {

[[nodiscard]] wire::Endpoint thread_port(wire::Endpoint base, unsigned index);

/// Opens sockets in the RESULTs' multicast group, one for each thread; none without a group.
[[nodiscard]] std::vector<transport::UdpSocket> open_groups(const AggregatorConfig& aggregator);

/// Opens a path for each thread, over its own socket, which all packets leave by, and one in the group if there is one.
/// The paths hear the switch alone. Throws what transport::open_for_threads() throws.
[[nodiscard]] std::vector<transport::DataPath> open_paths(const transport::Spec& spec,
                                                          const AggregatorConfig& aggregator,
                                                          std::vector<transport::UdpSocket> sockets);

/// Opens transports for each thread, where ranks of this host share a leaf. The first rank opens the paths to the
/// switch, which the job need not have (port 0): then all its ranks are on this host. Returns when this rank has all it
/// needs of the others. Throws leaf::MeetingError too.
[[nodiscard]] leaf::Transports open_shared(const transport::Spec& spec, const AggregatorConfig& aggregator,
                                           std::vector<transport::UdpSocket> sockets, const leaf::Place& place,
                                           const leaf::Patience& patience);

/// The endpoints that a thread of an aggregator hears: its own port of the switch, or over a device all ports.
[[nodiscard]] std::vector<wire::Endpoint> peers_of(const transport::Spec& spec, const AggregatorConfig& aggregator,
                                                   unsigned thread);

/// Changes transports that were opened for another lease of this aggregator to this one, in case the job has moved
/// meanwhile. Throws std::runtime_error if a transport cannot change.
void redirect(leaf::Transports& shared, const transport::Spec& spec, const AggregatorConfig& aggregator);

}  // namespace wiresum::engine
