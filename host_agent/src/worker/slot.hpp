// A slot: one packet's worth of a worker's progress, and the packet it has in flight.
#pragma once

#include <cstdint>

#include "numeric/codec.hpp"
#include "wire/packet.hpp"
#include "worker/chunks.hpp"
#include "worker/collective.hpp"
#include "worker/slot_order.hpp"

namespace wiresum::worker {

enum class SlotState : std::uint8_t {
  kIdle,      // no pending collective has anything left for the slot
  kReady,     // the slot's next packet may go as soon as the window lets it
  kInFlight,  // a packet was sent whose RESULT has not come
};

/// The subject of a slot's round.
enum class Phase : std::uint8_t {
  kExponent,  // META: the exponent of the chunk at hand, before a slot's first chunk. Also the one round of a barrier
  kSum,       // the chunk itself
  kPlanes,    // META: the chunk is summed exactly, and the round finds the lowest plane that any worker has
  kPlane,     // a plane of the chunk, or a part of one
};

/// This worker's part in giving a RESULT again, in a move (move.cpp). The control plane carries the numbers.
enum class Role : std::uint8_t {
  kNone,     // all workers have the slot's last RESULT: nothing is given again
  kBehind,   // this worker lacks the RESULT
  kAhead,    // this worker has the RESULT, and another one gives it again
  kRepeats,  // this worker has the RESULT, and gives it again
};

[[nodiscard]] constexpr bool has_result(Role role) noexcept { return role == Role::kAhead || role == Role::kRepeats; }

[[nodiscard]] constexpr bool is_meta(Phase phase) noexcept {
  return phase == Phase::kExponent || phase == Phase::kPlanes;
}

inline constexpr std::uint32_t kNoCollective = UINT32_MAX;

struct Slot {
  SlotState state = SlotState::kIdle;
  Phase phase = Phase::kSum;
  Role role = Role::kNone;           // while a RESULT is given again; later fields are of the packet after it
  bool waits_for_peers = false;      // the next RESULT measures how far apart the workers are, not the path
  bool asked = false;                // the last transmission for the packet in flight was a question
  bool was_missing = false;          // the switch has called the packet in flight missing, or its RESULT was wrong
  bool was_wrong = false;            // the check word of a RESULT for it did not fit
  bool on_the_way = false;           // the window counts the packet in flight
  std::uint8_t expiries = 0;         // number of times that the timer has expired
  std::uint8_t list = 0;             // the list in flight.hpp, while in flight
  std::uint8_t exponent_agreed = 0;  // agreed exponent of the chunk at hand, for block floating point
  std::uint8_t exponent_sent = 0;    // the exponent in the packet in flight; its RESULT cannot be smaller
  std::uint32_t round = 0;           // the round of the packet in flight, or of the next one
  std::uint32_t collective = kNoCollective;  // the slot's pending collective
  std::uint32_t chunk = 0;                   // number of the chunk in this thread's share
  wire::Kind kind = wire::Kind::kEmpty;      // kind of the packet in flight: DATA, EMPTY or META
  ChunkView view;                            // the chunk at hand
  ChunkView ahead;                           // the chunk after it in this slot, once the packet is made
  numeric::Exponents exponents;              // this worker's exponents of the chunk at hand
  numeric::Exponents exponents_ahead;        // this worker's exponents of the chunk after it
  numeric::Scale scale;                      // scale of the chunk at hand, once the packet is made
  TimeNs first_sent_at = 0;                  // when the packet in flight was first sent
  TimeNs sent_at = 0;  // the time of the last transmission, question, or notice that the packet is missing
  std::uint64_t results_before = 0;  // number of RESULTs that had come by then
  std::uint64_t send_number = 0;     // number of the first transmission, in the order of sending
  std::uint64_t asked_after = 0;     // the send_number of the last packet before the question
  std::uint32_t older = kNoSlot;     // neighbours in flight.hpp's list
  std::uint32_t newer = kNoSlot;
};

}  // namespace wiresum::worker
