#include "mover.hpp"

#include <algorithm>
#include <utility>

namespace wiresum::sim {

Mover::Mover(std::uint32_t workers, TimeNs delay_max, TimeNs patience, const VirtualClock& clock, Agenda& agenda,
             Random& random, RolesOf roles_of, Hooks hooks)
    : clock_(clock),
      agenda_(agenda),
      random_(random),
      delay_max_(delay_max),
      patience_(patience),
      roles_of_(std::move(roles_of)),
      hooks_(std::move(hooks)),
      told_at_(workers) {}

void Mover::begin() {
  is_over_ = false;
  heard_.assign(told_at_.size(), std::nullopt);
  const std::uint32_t number = ++number_;
  for (std::uint32_t worker = 0; worker < told_at_.size(); ++worker) {
    tell(worker, [this, worker, number] { hooks_.halt(worker, number); });
  }
  agenda_.at(clock_.now() + patience_, [this, number] {
    if (number == number_ && !is_over_) hooks_.give_up();
  });
}

template <class Act>
void Mover::tell(std::uint32_t worker, Act act) {
  told_at_[worker] = std::max(told_at_[worker], clock_.now() + random_.below(delay_max_));
  agenda_.at(told_at_[worker], std::move(act));
}

void Mover::halted(std::uint32_t worker, std::uint32_t number, Positions positions) {
  agenda_.at(clock_.now() + random_.below(delay_max_),
             [this, worker, number, positions = std::move(positions)]() mutable {
               hear(worker, number, std::move(positions));
             });
}

void Mover::hear(std::uint32_t worker, std::uint32_t number, Positions positions) {
  if (number != number_) return;
  heard_[worker] = std::move(positions);
  if (!std::ranges::all_of(heard_, [](const auto& each) { return each.has_value(); })) return;
  is_over_ = true;
  std::vector<Positions> all;
  for (std::optional<Positions>& each : heard_) all.push_back(std::move(*each));
  const std::vector<Roles> roles = roles_of_(all);
  hooks_.place();
  for (std::uint32_t each = 0; each < told_at_.size(); ++each) {
    tell(each, [this, each, number, mine = roles[each]] { hooks_.move(each, number, mine); });
  }
}

}  // namespace wiresum::sim
