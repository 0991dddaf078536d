// One thread's share of a worker: slots, rounds, window, timers. A sans-IO state machine.
//
// Events go in (submit, handle_datagram, time), packets and completions come out (poll_*). No socket, no
// clock; not thread-safe: one engine thread owns it. After construction only exact sums allocate; if they
// cannot, everything ends with Status::kNoMemory.
//
// Theory of operation
//
// Chunks and slots. Which chunk goes through which slot is computed, so workers agree without talking. Of the n chunks
// in this thread's share of a collective, chunk i goes through slot (start + i mod stride) mod slots, with stride =
// slots_for(n). `start` advances by stride with each collective, so that small collectives run side by side. A slot
// works through its chunks in order, collective by collective in order of submission; each packet takes one round.
//
// Exact sums. Of a collective that is summed exactly, each chunk takes several rounds of its slot (exact_chunk.hpp). Of
// others that may be the fate of single chunks:
//
// Floats that block floating point cannot carry. A worker whose chunk holds an Inf or a NaN, or an element that would
// lose too many of its digits beside the chunk's largest (numeric::is_wide), sends exponent 255 in the chunk's own
// packet. The RESULT tells all workers. None of them stores that sum: they sum the chunk again, exactly, in further
// rounds of the same slot. So it depends on RESULTs alone, at every worker alike, which packets there
// are and in which order, and other slots and collectives do not wait. The contributions are in place until then, since
// nobody has written the chunk's sum. That packet had no place for the next chunk's exponent, which then takes a META
// round, as at the beginning.
//
// The agreed order. All packets have one position in one order that is the same at all workers: by submission, then by
// position in the collective. A worker always sends the first of its ready packets in that order. First come, first
// served could deadlock: with a window smaller than the slots, worker A could fill its window with slots that B has not
// sent, and B with slots that A has not, and each would wait for the other. For the same reason a packet that precedes
// everything in flight may be sent when the window is full.
//
// Timers. If a packet has no RESULT, either something was lost or a peer is late, by microseconds or by minutes.
// Retransmitting repairs a loss, and floods a late peer. So a timer that expires retransmits if a packet that was first
// sent later has had its RESULT, which shows that the peers have come this far, or if a question's answer has shown
// that another packet was lost, since losses come in bursts. Otherwise only the first packet in the agreed order is
// retransmitted, as a probe, and the others wait. Where a retransmission would carry payload, a
// question goes out in its place, and the payload follows if the switch answers that it is missing
// (retransmission.cpp). After several timeouts without any RESULT ("silence") only the probe is sent: the last burst
// overflowed a queue or waits for a peer, and repeating it would have the same result. The RESULT that ends a silence
// gives all timers one more timeout, since the late peer's other packets are on their way. The longer the silence, the
// longer the time between probes, up to a cap, less a random part: otherwise senders that share a queue could keep
// colliding once all are at the cap.
//
// Why every loss is repaired (worker and switch alive, some packets get through). Let T be the first packet, in
// the agreed order, whose cell is not complete at the switch, and w a worker whose contribution the switch lacks.
//   1. Packets before T are complete at the switch. As long as w has one in flight, w's first packet in flight is
//      one of these; it is retransmitted or asked about again and again (rule of the probe), and each copy or question
//      that reaches the switch makes it send the RESULT to w. So w's packets before T finish, T's predecessor in its
//      slot too.
//   2. Then T is ready at w and comes before everything in flight: it is sent, whatever the window says.
//   3. From then on T is w's first packet in flight: it is retransmitted, or asked about and then, since the switch
//      says that it is missing, retransmitted, until its RESULT comes.
// Only a RESULT postpones the probe's timer, and there are finitely many RESULTs before T completes. After the last of
// them each worker sends nothing but its probe, so congestion cannot keep the probe from getting through.
// Therefore T completes, and by induction everything does.
//
// Moves. When a switch is lost, the job goes on at another lease, without its cells (move.cpp). Each worker's packets
// follow from the RESULTs that it has had, and in a slot no worker is more than one round ahead of another, since a
// round is complete only with everybody's packet. So nothing is lost with the switch but RESULTs that some workers have
// and others lack, one for each slot. Therefore a worker keeps each slot's last RESULT. After a move, slots where
// workers differ repeat it in one more round, which comes before all else in the agreed order; then all are where they
// would have been.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "numeric/check_word.hpp"
#include "wire/packet.hpp"
#include "worker/collective.hpp"
#include "worker/exact_chunk.hpp"
#include "worker/flight.hpp"
#include "worker/kept_results.hpp"
#include "worker/pending.hpp"
#include "worker/rtt.hpp"
#include "worker/slot.hpp"
#include "worker/slot_order.hpp"
#include "worker/window.hpp"

namespace wiresum::worker {

struct WorkerConfig {
  std::uint16_t job = 0;
  std::uint32_t key = 0;
  std::uint8_t worker = 0;       // the worker's number at its switch
  std::uint16_t workers = 1;     // N, the workers of the whole job, at however many switches
  std::uint16_t lanes = 360;     // words in a payload
  std::uint32_t slot_first = 0;  // this thread's slots of the lease: [slot_first, slot_first + slots)
  std::uint32_t slots = 128;
  std::uint32_t round_first = 1;  // round of each slot's first packet
  std::uint32_t window_min = 32;  // packets; see window.hpp
  std::uint32_t window_initial = 32;
  TimeNs rto_initial = 20'000'000;
  TimeNs rto_min = 1'000'000;
  TimeNs rto_max = 200'000'000;
  std::uint32_t collectives_max = 256;  // collectives that were submitted and whose completion was not taken
  bool exact_when_wide = false;         // chunks whose exponents lie too far apart are summed exactly
  bool check_word = false;              // the payload's last word is a check word (numeric/check_word.hpp)

  /// Words of a payload that carry elements (R5.20).
  [[nodiscard]] constexpr std::uint16_t element_words() const noexcept {
    return static_cast<std::uint16_t>(lanes - (check_word ? 1 : 0));
  }
};

/// A worker's identity at its switch: all that a move changes for the state machine.
struct Lease {
  std::uint16_t job = 0;
  std::uint32_t key = 0;
  std::uint8_t worker = 0;
};

struct WorkerStats {
  std::uint64_t packets_sent = 0;
  std::uint64_t bytes_sent = 0;  // UDP payload, retransmissions included
  std::uint64_t retransmissions = 0;
  std::uint64_t questions = 0;  // questions to the switch, headers only, whether a packet has come
  std::uint64_t results = 0;
  std::uint64_t results_marked = 0;  // RESULTs that, or whose last packets, met a long queue (ECN)
  std::uint64_t bytes_received = 0;
  std::uint64_t duplicates = 0;  // RESULTs for a round that is over
  std::uint64_t rejected = 0;    // malformed, foreign or impossible datagrams
  std::uint64_t rtt_smoothed_ns = 0;
  std::uint64_t rtt_least_ns = 0;
  std::uint64_t rto_ns = 0;
  std::uint64_t window = 0;
  std::uint64_t round_newest = 0;   // the newest round any slot has used: 32 bits, in serial arithmetic
  std::uint64_t tensor_newest = 0;  // 1 more than the tag of the latest collective with a packet sent; 0 without one
  std::uint64_t chunks_exact = 0;   // chunks of floats in blocks, or with a fixed scale, that were summed again exactly
  std::uint64_t chunks_wide = 0;    // chunks not summed exactly, with an element that lost more than allowed
  std::uint64_t sums_wrong = 0;     // RESULTs with a wrong check word
  std::uint64_t slot_wrong = 0;  // 1 more than the slot of the lease of which two in a row did not; 0: there was none
};

class Worker {
 public:
  /// Throws std::invalid_argument for a senseless configuration.
  explicit Worker(const WorkerConfig& config);

  Worker(Worker&&) = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  Worker& operator=(Worker&&) = delete;

  /// Queues this thread's share of a collective. Returns false if collectives_max are pending; a collective is pending
  /// until poll_completion() has handed it back. An empty share (chunk_begin == chunk_end) completes at once.
  [[nodiscard]] bool submit(const Collective& collective) noexcept;

  /// Takes a datagram from the switch, and validates every byte. `marked`: the datagram met a long queue (ECN).
  /// `stays`: a RESULT keeps its bytes in place while another worker may lack it, until halt().
  void handle_datagram(TimeNs now, std::span<const std::byte> datagram, bool marked = false,
                       bool stays = false) noexcept;

  /// Fires timers and deadlines that are due, then writes packets to send into `out`, each of which has room for a
  /// header and config.lanes words. Returns how many it wrote. Call again while it fills `out` whole.
  ///
  /// Nothing is kept of a packet: one that is sent again is made again, from the tensor, which does not change before
  /// the chunk's RESULT has come.
  [[nodiscard]] std::size_t poll_transmit(TimeNs now, std::span<wire::Packet> out) noexcept;

  /// The time for the next poll_transmit if no datagram comes: in the past when there is something to send now, kNever
  /// when nothing is in flight.
  [[nodiscard]] TimeNs next_timeout() const noexcept;

  [[nodiscard]] std::optional<Completion> poll_completion() noexcept;

  /// Ends every pending collective, and all later ones, with `status`. Only the first failure is recorded. (A failure
  /// of the worker's own completes first the collective at which it came.)
  void fail(Status status) noexcept;

  // Moves (move.cpp)
  /// Stops sending and accepting until move(); positions do not change, deadlines go on. Idempotent.
  void halt() noexcept;
  [[nodiscard]] bool is_halted() const noexcept { return halted_; }
  /// The round of this slot whose RESULT this worker does not have yet.
  [[nodiscard]] std::uint32_t position(std::uint32_t slot) const noexcept { return slots_[slot].round; }
  /// Continues at another lease, with a role (`Role`) for each slot. Returns false, and changes nothing, if the worker
  /// is not halted, or the roles do not fit its positions.
  [[nodiscard]] bool move(const Lease& lease, std::span<const std::uint8_t> roles) noexcept;

  /// Number of packets sent whose RESULT has not come.
  [[nodiscard]] std::uint32_t in_flight() const noexcept { return flight_.size(); }

  [[nodiscard]] const WorkerStats& stats() const noexcept { return stats_; }

 private:
  // Moves (move.cpp)
  [[nodiscard]] bool may_have(std::uint32_t index, std::uint8_t role) const noexcept;
  void begin_again(std::uint32_t index, Role role) noexcept;
  /// Continues with the slot's next step, if there is one.
  void go_on(std::uint32_t index) noexcept;
  [[nodiscard]] wire::Kind kind_of_repeat(std::uint32_t index) const noexcept;
  /// Ends the repetition of a RESULT that this worker already has.
  void end_repeat(std::uint32_t index) noexcept;

  // Check words (check.cpp)
  /// The exponent, or the plane, by which this worker reads the words of the packet in flight: 9 bits.
  [[nodiscard]] std::uint32_t reading_of(std::uint32_t index) const noexcept;
  /// The subject of that packet's check word.
  [[nodiscard]] numeric::CheckSubject check_subject_of(std::uint32_t index) const noexcept;
  /// True if the payload has no check word, or the right one.
  [[nodiscard]] bool fits(std::uint32_t index, std::span<const std::byte> payload) const noexcept {
    return !config_.check_word || payload.empty() || check_word_fits(index, payload);
  }
  [[nodiscard]] bool check_word_fits(std::uint32_t index, std::span<const std::byte> payload) const noexcept;
  /// Handles a wrong check word: the switch is asked for the RESULT once more.
  void refuse(std::uint32_t index) noexcept;

  // Timers (retransmission.cpp)
  /// After this many timeouts without a RESULT only the probe is retransmitted.
  static constexpr TimeNs kSilenceTimeouts = 4;
  struct Timer {
    std::uint32_t slot = kNoSlot;
    TimeNs at = kNever;
  };
  /// The retransmission that is due next if nothing comes.
  [[nodiscard]] Timer first_timer() const noexcept;
  [[nodiscard]] TimeNs expiry(const Slot& slot) const noexcept;
  /// The end of `timeout` after the slot's packet was sent; after a silence, no sooner than late peers had time to send
  /// more.
  [[nodiscard]] TimeNs not_before(const Slot& slot, TimeNs timeout) const noexcept;
  [[nodiscard]] TimeNs probe_expiry(const Slot& slot) const noexcept;
  [[nodiscard]] TimeNs silent_from() const noexcept;
  /// True if a packet that was first sent later has had its RESULT.
  [[nodiscard]] bool overtaken(const Slot& slot) const noexcept;
  /// True if a packet was overtaken, or the answer to a question about a packet that was sent later showed a loss.
  [[nodiscard]] bool may_be_lost(const Slot& slot) const noexcept;
  [[nodiscard]] std::uint32_t probe() const noexcept;
  /// Makes the packet for a slot whose timer has expired.
  void expire(std::uint32_t index, wire::Packet& packet) noexcept;
  void ask(Slot& slot, wire::Packet& packet) noexcept;
  void retransmit(Slot& slot, wire::Packet& packet) noexcept;
  void hear_missing(std::uint32_t index) noexcept;
  /// Sends the slot's packet in flight again before anything else.
  void resend_at_once(std::uint32_t index) noexcept;
  void check_deadlines() noexcept;
  /// Fails; the pending collective at which the failure came completes first. kNoCollective: there is no such
  /// collective.
  void fail_at(std::uint32_t collective, Status status) noexcept;
  /// Draws a seed from the worker's number, so that workers which lose packets together do not ask again together.
  void seed_probes() noexcept {
    probe_random_ = (config_.key ^ config_.slot_first << 8 ^ config_.worker) * 2654435761U;
  }

  // Sending
  [[nodiscard]] bool may_send() const noexcept;
  void transmit(std::uint32_t index, wire::Packet& packet) noexcept;
  /// Decides what the slot's next packet says: its kind, exponent and scale.
  void contribute(Slot& slot) noexcept;
  void choose_scale(Slot& slot) noexcept;
  /// True if this worker finds that the chunk at hand, whose scale has been chosen, must be summed exactly.
  [[nodiscard]] bool wants_exact(const Slot& slot) noexcept;
  /// The round of the slot's packet in flight, or of the next one.
  [[nodiscard]] static std::uint32_t round_in_flight(const Slot& slot) noexcept {
    return slot.round - (has_result(slot.role) ? 1 : 0);
  }
  /// The subject of that packet, and its exponent.
  struct Subject {
    std::uint32_t tensor = 0;
    std::uint32_t chunk = 0;
    std::uint8_t exponent = 0;
  };
  [[nodiscard]] Subject subject_of(std::uint32_t index) const noexcept;
  /// Writes the slot's packet in flight, as one of this kind.
  void write(const Slot& slot, wire::Kind kind, std::uint8_t flags, wire::Packet& packet) noexcept;
  void write_words(std::uint32_t index, std::byte* payload) const noexcept;

  // Receiving
  enum class Match : std::uint8_t { kMine, kMissing, kDuplicate, kForeign, kDiverged, kWrong };
  [[nodiscard]] Match match(std::uint32_t index, const wire::Header& header,
                            std::span<const std::byte> payload) const noexcept;
  /// True if the slot's only retransmission was unnecessary. Then its RESULT answers the first copy, and is a valid
  /// sample. With Karn's rule alone, a round trip that has grown beyond the timeout would never be measured.
  [[nodiscard]] bool spurious(const Slot& slot) const noexcept;
  void measure(const Slot& slot, bool marked) noexcept;
  void accept(std::uint32_t index, const wire::Header& header, std::span<const std::byte> payload, bool marked,
              bool stays) noexcept;
  void store(const Slot& slot, std::span<const std::byte> payload) noexcept;
  /// True if a RESULT for this slot may have this exponent, or code.
  [[nodiscard]] bool may_say(std::uint32_t index, std::uint8_t exponent) const noexcept;
  void begin_exact(std::uint32_t index) noexcept;
  void start_plane(std::uint32_t index, std::uint8_t code) noexcept;
  /// Begins the chunk that the slot has come to, in a collective that is summed exactly.
  void begin_next_exact(std::uint32_t index) noexcept;
  /// Takes the RESULT of a round of an exact sum. Returns true if the sum is complete and stored.
  [[nodiscard]] bool continue_exact(std::uint32_t index, std::uint8_t code,
                                    std::span<const std::byte> payload) noexcept;
  void end_chunk(std::uint32_t index) noexcept;

  // Chunks and slots
  /// The vote travels in the exponent field of the last chunk's packets, which has no next chunk's exponent to carry.
  [[nodiscard]] static bool carries_vote(const Pending& pending, const Slot& slot) noexcept;
  /// True if the slot has a further chunk of the collective.
  [[nodiscard]] static bool has_next(const Pending& pending, const Slot& slot) noexcept {
    return pending.chunks - slot.chunk > pending.stride;
  }
  void make_ready(std::uint32_t index) noexcept;
  void make_idle(std::uint32_t index) noexcept;
  void start(std::uint32_t index, std::uint32_t collective) noexcept;
  void start_next_collective(std::uint32_t index) noexcept;
  /// The number of slots that a collective of so many chunks uses; the same at all workers.
  [[nodiscard]] std::uint32_t slots_for(std::uint32_t chunks, std::uint32_t spread_max) const noexcept;
  [[nodiscard]] bool uses(const Pending& pending, std::uint32_t index) const noexcept;
  void publish_estimates() noexcept;

  WorkerConfig config_;
  std::vector<Slot> slots_;
  std::vector<ExactChunk> exact_;                      // by slot
  std::array<numeric::ExactFormat, 5> exact_formats_;  // by dtype
  unsigned exponent_gap_max_;                          // numeric::exponent_gap_max
  PendingPool pending_;
  KeptResults kept_;
  SlotOrder ready_;    // slots in SlotState::kReady
  SlotOrder current_;  // slots that are not idle
  Flight flight_;
  RttEstimator rtt_;
  CongestionWindow window_;
  WorkerStats stats_;
  std::optional<Status> failure_;
  bool halted_ = false;
  std::uint64_t submissions_ = 0;
  std::uint32_t slot_start_ = 0;            // first slot of the next collective
  std::uint64_t send_number_ = 0;           // number of the last first transmission
  std::uint64_t send_number_complete_ = 0;  // the largest send number whose RESULT has come
  std::uint64_t send_number_lost_ = 0;      // the last send number before a question whose answer showed a loss
  TimeNs now_ = 0;                          // the latest time seen; never goes back
  TimeNs result_at_ = 0;                    // the last new RESULT, or the first packet sent since nothing was in flight
  TimeNs resumed_at_ = 0;                   // the last new RESULT that ended a silence of more than an RTO
  std::uint32_t probe_random_ = 0;          // how much earlier than its timeout the next probe is sent
  TimeNs deadline_ = kNever;                // not later than the first deadline of a pending collective
};

}  // namespace wiresum::worker
