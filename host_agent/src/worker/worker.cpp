#include "worker/worker.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <stdexcept>
#include <string>

namespace wiresum::worker {
namespace {

/// The fewest chunks of a large collective for each slot, since each slot costs one more round, for its first exponent.
/// A small collective is bound by latency, and takes a slot for each chunk up to slots_spread_max.
constexpr std::uint32_t kChunksPerSlotMin = 16;
/// More slots than this are for a long path, whose latency exceeds the time of those rounds: fewer chunks share a slot.
constexpr std::uint32_t kSlotsNear = 1024;
constexpr std::uint32_t kChunksPerSlotFar = 4;  // R4.2

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(std::string("worker configuration: ") + what);
}

WorkerConfig checked(const WorkerConfig& config) {
  require(config.workers >= 1 && config.workers <= wire::kJobWorkersMax, "a job has 1 to 4096 workers");
  require(config.worker < wire::kSwitchWorkersMax, "a switch has workers 0 to 31");
  require(config.lanes >= 1 && config.lanes <= wire::kLanesMax, "lanes must be 1 to what a UDP datagram holds");
  require(config.element_words() >= 1, "packets of one word have no room for a check word");
  require(config.slots >= 1 && config.slot_first <= wire::kLeaseSlotsMax &&
              config.slots <= wire::kLeaseSlotsMax - config.slot_first,
          "slots must be at least one and end within the first 32768 of the lease");
  require(config.window_min >= 1, "window_min must be at least one packet");
  require(config.rto_min > 0 && config.rto_min <= config.rto_initial && config.rto_initial <= config.rto_max,
          "timeouts must be 0 < rto_min <= rto_initial <= rto_max");
  require(config.collectives_max >= 1, "collectives_max must be at least one");
  return config;
}

/// True for the divisors of exact sums, which are whole numbers.
[[maybe_unused]] bool is_divisor(float divisor) noexcept {
  return divisor >= 1.0F && divisor <= static_cast<float>(wire::kJobWorkersMax) && std::trunc(divisor) == divisor;
}

/// Prefetches the memory behind a chunk, where the next chunk usually lies: the hardware prefetcher stops at page ends.
void prefetch_after(const ChunkView& view, numeric::Dtype dtype) noexcept {
  constexpr std::size_t kCacheLineBytes = 64;
  const std::size_t bytes = view.elements * numeric::element_bytes(dtype);
  for (std::size_t at = 0; at < bytes; at += kCacheLineBytes) __builtin_prefetch(view.source + bytes + at);
}

}  // namespace

Worker::Worker(const WorkerConfig& config)
    : config_(checked(config)),
      slots_(config.slots),
      exact_(config.slots),
      exact_formats_{numeric::ExactFormat(numeric::Dtype::kF32, config.workers),
                     numeric::ExactFormat(numeric::Dtype::kF16, config.workers),
                     numeric::ExactFormat(numeric::Dtype::kBF16, config.workers),
                     numeric::ExactFormat(numeric::Dtype::kE4M3, config.workers),
                     numeric::ExactFormat(numeric::Dtype::kE5M2, config.workers)},
      exponent_gap_max_(numeric::exponent_gap_max(config.workers)),
      pending_(config.collectives_max),
      kept_(config.slots, config.lanes),
      ready_(config.slots),
      current_(config.slots),
      flight_(slots_.data()),
      rtt_(config.rto_initial, config.rto_min, config.rto_max),
      window_(config.window_initial, config.window_min, config.slots) {
  for (Slot& slot : slots_) slot.round = config.round_first;
  seed_probes();
  stats_.round_newest = config.round_first - 1;
  publish_estimates();
}

// ---- Chunks and slots ----

bool Worker::submit(const Collective& collective) noexcept {
  assert(collective.regions.empty() || numeric::valid(collective.format));
  assert(collective.chunk_begin <= collective.chunk_end);
  assert(collective.vote != numeric::kExponentNotFinite);
  [[maybe_unused]] const bool is_fp8 = numeric::is_fp8(collective.format.dtype);
  assert((!is_fp8 && collective.format.scaling == numeric::Scaling::kNone) || is_divisor(collective.divisor));
  assert(collective.exact ? is_fp8 || collective.format.scaling == numeric::Scaling::kBlockExponent
                          : !is_fp8 || collective.regions.empty());
  const std::uint32_t index = pending_.acquire();
  if (index == kNoCollective) return false;
  Pending& pending = pending_[index];
  pending.work = collective;
  pending.order = submissions_++;
  pending.chunks = collective.chunk_end - collective.chunk_begin;
  pending.chunks_left = pending.chunks;
  pending.slot_start = slot_start_;
  pending.stride = slots_for(pending.chunks, collective.slots_spread_max);  // R4.3
  pending.chunk_elements = static_cast<std::uint32_t>(chunk_elements(collective.format, config_.element_words()));
  pending.barrier = collective.regions.empty();  // R6.1
  pending.exponent_round =
      !pending.barrier && !collective.exact && collective.format.scaling == numeric::Scaling::kBlockExponent;  // R5.11
  if (!pending.barrier && collective.format.scaling == numeric::Scaling::kFixed) {
    pending.fixed =
        numeric::fixed_scale(config_.workers, collective.fixed_scale, collective.format.bits, collective.divisor);
  }
  if (failure_.has_value() || pending.chunks == 0) {
    pending_.complete(index, failure_.value_or(Status::kOk));
    return true;
  }
  slot_start_ = (slot_start_ + pending.stride) % config_.slots;  // R4.2
  deadline_ = std::min(deadline_, collective.deadline);
  for (std::uint32_t i = 0; i < pending.stride; ++i) {
    const std::uint32_t slot = (pending.slot_start + i) % config_.slots;
    // A busy slot comes to this collective after the earlier ones.
    if (slots_[slot].collective == kNoCollective) start(slot, index);
  }
  return true;
}

std::uint32_t Worker::slots_for(std::uint32_t chunks, std::uint32_t spread_max) const noexcept {
  const std::uint32_t chunks_a_slot = config_.slots > kSlotsNear ? kChunksPerSlotFar : kChunksPerSlotMin;
  const std::uint32_t paid_off = std::max(chunks / chunks_a_slot, spread_max);  // R4.2
  return std::min({config_.slots, chunks, paid_off});
}

bool Worker::carries_vote(const Pending& pending, const Slot& slot) noexcept {
  return slot.chunk + 1 == pending.chunks;
}

bool Worker::uses(const Pending& pending, std::uint32_t index) const noexcept {
  return (index + config_.slots - pending.slot_start) % config_.slots < pending.stride;
}

void Worker::start(std::uint32_t index, std::uint32_t collective) noexcept {
  const Pending& pending = pending_[collective];
  Slot& slot = slots_[index];
  slot.collective = collective;
  slot.chunk = (index + config_.slots - pending.slot_start) % config_.slots;
  slot.phase = pending.work.exact                          ? Phase::kPlanes
               : pending.exponent_round || pending.barrier ? Phase::kExponent
                                                           : Phase::kSum;
  slot.waits_for_peers = true;
  slot.exponent_agreed = 0;
  slot.view = pending.view(slot.chunk);
  if (slot.role == Role::kNone) make_ready(index);  // R4.5
}

void Worker::make_ready(std::uint32_t index) noexcept {
  Slot& slot = slots_[index];
  slot.state = SlotState::kReady;
  const std::uint64_t key = pending_[slot.collective].key(slot);
  ready_.set(index, key);
  current_.set(index, key);
}

void Worker::start_next_collective(std::uint32_t index) noexcept {
  std::uint32_t collective = pending_[slots_[index].collective].next;  // R4.4
  while (collective != kNoCollective && !uses(pending_[collective], index)) collective = pending_[collective].next;
  if (collective != kNoCollective) {
    start(index, collective);
    return;
  }
  make_idle(index);
}

void Worker::make_idle(std::uint32_t index) noexcept {
  slots_[index].state = SlotState::kIdle;
  slots_[index].collective = kNoCollective;
  current_.remove(index);
}

// ---- Sending ----

bool Worker::may_send() const noexcept {
  if (ready_.empty()) return false;
  // A packet that precedes everything in flight must not wait for the window: peers may be waiting for it.
  return flight_.on_the_way() < window_.size() || ready_.first() == current_.first();  // R4.8
}

std::size_t Worker::poll_transmit(TimeNs now, std::span<wire::Packet> out) noexcept {
  now_ = std::max(now_, now);
  check_deadlines();
  if (failure_.has_value() || halted_) return 0;
  std::size_t count = 0;
  // A sent packet moves its slot's timer ahead of now_, so the loop sends `slots` packets at most.
  for (Timer timer = first_timer(); timer.at <= now_ && count < out.size(); timer = first_timer()) {
    expire(timer.slot, out[count++]);
  }
  if (rtt_.smoothed() != 0) flight_.age(now_ - rtt_.rto());                         // R4.8
  while (count < out.size() && may_send()) transmit(ready_.first(), out[count++]);  // R4.7
  if (count > 0) publish_estimates();
  return count;
}

void Worker::transmit(std::uint32_t index, wire::Packet& packet) noexcept {
  Slot& slot = slots_[index];
  if (slot.role == Role::kNone) {
    contribute(slot);
  } else {
    slot.kind = kind_of_repeat(index);
  }
  write(slot, slot.kind, 0, packet);
  slot.state = SlotState::kInFlight;
  slot.asked = slot.was_missing = slot.was_wrong = false;
  slot.expiries = 0;
  slot.first_sent_at = slot.sent_at = now_;
  slot.results_before = stats_.results;
  slot.send_number = ++send_number_;
  ready_.remove(index);
  if (flight_.size() == 0) result_at_ = now_;
  flight_.append(index, Flight::kFresh);
  if (wire::newer(round_in_flight(slot), static_cast<std::uint32_t>(stats_.round_newest))) {
    stats_.round_newest = round_in_flight(slot);
  }
}

void Worker::contribute(Slot& slot) noexcept {
  const Pending& pending = pending_[slot.collective];
  stats_.tensor_newest = wire::later_of(stats_.tensor_newest, std::uint64_t{1} + pending.work.tensor);
  slot.exponent_sent = 0;
  if (slot.phase == Phase::kPlanes || slot.phase == Phase::kPlane) {
    const auto index = static_cast<std::uint32_t>(&slot - slots_.data());
    if (slot.phase == Phase::kPlanes) begin_exact(index);
    ExactChunk& exact = exact_[index];
    slot.exponent_sent = exact.code();
    if (slot.phase == Phase::kPlane) {
      if (has_next(pending, slot) && pending.work.exact) exact.look_ahead(pending.view(slot.chunk + pending.stride));
      // R5.5, R5.6
      slot.exponent_sent = slot.exponent_sent > 0 ? ExactChunk::kMore + slot.exponent_sent : exact.code_ahead();
    }
    slot.kind = slot.phase == Phase::kPlanes ? wire::Kind::kMeta
                : exact.has_plane()          ? wire::Kind::kData  // R5.5
                                             : wire::Kind::kEmpty;
    return;
  }
  // The chunk whose exponent this packet carries is read here, long before it is quantised, to fetch it to the cache.
  const bool is_first = slot.phase == Phase::kExponent;
  const std::uint32_t ahead = is_first ? slot.chunk : slot.chunk + pending.stride;
  slot.ahead = ahead < pending.chunks ? pending.view(ahead) : ChunkView{};
  if (slot.ahead.source != nullptr) prefetch_after(slot.ahead, pending.work.format.dtype);
  if (pending.exponent_round) {
    slot.exponents_ahead = pending.exponents(ahead, slot.ahead);
    slot.exponent_sent = slot.exponents_ahead.largest;  // R5.10
  }
  if (is_first) {
    slot.view = slot.ahead;
    slot.exponents = slot.exponents_ahead;
    slot.kind = wire::Kind::kMeta;  // R4.6
    return;
  }
  if (carries_vote(pending, slot)) slot.exponent_sent = pending.work.vote;  // R6.6
  choose_scale(slot);
  if (wants_exact(slot)) {
    slot.kind = wire::Kind::kEmpty;
    slot.exponent_sent = numeric::kExponentNotFinite;  // R5.12
  }
}

void Worker::choose_scale(Slot& slot) noexcept {
  const Pending& pending = pending_[slot.collective];
  const numeric::Format format = pending.work.format;
  slot.kind = wire::Kind::kEmpty;
  if (format.scaling == numeric::Scaling::kBlockExponent) {
    // R5.8, R8.14
    slot.scale = numeric::block_scale(config_.workers, slot.exponent_agreed, format.bits, pending.work.divisor);
  } else {
    slot.scale = pending.fixed;
    if (format.scaling == numeric::Scaling::kFixed) slot.exponents = pending.exponents(slot.chunk, slot.view);
  }
  // R5.16, R6.1, R6.3
  if (slot.view.source == nullptr || slot.scale.not_finite) return;  // zeros, or lanes that are not used
  slot.kind = wire::Kind::kData;
}

bool Worker::wants_exact(const Slot& slot) noexcept {
  if (slot.view.source == nullptr || slot.scale.not_finite) return false;
  const numeric::Format format = pending_[slot.collective].work.format;
  if (format.scaling == numeric::Scaling::kNone) return false;
  if (slot.exponents.not_finite) return true;
  // Narrow lanes are coarse by choice, and a fixed scale is the caller's.
  if (format.scaling != numeric::Scaling::kBlockExponent || format.bits != 32 ||
      !numeric::is_wide(slot.exponents, slot.exponent_agreed, exponent_gap_max_)) {
    return false;
  }
  stats_.chunks_wide += config_.exact_when_wide ? 0 : 1;
  return config_.exact_when_wide;
}

void Worker::write(const Slot& slot, wire::Kind kind, std::uint8_t flags, wire::Packet& packet) noexcept {
  const auto index = static_cast<std::uint32_t>(&slot - slots_.data());
  const std::uint32_t round = round_in_flight(slot);
  const Subject subject = subject_of(index);
  const wire::Header header{.kind = kind,
                            .flags = flags,
                            .job = config_.job,
                            .key = config_.key,
                            .worker = config_.worker,
                            .exponent = subject.exponent,
                            .cell = wire::cell_of(config_.slot_first + index, round),  // R2.5
                            .round = round,
                            .tensor = subject.tensor,
                            .chunk = subject.chunk};
  wire::encode(header, std::span<std::byte, wire::kHeaderBytes>(packet.data, wire::kHeaderBytes));
  packet.bytes = wire::kHeaderBytes;
  if (kind == wire::Kind::kData) {
    write_words(index, packet.data + wire::kHeaderBytes);
    packet.bytes += config_.lanes * static_cast<std::uint32_t>(wire::kWordBytes);
  }
  ++stats_.packets_sent;
  stats_.bytes_sent += packet.bytes;
}

void Worker::write_words(std::uint32_t index, std::byte* payload) const noexcept {
  const Slot& slot = slots_[index];
  if (slot.role == Role::kRepeats) {
    std::ranges::copy(kept_.payload(index), payload);
    return;
  }
  if (slot.phase == Phase::kPlane) {
    exact_[index].write(payload);
  } else {
    numeric::quantise(pending_[slot.collective].work.format, slot.scale, slot.view.source, slot.view.elements, payload,
                      config_.element_words());
  }
  if (config_.check_word) numeric::write_check_word(check_subject_of(index), payload, config_.element_words());
}

Worker::Subject Worker::subject_of(std::uint32_t index) const noexcept {
  const Slot& slot = slots_[index];
  if (has_result(slot.role)) {
    const KeptResults::Entry& kept = kept_[index];
    return {.tensor = kept.tensor,
            .chunk = kept.chunk,
            .exponent = slot.role == Role::kRepeats ? kept.exponent : std::uint8_t{0}};
  }
  const Pending& pending = pending_[slot.collective];
  const std::uint32_t reading = config_.check_word ? reading_of(index) : 0;
  return {.tensor = pending.work.tensor ^ reading << 16,
          .chunk = pending.number(slot.chunk),
          .exponent = slot.role == Role::kBehind ? std::uint8_t{0} : slot.exponent_sent};
}

// ---- Receiving ----

void Worker::handle_datagram(TimeNs now, std::span<const std::byte> datagram, bool marked, bool stays) noexcept {
  now_ = std::max(now_, now);
  stats_.bytes_received += datagram.size();
  if (failure_.has_value() || halted_) return;  // R9.1
  wire::Header header;
  if (wire::decode(datagram, header) != wire::ParseError::kNone) {
    ++stats_.rejected;
    return;
  }
  const std::span<const std::byte> payload = datagram.subspan(wire::kHeaderBytes);
  const std::uint32_t index = header.cell / 2U - config_.slot_first;  // wraps to a huge number when below
  switch (match(index, header, payload)) {
    case Match::kMine:
      accept(index, header, payload, marked, stays);
      return;
    case Match::kMissing:
      hear_missing(index);
      return;
    case Match::kDuplicate:  // R4.28
      ++stats_.duplicates;
      return;
    case Match::kForeign:
      ++stats_.rejected;
      return;
    case Match::kDiverged:
      fail_at(slots_[index].collective, Status::kDiverged);  // R4.29, R9.7
      return;
    case Match::kWrong:
      refuse(index);
      return;
  }
}

Worker::Match Worker::match(std::uint32_t index, const wire::Header& header,
                            std::span<const std::byte> payload) const noexcept {
  const bool missing = header.kind == wire::Kind::kMissing;
  if ((header.kind != wire::Kind::kResult && !missing) || header.job != config_.job || header.key != config_.key ||
      header.worker >= wire::kSwitchWorkersMax || (missing && header.worker != config_.worker)) {  // R4.27, R9.11
    return Match::kForeign;
  }
  if (index >= config_.slots || header.cell != wire::cell_of(header.cell / 2u, header.round)) return Match::kForeign;
  const Slot& slot = slots_[index];
  const std::uint32_t round = round_in_flight(slot);
  if (wire::newer(round, header.round)) return Match::kDuplicate;                           // R4.28
  if (slot.state != SlotState::kInFlight || header.round != round) return Match::kForeign;  // R4.26
  const Subject subject = subject_of(index);
  if ((header.flags & wire::kFlagDiverged) != 0 || header.tensor != subject.tensor || header.chunk != subject.chunk) {
    return missing ? Match::kForeign : Match::kDiverged;
  }
  // An answer to a question is late if another packet has been sent since.
  if (missing) return slot.asked ? Match::kMissing : Match::kDuplicate;  // R4.24
  if (has_result(slot.role)) {
    if (kept_.is_same(index, header, payload)) return Match::kMine;
    return config_.check_word ? Match::kWrong : Match::kDiverged;  // R5.26, R9.7
  }
  // The agreed exponent is a maximum over workers, including this one.
  const std::size_t lanes = is_meta(slot.phase) ? 0 : config_.lanes;
  const bool possible = payload.size() == lanes * wire::kWordBytes && header.exponent >= slot.exponent_sent &&  // R4.26
                        may_say(index, header.exponent);
  if (!possible) return Match::kForeign;
  return fits(index, payload) ? Match::kMine : Match::kWrong;
}

bool Worker::may_say(std::uint32_t index, std::uint8_t exponent) const noexcept {
  const ExactChunk& exact = exact_[index];
  switch (slots_[index].phase) {
    case Phase::kExponent:
      return exponent != numeric::kExponentNotFinite;  // R5.27
    case Phase::kPlanes:
      return exact.is_possible(exponent);
    case Phase::kPlane:
      if (exponent <= ExactChunk::kMore) return exact.is_possible_ahead(exponent);
      return exact.is_possible(static_cast<std::uint8_t>(exponent - ExactChunk::kMore));
    default:
      return true;
  }
}

bool Worker::spurious(const Slot& slot) const noexcept {
  return slot.expiries == 1 && now_ - slot.sent_at < rtt_.smoothed() / 2;
}

void Worker::measure(const Slot& slot, bool marked) noexcept {
  // Only packets that measure the path give a sample. A slot's first packet also waits for late workers. An overtaken
  // packet also waits for a peer's timer: such samples would make timeouts raise each other. A missing packet was late
  // because it was lost.
  if (!slot.waits_for_peers && !overtaken(slot) &&
      ((slot.list == Flight::kFresh && now_ < not_before(slot, rtt_.rto())) || spurious(slot))) {
    const TimeNs rtt = std::max<TimeNs>(now_ - slot.first_sent_at, 1);
    rtt_.sample(rtt);
    window_.on_round_trip(stats_.results - slot.results_before, rtt, rtt_.least());
  } else if (slot.expiries > 0 && !slot.was_missing && !slot.waits_for_peers && !overtaken(slot)) {
    rtt_.doubt(now_ - slot.first_sent_at);  // R4.20
  }
  if (now_ - result_at_ > rtt_.rto()) resumed_at_ = now_;
  result_at_ = now_;
  send_number_complete_ = std::max(send_number_complete_, slot.send_number);  // R4.15
  window_.on_result(flight_.on_the_way() >= window_.size(), marked);
  publish_estimates();
}

void Worker::accept(std::uint32_t index, const wire::Header& header, std::span<const std::byte> payload, bool marked,
                    bool stays) noexcept {
  Slot& slot = slots_[index];
  ++stats_.results;
  stats_.results_marked += marked ? 1 : 0;
  // The switch has sent the RESULT to this worker again, for the question, and nothing else has come: packets before
  // the question may be lost, too. A later one comes from a queue, with this worker's number, since this worker's
  // packet was the cell's last.
  if (slot.asked && header.worker == config_.worker && result_at_ <= slot.sent_at &&
      now_ - slot.first_sent_at <= 2 * rtt_.later()) {
    send_number_lost_ = std::max(send_number_lost_, slot.asked_after);  // R4.15
  }
  measure(slot, marked);
  flight_.remove(index);
  if (has_result(slot.role)) {
    end_repeat(index);
    return;
  }
  slot.role = Role::kNone;
  kept_.keep(index, header, payload, stays);  // R9.13
  ++slot.round;                               // R4.5
  slot.waits_for_peers = false;
  const Pending& pending = pending_[slot.collective];
  switch (slot.phase) {
    case Phase::kExponent:
      if (pending.barrier) break;
      slot.exponent_agreed = header.exponent;
      slot.phase = Phase::kSum;
      make_ready(index);
      return;
    case Phase::kSum:
      if (carries_vote(pending, slot)) pending_[slot.collective].vote = header.exponent;
      if (header.exponent == numeric::kExponentNotFinite && !slot.scale.not_finite &&
          pending.work.format.scaling != numeric::Scaling::kNone) {
        ++stats_.chunks_exact;  // R5.13
        slot.phase = Phase::kPlanes;
        make_ready(index);
        return;
      }
      slot.exponent_agreed = header.exponent;
      store(slot, payload);
      break;
    case Phase::kPlanes:
    case Phase::kPlane:
      if (!continue_exact(index, header.exponent, payload)) return;
      break;
  }
  end_chunk(index);
}

void Worker::store(const Slot& slot, std::span<const std::byte> payload) noexcept {
  if (slot.view.destination == nullptr) return;
  numeric::dequantise(pending_[slot.collective].work.format, slot.scale, payload.data(), config_.element_words(),
                      slot.view.destination, slot.view.elements);
}

bool Worker::continue_exact(std::uint32_t index, std::uint8_t code, std::span<const std::byte> payload) noexcept {
  Slot& slot = slots_[index];
  ExactChunk& exact = exact_[index];
  if (slot.phase == Phase::kPlane && exact.take(payload.data())) {
    make_ready(index);  // with the plane's next part
    return false;
  }
  const int more = slot.phase == Phase::kPlane ? code - ExactChunk::kMore : code;
  if (more > 0) {
    start_plane(index, static_cast<std::uint8_t>(more));
    return false;
  }
  slot.exponent_agreed = code;  // the next chunk's
  exact.finish(static_cast<unsigned>(pending_[slot.collective].work.divisor));
  return true;
}

void Worker::begin_exact(std::uint32_t index) noexcept {
  const Slot& slot = slots_[index];
  const numeric::Dtype dtype = pending_[slot.collective].work.format.dtype;
  exact_[index].begin(exact_formats_[static_cast<std::size_t>(dtype)], dtype, slot.view, config_.element_words());
}

void Worker::start_plane(std::uint32_t index, std::uint8_t code) noexcept {
  Slot& slot = slots_[index];
  if (!exact_[index].start_plane(code)) {
    fail_at(slot.collective, Status::kNoMemory);
    return;
  }
  slot.phase = Phase::kPlane;
  make_ready(index);
}

void Worker::end_chunk(std::uint32_t index) noexcept {
  Slot& slot = slots_[index];
  Pending& pending = pending_[slot.collective];
  if (has_next(pending, slot)) {
    slot.chunk += pending.stride;
    if (pending.work.exact) {
      begin_next_exact(index);
      if (failure_.has_value()) return;
    } else {
      // After an exact sum no worker knows the next chunk's exponent.
      const bool was_exact = slot.phase == Phase::kPlanes || slot.phase == Phase::kPlane;
      slot.phase = was_exact && pending.exponent_round ? Phase::kExponent : Phase::kSum;  // R5.13
      slot.view = slot.ahead;
      slot.exponents = slot.exponents_ahead;
      make_ready(index);
    }
  } else {
    start_next_collective(index);
  }
  if (--pending.chunks_left == 0) pending_.complete(static_cast<std::uint32_t>(&pending - &pending_[0]), Status::kOk);
}

void Worker::begin_next_exact(std::uint32_t index) noexcept {
  Slot& slot = slots_[index];
  const Pending& pending = pending_[slot.collective];
  const bool is_first_code_known = slot.phase == Phase::kPlane;
  slot.phase = Phase::kPlanes;
  slot.view = pending.view(slot.chunk);
  if (!is_first_code_known) {
    make_ready(index);
    return;
  }
  begin_exact(index);
  if (slot.exponent_agreed > 0) {  // R5.6
    start_plane(index, slot.exponent_agreed);
  } else {  // no worker has a plane
    exact_[index].finish(static_cast<unsigned>(pending.work.divisor));
    end_chunk(index);
  }
}

// ---- Ends ----

std::optional<Completion> Worker::poll_completion() noexcept {
  const std::uint32_t index = pending_.take_complete();
  if (index == kNoCollective) return std::nullopt;
  const Pending& pending = pending_[index];
  // Round trips were measured with this many packets in flight: the window, or the slots if there are fewer. A
  // collective of a few packets does not fill the path, so it says nothing.
  const std::uint32_t in_flight = std::min(window_.size(), std::max(pending.stride, config_.window_min));
  const TimeNs smoothed = std::max<TimeNs>(rtt_.smoothed(), 1);
  return Completion{.token = pending.work.token,
                    .status = pending.status,
                    .vote = pending.vote,
                    .round_trip_chunks = static_cast<std::uint32_t>(in_flight * rtt_.least() / smoothed)};
}

void Worker::fail_at(std::uint32_t collective, Status status) noexcept {
  if (collective != kNoCollective) pending_.complete(collective, status);
  fail(status);
}

void Worker::fail(Status status) noexcept {
  assert(status != Status::kOk);
  if (failure_.has_value()) return;
  failure_ = status;
  while (pending_.oldest() != kNoCollective) pending_.complete(pending_.oldest(), status);
  for (Slot& slot : slots_) {
    slot.state = SlotState::kIdle;
    slot.collective = kNoCollective;
  }
  flight_.clear();
  ready_.clear();
  current_.clear();
  deadline_ = kNever;
}

void Worker::publish_estimates() noexcept {
  stats_.rtt_smoothed_ns = static_cast<std::uint64_t>(rtt_.smoothed());
  stats_.rtt_least_ns = static_cast<std::uint64_t>(rtt_.least());
  stats_.rto_ns = static_cast<std::uint64_t>(rtt_.rto());
  stats_.window = window_.size();
}

}  // namespace wiresum::worker
