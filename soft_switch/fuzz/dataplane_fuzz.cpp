// Drives the data plane and a naive model side by side. The input is read as a script: jobs come and go, and packets
// are sent that are mostly right, so that the interesting paths are deep in reach, with a field or a byte changed here
// and there. After each step both must agree on what became of the packet and on every byte of the result; no frame
// but the announced one may have changed.
#include <fuzzer/FuzzedDataProvider.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <vector>

#include "dataplane.hpp"
#include "model.hpp"

namespace {

using namespace wiresum;
using dataplane::Dataplane;
using dataplane::Decision;
using dataplane::JobEntry;
using dataplane::Reason;
using dataplane::Verdict;
using dataplane::model::Answer;
using dataplane::model::Bytes;
using dataplane::model::Fate;

constexpr dataplane::SwitchSizes kSizes{.slots = 8, .lanes_max = 4, .jobs_max = 3};
constexpr std::size_t kPacketBytesMax = wire::kHeaderBytes + kSizes.lanes_max * wire::kWordBytes;
constexpr int kStepsMax = 400;

void require(bool holds) {
  if (!holds) std::abort();
}

constexpr wire::Endpoint kParent{.address = 0x0A0000FE, .port = 7000};

// Two workers share a host: only their ports tell them apart.
std::uint32_t address_of(std::uint32_t worker) { return 0x0A000001 + worker / 2; }
std::uint16_t base_port_of(std::uint32_t worker) { return static_cast<std::uint16_t>(9000 + 2 * worker); }

Fate fate_of(const Decision& decision) {
  switch (decision.reason) {
    case Reason::kAdmitted:
      return decision.verdict == Verdict::kMulticast ? Fate::kMulticast
             : decision.verdict == Verdict::kRaise   ? Fate::kRaised
                                                     : Fate::kHeld;
    case Reason::kResent:
      return decision.verdict == Verdict::kRaise ? Fate::kRaisedAgain : Fate::kResent;
    case Reason::kDuplicate:
      return Fate::kDuplicate;
    case Reason::kStale:
      return Fate::kStale;
    case Reason::kOutOfLease:
      return Fate::kOutOfLease;
    case Reason::kUnknown:
      return Fate::kUnknown;
    case Reason::kMalformed:
    case Reason::kOther:
      break;
  }
  return Fate::kMalformed;
}

bool is_raised(Fate fate) { return fate == Fate::kRaised || fate == Fate::kRaisedAgain; }
bool should_send(Fate fate) { return fate == Fate::kMulticast || fate == Fate::kResent || is_raised(fate); }

class Bench {
 public:
  explicit Bench(FuzzedDataProvider& script) : script_(script), plane_(kSizes), entry_by_entry_(script.ConsumeBool()) {}

  void play() {
    for (int step = 0; step < kStepsMax && script_.remaining_bytes() > 0; ++step) {
      const int choice = script_.ConsumeIntegralInRange(0, 31);
      if (choice == 0) {
        entry_by_entry_ ? configure() : admit();
      } else if (choice == 2 && script_.ConsumeIntegralInRange(0, 15) == 0) {
        plane_.reset();
        model_.reset();
      } else if (choice == 1) {
        evict();
      } else {
        send(packet());
      }
    }
    check_counters();
  }

 private:
  void admit() {
    JobEntry entry;
    entry.job = script_.ConsumeIntegralInRange<std::uint16_t>(0, kSizes.jobs_max);
    entry.key = script_.ConsumeIntegralInRange(0, 15) == 0 ? 0 : ++keys_;
    entry.workers = script_.ConsumeIntegralInRange<std::uint8_t>(0, 33);
    entry.threads = script_.ConsumeIntegralInRange<std::uint8_t>(0, 4);
    entry.lanes = script_.ConsumeIntegralInRange<std::uint16_t>(0, kSizes.lanes_max + 1);
    entry.slot_base = script_.ConsumeIntegralInRange<std::uint32_t>(0, kSizes.slots);
    entry.slots = script_.ConsumeIntegralInRange<std::uint32_t>(0, kSizes.slots + 1);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> sources;
    for (std::uint32_t worker = 0; worker < entry.workers && worker < wire::kSwitchWorkersMax; ++worker) {
      entry.endpoints[worker] = {address_of(worker), base_port_of(worker)};
      sources.emplace_back(address_of(worker), base_port_of(worker));
    }
    std::optional<dataplane::model::Parent> parent;
    if (script_.ConsumeBool()) {
      entry.uplink = {.parent = kParent, .worker = script_.ConsumeIntegralInRange<std::uint8_t>(0, 32)};
      parent = {kParent.address, kParent.port, entry.uplink.worker};
    }
    const bool admitted = plane_.admit(entry);
    require(admitted == makes_sense(entry));
    if (!admitted) return;
    counted_[entry.job] = 0;
    dataplane::model::Job job{entry.key,       entry.workers, entry.threads, entry.lanes,
                              entry.slot_base, entry.slots,   sources};
    for (std::uint32_t thread = 0; thread < entry.threads; ++thread) {
      for (std::uint32_t worker = 0; worker < entry.workers; ++worker) job.contributors.insert({thread, worker});
    }
    job.parent = parent;
    model_.jobs[entry.job] = job;
  }

  /// Configures like the tables of a P4 switch: all jobs of one length, entries one by one. With few keys a job also
  /// finds cells of its own after it was removed in between.
  void configure() {
    JobEntry entry;
    entry.job = script_.ConsumeIntegralInRange<std::uint16_t>(0, kSizes.jobs_max);
    entry.key = script_.ConsumeIntegralInRange<std::uint32_t>(0, 3);
    entry.workers = script_.ConsumeIntegralInRange<std::uint8_t>(0, 4);
    entry.threads = script_.ConsumeIntegralInRange<std::uint8_t>(0, 2);
    entry.lanes = kSizes.lanes_max;
    entry.slot_base = script_.ConsumeIntegralInRange<std::uint32_t>(0, kSizes.slots);
    entry.slots = script_.ConsumeIntegralInRange<std::uint32_t>(0, kSizes.slots);
    dataplane::Admission admission;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> sources;
    for (std::uint32_t worker = 0; worker < entry.workers; ++worker) {
      const auto port = script_.PickValueInArray<std::uint16_t>({base_port_of(worker), base_port_of(worker), 0, 65535});
      entry.endpoints[worker] = {address_of(worker), base_port_of(worker)};
      admission.sources[worker] = {address_of(worker), port};
      sources.emplace_back(address_of(worker), port);
    }
    dataplane::model::Job job{entry.key,       entry.workers, entry.threads, entry.lanes,
                              entry.slot_base, entry.slots,   sources};
    for (std::uint32_t thread = 0; thread < entry.threads; ++thread) {
      for (std::uint32_t worker = 0; worker < entry.workers; ++worker) {
        if (script_.ConsumeIntegralInRange(0, 7) == 0) continue;
        admission.contributors[thread] |= 1u << worker;
        job.contributors.insert({thread, worker});
      }
    }
    const auto before = model_.jobs.find(entry.job);
    const bool keeps_lease =
        before == model_.jobs.end() || (before->second.slot_base == entry.slot_base &&
                                        before->second.slots == entry.slots && before->second.threads == entry.threads);
    const bool configured = plane_.configure(entry, admission);
    require(configured == (keeps_lease && is_possible(entry)));
    if (!configured) return;
    if (before == model_.jobs.end()) counted_[entry.job] = 0;
    model_.jobs[entry.job] = job;
  }

  bool makes_sense(const JobEntry& entry) const { return is_possible(entry) && !model_.jobs.contains(entry.job); }

  bool is_possible(const JobEntry& entry) const {
    const auto power_of_two = [](std::uint32_t n) { return n == 1 || n == 2 || n == 4 || n == 8; };
    if (entry.job >= kSizes.jobs_max || entry.key == 0) return false;
    if (entry.uplink.exists() && (entry.workers > 31 || entry.uplink.worker > 31)) return false;
    if (entry.workers < 1 || entry.workers > 32 || entry.lanes < 1 || entry.lanes > kSizes.lanes_max) return false;
    if (!power_of_two(entry.threads) || !power_of_two(entry.slots) || entry.threads > entry.slots) return false;
    if (entry.slot_base + entry.slots > kSizes.slots) return false;
    for (const auto& [number, job] : model_.jobs) {
      if (number == entry.job) continue;
      for (std::uint32_t slot = 0; slot < job.slots; ++slot) {
        const std::uint32_t taken = job.slot_base + slot;
        if (taken >= entry.slot_base && taken < entry.slot_base + entry.slots) return false;
      }
    }
    return true;
  }

  void evict() {
    const auto job = script_.ConsumeIntegralInRange<std::uint16_t>(0, kSizes.jobs_max);
    require(plane_.evict(job) == (model_.jobs.erase(job) == 1));
  }

  /// A packet that the chosen job would take, unless something was changed.
  Bytes packet() {
    wire::Header header;
    header.job = script_.ConsumeIntegralInRange<std::uint16_t>(0, kSizes.jobs_max);
    const auto job = model_.jobs.find(header.job);
    std::uint32_t lanes = 1;
    if (job != model_.jobs.end()) {
      header.key = job->second.key;
      header.worker = script_.ConsumeIntegralInRange<std::uint8_t>(0, static_cast<std::uint8_t>(job->second.workers));
      // Rounds lie near their wrap-around, or that of serial numbers; some steps are too long.
      header.round = script_.PickValueInArray<std::uint32_t>({0, 0, 0xFFFFFFFD, 0xFFFFFFFD, 0x7FFFFFFD}) +
                     script_.ConsumeIntegralInRange<std::uint32_t>(0, 7);
      const auto slot = script_.ConsumeIntegralInRange<std::uint32_t>(0, job->second.slots);
      header.cell = wire::cell_of(slot, header.round);
      lanes = job->second.lanes;
      thread_ = static_cast<std::uint8_t>(slot / (job->second.slots / job->second.threads));
    }
    source_ = {address_of(header.worker), static_cast<std::uint16_t>(base_port_of(header.worker) + thread_)};
    header.kind = script_.PickValueInArray({wire::Kind::kData, wire::Kind::kData, wire::Kind::kEmpty, wire::Kind::kMeta,
                                            wire::Kind::kQuestion, wire::Kind::kResult, wire::Kind::kMissing});
    const bool is_answer = header.kind == wire::Kind::kResult || header.kind == wire::Kind::kMissing;
    if (is_answer) source_ = {kParent.address, static_cast<std::uint16_t>(kParent.port + thread_)};
    header.exponent = script_.ConsumeIntegral<std::uint8_t>();
    header.tensor = script_.ConsumeIntegralInRange<std::uint32_t>(0, 3);
    Bytes bytes(wire::kHeaderBytes);
    wire::encode(header, std::as_writable_bytes(std::span<std::uint8_t, wire::kHeaderBytes>(bytes)));
    if (header.kind == wire::Kind::kData || (header.kind == wire::Kind::kResult && script_.ConsumeBool())) {
      const std::vector<std::uint8_t> words = script_.ConsumeBytes<std::uint8_t>(4 * lanes);
      bytes.insert(bytes.end(), words.begin(), words.end());
      bytes.resize(wire::kHeaderBytes + 4 * lanes, 0xEE);
    }
    change(bytes);
    return bytes;
  }

  void change(Bytes& bytes) {
    switch (script_.ConsumeIntegralInRange(0, 15)) {
      case 0:
        bytes[script_.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - 1)] =
            script_.ConsumeIntegral<std::uint8_t>();
        break;
      case 1:
        bytes.resize(script_.ConsumeIntegralInRange<std::size_t>(0, 64));
        break;
      case 2:
        source_.address = script_.ConsumeIntegral<std::uint32_t>();
        break;
      case 3:
        thread_ = script_.ConsumeIntegral<std::uint8_t>();
        break;
      case 4:
        source_.port = script_.PickValueInArray<std::uint16_t>(
            {0, 1, static_cast<std::uint16_t>(source_.port - 1), static_cast<std::uint16_t>(source_.port + 1), 65535});
        break;
      case 5:
        bytes = script_.ConsumeBytes<std::uint8_t>(64);
        break;
      default:
        break;
    }
  }

  void send(const Bytes& bytes) {
    const std::span<const std::byte> datagram = std::as_bytes(std::span(bytes));
    const dataplane::Arrival arrival = dataplane::read(source_, thread_, datagram);
    plane_.prefetch(arrival);
    const Decision decision = plane_.handle(arrival);
    const Answer answer = model_.handle(source_.address, source_.port, thread_, bytes);
    require(fate_of(decision) == answer.fate);
    require((decision.verdict == Verdict::kMulticast) == (answer.fate == Fate::kMulticast));
    require((decision.verdict == Verdict::kResend) == (answer.fate == Fate::kResent));
    require((decision.verdict == Verdict::kHold) == (answer.fate == Fate::kHeld));
    require((decision.verdict == Verdict::kRaise) == is_raised(answer.fate));
    if (should_send(answer.fate)) {
      std::array<std::byte, kPacketBytesMax> buffers{};
      wire::Packet result{.data = buffers.data(), .bytes = 0};
      decision.write(result);
      const std::span<const std::byte> expected = std::as_bytes(std::span(answer.result));
      require(std::equal(buffers.begin(), buffers.begin() + result.bytes, expected.begin(), expected.end()));
      require(decision.worker == bytes[8]);
    }
    ++sent_;
    if (answer.fate != Fate::kUnknown && answer.fate != Fate::kMalformed) ++counted_[decision.job];
  }

  void check_counters() {
    std::uint64_t stray = 0;
    for (const std::uint64_t count : plane_.stray().packets) stray += count;
    require(stray <= sent_);
    for (std::uint16_t job = 0; job < kSizes.jobs_max; ++job) {
      const dataplane::JobCounters& counters = plane_.counters(job);
      std::uint64_t packets = 0;
      for (const std::uint64_t count : counters.packets) packets += count;
      require(packets - counters.packets[static_cast<std::size_t>(Reason::kMalformed)] == counted_[job]);
      std::uint64_t contributions = 0;
      for (const std::uint64_t count : counters.contributions) contributions += count;
      const std::uint64_t admitted = counters.packets[static_cast<std::size_t>(Reason::kAdmitted)];
      // A switch with a parent also admits the parent's RESULTs.
      require(contributions <= admitted && admitted <= contributions + counters.results);
    }
  }

  FuzzedDataProvider& script_;
  Dataplane plane_;
  dataplane::model::Switch model_;
  const bool entry_by_entry_;
  wire::Endpoint source_;
  std::uint8_t thread_ = 0;
  std::uint64_t sent_ = 0;
  std::uint32_t keys_ = 0;  // each is a job's once
  std::array<std::uint64_t, kSizes.jobs_max> counted_{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider script(data, size);
  Bench(script).play();
  return 0;
}
