// One of the switches that a job is at, as a worker's data path must know it.
#pragma once

#include <cstdint>

#include "wire/packet.hpp"
#include "worker/worker.hpp"

namespace wiresum::engine {

struct AggregatorConfig {
  /// slot_first and slots stand for the whole lease here; each thread gets its share.
  worker::WorkerConfig worker;
  /// The number that the switch knows this host by, where ranks share a leaf: theirs are then the leaf's.
  std::uint8_t host = 0;
  unsigned threads = 1;           // divides worker.slots
  std::uint32_t own_address = 0;  // the worker's, as the switch knows it; UDP sockets are bound to theirs already
  wire::Endpoint switch_endpoint;
  /// The multicast group that RESULTs for all come to, and its base port. Port 0: they come to the threads' own
  /// sockets.
  wire::Endpoint results_group;
};

}  // namespace wiresum::engine
