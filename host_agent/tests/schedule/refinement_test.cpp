#include "schedule/refinement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>

namespace wiresum::schedule {
namespace {

using numeric::Scaling;

constexpr std::size_t kLanes = 90;  // not a multiple of a row
constexpr unsigned kWorkers = 3;
constexpr float kUntouched = 99.0F;

/// A variant of the test: the format, whether sums are in place, and the sizes of the steps.
struct Way {
  Scaling scaling = Scaling::kBlockExponent;
  std::uint8_t bits = 32;
  bool in_place = true;
  std::vector<unsigned> steps;
  float fixed_scale = 4.0F;
  bool keeps_last_region_only = false;  // like the last worker of a reduce-scatter
};

std::vector<std::size_t> region_sizes(numeric::Format format) {
  const std::size_t chunk = worker::chunk_elements(format, kLanes);
  return {chunk * 6 + 31, 0, 5, chunk * 4};
}

/// All chunks of these regions except two of the first one.
const std::vector<std::uint32_t> kChunks = {0, 2, 3, 4, 6, 7, 8, 9, 10, 11};
constexpr std::uint64_t kChunksOfTensor = 12;
bool is_left_out(std::size_t region, std::size_t chunk) { return region == 0 && (chunk == 1 || chunk == 5); }

/// One worker's fp32 tensors, mostly zeros. One chunk has an Inf at one worker.
struct Side {
  Side(unsigned worker, const Way& way) {
    request.format = {.dtype = numeric::Dtype::kF32, .scaling = way.scaling, .bits = way.bits};
    request.fixed_scale = way.fixed_scale;
    request.divisor = kWorkers;
    std::mt19937 random(worker);
    for (const std::size_t size : region_sizes(request.format)) {
      std::vector<float>& source = sources.emplace_back(size);
      for (float& value : source) {
        const auto draw = random() % 40;
        value = draw == 0   ? std::ldexp(static_cast<float>(random() % 1000), static_cast<int>(random() % 12) - 9)
                : draw == 1 ? -0.0F
                            : 0.0F;
      }
      destinations.emplace_back(way.in_place ? 0 : size, kUntouched);
    }
    if (worker == 1) sources[3][2] = INFINITY;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      auto* const source = reinterpret_cast<std::byte*>(sources[i].data());
      worker::Destination destination = way.in_place ? source : reinterpret_cast<std::byte*>(destinations[i].data());
      if (way.keeps_last_region_only && i + 1 < sources.size()) destination = {};
      request.regions.push_back({.source = source, .destination = destination, .elements = sources[i].size()});
    }
    EXPECT_EQ(number_chunks(request.regions, request.format, kLanes), kChunksOfTensor);
    originals = sources;
    refinement =
        std::make_unique<Refinement>(request, kLanes, WorkerRank{.rank = worker, .workers = kWorkers}, kChunks);
    refinement->read(worker::kNothingKnown);
  }
  std::vector<std::vector<float>> sources;
  std::vector<std::vector<float>> originals;
  std::vector<std::vector<float>> destinations;
  Request request;
  std::unique_ptr<Refinement> refinement;
};

template <class Words>
void sum_words(std::deque<Side>& sides, const Words& words_of) {
  std::vector<std::uint32_t> sum(words_of(sides[0]).size());
  for (Side& side : sides) {
    ASSERT_EQ(words_of(side).size(), sum.size());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += words_of(side)[i];
  }
  for (Side& side : sides) std::copy(sum.begin(), sum.end(), words_of(side).begin());
}

/// Runs the whole refinement, with the network's sums, at all workers.
std::deque<Side> run(const Way& way) {
  std::deque<Side> sides;
  for (unsigned worker = 0; worker < kWorkers; ++worker) sides.emplace_back(worker, way);
  for (const unsigned size : way.steps) {
    for (Side& side : sides) side.refinement->count(size);
    sum_words(sides, [](Side& side) { return side.refinement->counts().words(); });
    for (Side& side : sides) EXPECT_TRUE(side.refinement->narrow());
  }
  for (Side& side : sides) side.refinement->pack();
  sum_words(sides, [](Side& side) {
    const std::vector<worker::Region>& regions = side.refinement->packed().request.regions;
    // The regions are consecutive. Narrower lanes hold the sums as well.
    return std::span(reinterpret_cast<std::uint32_t*>(regions[0].destination.first()),
                     side.refinement->union_size().elements);
  });
  for (Side& side : sides) side.refinement->unpack();
  return sides;
}

/// The dense path's sum of one chunk.
std::vector<float> dense_sum(const std::deque<Side>& sides, std::size_t region, std::size_t first, std::size_t count) {
  const Request& request = sides[0].request;
  numeric::Exponents largest;
  const auto source_of = [&](const Side& side) {
    return reinterpret_cast<const std::byte*>(side.originals[region].data() + first);
  };
  for (const Side& side : sides) {
    const numeric::Exponents mine = numeric::exponents_of(numeric::Dtype::kF32, source_of(side), count);
    EXPECT_FALSE(mine.not_finite) << "this chunk should have been set aside";
    largest.largest = std::max(largest.largest, mine.largest);
  }
  const numeric::Scale scale =
      request.format.scaling == Scaling::kFixed
          ? numeric::fixed_scale(kWorkers, request.fixed_scale, request.format.bits, request.divisor)
          : numeric::block_scale(kWorkers, largest.largest, request.format.bits, request.divisor);
  std::vector<std::byte> cell(4 * kLanes);
  std::vector<std::byte> payload(4 * kLanes);
  for (const Side& side : sides) {
    numeric::quantise(request.format, scale, source_of(side), count, payload.data(), kLanes);
    numeric::accumulate(cell.data(), payload.data(), kLanes);
  }
  std::vector<float> sum(count);
  numeric::dequantise(request.format, scale, cell.data(), kLanes, reinterpret_cast<std::byte*>(sum.data()), count);
  return sum;
}

bool is_set_aside(const Side& side, std::size_t region, std::size_t chunk) {
  const std::uint32_t number = side.request.regions[region].chunk_first + static_cast<std::uint32_t>(chunk);
  return std::ranges::find(side.refinement->set_aside(), number) != side.refinement->set_aside().end();
}

class Ways : public testing::TestWithParam<Way> {};

TEST_P(Ways, EqualTheDensePathBitForBitAtEveryWorker) {
  const std::deque<Side> sides = run(GetParam());
  const std::size_t step = worker::chunk_elements(sides[0].request.format, kLanes);
  for (const Side& side : sides) {
    for (std::size_t region = 0; region < side.sources.size(); ++region) {
      const std::vector<float>& result = GetParam().in_place ? side.sources[region] : side.destinations[region];
      for (std::size_t first = 0; first < result.size(); first += step) {
        const std::size_t count = std::min(step, result.size() - first);
        if (is_left_out(region, first / step)) continue;
        if (is_set_aside(side, region, first / step)) {
          for (std::size_t i = first; i < first + count; ++i) {
            const float before = GetParam().in_place ? side.originals[region][i] : kUntouched;
            ASSERT_EQ(std::bit_cast<std::uint32_t>(result[i]), std::bit_cast<std::uint32_t>(before));
          }
          continue;
        }
        const std::vector<float> expected = dense_sum(sides, region, first, count);
        EXPECT_EQ(std::memcmp(&result[first], expected.data(), 4 * count), 0) << region << ", from " << first;
      }
    }
  }
}

TEST_P(Ways, DoNotChangeSourcesNorChunksOutsideTheUnion) {
  const std::deque<Side> sides = run(GetParam());
  const std::size_t step = worker::chunk_elements(sides[0].request.format, kLanes);
  for (const Side& side : sides) {
    for (std::size_t i = 0; i < side.sources.size() && !GetParam().in_place; ++i) {
      for (std::size_t j = 0; j < side.sources[i].size(); ++j) {
        EXPECT_EQ(std::bit_cast<std::uint32_t>(side.sources[i][j]), std::bit_cast<std::uint32_t>(side.originals[i][j]));
      }
    }
    for (std::size_t i = step; i < 2 * step; ++i) {
      EXPECT_EQ(GetParam().in_place ? side.sources[0][i] : side.destinations[0][i],
                GetParam().in_place ? side.originals[0][i] : kUntouched);
    }
  }
}

TEST_P(Ways, KeepOnlyTheFinestBlocksThatSomeWorkerHas) {
  const std::deque<Side> sides = run(GetParam());
  const std::size_t step = worker::chunk_elements(sides[0].request.format, kLanes);
  const unsigned size = GetParam().steps.back();
  std::size_t expected = 0;
  for (std::size_t region = 0; region < sides[0].originals.size(); ++region) {
    const std::size_t elements = sides[0].originals[region].size();
    for (std::size_t chunk = 0; chunk * step < elements; ++chunk) {
      const std::size_t end = std::min((chunk + 1) * step, elements);
      for (std::size_t first = chunk * step; first < end; first += size) {
        const std::size_t count = std::min<std::size_t>(size, end - first);
        bool found = false;
        for (const Side& side : sides) {
          for (std::size_t i = 0; i < count; ++i) found |= side.originals[region][first + i] != 0;
        }
        if (found && !is_left_out(region, chunk) && !is_set_aside(sides[0], region, chunk)) expected += count;
      }
    }
  }
  for (const Side& side : sides) {
    EXPECT_EQ(side.refinement->union_size().elements, expected);
    EXPECT_EQ(side.refinement->union_size().size, size);
    EXPECT_EQ(side.refinement->packed().presence.scanned(), side.refinement->packed().chunks > 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Refinement, Ways,
                         testing::Values(Way{.steps = {32}}, Way{.in_place = false, .steps = {1}},
                                         Way{.bits = 16, .steps = {16, 2}},
                                         Way{.bits = 8, .in_place = false, .steps = {8, 1}},
                                         Way{.scaling = Scaling::kFixed, .in_place = false, .steps = {4}},
                                         Way{.scaling = Scaling::kFixed, .bits = 16, .steps = {32, 16, 8, 4, 2, 1}},
                                         Way{.scaling = Scaling::kFixed, .steps = {2}, .fixed_scale = 0.0F}));

using Chunks = std::vector<std::vector<float>>;

/// Puts these values into the tensors of as many workers, one chunk each; returns which chunks are set aside.
std::vector<std::uint32_t> set_aside(numeric::Format format, const std::vector<Chunks>& by_rank) {
  const std::size_t step = worker::chunk_elements(format, kLanes);
  const auto workers = static_cast<unsigned>(by_rank.size());
  std::vector<std::uint32_t> chunks;
  std::deque<Request> requests;
  std::deque<std::vector<float>> tensors;
  std::deque<Refinement> refinements;
  for (std::uint32_t chunk = 0; chunk < by_rank[0].size(); ++chunk) chunks.push_back(chunk);
  for (unsigned rank = 0; rank < workers; ++rank) {
    std::vector<float>& tensor = tensors.emplace_back(step * chunks.size());
    for (const std::uint32_t chunk : chunks) {
      std::ranges::copy(by_rank[rank][chunk], tensor.begin() + static_cast<std::ptrdiff_t>(chunk * step));
    }
    Request& request = requests.emplace_back();
    request.format = format;
    auto* const bytes = reinterpret_cast<std::byte*>(tensor.data());
    request.regions = {{.source = bytes, .destination = bytes, .elements = tensor.size()}};
    number_chunks(request.regions, format, kLanes);
    refinements.emplace_back(request, kLanes, WorkerRank{.rank = rank, .workers = workers}, chunks);
    refinements.back().read(worker::kNothingKnown);
    refinements.back().count(1);
  }
  std::vector<std::uint32_t> sums(refinements[0].counts().words().size());
  for (Refinement& refinement : refinements) {
    std::ranges::transform(sums, refinement.counts().words(), sums.begin(), std::plus());
  }
  const auto found = [&](Refinement& refinement) {
    std::ranges::copy(sums, refinement.counts().words().begin());
    EXPECT_TRUE(refinement.narrow());
    return std::vector(refinement.set_aside().begin(), refinement.set_aside().end());
  };
  const std::vector<std::uint32_t> first = found(refinements[0]);
  for (unsigned rank = 1; rank < workers; ++rank) EXPECT_EQ(found(refinements[rank]), first) << rank;
  return first;
}

constexpr numeric::Format kBlocks{numeric::Dtype::kF32, Scaling::kBlockExponent, 32};

TEST(Refinement, SetsAsideWhatBlocksCannotCarryAlikeAtAllWorkers) {  // R6.7
  const float tiny = 0x1p-28F;
  const Chunks first = {{1, 2}, {1, tiny}, {1}, {NAN}, {}, {0, 1}, {1, 0x1p-17F}};
  const Chunks second = {{3, 4}, {1}, {tiny}, {1}, {tiny}, {0x1p-10F}, {1}};
  const auto expected = std::vector<std::uint32_t>{1, 2, 3};
  EXPECT_EQ(set_aside(kBlocks, {first, second}), expected);
  const auto not_finite = std::vector<std::uint32_t>{3};
  EXPECT_EQ(set_aside({numeric::Dtype::kF32, Scaling::kBlockExponent, 16}, {first, second}), not_finite);
  EXPECT_EQ(set_aside({numeric::Dtype::kF32, Scaling::kFixed, 32}, {first, second}), not_finite);
}

TEST(Refinement, SetsAsideWhateverBlocksCannotCarry) {
  // An element of one worker lies below its largest, and that below the other's: the two distances add up.
  const unsigned gap_max = numeric::exponent_gap_max(2);
  for (unsigned own = 0; own <= gap_max + 2; ++own) {
    for (unsigned between = 0; between <= gap_max + 2; ++between) {
      const float smallest = std::ldexp(1.0F, -static_cast<int>(own));
      const float other = std::ldexp(1.0F, static_cast<int>(between));
      const bool is_set_aside = !set_aside(kBlocks, {{{1, smallest}}, {{other}}}).empty();
      const bool must_be = own + between > gap_max;
      const bool may_be = own > gap_max - 10 || between > 10;
      EXPECT_TRUE(is_set_aside ? may_be : !must_be) << own << " and " << between;
    }
  }
}

TEST(Refinement, AWorkerThatHasNothingInAChunkIsNotFarFromTheOthers) {
  const std::vector<Chunks> apart = {{{0x1p-11F}}, {{}}, {{1}}, {{}}, {{}}, {{1}}};
  const std::vector<Chunks> close = {{{0x1p-10F}}, {{}}, {{1}}, {{}}, {{}}, {{1}}};
  for (std::size_t turn = 0; turn < apart.size(); ++turn) {
    const auto turned = [turn](std::vector<Chunks> by_rank) {
      std::ranges::rotate(by_rank, by_rank.begin() + static_cast<std::ptrdiff_t>(turn));
      return by_rank;
    };
    EXPECT_EQ(set_aside(kBlocks, turned(apart)).size(), 1u) << turn;
    EXPECT_TRUE(set_aside(kBlocks, turned(close)).empty()) << turn;
  }
}

TEST(Refinement, RefusesExponentsThatTheWorkersCannotHaveSaid) {
  const std::vector<std::uint32_t> chunks = {7};
  constexpr unsigned kSixWorkers = 6;  // four bytes in the first word and two in the second
  const auto is_taken = [&](unsigned rank, std::uint32_t first, std::uint32_t second) {
    Side side(0, Way{});
    std::fill(side.sources[2].begin(), side.sources[2].end(), 1.0F);
    Refinement refinement(side.request, kLanes, {.rank = rank, .workers = kSixWorkers}, chunks);
    refinement.read(worker::kNothingKnown);
    refinement.count(8);
    const std::span<std::uint32_t> words = refinement.counts().more_words();
    words[0] += first;
    words[1] += second;
    return refinement.narrow();
  };
  EXPECT_TRUE(is_taken(0, 0x7F7F7F00, 0x7F7F));
  EXPECT_TRUE(is_taken(5, 0xFFFFFFFF, 0x00FF)) << "any byte is an exponent";
  EXPECT_FALSE(is_taken(0, 0x7F7F7F01, 0x7F7F)) << "in its own byte is what it has said";
  EXPECT_FALSE(is_taken(0, 0x7F7F7F00 - 0x7F, 0x7F7F)) << "not less either";
  EXPECT_FALSE(is_taken(5, 0x7F7F7F7F, 0x017F)) << "in its own byte is what it has said";
  EXPECT_FALSE(is_taken(0, 0x7F7F7F00, 0x017F7F)) << "there is no seventh worker";
  EXPECT_FALSE(is_taken(0, 0x7F7F7F00, 0x80000000)) << "nor an eighth";
}

TEST(Refinement, SkipsRegionsWithoutADestination) {
  const std::deque<Side> sides = run({.in_place = false, .steps = {4}, .keeps_last_region_only = true});
  const std::size_t step = worker::chunk_elements(sides[0].request.format, kLanes);
  for (const Side& side : sides) {
    for (const float value : side.destinations[0]) ASSERT_EQ(value, kUntouched);
    const std::vector<float>& result = side.destinations.back();
    for (std::size_t first = 0; first < result.size(); first += step) {
      if (is_set_aside(side, side.sources.size() - 1, first / step)) continue;
      const std::vector<float> expected = dense_sum(sides, side.sources.size() - 1, first, step);
      EXPECT_EQ(std::memcmp(&result[first], expected.data(), 4 * step), 0) << "from " << first;
    }
  }
}

TEST(Refinement, DoesNotReadChunksThatAreKnownToBeAbsent) {
  const Way way;
  Side side(1, way);
  const std::vector<std::uint32_t> chunks = {0, 1};
  worker::ChunkPresence presence(kChunksOfTensor);
  presence.set(0, false);
  presence.set(1, true);
  Refinement refinement(side.request, kLanes, {.rank = 0, .workers = 1}, chunks);
  std::fill(side.sources[0].begin(), side.sources[0].end(), 0.0F);
  side.sources[0][3] = side.sources[0][kLanes] = 1.0F;
  refinement.read(presence);
  refinement.count(32);
  EXPECT_TRUE(refinement.counts().collect());
  EXPECT_EQ(refinement.counts().size(), 6u);
  EXPECT_EQ(refinement.counts().present(0, 6), 0b1000u);
}

TEST(Refinement, SendsNothingIfNoWorkerHasAnything) {
  Side side(1, Way{});
  const std::vector<std::uint32_t> chunks = {7};
  std::fill(side.sources[2].begin(), side.sources[2].end(), -0.0F);
  Refinement refinement(side.request, kLanes, {.rank = 0, .workers = 1}, chunks);
  refinement.read(worker::kNothingKnown);
  refinement.count(8);
  EXPECT_TRUE(refinement.narrow());
  refinement.pack();
  EXPECT_EQ(refinement.packed().chunks, 0u);
  refinement.unpack();
  for (const float value : side.sources[2]) EXPECT_FALSE(std::signbit(value));
}

TEST(Refinement, EachWorkerHasItsOwnByteForAnExponent) {
  EXPECT_EQ(exponent_words({}, 1), 1u);
  EXPECT_EQ(exponent_words({}, 4), 1u);
  EXPECT_EQ(exponent_words({}, 5), 2u);
  EXPECT_EQ(exponent_words({}, 32), 8u);
  EXPECT_EQ(exponent_words({numeric::Dtype::kI32, Scaling::kNone, 32}, 8), 0u);
  Side side(0, Way{});
  std::fill(side.sources[2].begin(), side.sources[2].end(), 1.0F);
  const std::vector<std::uint32_t> chunks = {7};
  for (unsigned worker = 0; worker < 6; ++worker) {
    Refinement refinement(side.request, kLanes, {.rank = worker, .workers = 6}, chunks);
    refinement.read(worker::kNothingKnown);
    refinement.count(8);
    const std::span<const std::uint32_t> words = refinement.counts().more_words();
    ASSERT_EQ(words.size(), 2u);
    for (unsigned i = 0; i < 2; ++i) {
      EXPECT_EQ(words[i], worker / 4 == i ? 127u << worker % 4 * 8 : 0u) << worker;
    }
  }
}

}  // namespace
}  // namespace wiresum::schedule
