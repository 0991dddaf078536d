// A worker's grant when it joins. Python writes it as lines (wiresum/agent/job_membership.py), which are read here.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "leaf/meeting.hpp"
#include "session/line.hpp"

namespace wiresum::session {

/// The data path's configuration in an `aggregator` line. Throws LineError.
[[nodiscard]] engine::AggregatorConfig aggregator_of(const Line& line);

/// The ranks of this host that share this one's stream to an aggregator, from the same line. Throws LineError.
[[nodiscard]] leaf::Place place_of(const Line& line);

struct Grant {
  engine::EngineConfig engine;
  std::vector<leaf::Place> places;    // in the order of engine.aggregators
  std::vector<std::string> switches;  // the aggregators' control endpoints, in the order of engine.aggregators
  std::uint8_t bits = 32;             // bits of floats, unless the caller sets them
  bool sparse = true;                 // look for blocks of zeros
  std::chrono::milliseconds greeting_timeout{0};

  /// Adds an `aggregator` line, in the order in which collectives are dealt over aggregators. Throws LineError.
  void add_aggregator(const Line& line);
  /// Takes the `joined` line, which comes last. Throws LineError.
  void complete(const Line& line);

  [[nodiscard]] std::uint16_t world_size() const { return engine.aggregators.front().worker.workers; }
  /// Number of words in a packet that carry elements.
  [[nodiscard]] std::uint16_t lanes() const { return engine.aggregators.front().worker.element_words(); }
  [[nodiscard]] unsigned threads() const;
};

}  // namespace wiresum::session
