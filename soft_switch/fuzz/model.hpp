// The switch of docs/protocol.md, section 3, written for obviousness alone: a dictionary of cells that remember every
// contribution, and a sum that is computed from them when it is asked for. It shares no code with the data plane, not
// even the parser.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace wiresum::dataplane::model {

using Bytes = std::vector<std::uint8_t>;

struct Parent {
  std::uint32_t address, port, worker;
};

struct Job {
  std::uint32_t key, workers, threads, lanes, slot_base, slots;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> sources;  // address and base port, by worker
  // Who may contribute, by thread and worker; for a job that is admitted as a whole, everybody.
  std::set<std::pair<std::uint32_t, std::uint32_t>> contributors = {};
  std::optional<Parent> parent = std::nullopt;
};

struct Cell {
  std::uint32_t owner = 0;  // the key of the job that began the round
  std::uint32_t round = 0;
  std::set<std::uint32_t> workers;  // whose contribution is in
  std::vector<Bytes> payloads;      // that make up the sum
  std::uint32_t exponent = 0;
  std::vector<std::uint32_t> tensors;  // named by packets of this round, admitted or duplicate
  bool flagged = false;                // one of them says that workers below have diverged, or elsewhere
  bool answered = false;               // by the parent: payloads are its sum
};

/// What became of a packet, in words that both sides can be compared in.
enum class Fate {
  kMalformed,
  kUnknown,
  kOutOfLease,
  kStale,
  kDuplicate,
  kHeld,
  kMulticast,
  kResent,
  kRaised,
  kRaisedAgain
};

struct Answer {
  Fate fate = Fate::kMalformed;
  Bytes result;  // the whole datagram, where there is one to send
};

class Switch {
 public:
  std::map<std::uint32_t, Job> jobs;

  void reset() {
    jobs.clear();
    cells_.clear();
  }

  Answer handle(std::uint32_t source, std::uint32_t port, std::uint32_t thread, const Bytes& packet) {
    constexpr std::size_t kHeader = 24;
    if (packet.size() < kHeader || packet[0] / 16 != 1) return {Fate::kMalformed, {}};
    const std::uint32_t kind = packet[0] % 16;
    if (kind > 5) return {Fate::kMalformed, {}};
    const Bytes payload(packet.begin() + kHeader, packet.end());
    if (kind == 0 || kind == 2 ? payload.size() % 4 != 0 : !payload.empty()) return {Fate::kMalformed, {}};
    if (kind == 2 || kind == 5) return from_parent(source, port, thread, packet, payload);

    const std::uint32_t worker = packet[8];
    const auto found = jobs.find(number(packet, 2, 2));
    if (found == jobs.end()) return {Fate::kUnknown, {}};
    const Job& job = found->second;
    if (number(packet, 4, 4) != job.key || worker >= job.workers) return {Fate::kUnknown, {}};
    const auto [address, base_port] = job.sources[worker];
    if (source != address || port != base_port + thread) return {Fate::kUnknown, {}};
    if (!job.contributors.contains({thread, worker})) return {Fate::kUnknown, {}};
    const std::uint32_t round = number(packet, 12, 4);
    const std::uint32_t local_cell = number(packet, 10, 2);
    if (kind == 0 && payload.size() != 4 * job.lanes) return {Fate::kMalformed, {}};
    if (local_cell % 2 != round % 2) return {Fate::kMalformed, {}};
    const std::uint32_t slot = local_cell / 2;
    if (slot >= job.slots || slot / (job.slots / job.threads) != thread) return {Fate::kOutOfLease, {}};

    Cell& cell = cells_[{job.slot_base + slot, round % 2}];
    const bool next = round == (std::uint64_t{cell.round} + 2) % (1ull << 32);
    const bool begins = cell.owner != job.key || next;
    if (!begins && round != cell.round) return {Fate::kStale, {}};
    if (kind == 4 && (begins || !cell.workers.contains(worker))) return {Fate::kResent, missing(packet)};
    if (kind == 4) return complete(job, cell) ? repeat(job, cell, packet) : Answer{Fate::kDuplicate, {}};
    if (begins) cell = Cell{.owner = job.key, .round = round, .workers = {}, .payloads = {}, .tensors = {}};
    cell.exponent = std::max<std::uint32_t>(cell.exponent, packet[9]);
    cell.tensors.push_back(number(packet, 16, 4));
    cell.flagged |= packet[1] / 2 % 2 == 1;
    const bool again = cell.workers.contains(worker);
    const bool first_data = kind == 0 && cell.payloads.empty();
    if (first_data || (kind == 0 && !again)) cell.payloads.push_back(payload);
    cell.workers.insert(worker);
    if (!complete(job, cell)) return {again ? Fate::kDuplicate : Fate::kHeld, {}};
    if (again) return repeat(job, cell, packet);
    if (job.parent) return {Fate::kRaised, sum(job, cell, packet)};
    return {Fate::kMulticast, result(job, cell, packet)};
  }

 private:
  std::map<std::pair<std::uint32_t, std::uint32_t>, Cell> cells_;

  Answer from_parent(std::uint32_t source, std::uint32_t port, std::uint32_t thread, const Bytes& packet,
                     const Bytes& payload) {
    const auto found = jobs.find(number(packet, 2, 2));
    if (found == jobs.end() || !found->second.parent) return {Fate::kMalformed, {}};
    const Job& job = found->second;
    if (number(packet, 4, 4) != job.key || thread >= job.threads) return {Fate::kMalformed, {}};
    if (source != job.parent->address || port != job.parent->port + thread) return {Fate::kMalformed, {}};
    const std::uint32_t round = number(packet, 12, 4);
    const std::uint32_t local_cell = number(packet, 10, 2);
    if (!payload.empty() && payload.size() != 4 * job.lanes) return {Fate::kMalformed, {}};
    if (local_cell % 2 != round % 2) return {Fate::kMalformed, {}};
    const std::uint32_t slot = local_cell / 2;
    if (slot >= job.slots || slot / (job.slots / job.threads) != thread) return {Fate::kOutOfLease, {}};

    Cell& cell = cells_[{job.slot_base + slot, round % 2}];
    if (cell.owner != job.key || cell.round != round || !complete(job, cell)) return {Fate::kStale, {}};
    if (cell.answered) return {Fate::kDuplicate, {}};
    if (packet[0] % 16 == 5) return {Fate::kRaisedAgain, sum(job, cell, packet)};
    cell.answered = true;
    cell.exponent = std::max<std::uint32_t>(cell.exponent, packet[9]);
    cell.tensors.push_back(number(packet, 16, 4));
    cell.flagged |= packet[1] / 2 % 2 == 1;
    if (!payload.empty()) cell.payloads = {payload};
    Bytes out(packet);
    out[1] = flags(cell);
    out[9] = static_cast<std::uint8_t>(cell.exponent);
    return {Fate::kMulticast, out};
  }

  /// All contributions are in, the sender's too.
  static Answer repeat(const Job& job, const Cell& cell, const Bytes& packet) {
    if (!job.parent || cell.answered) return {Fate::kResent, result(job, cell, packet)};
    if (packet[8] != 0) return {Fate::kDuplicate, {}};  // worker 0 asks for all of them
    Bytes up = sum(job, cell, packet);
    if (up[0] != 0x10) return {Fate::kRaisedAgain, up};
    up.resize(24);
    up[0] = 0x14;
    up[1] = up[9] = 0;
    return {Fate::kRaisedAgain, up};
  }

  /// What goes to the parent.
  static Bytes sum(const Job& job, const Cell& cell, const Bytes& packet) {
    const bool is_meta = packet[0] % 16 == 3;
    Bytes out = result(job, cell, packet);
    out[0] = !cell.payloads.empty() ? 0x10 : is_meta ? 0x13 : 0x11;
    out[8] = static_cast<std::uint8_t>(job.parent->worker);
    if (cell.payloads.empty()) out.resize(24);
    if (!cell.payloads.empty() && is_meta) append_words(job, cell, out);
    return out;
  }

  static std::uint8_t flags(const Cell& cell) {
    const auto& tensors = cell.tensors;
    const bool agreed = std::all_of(tensors.begin(), tensors.end(), [&](auto tensor) { return tensor == tensors[0]; });
    return agreed && !cell.flagged ? 0 : 2;
  }

  static std::uint32_t number(const Bytes& bytes, std::size_t at, std::size_t size) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < size; ++i) value = value * 256 + bytes[at + i];
    return value;
  }

  static bool complete(const Job& job, const Cell& cell) {
    const auto ours = std::count_if(cell.workers.begin(), cell.workers.end(), [&](auto w) { return w < job.workers; });
    return ours == static_cast<std::ptrdiff_t>(job.workers);
  }

  static Bytes missing(const Bytes& question) {
    Bytes out(question.begin(), question.begin() + 24);
    out[0] = 0x15;
    out[1] = out[9] = 0;
    return out;
  }

  static Bytes result(const Job& job, const Cell& cell, const Bytes& packet) {
    Bytes out(packet.begin(), packet.begin() + 24);
    out[0] = 0x12;
    out[1] = flags(cell);
    out[9] = static_cast<std::uint8_t>(cell.exponent);
    if (packet[0] % 16 != 3) append_words(job, cell, out);
    return out;
  }

  static void append_words(const Job& job, const Cell& cell, Bytes& out) {
    for (std::size_t lane = 0; lane < job.lanes; ++lane) {
      std::uint64_t sum = 0;
      for (const Bytes& payload : cell.payloads) sum += number(payload, 4 * lane, 4);
      for (const int shift : {24, 16, 8, 0}) out.push_back(static_cast<std::uint8_t>(sum >> shift));
    }
  }
};

}  // namespace wiresum::dataplane::model
