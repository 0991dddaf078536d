// What a worker is given when it joins. Python makes lines of it (wiresum/agent/job_membership.py); here they are read.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "leaf/meeting.hpp"
#include "session/line.hpp"

namespace wiresum::session {

/// What an `aggregator` line says of the data path. Throws LineError.
[[nodiscard]] engine::AggregatorConfig aggregator_of(const Line& line);

/// With which ranks of this host this one shares its stream to an aggregator: of the same line. Throws LineError.
[[nodiscard]] leaf::Place place_of(const Line& line);

struct Grant {
  engine::EngineConfig engine;
  std::vector<leaf::Place> places;    // in the order of engine.aggregators
  std::vector<std::string> switches;  // the aggregators' control endpoints, in the order of engine.aggregators
  std::uint8_t bits = 32;             // for floats, where the caller leaves it open
  bool sparse = true;                 // look for blocks of zeros
  std::chrono::milliseconds greeting_timeout{0};

  /// An `aggregator` line, in the order in which collectives are dealt over them. Throws LineError.
  void add_aggregator(const Line& line);
  /// The `joined` line, which comes last. Throws LineError.
  void complete(const Line& line);

  [[nodiscard]] std::uint16_t world_size() const { return engine.aggregators.front().worker.workers; }
  /// Words of a packet that carry elements.
  [[nodiscard]] std::uint16_t lanes() const { return engine.aggregators.front().worker.element_words(); }
  [[nodiscard]] unsigned threads() const;
};

}  // namespace wiresum::session
