// Theory of operation
//
// A slot sums one chunk at a time and has two cells; round r of the slot lives in cell r & 1. A cell is an owner, a
// round number, a bitmap of the workers whose contribution is in, the tensor of the round's first packet, a flag that
// workers have diverged, the largest exponent, and lanes: the round's first DATA is written there, later DATA are
// added, and a flag says that there was DATA. A complete sum stays there for workers that lose its RESULT, so a RESULT
// is a copy with its own header: memory that a device still sends from never changes, and no cell waits for a device.
//
// Two cells are enough. A worker sends round r + 1 in a slot only when it has the RESULT of round r. When a packet of
// round r + 2 arrives, its sender has the RESULT of r + 1; hence all workers had contributed to r + 1; hence all had
// the RESULT of r. No worker will ask for the old cell again, and it may be overwritten. Before that, the cell keeps
// the previous result for workers that lost it. A worker's resending repairs every loss, in either direction: the
// switch keeps no timer.
//
// The round is compared, since the network may hold a packet for longer than a cell's life. Otherwise a late duplicate
// of round r would be counted into round r + 2 of the same cell: a wrong sum that no one would notice. A slot's rounds
// are consecutive, so a cell that holds round r can go on to r + 2 alone, modulo 2^32. Every other round is stale, be
// it behind or ahead: no worker that keeps to the protocol is ahead by more, by the argument above.
//
// A cell has an owner, since jobs follow each other on the same slots, and one job's cells must mean nothing to the
// next. A cell belongs to the key of the job whose contribution began its round. For a job with another key the cell is
// unused: the job's first contribution begins any round. No key is used twice for the same slots, and 0 is no job's
// key, so untouched cells have no owner. No cell is cleared when a job comes or goes.
//
// Duplicates change nothing. Once a worker's bit is set, adding again would give a wrong sum. There are three
// exceptions, all decided by a hardware pipeline in a stage before it can recognise the duplicate, and all switches
// must answer alike. The exponent is merged: the maximum is idempotent. A duplicate of another tensor shows a
// divergence as any packet does. The round's first DATA writes its words even if it is a duplicate: a worker that sends
// DATA after its EMPTY or META contradicts itself, and there is no sum left to protect.
//
// A question changes nothing, not even the owner, and the answer needs no further state: the bitmap has the workers
// that have contributed, and none has to a round that the cell has not begun. Of the workers that wait for a cell, only
// the one whose packet was lost sends its payload again.
//
// A RESULT echoes tensor and chunk of its trigger (the completing packet, the duplicate, or the question). A worker
// that sees another's knows that the workers have diverged; the cell keeps the tensor of its first packet only to tell
// them. The trigger's kind decides about the payload too: META gets none, every other kind the words, which are zeros
// while the round has seen no DATA. The words of an earlier round are never sent.
//
// Switches below others. In a job's tree every switch but the root has a parent, and is one of the parent's workers.
// The parent's RESULT is one more bit of the bitmap, so a round of a cell has three states: workers' contributions are
// being added; their sum is on its way to the parent; the words are the job's sum. In the second state a duplicate or
// question of worker 0 makes this switch send the parent a question, and the answer decides: RESULT replaces the words
// and goes down to all, MISSING makes this switch send its sum again. Workers' questions thus repair losses on every
// link without a timer at a switch. If the round has seen no DATA, the contribution is only a header, and goes up again
// in place of the question, which could not distinguish META from EMPTY.
//
// admit() installs a job as a whole, for the join service of the same process. configure() takes the entries of a P4
// switch's tables one by one: who may contribute through which thread, and who gets RESULTs. Neither touches a cell.
//
// Refusals, in the order of the tests:
//   kMalformed   not this protocol; after admission also a kind that this sender may not send, a length that is not the
//                job's, or a cell whose parity is not its round's
//   kUnknown     job, key, worker index, thread, source address and source port do not belong together: a stranger,
//                another process of the worker's host (which has other ports), or a job that has ended
//   kOutOfLease  a slot beyond the lease, or one of another of the job's threads (two would then race for a cell)
//   kStale       a round that is neither the cell's nor the next; usually an older one, whose result everybody has
//   kDuplicate   this worker is counted already, and the sum is not complete: the RESULT will follow when it is
#include "dataplane.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <stdexcept>
#include <string>

#include "numeric/codec.hpp"

namespace wiresum::dataplane {
namespace {

constexpr std::size_t kCacheLineBytes = 64;

// The owner of a cell that no job has used.
constexpr std::uint32_t kNobody = 0;  // R3.30
// The worker whose questions go up to the parent.
constexpr std::uint8_t kAsker = 0;
// A slot's rounds alternate between its cells.
constexpr std::uint32_t kCellsOfSlot = 2;

const JobCounters kNoCounters{};

void count(JobCounters& counters, Reason reason) noexcept { ++counters.packets[static_cast<std::size_t>(reason)]; }

std::uint32_t bit_of(std::uint8_t worker) noexcept { return std::uint32_t{1} << worker; }

bool is_length_of(wire::Kind kind, std::size_t payload_bytes, std::uint16_t lanes) noexcept {
  const std::size_t words_bytes = lanes * wire::kWordBytes;  // R2.15
  // The RESULT of a META round is bare.
  if (kind == wire::Kind::kResult) return payload_bytes == words_bytes || payload_bytes == 0;
  return payload_bytes == (kind == wire::Kind::kData ? words_bytes : 0);
}

std::uint32_t full_bitmap(std::uint8_t workers) noexcept {
  return workers == wire::kSwitchWorkersMax ? UINT32_MAX : bit_of(workers) - 1;
}

/// The admission of a job installed as a whole: all its workers contribute through all its threads, from the endpoints
/// that their RESULTs go to.
Admission admission_of(const JobEntry& entry) noexcept {
  Admission admission;
  admission.receivers = full_bitmap(entry.workers);
  std::fill_n(admission.contributors.begin(), entry.threads, admission.receivers);
  for (std::uint8_t worker = 0; worker < entry.workers; ++worker) {
    admission.sources[worker] = entry.endpoints[worker];
  }
  return admission;
}

bool has_ports(wire::Endpoint endpoint, std::uint8_t threads) noexcept {
  return endpoint.address != 0 && endpoint.port != 0 && endpoint.port + threads - 1u <= UINT16_MAX;
}

/// The job's thread that talks to this port; a number of no thread for ports below the job's.
std::uint8_t thread_of(const JobEntry& entry, std::uint8_t port) noexcept {
  return port < entry.port_offset ? UINT8_MAX : static_cast<std::uint8_t>(port - entry.port_offset);
}

/// `thread` is one of the job's, so a slot of it lies within the lease.
bool owns(std::uint8_t thread, std::uint32_t thread_shift, std::uint16_t cell) noexcept {
  const std::uint32_t slot = cell / kCellsOfSlot;
  return slot >> thread_shift == thread;  // R2.5
}

std::size_t round_up(std::size_t value, std::size_t unit) noexcept { return (value + unit - 1) / unit * unit; }

}  // namespace

std::size_t Dataplane::stride(const SwitchSizes& sizes) noexcept {
  return round_up(sizes.lanes_max * wire::kWordBytes + wire::kHeaderBytes, kCacheLineBytes);
}

Dataplane::Dataplane(const SwitchSizes& sizes, std::byte* lanes)
    : sizes_(sizes), lanes_stride_(stride(sizes)), lanes_(lanes) {
  if (sizes.slots == 0 || sizes.slots > wire::kSwitchSlotsMax) {
    throw std::invalid_argument("slots must be 1.." + std::to_string(wire::kSwitchSlotsMax) + ", not " +
                                std::to_string(sizes.slots));
  }
  if (sizes.lanes_max == 0 || sizes.lanes_max > wire::kLanesMax) {
    throw std::invalid_argument("lanes_max must be 1.." + std::to_string(wire::kLanesMax) + ", not " +
                                std::to_string(sizes.lanes_max));
  }
  if (sizes.jobs_max == 0) throw std::invalid_argument("jobs_max must be at least 1");
  cells_.resize(std::size_t{kCellsOfSlot} * sizes.slots);
  if (lanes_ == nullptr) {
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kCacheLineBytes, cells_.size() * lanes_stride_)));
    if (memory_ == nullptr) throw std::bad_alloc();
    lanes_ = memory_.get();
  }
  jobs_.resize(sizes.jobs_max);
}

bool Dataplane::admit(const JobEntry& entry) noexcept {
  if (objection(entry) != nullptr) return false;
  jobs_[entry.job].counters = JobCounters{};
  install(entry, admission_of(entry));
  return true;
}

bool Dataplane::configure(const JobEntry& entry, const Admission& admission) noexcept {
  if (objection(entry, admission) != nullptr) return false;
  if (!jobs_[entry.job].admitted) jobs_[entry.job].counters = JobCounters{};
  install(entry, admission);
  return true;
}

void Dataplane::install(const JobEntry& entry, const Admission& admission) noexcept {
  Job& job = jobs_[entry.job];
  job.entry = entry;
  job.admission = admission;
  job.full = full_bitmap(entry.workers);
  job.done = job.full | (entry.uplink.exists() ? wire::kParentBit : 0);
  job.thread_shift = static_cast<std::uint32_t>(std::countr_zero(entry.slots / entry.threads));
  job.admitted = true;
}

const char* Dataplane::objection(const JobEntry& entry) const noexcept {
  if (const char* sizes = size_objection(entry)) return sizes;
  if (jobs_[entry.job].admitted) return "the job number is taken";
  const std::span<const wire::Endpoint> endpoints(entry.endpoints.data(), entry.workers);
  const bool reachable = std::all_of(endpoints.begin(), endpoints.end(),
                                     [&](wire::Endpoint endpoint) { return has_ports(endpoint, entry.threads); });
  if (!reachable) return "a worker's address is zero, or its ports are out of range";
  return overlaps(entry) ? "the lease overlaps another job's" : nullptr;
}

const char* Dataplane::objection(const JobEntry& entry, const Admission& admission) const noexcept {
  if (const char* sizes = size_objection(entry)) return sizes;
  const Job& before = jobs_[entry.job];
  if (before.admitted && (before.entry.slot_base != entry.slot_base || before.entry.slots != entry.slots ||
                          before.entry.threads != entry.threads || before.entry.port_offset != entry.port_offset ||
                          before.entry.lanes != entry.lanes)) {
    return "the job is installed with another lease, at other ports, or with packets of another size";
  }
  const std::uint32_t strangers = ~full_bitmap(entry.workers);
  for (std::uint8_t thread = 0; thread < wire::kThreadsMax; ++thread) {
    const std::uint32_t contributors = admission.contributors[thread];
    if ((contributors & strangers) != 0 || (contributors != 0 && thread >= entry.threads)) {
      return "a worker or a thread that contributes is not the job's";
    }
  }
  for (std::uint8_t worker = 0; worker < wire::kSwitchWorkersMax; ++worker) {
    const bool receives = (admission.receivers & bit_of(worker)) != 0;
    if ((receives || entry.endpoints[worker].port != 0) && !has_ports(entry.endpoints[worker], entry.threads)) {
      return "a receiver's address is zero, or its ports are out of range";
    }
  }
  if ((admission.receivers & strangers) != 0) return "a receiver is not one of the job's workers";
  return overlaps(entry) ? "the lease overlaps another job's" : nullptr;
}

const char* Dataplane::size_objection(const JobEntry& entry) const noexcept {
  if (entry.job >= sizes_.jobs_max) return "the job number is beyond the switch's table";
  if (entry.key == kNobody) return "a job's key is not 0, which is nobody's";
  if (entry.workers == 0 || entry.workers > wire::kSwitchWorkersMax) return "a job has 1 to 32 workers";
  if (entry.uplink.exists()) {
    if (entry.workers == wire::kSwitchWorkersMax) return "a job has 1 to 31 workers at a switch that has a parent";
    if (entry.uplink.worker >= wire::kSwitchWorkersMax) return "the switch's number at its parent must be 0 to 31";
    if (!has_ports(entry.uplink.parent, entry.threads))
      return "the parent's address is zero, or its ports are out of range";
  }
  if (!std::has_single_bit(entry.threads) || entry.threads > wire::kThreadsMax) {  // R2.1
    return "the number of threads must be a power of two up to 16";
  }
  if (entry.port_offset + entry.threads > wire::kThreadsMax) return "the job's ports are beyond the switch's";
  if (!std::has_single_bit(entry.slots) || entry.slots > wire::kLeaseSlotsMax || entry.threads > entry.slots) {
    return "the number of slots must be a power of two, up to 32768, and at least the number of threads";
  }
  if (entry.slots > sizes_.slots || entry.slot_base > sizes_.slots - entry.slots) {
    return "the lease reaches beyond the switch's slots";
  }
  if (entry.lanes == 0 || entry.lanes > sizes_.lanes_max) return "the lanes do not fit the switch's cells";
  return nullptr;
}

bool Dataplane::overlaps(const JobEntry& entry) const noexcept {
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const Job& job) {
    return job.admitted && job.entry.job != entry.job && entry.slot_base < job.entry.slot_base + job.entry.slots &&
           job.entry.slot_base < entry.slot_base + entry.slots;
  });
}

bool Dataplane::evict(std::uint16_t job) noexcept {
  if (job >= sizes_.jobs_max || !jobs_[job].admitted) return false;
  jobs_[job].admitted = false;
  return true;
}

void Dataplane::reset() noexcept {
  for (Job& job : jobs_) job.admitted = false;
  std::fill(cells_.begin(), cells_.end(), Cell{});
}

void Dataplane::take_cells(const Dataplane& from, std::uint32_t slot_base, std::uint32_t slots) noexcept {
  const std::size_t end = kCellsOfSlot * (std::size_t{slot_base} + slots);
  for (std::size_t index = std::size_t{kCellsOfSlot} * slot_base; index < end; ++index) {
    cells_[index] = from.cells_[index];
    if (cells_[index].has_data) std::memcpy(lanes_at(index), from.lanes_at(index), lanes_stride_);
  }
}

Arrival read(wire::Endpoint source, std::uint8_t port, std::span<const std::byte> datagram) noexcept {
  Arrival arrival{.source = source, .port = port, .well_formed = false, .header = {}, .payload = {}};
  if (wire::decode(datagram, arrival.header) == wire::ParseError::kNone) {
    arrival.well_formed = true;
    arrival.payload = datagram.subspan(wire::kHeaderBytes);
  }
  return arrival;
}

bool is_answer(const Arrival& arrival) noexcept {
  const wire::Kind kind = arrival.header.kind;
  return arrival.well_formed && (kind == wire::Kind::kResult || kind == wire::Kind::kMissing);
}

void Dataplane::prefetch(const Arrival& arrival) const noexcept {
  if (arrival.payload.empty() || arrival.header.job >= sizes_.jobs_max) return;
  const JobEntry& entry = jobs_[arrival.header.job].entry;
  if (arrival.header.cell / kCellsOfSlot >= entry.slots) return;
  const std::size_t index = index_of(entry, arrival.header.cell);
  __builtin_prefetch(&cells_[index], 1);
  const std::byte* const lanes = lanes_at(index);
  const std::size_t bytes = std::min(arrival.payload.size(), lanes_stride_);
  for (std::size_t at = 0; at < bytes; at += kCacheLineBytes) __builtin_prefetch(lanes + at, 1);
}

Decision Dataplane::handle(const Arrival& arrival) noexcept {
  const wire::Header& header = arrival.header;
  const bool answers = is_answer(arrival);
  if (!arrival.well_formed || (answers && !is_from_parent(arrival))) {  // R2.12, R3.2
    count(stray_, Reason::kMalformed);
    return {.reason = Reason::kMalformed};
  }
  Job* const job = answers ? &jobs_[header.job] : admission(arrival);
  if (job == nullptr) {  // R3.1
    count(stray_, Reason::kUnknown);
    return {.reason = Reason::kUnknown};  // R3.5
  }
  Decision decision;
  // R3.3
  if (!is_length_of(header.kind, arrival.payload.size(), job->entry.lanes) || ((header.cell ^ header.round) & 1) != 0) {
    decision.reason = Reason::kMalformed;
  } else if (!owns(thread_of(job->entry, arrival.port), job->thread_shift, header.cell)) {
    decision.reason = Reason::kOutOfLease;  // R3.4
  } else if (answers) {
    decision = take_from_parent(*job, header, arrival.payload);
  } else {
    decision =
        header.kind == wire::Kind::kQuestion ? answer_question(*job, header) : aggregate(*job, header, arrival.payload);
  }
  decision.job = header.job;
  decision.worker = header.worker;
  count(job->counters, decision.reason);
  return decision;
}

Dataplane::Job* Dataplane::admission(const Arrival& arrival) noexcept {
  const wire::Header& header = arrival.header;
  const wire::Endpoint source = arrival.source;
  if (header.job >= sizes_.jobs_max || header.worker >= wire::kSwitchWorkersMax) return nullptr;
  Job& job = jobs_[header.job];
  const std::uint8_t thread = thread_of(job.entry, arrival.port);
  if (thread >= wire::kThreadsMax) return nullptr;
  const Admission& admission = job.admission;
  const wire::Endpoint base = admission.sources[header.worker];
  const bool hit = job.admitted && header.key == job.entry.key &&
                   (admission.contributors[thread] & bit_of(header.worker)) != 0 && source.address == base.address &&
                   source.port == base.port + thread;  // R2.2
  return hit ? &job : nullptr;
}

bool Dataplane::is_from_parent(const Arrival& arrival) const noexcept {
  if (arrival.header.job >= sizes_.jobs_max) return false;
  const Job& job = jobs_[arrival.header.job];
  const Uplink& uplink = job.entry.uplink;
  const std::uint8_t thread = thread_of(job.entry, arrival.port);
  return job.admitted && uplink.exists() && arrival.header.key == job.entry.key && thread < job.entry.threads &&
         arrival.source.address == uplink.parent.address && arrival.source.port == uplink.parent.port + thread;  // R8.8
}

Dataplane::Relation Dataplane::relation(const Cell& cell, const wire::Header& header) noexcept {
  if (cell.owner != header.key || header.round == cell.round + kCellsOfSlot) return Relation::kNewer;  // R3.6
  return header.round == cell.round ? Relation::kSame : Relation::kOlder;                              // R3.7
}

bool Dataplane::is_done(const Job& job, const Cell& cell) noexcept { return (cell.bitmap & job.done) == job.done; }

void Dataplane::note(Cell& cell, const wire::Header& header) noexcept {
  cell.diverged |= header.tensor != cell.tensor || (header.flags & wire::kFlagDiverged) != 0;  // R3.11
  cell.exponent = std::max(cell.exponent, header.exponent);                                    // R3.15
}

Decision Dataplane::aggregate(Job& job, const wire::Header& header, std::span<const std::byte> payload) noexcept {
  const std::size_t index = index_of(job.entry, header.cell);
  Cell& cell = cells_[index];
  const Relation to_cell = relation(cell, header);
  if (to_cell == Relation::kOlder) return {.reason = Reason::kStale};  // R3.8
  // R3.9
  if (to_cell == Relation::kNewer) cell = Cell{.owner = header.key, .round = header.round, .tensor = header.tensor};
  assert(cell.owner == job.entry.key && cell.round == header.round);
  note(cell, header);
  const std::uint32_t bit = bit_of(header.worker);
  const bool duplicate = (cell.bitmap & bit) != 0;  // R3.10
  if (header.kind == wire::Kind::kData) merge(index, payload, duplicate);
  // While entries come one by one, a job may have had more workers when it began the round, and the bitmap their bits.
  const bool full = ((cell.bitmap | bit) & job.full) == job.full;                                          // R3.16
  if (duplicate) return full ? answer_again(job, index, header) : Decision{.reason = Reason::kDuplicate};  // R3.17

  cell.bitmap |= bit;
  job.counters.add_contributions(header.worker, 1, header.tensor);                     // R2.21
  if (!full) return {.verdict = Verdict::kHold, .reason = Reason::kAdmitted};          // R3.18
  if (job.entry.uplink.exists()) return raise(job, index, header, Reason::kAdmitted);  // R8.4

  ++job.counters.results;
  Decision decision{.verdict = Verdict::kMulticast, .reason = Reason::kAdmitted};
  make_result(job, index, header, decision);
  return decision;
}

Decision Dataplane::answer_question(const Job& job, const wire::Header& question) noexcept {
  const std::size_t index = index_of(job.entry, question.cell);
  const Cell& cell = cells_[index];  // R3.23
  const Relation to_cell = relation(cell, question);
  if (to_cell == Relation::kOlder) return {.reason = Reason::kStale};  // R3.8
  if (to_cell == Relation::kSame && (cell.bitmap & bit_of(question.worker)) != 0) {
    const bool full = (cell.bitmap & job.full) == job.full;
    return full ? answer_again(job, index, question) : Decision{.reason = Reason::kDuplicate};  // R3.25
  }
  Decision missing{.verdict = Verdict::kResend, .reason = Reason::kResent};  // R3.24
  missing.answer = question;
  missing.answer.kind = wire::Kind::kMissing;
  missing.answer.flags = missing.answer.exponent = 0;  // R3.26
  return missing;
}

Decision Dataplane::take_from_parent(Job& job, const wire::Header& header,
                                     std::span<const std::byte> payload) noexcept {
  const std::size_t index = index_of(job.entry, header.cell);
  Cell& cell = cells_[index];
  const bool full = (cell.bitmap & job.full) == job.full;
  if (relation(cell, header) != Relation::kSame || !full) return {.reason = Reason::kStale};   // R8.9
  if (is_done(job, cell)) return {.reason = Reason::kDuplicate};                               // R8.9
  if (header.kind == wire::Kind::kMissing) return raise(job, index, header, Reason::kResent);  // R8.12

  note(cell, header);
  cell.bitmap |= wire::kParentBit;  // R8.10
  if (!payload.empty()) {
    std::memcpy(lanes_at(index), payload.data(), payload.size());
    cell.has_data = true;
  }
  ++job.counters.results;
  Decision decision{.verdict = Verdict::kMulticast, .reason = Reason::kAdmitted};  // R8.11
  decision.answer = header;
  decision.answer.flags = cell.diverged ? wire::kFlagDiverged : std::uint8_t{0};
  decision.answer.exponent = cell.exponent;
  if (!payload.empty()) decision.payload = {lanes_at(index), payload.size()};
  return decision;
}

Decision Dataplane::answer_again(const Job& job, std::size_t index, const wire::Header& trigger) noexcept {
  const Cell& cell = cells_[index];
  if (is_done(job, cell)) {
    Decision decision{.verdict = Verdict::kResend, .reason = Reason::kResent};
    make_result(job, index, trigger, decision);
    return decision;
  }
  // One worker's question is enough: all workers wait for the same answer.
  if (trigger.worker != kAsker) return {.reason = Reason::kDuplicate};  // R8.7
  Decision decision = raise(job, index, trigger, Reason::kResent);
  if (decision.answer.kind != wire::Kind::kData) return decision;
  decision.answer.kind = wire::Kind::kQuestion;  // R8.6
  decision.answer.flags = decision.answer.exponent = 0;
  decision.payload = {};
  return decision;
}

Decision Dataplane::raise(const Job& job, std::size_t index, const wire::Header& trigger,
                          Reason reason) const noexcept {
  const Cell& cell = cells_[index];
  Decision decision{.verdict = Verdict::kRaise, .reason = reason};
  decision.answer = trigger;
  decision.answer.kind = cell.has_data                       ? wire::Kind::kData
                         : trigger.kind == wire::Kind::kMeta ? wire::Kind::kMeta
                                                             : wire::Kind::kEmpty;
  decision.answer.flags = cell.diverged ? wire::kFlagDiverged : std::uint8_t{0};
  decision.answer.worker = job.entry.uplink.worker;  // R8.5
  decision.answer.exponent = cell.exponent;
  if (cell.has_data) decision.payload = {lanes_at(index), job.entry.lanes * wire::kWordBytes};
  return decision;
}

void Dataplane::merge(std::size_t index, std::span<const std::byte> payload, bool duplicate) noexcept {
  Cell& cell = cells_[index];
  if (!cell.has_data) {  // R3.12
    std::memcpy(lanes_at(index), payload.data(), payload.size());
    cell.has_data = true;
  } else if (!duplicate) {
    numeric::accumulate(lanes_at(index), payload.data(), payload.size() / wire::kWordBytes);  // R3.13, R5.14
  }
}

void Dataplane::make_result(const Job& job, std::size_t index, const wire::Header& trigger,
                            Decision& decision) noexcept {
  const Cell& cell = cells_[index];
  decision.answer = trigger;
  decision.answer.kind = wire::Kind::kResult;                                     // R3.19
  decision.answer.flags = cell.diverged ? wire::kFlagDiverged : std::uint8_t{0};  // R2.16
  decision.answer.exponent = cell.exponent;
  if (trigger.kind == wire::Kind::kMeta) return;  // R3.20
  const std::size_t lane_bytes = job.entry.lanes * wire::kWordBytes;
  // Without DATA the lanes are still those of another round or job. (R3.14, R3.21)
  if (!cell.has_data) std::memset(lanes_at(index), 0, lane_bytes);
  decision.payload = {lanes_at(index), lane_bytes};
}

void Decision::write(wire::Packet& packet) const noexcept {
  wire::encode(answer, std::span<std::byte, wire::kHeaderBytes>(packet.data, wire::kHeaderBytes));
  if (!payload.empty()) std::memcpy(packet.data + wire::kHeaderBytes, payload.data(), payload.size());
  packet.bytes = static_cast<std::uint32_t>(wire::kHeaderBytes + payload.size());
}

std::size_t Dataplane::index_of(const JobEntry& entry, std::uint16_t cell) noexcept {
  return std::size_t{kCellsOfSlot} * entry.slot_base + cell;
}

const JobEntry* Dataplane::find(std::uint16_t job) const noexcept {
  return job < sizes_.jobs_max && jobs_[job].admitted ? &jobs_[job].entry : nullptr;
}

std::uint32_t Dataplane::receivers(std::uint16_t job) const noexcept {
  return job < sizes_.jobs_max && jobs_[job].admitted ? jobs_[job].admission.receivers : 0;
}

const JobCounters& Dataplane::counters(std::uint16_t job) const noexcept {
  return job < sizes_.jobs_max ? jobs_[job].counters : kNoCounters;
}

const JobCounters& Dataplane::stray() const noexcept { return stray_; }

}  // namespace wiresum::dataplane
