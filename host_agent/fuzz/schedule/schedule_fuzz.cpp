// The scheduler against hostile sums, which need not be those of the workers' packets.
//
// The input is a program. Two workers of a job, whose other workers have nothing but zeros, submit the same requests.
// For each share that both have issued, the input chooses the result: the sum of both, with some words changed or not,
// or other bytes. Both get the same, as from a switch.
//
// Checked are: no crash and no undefined behaviour (sanitizers, assertions), shares of memory that is there, no write
// outside destinations (guard bytes), unchanged sources, the same collectives at both workers as long as neither has
// failed, no failure unless a sum was changed, and that every request ends.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "../input.hpp"
#include "schedule/scheduler.hpp"
#include "worker/chunks.hpp"

namespace wiresum::schedule {
namespace {

using fuzz::Input;
using fuzz::is_guarded;
using fuzz::kGuard;
using fuzz::kGuardBytes;
using fuzz::require;
using worker::Status;

constexpr std::size_t kRequestsMax = 12;
constexpr std::size_t kFewElements = 16;  // elements of chunks that may be many

constexpr std::size_t kReducedBytesMax = 65536;  // of all workers

constexpr std::array<unsigned, 12> kJobs{2, 3, 4, 5, 7, 8, 15, 16, 31, 33, 64, 4096};
constexpr std::array<std::size_t, 4> kLanes{1, 4, 64, 90};
constexpr std::array<numeric::Format, 10> kFormats{{
    {numeric::Dtype::kF32, numeric::Scaling::kBlockExponent, 32},
    {numeric::Dtype::kF32, numeric::Scaling::kBlockExponent, 16},
    {numeric::Dtype::kF16, numeric::Scaling::kBlockExponent, 32},
    {numeric::Dtype::kBF16, numeric::Scaling::kBlockExponent, 32},
    {numeric::Dtype::kBF16, numeric::Scaling::kBlockExponent, 16},
    {numeric::Dtype::kF32, numeric::Scaling::kFixed, 32},
    {numeric::Dtype::kF16, numeric::Scaling::kFixed, 16},
    {numeric::Dtype::kI32, numeric::Scaling::kNone, 32},
    {numeric::Dtype::kI32, numeric::Scaling::kNone, 8},
    {numeric::Dtype::kRaw, numeric::Scaling::kNone, 8},
}};

/// The common part of both workers' requests.
struct Call {
  numeric::Format format;
  std::vector<std::uint64_t> elements;
  std::uint8_t roles = 0;
  std::uint8_t thinness = 0;
  std::uint32_t seed = 0;
  std::uint16_t signature = 0;
  std::optional<numeric::Reduction> reduction;
};

/// A region of a request, with guard bytes on both sides.
class Memory {
 public:
  Memory(std::size_t bytes, bool apart) : source_(bytes + 2 * kGuardBytes, kGuard) {
    if (apart) destination_ = source_;
  }
  [[nodiscard]] std::byte* source() { return source_.data() + kGuardBytes; }
  [[nodiscard]] std::byte* destination() { return destination_.empty() ? source() : destination_.data() + kGuardBytes; }
  [[nodiscard]] std::size_t bytes() const { return source_.size() - 2 * kGuardBytes; }
  void remember() { original_ = source_; }
  [[nodiscard]] bool intact(bool keeps_sum) const {
    const bool in_place = destination_.empty() && keeps_sum;
    return is_guarded(source_) && (destination_.empty() || is_guarded(destination_)) &&
           (in_place || source_ == original_);
  }

 private:
  std::vector<std::byte> source_;
  std::vector<std::byte> destination_;
  std::vector<std::byte> original_;
};

class Peer {
 public:
  Peer(const SchedulerConfig& config, std::uint32_t seed) : config_(config), scheduler_(config), random_(seed) {}

  void submit(const Call& call, bool scans_early) {
    std::mt19937 random(call.seed ^ config_.rank << 8);
    Request request;
    request.format = call.format;
    request.signature = call.signature;
    request.may_be_sparse = (call.roles & 1) != 0;
    request.divisor = (call.roles & 2) != 0 ? static_cast<float>(config_.workers) : 1.0F;
    const bool keeps = (call.roles & 4) == 0;
    request.reduction = call.reduction;
    const bool must_contribute = request.may_be_sparse || call.reduction.has_value();
    const bool contributes = must_contribute || (call.roles & 8) == 0 || config_.rank % 2 == 0;
    for (const std::uint64_t elements : call.elements) {
      Memory& memory = *memories_.emplace_back(
          std::make_unique<Memory>(elements * numeric::element_bytes(call.format.dtype), (call.roles & 16) != 0));
      keeps_sum_.push_back(keeps);
      fill(memory, call, random);
      request.regions.push_back(
          {.source = contributes ? worker::Source(memory.source()) : worker::Source(),
           .destination = keeps ? worker::Destination(memory.destination()) : worker::Destination(),
           .elements = elements});
    }
    Survey survey = scheduler_.survey(request, call.seed);
    if (scans_early && scheduler_.expects_scan(request, survey)) {
      survey.presence = scan(request, config_.lanes, survey.chunks);
    }
    static_cast<void>(scheduler_.submit(std::move(request), std::move(survey)));
    ++submitted_;
  }

  /// Everything that it can do without the network.
  void go_on() {
    while (const std::optional<Task> task = scheduler_.poll_task()) scheduler_.complete(*task, task->run());
    while (const std::optional<Share> share = scheduler_.poll_share()) shares.push_back(*share);
    while (const std::optional<Finished> finished = scheduler_.poll_finished()) {
      ++finished_;
      require(finished->status == Status::kOk || has_failed());
    }
  }

  void complete(std::size_t index, std::uint8_t vote, Status status = Status::kOk) {
    const Share share = shares[index];
    shares.erase(shares.begin() + static_cast<std::ptrdiff_t>(index));
    scheduler_.complete(share.thread, {.token = share.work.token,
                                       .status = status,
                                       .vote = vote,
                                       .round_trip_chunks = static_cast<std::uint32_t>(random_() % 300)});
    go_on();
  }

  /// The job is over: so are its shares, and so is every request.
  void end() {
    if (!scheduler_.failure().has_value() && (!shares.empty() || scheduler_.unfinished() != 0)) {
      scheduler_.fail(Status::kAborted);
    }
    go_on();
    while (!shares.empty()) complete(0, 0, Status::kAborted);
    require(scheduler_.unfinished() == 0 && finished_ == submitted_);
    for (std::size_t i = 0; i < memories_.size(); ++i) require(memories_[i]->intact(keeps_sum_[i]));
  }

  [[nodiscard]] bool has_failed() const { return scheduler_.failure().has_value(); }
  [[nodiscard]] std::size_t lanes() const { return config_.lanes; }

  std::deque<Share> shares;  // issued shares that wait for their sums

 private:
  static void fill(Memory& memory, const Call& call, std::mt19937& random) {
    const std::size_t bytes = numeric::element_bytes(call.format.dtype);
    for (std::size_t at = 0; at < memory.bytes(); at += bytes) {
      std::uint32_t value = 0;
      if (random() % (1U + call.thinness) == 0) {
        // Ordinary numbers above all, and now and then any bits.
        const auto ordinary = std::bit_cast<std::uint32_t>(static_cast<float>(random() % 64) - 32.0F);
        value = random() % 256 == 0 ? static_cast<std::uint32_t>(random()) : bytes == 4 ? ordinary : ordinary >> 16;
      }
      std::memcpy(memory.source() + at, &value, bytes);
    }
    memory.remember();
  }

  SchedulerConfig config_;
  Scheduler scheduler_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<bool> keeps_sum_;
  std::size_t submitted_ = 0;
  std::size_t finished_ = 0;
};

/// Calls visit(view) for each chunk of a share.
template <class Visit>
void for_each_chunk(const Share& share, std::size_t lanes, const Visit& visit) {
  const worker::Collective& work = share.work;
  const std::size_t step = worker::chunk_elements(work.format, lanes);
  require(work.chunk_begin <= work.chunk_end);
  for (std::uint32_t i = work.chunk_begin; i < work.chunk_end; ++i) {
    require(work.chunks.empty() || i < work.chunks.size());
    const std::uint32_t number = work.chunks.empty() ? i : work.chunks[i];
    static_cast<void>(work.presence->may_hold(number));
    const worker::ChunkView view = worker::chunk_at(work.regions, number, step, work.format.dtype);
    require(view.elements > 0 || work.regions.empty());
    visit(view);
  }
}

class Program {
 public:
  explicit Program(Input input) : input_(input) {
    SchedulerConfig config;
    config.workers = input_.one_of(kJobs);
    config.lanes = input_.one_of(kLanes);
    config.threads = 1 + input_.byte() % 3U;
    config.chunks_per_thread_min = 2;
    config.sparse_chunks_min = 2;
    config.vote_lag_chunks = 64;
    config.exact_elements_max = std::array<std::uint64_t, 3>{0, 700, 4000}[input_.byte() % 3];
    config.rank = input_.byte() % (config.workers - 1);
    peers_.emplace_back(config, 1);
    ++config.rank;
    peers_.emplace_back(config, 2);
    workers_ = config.workers;
  }

  void run() {
    while (!input_.empty() && !has_failed()) step();
    while (!has_failed() && !peers_[0].shares.empty()) exchange(false);
    require(changed_ || !has_failed());
    for (Peer& peer : peers_) peer.end();
  }

 private:
  [[nodiscard]] bool has_failed() const { return peers_[0].has_failed() || peers_[1].has_failed(); }

  void step() {
    if (input_.byte() % 4 == 0 || peers_[0].shares.empty()) {
      submit();
    } else {
      exchange(true);
    }
  }

  void submit() {
    Call call;
    call.format = input_.one_of(kFormats);
    if (call.format.scaling != numeric::Scaling::kNone && workers_ > numeric::workers_max(call.format.bits)) {
      call.format.bits = 32;
    }
    const std::size_t chunk = worker::chunk_elements(call.format, peers_[0].lanes());
    for (std::size_t regions = input_.byte() % 3 + 1U; regions > 0; --regions) {
      const std::size_t chunks = input_.byte() % (chunk > kFewElements ? 32U : 128U);
      call.elements.push_back(chunks * chunk + input_.byte() % chunk);
    }
    call.roles = input_.byte();
    call.thinness = input_.byte();
    call.seed = input_.byte();
    call.signature = call.roles >> 7;
    if (call.format.dtype == numeric::Dtype::kRaw && (call.seed & 1) != 0) {
      const numeric::Reduction any{static_cast<numeric::Element>(call.seed / 2 % 9),
                                   static_cast<numeric::Operator>(call.thinness % 7)};
      if (numeric::valid(any)) call.reduction = any;
      for (std::uint64_t& elements : call.elements) elements = elements % (kReducedBytesMax / workers_) / 8 * 8;
    }
    if (submitted_++ >= kRequestsMax) return;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      peers_[i].submit(call, (call.roles >> (5 + i) & 1) != 0);
      peers_[i].go_on();
    }
  }

  /// Gives both workers the sum of one share.
  void exchange(bool hostile) {
    const std::size_t shares = peers_[0].shares.size();
    require(peers_[1].shares.size() == shares);
    const std::size_t index = hostile && shares > 1 ? input_.byte() % shares : 0;
    const Share first = peers_[0].shares[index];
    const Share second = peers_[1].shares[index];
    require(first.thread == second.thread && first.work.tensor == second.work.tensor);
    require(first.work.chunk_begin == second.work.chunk_begin && first.work.chunk_end == second.work.chunk_end);
    require(std::ranges::equal(first.work.chunks, second.work.chunks));
    std::vector<std::byte> sum = contribution(first);
    add(first.work.format, contribution(second), sum);
    std::uint8_t vote = std::max(first.work.vote, second.work.vote);
    if (hostile) change(sum, vote);
    for (const Share& share : {first, second}) write(share, sum);
    for (Peer& peer : peers_) peer.complete(index, vote);
  }

  [[nodiscard]] std::vector<std::byte> contribution(const Share& share) const {
    std::vector<std::byte> bytes;
    for_each_chunk(share, peers_[0].lanes(), [&](const worker::ChunkView& view) {
      const std::size_t count = view.elements * numeric::element_bytes(share.work.format.dtype);
      bytes.resize(bytes.size() + count);
      if (view.source != nullptr) std::memcpy(bytes.data() + bytes.size() - count, view.source, count);
    });
    return bytes;
  }

  /// Adds integers. The scheduler does not read sums of floats.
  static void add(numeric::Format format, const std::vector<std::byte>& more, std::vector<std::byte>& sum) {
    require(more.size() == sum.size());
    if (format.dtype != numeric::Dtype::kI32) return;
    for (std::size_t at = 0; at < sum.size(); at += sizeof(std::uint32_t)) {
      std::uint32_t one = 0;
      std::uint32_t other = 0;
      std::memcpy(&one, sum.data() + at, sizeof one);
      std::memcpy(&other, more.data() + at, sizeof other);
      one += other;
      std::memcpy(sum.data() + at, &one, sizeof one);
    }
  }

  void change(std::vector<std::byte>& sum, std::uint8_t& vote) {
    const std::uint8_t how = input_.byte();
    if ((how & 0x80) != 0) {
      vote = input_.byte();
      changed_ = true;
    }
    const std::size_t words = sum.size() / sizeof(std::uint32_t);
    if (how % 8 < 4 || words == 0) return;
    changed_ = true;
    if (how % 8 == 4) {
      std::ranges::fill(sum, std::byte{0});
      return;
    }
    if (how % 8 == 5) {
      std::mt19937 random(input_.word());
      std::ranges::generate(sum, [&random] { return static_cast<std::byte>(random()); });
      return;
    }
    const std::size_t at = how % 8 == 6 ? words - 1 : input_.word() % words;
    const std::uint32_t value = input_.word();
    std::memcpy(sum.data() + at * sizeof value, &value, sizeof value);
  }

  void write(const Share& share, const std::vector<std::byte>& sum) const {
    const std::byte* from = sum.data();
    for_each_chunk(share, peers_[0].lanes(), [&](const worker::ChunkView& view) {
      const std::size_t count = view.elements * numeric::element_bytes(share.work.format.dtype);
      if (view.destination != nullptr) std::memcpy(view.destination, from, count);
      from += count;
    });
  }

  Input input_;
  std::deque<Peer> peers_;
  unsigned workers_ = 2;
  std::size_t submitted_ = 0;
  bool changed_ = false;
};

}  // namespace
}  // namespace wiresum::schedule

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kInputMax = 1024;
  if (size <= kInputMax) wiresum::schedule::Program(wiresum::schedule::Input({data, size})).run();
  return 0;
}
