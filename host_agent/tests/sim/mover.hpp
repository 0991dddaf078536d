// What the controller does in a move, with messages that are late: it halts the workers, asks the controller's code who
// repeats what, and sends the workers to another lease.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "agenda.hpp"
#include "link.hpp"

namespace wiresum::sim {

using Positions = std::vector<std::uint32_t>;  // of a worker in each slot
using Roles = std::vector<std::uint8_t>;       // likewise
/// By worker.
using RolesOf = std::function<std::vector<Roles>(const std::vector<Positions>&)>;

class Mover {
 public:
  /// What it says to a worker, or does at the switches.
  struct Hooks {
    std::function<void(std::uint32_t worker, std::uint32_t number)> halt;
    /// All workers have halted: a new lease.
    std::function<void()> place;
    std::function<void(std::uint32_t worker, std::uint32_t number, const Roles& roles)> move;
    /// It has taken too long.
    std::function<void()> give_up;
  };
  /// Each message takes up to `delay_max`; those to one worker stay in order.
  Mover(std::uint32_t workers, TimeNs delay_max, TimeNs patience, const VirtualClock& clock, Agenda& agenda,
        Random& random, RolesOf roles_of, Hooks hooks);

  /// Begins a move; one that is under way has failed.
  void begin();
  /// A worker has halted. The message is under way from now on.
  void halted(std::uint32_t worker, std::uint32_t number, Positions positions);

 private:
  void hear(std::uint32_t worker, std::uint32_t number, Positions positions);
  template <class Act>
  void tell(std::uint32_t worker, Act act);

  const VirtualClock& clock_;
  Agenda& agenda_;
  Random& random_;
  const TimeNs delay_max_;
  const TimeNs patience_;
  const RolesOf roles_of_;
  const Hooks hooks_;
  std::uint32_t number_ = 0;
  bool is_over_ = true;                          // is the latest move?
  std::vector<std::optional<Positions>> heard_;  // by worker
  std::vector<TimeNs> told_at_;                  // by worker: when its last message arrives
};

}  // namespace wiresum::sim
