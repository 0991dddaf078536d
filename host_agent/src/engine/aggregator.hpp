// One of a job's switches, as a worker's data path must know it.
#pragma once

#include <cstdint>

#include "wire/packet.hpp"
#include "worker/worker.hpp"

namespace wiresum::engine {

struct AggregatorConfig {
  /// slot_first and slots stand for the whole lease here; each thread gets its share.
  worker::WorkerConfig worker;
  /// The host's number at the switch, where ranks share a leaf: the ranks' own numbers are then the leaf's.
  std::uint8_t host = 0;
  unsigned threads = 1;           // divides worker.slots
  std::uint32_t own_address = 0;  // the worker's, known to the switch; UDP sockets are bound to theirs already
  wire::Endpoint switch_endpoint;
  /// The multicast group of RESULTs for all, and its base port. Port 0: RESULTs come to the threads' own sockets.
  wire::Endpoint results_group;
};

}  // namespace wiresum::engine
