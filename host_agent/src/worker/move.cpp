// A job goes on at another lease, and every collective in flight ends with its usual sum. worker.hpp says why, and
// docs/protocol.md, section 9, who does what.
//
// The workers' positions in a slot are equal, or one apart. At equal positions the round in flight begins anew: no
// worker has its RESULT or has written its sum, and each makes its contribution again from its source. At different
// positions some workers have written the sum of round r, over the source of an in-place collective, and round r is not
// summed again. One worker with its RESULT sends the RESULT's words (REPEATS), all others send nothing (EMPTY or META,
// exponent 0), and the sum is the RESULT. Workers without it (BEHIND) take this sum as the RESULT of their packet in
// flight. The others compare it with their own RESULT: at a difference the job ends.
//
// At a worker with the RESULT, a slot's round, phase, chunk and so on are meanwhile those of its next packet: the
// worker may be halted again at any time, and its position is then the same as before.
#include <algorithm>

#include "worker/worker.hpp"

namespace wiresum::worker {

void Worker::halt() noexcept {
  halted_ = true;  // R9.1
  kept_.copy_all();
}

bool Worker::move(const Lease& lease, std::span<const std::uint8_t> roles) noexcept {  // R9.2
  if (!halted_ || roles.size() != slots_.size()) return false;
  for (std::uint32_t index = 0; index < slots_.size(); ++index) {
    if (!failure_.has_value() && !may_have(index, roles[index])) return false;
  }
  halted_ = false;
  if (failure_.has_value()) return true;
  config_.job = lease.job;
  config_.key = lease.key;  // R9.8, R9.11
  config_.worker = lease.worker;
  // The path may be another one.
  rtt_ = RttEstimator(config_.rto_initial, config_.rto_min, config_.rto_max);  // R9.10
  window_ = CongestionWindow(config_.window_initial, config_.window_min, config_.slots);
  seed_probes();
  publish_estimates();
  flight_.clear();
  ready_.clear();
  current_.clear();
  for (std::uint32_t index = 0; index < slots_.size(); ++index) {
    slots_[index].waits_for_peers = true;
    begin_again(index, static_cast<Role>(roles[index]));
  }
  return true;
}

bool Worker::may_have(std::uint32_t index, std::uint8_t role) const noexcept {
  const Slot& slot = slots_[index];
  switch (static_cast<Role>(role)) {
    case Role::kNone:
      return true;
    case Role::kBehind:
      // The packet of this round has been made, in an earlier lease if a second move repeats the round.
      return slot.role == Role::kBehind || (slot.role == Role::kNone && slot.state == SlotState::kInFlight);  // R9.12
    case Role::kAhead:
    case Role::kRepeats:
      return kept_[index].is_there;
  }
  return false;
}

void Worker::begin_again(std::uint32_t index, Role role) noexcept {
  Slot& slot = slots_[index];
  slot.role = role;           // R9.4
  if (role == Role::kNone) {  // R9.3
    go_on(index);
    return;
  }
  slot.state = SlotState::kReady;
  // The repeated round precedes all others in the agreed order, by slot.
  const std::uint64_t oldest = pending_.oldest() == kNoCollective ? submissions_ : pending_[pending_.oldest()].order;
  const std::uint64_t key = order_key(oldest - 1, index);  // R9.9
  ready_.set(index, key);
  current_.set(index, key);
}

wire::Kind Worker::kind_of_repeat(std::uint32_t index) const noexcept {
  const Slot& slot = slots_[index];
  const bool meta = slot.role == Role::kBehind ? is_meta(slot.phase) : kept_[index].bytes == 0;
  if (meta) return wire::Kind::kMeta;  // R9.5
  return slot.role == Role::kRepeats ? wire::Kind::kData : wire::Kind::kEmpty;
}

void Worker::go_on(std::uint32_t index) noexcept {
  if (slots_[index].collective == kNoCollective) {
    make_idle(index);
  } else {
    make_ready(index);
  }
}

void Worker::end_repeat(std::uint32_t index) noexcept {
  slots_[index].role = Role::kNone;
  go_on(index);
}

}  // namespace wiresum::worker
