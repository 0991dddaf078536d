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
  kIdle,      // no pending collective has anything left for it
  kReady,     // its next packet may go as soon as the window lets it
  kInFlight,  // a packet was sent whose RESULT has not come
};

/// What a slot's round is about; worker.cpp says which may follow which.
enum class Phase : std::uint8_t {
  kExponent,  // META: the exponent of the chunk at hand, before a slot's first chunk. Also the one round of a barrier
  kSum,       // the chunk itself
  kPlanes,    // META: the chunk is summed exactly; which is the lowest plane that any worker has?
  kPlane,     // a plane of it, or a part of one
};

/// In a move (move.cpp): what this worker has of a RESULT that is given again. On the wire of the control plane, as
/// numbers.
enum class Role : std::uint8_t {
  kNone,     // all workers have the slot's last RESULT: nothing is given again
  kBehind,   // lacks it
  kAhead,    // has it, and another worker gives it again
  kRepeats,  // has it, and gives it again
};

[[nodiscard]] constexpr bool has_result(Role role) noexcept { return role == Role::kAhead || role == Role::kRepeats; }

[[nodiscard]] constexpr bool is_meta(Phase phase) noexcept {
  return phase == Phase::kExponent || phase == Phase::kPlanes;
}

inline constexpr std::uint32_t kNoCollective = UINT32_MAX;

struct Slot {
  SlotState state = SlotState::kIdle;
  Phase phase = Phase::kSum;
  Role role = Role::kNone;                   // while a RESULT is given again; what follows is of the packet after that
  bool waits_for_peers = false;              // its RESULT measures how far apart the workers are, not the path
  bool asked = false;                        // the last that went out for the packet in flight was a question
  bool was_missing = false;                  // the switch has said so of the packet in flight, or its RESULT was wrong
  bool was_wrong = false;                    // the check word of a RESULT for it did not fit
  bool on_the_way = false;                   // the window counts the packet in flight
  std::uint8_t expiries = 0;                 // how often its timer has expired
  std::uint8_t list = 0;                     // of flight.hpp's, while in flight
  std::uint8_t exponent_agreed = 0;          // block floating point: of the chunk at hand
  std::uint8_t exponent_sent = 0;            // what the packet in flight says; its RESULT cannot say less
  std::uint32_t round = 0;                   // whose RESULT has not come: of the packet in flight, or of the next one
  std::uint32_t collective = kNoCollective;  // the pending collective it works on
  std::uint32_t chunk = 0;                   // within this thread's share
  wire::Kind kind = wire::Kind::kEmpty;      // of the packet in flight: DATA, EMPTY or META
  ChunkView view;                            // the chunk at hand
  ChunkView ahead;                           // the chunk after it in this slot, once the packet is made
  numeric::Exponents exponents;              // of the chunk at hand, at this worker
  numeric::Exponents exponents_ahead;        // of the chunk after it
  numeric::Scale scale;                      // of the chunk at hand, once the packet is made
  TimeNs first_sent_at = 0;                  // when the packet in flight was first sent
  TimeNs sent_at = 0;                        // ... and last sent, or asked about, or called missing
  std::uint64_t results_before = 0;          // RESULTs that had come by then
  std::uint64_t send_number = 0;             // counts first transmissions: who was sent before whom
  std::uint64_t asked_after = 0;             // the send_number of the last packet before the question
  std::uint32_t older = kNoSlot;             // neighbours in flight.hpp's list
  std::uint32_t newer = kNoSlot;
};

}  // namespace wiresum::worker
