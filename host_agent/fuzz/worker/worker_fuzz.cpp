// The worker's state machine against a hostile network, hostile time and arbitrary collectives.
//
// The input is a program. Its steps submit a collective, let time pass (also backwards), poll, deliver garbage, deliver
// an answer, an answer with some fields changed, or an old answer again. An honest answer is the RESULT that a switch
// would send for the packet in flight. Checked are: no crash and no undefined behaviour (sanitizers), no write outside
// destinations (guard bytes), unchanged sources, bounded bursts, and, unless the machine has failed, that honest
// answers complete every collective in the end.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "../input.hpp"
#include "wire/packet.hpp"
#include "worker/worker.hpp"

namespace wiresum::worker {
namespace {

using fuzz::Input;
using fuzz::is_guarded;
using fuzz::kGuard;
using fuzz::kGuardBytes;
using fuzz::require;

constexpr std::size_t kLanes = 4;
constexpr std::size_t kStride = wire::kHeaderBytes + kLanes * wire::kWordBytes;
constexpr std::uint32_t kSlots = 4;
constexpr std::size_t kRegionBytes = 256;
constexpr std::size_t kJobsMax = 64;
constexpr std::byte kInput{0x3C};

/// The memory of a collective, with guard bytes on both sides of its destination.
struct Job {
  std::array<std::byte, kRegionBytes> source;
  std::array<std::byte, kRegionBytes + 2 * kGuardBytes> destination;
  std::array<Region, 2> regions;
  std::vector<std::uint32_t> chunks;
  ChunkPresence presence;

  [[nodiscard]] bool intact() const {
    return is_guarded(destination) &&
           std::all_of(source.begin(), source.end(), [](std::byte b) { return b == kInput; });
  }
};

constexpr std::array<numeric::Format, 9> kFormats{{
    {numeric::Dtype::kF32, numeric::Scaling::kBlockExponent, 32},
    {numeric::Dtype::kF32, numeric::Scaling::kBlockExponent, 8},
    {numeric::Dtype::kF16, numeric::Scaling::kBlockExponent, 16},
    {numeric::Dtype::kBF16, numeric::Scaling::kBlockExponent, 32},
    {numeric::Dtype::kF32, numeric::Scaling::kFixed, 32},
    {numeric::Dtype::kBF16, numeric::Scaling::kFixed, 16},
    {numeric::Dtype::kE4M3, numeric::Scaling::kNone, 32},
    {numeric::Dtype::kI32, numeric::Scaling::kNone, 32},
    {numeric::Dtype::kRaw, numeric::Scaling::kNone, 8},
}};

class Program {
 public:
  explicit Program(Input input) : input_(input), worker_(config()) { jobs_.reserve(kJobsMax); }

  void run() {
    while (!input_.empty()) step();
    finish();
    for (const Job& job : jobs_) require(job.intact());
  }

 private:
  WorkerConfig config() {
    WorkerConfig config;
    config.job = 7;
    config.key = 0xC0FFEE;
    config.worker = 1;
    config.workers = 3;
    config.lanes = kLanes;
    config.slot_first = kSlots;
    config.slots = kSlots;
    config.round_first = input_.word();
    config.window_min = 1;
    config.window_initial = 2;
    config.collectives_max = 8;
    return config;
  }

  void step() {
    switch (input_.byte() % 9) {
      case 0:
        return submit();
      case 1:
        now_ += static_cast<TimeNs>(input_.word()) - (TimeNs{1} << 24);
        return;
      case 2:
        return poll();
      case 3:
        return deliver_garbage();
      case 4:
        return deliver(answer(input_.byte() % kSlots));
      case 5:
        return deliver_mutated();
      case 6:
        return deliver(old_);
      case 7:
        take_completions();
        if (input_.byte() == 0xFF) worker_.fail(Status::kAborted);
        return;
      case 8:
        return input_.byte() % 2 == 0 ? worker_.halt() : move();
    }
  }

  /// Moves the job with any roles; the worker must refuse impossible ones.
  void move() {
    std::array<std::uint8_t, kSlots> roles{};
    for (std::uint8_t& role : roles) role = input_.byte() % 5;
    (void)worker_.move({.job = input_.byte(), .key = input_.word(), .worker = 1}, roles);
  }

  void submit() {
    if (jobs_.size() == kJobsMax) return;
    Job& job = jobs_.emplace_back();
    job.source.fill(kInput);
    job.destination.fill(kGuard);
    const numeric::Format format = kFormats[input_.byte() % kFormats.size()];
    const std::uint64_t elements_max = kRegionBytes / 2 / numeric::element_bytes(format.dtype);
    const std::uint8_t roles = input_.byte();
    std::uint32_t chunks = 0;
    std::size_t offset = 0;
    for (Region& region : job.regions) {
      const std::uint64_t elements = input_.byte() % (elements_max + 1);
      region = {.source = (roles & 1) != 0 ? job.source.data() + offset : Source(),
                .destination = (roles & 2) != 0 ? job.destination.data() + kGuardBytes + offset : Destination(),
                .elements = elements,
                .chunk_first = chunks};
      chunks += static_cast<std::uint32_t>(chunks_of(elements, format, kLanes));
      offset += kRegionBytes / 2;
    }
    Collective work;
    work.tensor = input_.byte();
    work.format = format;
    work.divisor = (roles & 4) != 0 ? 3.0F : 1.0F;
    if ((roles & 8) == 0) work.regions = job.regions;
    work.chunk_end = work.regions.empty() ? 1 + roles % 7u : chunks;
    if (!work.regions.empty() && (roles & 32) != 0) make_sparse(job, work, chunks);
    work.exact = !work.regions.empty() && (numeric::is_fp8(format.dtype) ||
                                           ((roles & 64) != 0 && format.scaling == numeric::Scaling::kBlockExponent));
    work.vote = static_cast<std::uint8_t>(input_.byte() % 255);
    work.chunk_begin = std::min<std::uint32_t>(input_.byte() % 4, work.chunk_end);
    if ((roles & 16) != 0) work.deadline = now_ + static_cast<TimeNs>(input_.word());
    if (worker_.submit(work)) {
      ++submitted_;
    } else {
      jobs_.pop_back();
    }
  }

  void make_sparse(Job& job, Collective& work, std::uint32_t chunks) {
    job.presence = ChunkPresence(chunks);
    for (std::uint32_t number = 0; number < chunks; ++number) {
      const std::uint8_t what = input_.byte();
      if ((what & 1) != 0) job.chunks.push_back(number);
      if ((what & 4) == 0) job.presence.set(number, (what & 2) != 0);
    }
    // An empty list would mean all chunks.
    if (!job.chunks.empty()) {
      work.chunks = job.chunks;
      work.chunk_end = static_cast<std::uint32_t>(job.chunks.size());
    }
    work.presence = &job.presence;
  }

  void poll() {
    std::array<std::array<std::byte, kStride>, 3> buffers{};
    std::array<wire::Packet, buffers.size()> burst{};
    for (std::size_t i = 0; i < burst.size(); ++i) burst[i].data = buffers[i].data();
    const std::size_t count = worker_.poll_transmit(now_, std::span(burst).first(1 + input_.byte() % burst.size()));
    for (const wire::Packet& packet : std::span(burst).first(count)) {
      wire::Header header;
      require(packet.bytes <= kStride);
      require(wire::decode(std::span(packet.data, packet.bytes), header) == wire::ParseError::kNone);
      const std::uint32_t slot = header.cell / 2U - kSlots;
      require(slot < kSlots);
      sent_[slot].assign(packet.data, packet.data + packet.bytes);
    }
    (void)worker_.next_timeout();
  }

  /// The honest answer of a switch to the slot's last packet: the peers have sent zeros, and so has this worker if it
  /// asks. Every second question is answered with MISSING.
  std::vector<std::byte> answer(std::uint32_t slot) {
    if (sent_[slot].empty()) return {};
    wire::Header header;
    require(wire::decode(sent_[slot], header) == wire::ParseError::kNone);
    const bool asked = header.kind == wire::Kind::kQuestion;
    missing_ ^= asked;
    const bool missing = asked && missing_;
    std::vector<std::byte> datagram = sent_[slot];
    datagram.resize(missing || header.kind == wire::Kind::kMeta ? wire::kHeaderBytes : kStride);
    header.kind = missing ? wire::Kind::kMissing : wire::Kind::kResult;
    header.flags = 0;
    if (missing) header.exponent = 0;
    wire::encode(header, std::span<std::byte, wire::kHeaderBytes>(datagram.data(), wire::kHeaderBytes));
    return datagram;
  }

  void deliver(const std::vector<std::byte>& datagram) {
    worker_.handle_datagram(now_, datagram);
    old_ = datagram;
  }

  void deliver_garbage() {
    std::vector<std::byte> datagram(input_.byte() % (kStride + 8));
    for (std::byte& b : datagram) b = std::byte{input_.byte()};
    worker_.handle_datagram(now_, datagram);
  }

  void deliver_mutated() {
    std::vector<std::byte> datagram = answer(input_.byte() % kSlots);
    if (datagram.empty()) return;
    for (int changes = input_.byte() % 4; changes > 0; --changes) {
      datagram[input_.byte() % datagram.size()] ^= std::byte{input_.byte()};
    }
    if (const std::uint8_t cut = input_.byte(); cut < datagram.size()) datagram.resize(cut);
    worker_.handle_datagram(now_, datagram);
  }

  void take_completions() {
    while (const auto completion = worker_.poll_completion()) {
      ++completed_;
      failed_ |= completion->status != Status::kOk;
    }
  }

  /// Gives only honest answers: after any earlier steps, every collective must complete.
  void finish() {
    constexpr int kStepsMax = 100'000;
    // All rounds begin anew, since no one repeats a RESULT that this worker may lack.
    worker_.halt();
    require(worker_.move({.job = 1, .key = 1, .worker = 1}, std::array<std::uint8_t, kSlots>{}));
    for (int i = 0; i < kStepsMax && (completed_ < submitted_ || worker_.next_timeout() != kNever); ++i) {
      now_ = std::max(now_, worker_.next_timeout() == kNever ? now_ : worker_.next_timeout());
      poll();
      for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
        if (!sent_[slot].empty()) deliver(answer(slot));
      }
      take_completions();
    }
    require(completed_ == submitted_);
    require(failed_ || worker_.next_timeout() == kNever);
  }

  Input input_;
  bool missing_ = false;
  TimeNs now_ = 0;
  Worker worker_;
  std::vector<Job> jobs_;
  std::array<std::vector<std::byte>, kSlots> sent_;  // the last packet of each slot
  std::vector<std::byte> old_;
  std::size_t submitted_ = 0;
  std::size_t completed_ = 0;
  bool failed_ = false;
};

}  // namespace
}  // namespace wiresum::worker

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kInputMax = 4096;
  if (size <= kInputMax) wiresum::worker::Program(wiresum::worker::Input({data, size})).run();
  return 0;
}
