// Bits that are wrong, and that no checksum sees, in every place where a sum can be changed: with check words nothing
// wrong is stored, and without them it is.
//
//   WIRESUM_FLIPS=1000000 build/dev/host_agent/tests/sim/sim_test --gtest_filter='WrongBits*'     a long run
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "dataplane.hpp"
#include "numeric/codec.hpp"
#include "wire/bytes.hpp"
#include "worker/chunks.hpp"
#include "worker/worker.hpp"

namespace wiresum::sim {
namespace {

using worker::Status;
using worker::TimeNs;

constexpr std::uint16_t kJob = 1;
constexpr std::uint32_t kKey = 0xC0FFEE;
constexpr std::uint32_t kWorkers = 3;
constexpr std::uint32_t kSlots = 2;
constexpr std::uint16_t kElementWords = 9;  // a vector and more
constexpr std::size_t kElements = 45;
constexpr TimeNs kDeadline = 10'000'000'000;
/// The bytes of a destination before a store; no sum below has such an element.
constexpr std::byte kNothing{0x5B};

enum class Place : std::uint8_t {
  kUp,              // a word on its way to the switch
  kDown,            // ... to a worker
  kCell,            // ... in the switch
  kAdder,           // one lane's adder adds one too many
  kResultExponent,  // the exponent of a RESULT on its way
  kHeader,          // another bit of a header, either way
};
constexpr Place kPlaces[] = {Place::kUp,    Place::kDown,           Place::kCell,
                             Place::kAdder, Place::kResultExponent, Place::kHeader};
constexpr const char* kNames[] = {"up", "down", "cell", "adder", "exponent", "header"};

struct Sum {
  numeric::Format format;
  bool exact = false;
  bool is_broadcast = false;
};
constexpr Sum kSums[] = {
    {{numeric::Dtype::kF32, numeric::Scaling::kBlockExponent, 32}},
    {{numeric::Dtype::kF32, numeric::Scaling::kBlockExponent, 32}, true},
    {{numeric::Dtype::kBF16, numeric::Scaling::kBlockExponent, 16}},
    {{numeric::Dtype::kF16, numeric::Scaling::kBlockExponent, 8}},
    {{numeric::Dtype::kF32, numeric::Scaling::kFixed, 32}},
    {{numeric::Dtype::kI32, numeric::Scaling::kNone, 32}},
    {{numeric::Dtype::kRaw, numeric::Scaling::kNone, 8}, false, true},
};

/// One bit of one packet, or of one cell, or the adder of one lane.
struct Fault {
  Place place = Place::kUp;
  std::uint64_t moment = 0;  // the event there
  std::uint64_t choice = 0;  // the bit or the lane
};

using Bytes = std::vector<std::byte>;

/// One all-reduce, or broadcast, from beginning to end.
class Trial {
 public:
  Trial(const Sum& sum, const std::vector<Bytes>& sources, bool check_word, std::optional<Fault> fault)
      : fault_(fault),
        lanes_(static_cast<std::uint16_t>(kElementWords + (check_word ? 1 : 0))),
        sizes_{.slots = kSlots, .lanes_max = lanes_, .jobs_max = kJob + 1},
        cells_(2 * kSlots * dataplane::Dataplane::stride(sizes_) / sizeof(Line)),
        plane_(sizes_, cells_.front().bytes.data()) {
    dataplane::JobEntry entry{.job = kJob, .key = kKey, .workers = kWorkers, .lanes = lanes_, .slots = kSlots};
    for (std::uint32_t i = 0; i < kWorkers; ++i) {
      entry.endpoints[i] = {.address = i + 1, .port = 1000};
      Member& member = members_.emplace_back();
      member.sum.resize(sources[i].size(), kNothing);
      if (!sum.is_broadcast || i == 0) member.region.source = sources[i].data();
      member.region.destination = member.sum.data();
      member.region.elements = kElements;
      member.worker.emplace(worker::WorkerConfig{.job = kJob,
                                                 .key = kKey,
                                                 .worker = static_cast<std::uint8_t>(i),
                                                 .workers = kWorkers,
                                                 .lanes = lanes_,
                                                 .slots = kSlots,
                                                 .collectives_max = 1,
                                                 .check_word = check_word});
    }
    EXPECT_TRUE(plane_.admit(entry));
    for (Member& member : members_) {
      worker::Collective work{.tensor = 7,
                              .format = sum.format,
                              .fixed_scale = 1000.0F,
                              .exact = sum.exact,
                              .regions = {&member.region, 1},
                              .chunks = {},
                              .deadline = kDeadline};
      work.chunk_end = static_cast<std::uint32_t>(worker::chunks_of(kElements, sum.format, kElementWords));
      EXPECT_TRUE(member.worker->submit(work));
    }
    run();
  }
  Trial(const Trial&) = delete;

  [[nodiscard]] const Bytes& sum(std::size_t worker) const { return members_[worker].sum; }
  [[nodiscard]] bool all_ended(Status status) const {
    return std::ranges::all_of(members_, [status](const Member& each) { return each.status == status; });
  }
  [[nodiscard]] std::uint64_t sums_wrong() const {
    std::uint64_t count = 0;
    for (const Member& member : members_) count += member.worker->stats().sums_wrong;
    return count;
  }
  /// Events of a place, at one of which a fault may happen.
  [[nodiscard]] std::uint64_t moments(Place place) const { return moments_[static_cast<std::size_t>(place)]; }

  /// True if an element is stored that the right sum has not.
  [[nodiscard]] bool has_wrong_element(const Trial& right, std::size_t element_bytes) const {
    const Bytes nothing(element_bytes, kNothing);
    for (std::size_t worker = 0; worker < kWorkers; ++worker) {
      for (std::size_t at = 0; at < sum(worker).size(); at += element_bytes) {
        const std::byte* const stored = sum(worker).data() + at;
        const bool is_right = std::memcmp(stored, right.sum(worker).data() + at, element_bytes) == 0;
        if (!is_right && std::memcmp(stored, nothing.data(), element_bytes) != 0) return true;
      }
    }
    return false;
  }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes{};
  };
  struct Member {
    worker::Region region;
    Bytes sum;
    std::optional<worker::Worker> worker;
    std::optional<Status> status;
  };

  void run() {
    Bytes memory(wire::kHeaderBytes + lanes_ * wire::kWordBytes);
    while (std::ranges::any_of(members_, [](const Member& each) { return !each.status.has_value(); })) {
      bool is_idle = true;
      for (std::uint32_t i = 0; i < kWorkers; ++i) {
        wire::Packet packet{.data = memory.data(), .bytes = 0};
        while (members_[i].worker->poll_transmit(now_, {&packet, 1}) > 0) {
          is_idle = false;
          now_ += 1000;
          arrive(i, Bytes(memory.begin(), memory.begin() + packet.bytes));
        }
        if (const auto completion = members_[i].worker->poll_completion()) members_[i].status = completion->status;
      }
      if (is_idle) skip_time();
    }
  }

  void skip_time() {
    TimeNs next = worker::kNever;
    for (const Member& member : members_) next = std::min(next, member.worker->next_timeout());
    if (next != worker::kNever) now_ = std::max(now_ + 1, next);
  }

  void arrive(std::uint32_t from, Bytes datagram) {
    spoil(Place::kUp, datagram);
    const dataplane::Arrival arrival = dataplane::read({.address = from + 1, .port = 1000}, 0, datagram);
    const dataplane::Decision decision = plane_.handle(arrival);
    if (arrival.well_formed) spoil_cell(arrival.header, decision);
    if (decision.verdict == dataplane::Verdict::kDrop || decision.verdict == dataplane::Verdict::kHold) return;
    Bytes result(wire::kHeaderBytes + decision.payload.size());
    wire::Packet packet{.data = result.data(), .bytes = 0};
    decision.write(packet);
    for (std::uint32_t i = 0; i < kWorkers; ++i) {
      if (decision.verdict == dataplane::Verdict::kResend && decision.worker != i) continue;
      Bytes copy = result;
      spoil(Place::kDown, copy);
      members_[i].worker->handle_datagram(now_, copy);
    }
  }

  [[nodiscard]] bool happens(Place place) {
    const std::uint64_t moment = moments_[static_cast<std::size_t>(place)]++;
    return fault_.has_value() && fault_->place == place && fault_->moment == moment;
  }

  void spoil(Place way, Bytes& datagram) {
    if (datagram.size() > wire::kHeaderBytes && happens(way)) {
      flip(datagram.data() + wire::kHeaderBytes, datagram.size() - wire::kHeaderBytes);
    }
    if (way == Place::kDown && happens(Place::kResultExponent)) flip(datagram.data() + wire::kExponentAt, 1);
    if (happens(Place::kHeader)) {
      std::uint64_t bit = fault_->choice % (8 * (wire::kHeaderBytes - 1));
      if (bit >= 8 * wire::kExponentAt) bit += 8;
      datagram[bit / 8] ^= std::byte{1} << bit % 8;
    }
  }

  void flip(std::byte* words, std::size_t bytes) const {
    const std::uint64_t bit = fault_->choice % (8 * bytes);
    words[bit / 8] ^= std::byte{1} << bit % 8;
  }

  void spoil_cell(const wire::Header& header, const dataplane::Decision& decision) {
    std::byte* const words = cell(header.cell);
    if (happens(Place::kCell)) flip(words, lanes_ * wire::kWordBytes);
    if (header.kind != wire::Kind::kData || decision.reason != dataplane::Reason::kAdmitted) return;
    const bool is_first = rounds_[header.cell % rounds_.size()] != header.round;
    rounds_[header.cell % rounds_.size()] = header.round;
    if (is_first || !fault_.has_value() || fault_->place != Place::kAdder) return;
    const std::size_t at = fault_->choice % lanes_ * wire::kWordBytes;
    wire::bytes::store32(words, at, wire::bytes::load32(words, at) + 1);
  }

  [[nodiscard]] std::byte* cell(std::uint16_t number) {
    return cells_.front().bytes.data() + number % (2 * kSlots) * dataplane::Dataplane::stride(sizes_);
  }

  std::optional<Fault> fault_;
  std::uint16_t lanes_;
  dataplane::SwitchSizes sizes_;
  std::vector<Line> cells_;
  dataplane::Dataplane plane_;
  std::vector<Member> members_;
  std::array<std::uint32_t, 2 * kSlots> rounds_{};  // by cell: the last one with DATA
  std::array<std::uint64_t, std::size(kPlaces)> moments_{};
  TimeNs now_ = 1;
};

std::vector<Bytes> sources_of(const Sum& sum, std::mt19937_64& random) {
  std::vector<Bytes> sources(kWorkers, Bytes(kElements * numeric::element_bytes(sum.format.dtype)));
  std::normal_distribution<float> normal;
  for (Bytes& source : sources) {
    for (std::size_t at = 0; at < source.size(); at += numeric::element_bytes(sum.format.dtype)) {
      const float number = normal(random);
      std::uint32_t bits = 0;
      std::memcpy(&bits, &number, sizeof bits);
      if (sum.format.dtype == numeric::Dtype::kBF16) bits >>= 16;
      if (sum.format.dtype == numeric::Dtype::kF16) bits = 0x3C00 | (bits & 0x83FF);  // 1 to 2, of either sign
      std::memcpy(source.data() + at, &bits, numeric::element_bytes(sum.format.dtype));
    }
  }
  return sources;
}

std::uint64_t flips_of_each() {
  const char* const text = std::getenv("WIRESUM_FLIPS");
  return (text == nullptr ? 40'000 : std::strtoull(text, nullptr, 10)) / std::size(kSums);
}

struct Tally {
  std::uint64_t trials = 0;
  std::uint64_t wrong = 0;      // a wrong element was stored
  std::uint64_t recovered = 0;  // a sum was wrong, and the right one came
  std::uint64_t ended = 0;      // the job ended, since a sum was wrong twice
};
using Tallies = std::array<Tally, std::size(kPlaces)>;

/// Injects faults, one in each trial, over all places in turn.
void inject(const Sum& sum, std::uint64_t faults, bool check_word, Tallies& tallies) {
  constexpr std::uint64_t kFaultsOfOneTensor = 500;
  std::mt19937_64 random(static_cast<std::uint64_t>(&sum - kSums));
  for (std::uint64_t done = 0; done < faults; done += kFaultsOfOneTensor) {
    const std::vector<Bytes> sources = sources_of(sum, random);
    const Trial right(sum, sources, check_word, std::nullopt);
    ASSERT_TRUE(right.all_ended(Status::kOk));
    ASSERT_EQ(right.sums_wrong(), 0U);
    for (std::uint64_t i = done; i < std::min(done + kFaultsOfOneTensor, faults); ++i) {
      const Place place = kPlaces[i % std::size(kPlaces)];
      const std::uint64_t moments = std::max<std::uint64_t>(right.moments(place), 1);
      const Trial trial(sum, sources, check_word, Fault{place, random() % moments, random()});
      Tally& tally = tallies[static_cast<std::size_t>(place)];
      ++tally.trials;
      tally.wrong += trial.has_wrong_element(right, numeric::element_bytes(sum.format.dtype)) ? 1 : 0;
      tally.recovered += trial.all_ended(Status::kOk) && trial.sums_wrong() > 0 ? 1 : 0;
      tally.ended += trial.all_ended(Status::kWrongSum) ? 1 : 0;
      if (check_word && place == Place::kDown) {
        ASSERT_TRUE(trial.all_ended(Status::kOk)) << "what was changed on its way down was not asked for again";
        ASSERT_EQ(trial.sums_wrong(), 1U);
      }
    }
  }
}

void report(const Tallies& tallies) {
  for (std::size_t i = 0; i < tallies.size(); ++i) {
    std::printf(
        "%-8s %8llu faults: %8llu with a wrong element, %8llu asked for again, %8llu ended the job\n", kNames[i],
        static_cast<unsigned long long>(tallies[i].trials), static_cast<unsigned long long>(tallies[i].wrong),
        static_cast<unsigned long long>(tallies[i].recovered), static_cast<unsigned long long>(tallies[i].ended));
  }
}

TEST(WrongBits, WithACheckWordNoWrongElementIsStored) {
  Tallies tallies;
  for (const Sum& sum : kSums) inject(sum, flips_of_each(), true, tallies);
  report(tallies);
  for (std::size_t i = 0; i < tallies.size(); ++i) EXPECT_EQ(tallies[i].wrong, 0U) << kNames[i];
  for (const Place place : {Place::kUp, Place::kCell, Place::kAdder}) {
    EXPECT_GT(tallies[static_cast<std::size_t>(place)].ended, 0U) << "the faults do not reach the sums";
  }
}

TEST(WrongBits, WithoutOneTheSameFaultsAreStored) {
  Tallies tallies;
  for (const Sum& sum : kSums) inject(sum, 2000, false, tallies);
  report(tallies);
  // Other fields are compared anyway.
  for (std::size_t i = 0; i + 1 < tallies.size(); ++i) EXPECT_GT(tallies[i].wrong, 0U) << kNames[i];
}

}  // namespace
}  // namespace wiresum::sim
