// Who repeats what in a move: what controller/wiresum/controller/jobs/positions.py says, for tests without Python.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "worker/slot.hpp"

namespace wiresum::engine {

/// By worker, from each worker's position in each slot. The last one of those that have a RESULT gives it again.
inline std::vector<std::vector<std::uint8_t>> roles_of(const std::vector<std::vector<std::uint32_t>>& positions) {
  using worker::Role;
  std::vector<std::vector<std::uint8_t>> roles(positions.size());
  for (std::size_t slot = 0; slot < positions.front().size(); ++slot) {
    std::uint32_t least = positions.front()[slot];
    for (const auto& mine : positions) least = mine[slot] == least - 1 ? mine[slot] : least;
    bool is_told = false;
    for (std::size_t worker = positions.size(); worker-- > 0;) {
      const std::uint32_t ahead = positions[worker][slot] - least;
      if (ahead > 1) throw std::logic_error("two workers are more than one round apart");
      const bool all_equal =
          std::ranges::all_of(positions, [&](const auto& mine) { return mine[slot] == positions.front()[slot]; });
      const Role role = all_equal ? Role::kNone : ahead == 0 ? Role::kBehind : is_told ? Role::kAhead : Role::kRepeats;
      is_told |= role == Role::kRepeats;
      roles[worker].push_back(static_cast<std::uint8_t>(role));
    }
  }
  return roles;
}

}  // namespace wiresum::engine
