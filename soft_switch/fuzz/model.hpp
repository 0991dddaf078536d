// The switch of docs/protocol.md, section 3, written for obviousness alone: a dictionary of cells that remember every
// contribution, and a sum that is computed from them when it is asked for. It shares no code with the data plane, not
// even the parser.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace wiresum::dataplane::model {

using Bytes = std::vector<std::uint8_t>;

struct Job {
  std::uint32_t key, workers, threads, lanes, slot_base, slots;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> sources;  // address and base port, by worker
  // Who may contribute, by thread and worker; for a job that is admitted as a whole, everybody.
  std::set<std::pair<std::uint32_t, std::uint32_t>> contributors = {};
};

struct Cell {
  std::uint32_t owner = 0;  // the key of the job that began the round
  std::uint32_t round = 0;
  std::set<std::uint32_t> workers;  // whose contribution is in
  std::vector<Bytes> payloads;      // that make up the sum
  std::uint32_t exponent = 0;
  std::vector<std::uint32_t> tensors;  // named by packets of this round, admitted or duplicate
};

/// What became of a packet, in words that both sides can be compared in.
enum class Fate { kMalformed, kUnknown, kOutOfLease, kStale, kDuplicate, kHeld, kMulticast, kResent };

struct Answer {
  Fate fate = Fate::kMalformed;
  Bytes result;  // kMulticast and kResent: the whole datagram
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
    if (kind != 0 && kind != 1 && kind != 3 && kind != 4) return {Fate::kMalformed, {}};
    const Bytes payload(packet.begin() + kHeader, packet.end());
    if (kind == 0 ? payload.size() % 4 != 0 : !payload.empty()) return {Fate::kMalformed, {}};

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
    if (kind == 4)
      return complete(job, cell) ? Answer{Fate::kResent, result(job, cell, packet)} : Answer{Fate::kDuplicate, {}};
    if (begins) cell = Cell{.owner = job.key, .round = round, .workers = {}, .payloads = {}, .tensors = {}};
    cell.exponent = std::max<std::uint32_t>(cell.exponent, packet[9]);
    cell.tensors.push_back(number(packet, 16, 4));
    const bool again = cell.workers.contains(worker);
    const bool first_data = kind == 0 && cell.payloads.empty();
    if (first_data || (kind == 0 && !again)) cell.payloads.push_back(payload);
    cell.workers.insert(worker);
    if (!complete(job, cell)) return {again ? Fate::kDuplicate : Fate::kHeld, {}};
    return {again ? Fate::kResent : Fate::kMulticast, result(job, cell, packet)};
  }

 private:
  std::map<std::pair<std::uint32_t, std::uint32_t>, Cell> cells_;

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
    const auto& tensors = cell.tensors;
    const bool agreed = std::all_of(tensors.begin(), tensors.end(), [&](auto tensor) { return tensor == tensors[0]; });
    out[1] = agreed ? 0 : 2;
    out[9] = static_cast<std::uint8_t>(cell.exponent);
    if (packet[0] % 16 == 3) return out;
    for (std::size_t lane = 0; lane < job.lanes; ++lane) {
      std::uint64_t sum = 0;
      for (const Bytes& payload : cell.payloads) sum += number(payload, 4 * lane, 4);
      for (const int shift : {24, 16, 8, 0}) out.push_back(static_cast<std::uint8_t>(sum >> shift));
    }
    return out;
  }
};

}  // namespace wiresum::dataplane::model
