#include "schedule/survey.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

namespace wiresum::schedule {
namespace {

constexpr std::size_t kLanes = 4;

/// A request to sum several fp32 tensors in place.
struct Tensors {
  explicit Tensors(const std::vector<std::size_t>& sizes) {
    for (const std::size_t size : sizes) values.emplace_back(size, 0.0F);
    for (std::vector<float>& tensor : values) {
      auto* const bytes = reinterpret_cast<std::byte*>(tensor.data());
      request.regions.push_back({.source = bytes, .destination = bytes, .elements = tensor.size()});
    }
    chunks = number_chunks(request.regions, request.format, kLanes);
  }
  std::vector<std::vector<float>> values;
  Request request;
  std::uint64_t chunks = 0;
};

TEST(Survey, NumbersTheChunksOfAllRegionsAndABarrierHasOne) {
  Tensors tensors({5, 0, 4, 9});
  EXPECT_EQ(tensors.chunks, 2u + 0u + 1u + 3u);
  EXPECT_EQ(tensors.request.regions[3].chunk_first, 3u);
  std::vector<worker::Region> none;
  EXPECT_EQ(number_chunks(none, {}, kLanes), 1u);
}

TEST(Survey, AScanReportsPresenceAndExponentOfEachBlock) {
  Tensors tensors({5, 0, 4, 9});
  tensors.values[0][4] = 1e-44F;  // subnormal: present, at exponent 0
  tensors.values[3][3] = -2.0F;
  tensors.values[3][8] = INFINITY;
  const worker::ChunkPresence presence = scan(tensors.request, kLanes, tensors.chunks);
  const std::vector<bool> present = {false, true, false, true, false, true};
  for (std::size_t i = 0; i < present.size(); ++i) {
    EXPECT_EQ(presence.of(i), present[i] ? worker::Presence::kPresent : worker::Presence::kAbsent) << i;
  }
}

TEST(Survey, AScanMakesNegativeZerosPositiveInPlaceAndOnlyThere) {
  Tensors tensors({12});
  std::vector<float>& values = tensors.values[0];
  values[1] = values[5] = values[9] = -0.0F;
  values[6] = 1.0F;
  static_cast<void>(scan(tensors.request, kLanes, tensors.chunks));
  EXPECT_FALSE(std::signbit(values[1])) << "if no worker has this block, this is its sum";
  EXPECT_TRUE(std::signbit(values[5])) << "the sum will be written here";
  values[9] = -0.0F;
  std::vector<float> elsewhere(12, 7.0F);
  tensors.request.regions[0].destination = reinterpret_cast<std::byte*>(elsewhere.data());
  static_cast<void>(scan(tensors.request, kLanes, tensors.chunks));
  EXPECT_TRUE(std::signbit(values[9])) << "a source is not changed";
  EXPECT_EQ(elsewhere, std::vector<float>(12, 7.0F)) << "a destination is unchanged until the union is known";
  tensors.request.regions[0].destination = {};
  EXPECT_EQ(scan(tensors.request, kLanes, tensors.chunks).of(2), worker::Presence::kAbsent);
}

TEST(Survey, ClearsDestinationsOfAbsentBlocksThatAreNotSources) {
  Tensors tensors({12, 8});
  std::vector<float> destination(12, 7.0F);
  tensors.request.regions[0].destination = reinterpret_cast<std::byte*>(destination.data());
  std::iota(tensors.values[1].begin(), tensors.values[1].end(), 1.0F);
  EXPECT_TRUE(needs_clearing(tensors.request));
  clear_absent(tensors.request, kLanes, [](std::uint64_t number) { return number == 1; });
  EXPECT_EQ(destination, (std::vector<float>{0, 0, 0, 0, 7, 7, 7, 7, 0, 0, 0, 0}));
  EXPECT_EQ(tensors.values[1][0], 1.0F) << "in place, the scan has done it";
  tensors.request.regions[0].destination = {};
  EXPECT_FALSE(needs_clearing(tensors.request)) << "this worker keeps no sum";
  clear_absent(tensors.request, kLanes, [](std::uint64_t) { return false; });
  tensors.request.regions.erase(tensors.request.regions.begin());
  EXPECT_FALSE(needs_clearing(tensors.request));
}

TEST(Survey, ASampleIsFullForADenseTensorAndEmptyForAnEmptyOne) {
  Tensors tensors({4 * 1000, 4 * 500});
  EXPECT_EQ(take_sample(tensors.request, kLanes, tensors.chunks, 7).density, 0);
  for (std::vector<float>& tensor : tensors.values) std::fill(tensor.begin(), tensor.end(), 1.0F);
  EXPECT_EQ(take_sample(tensors.request, kLanes, tensors.chunks, 7).density, kDensityFull);
}

TEST(Survey, SamplesReachEveryBlockOverTime) {
  // One block of 100 is present: some salts find it, but not all.
  Tensors tensors({4 * 100});
  tensors.values[0][4 * 77] = 1.0F;
  std::set<std::uint8_t> seen;
  for (std::uint64_t salt = 0; salt < 3; ++salt) {
    seen.insert(take_sample(tensors.request, kLanes, tensors.chunks, salt).density);
  }
  EXPECT_EQ(seen, (std::set<std::uint8_t>{0, 8}));
}

TEST(Survey, ASampleOfFewChunksIncludesAll) {
  Tensors tensors({4 * 3});
  tensors.values[0][4] = 1.0F;
  EXPECT_EQ(take_sample(tensors.request, kLanes, tensors.chunks, 12345).density, 85);
}

TEST(Survey, SampledPositionsDependOnTheSaltOnly) {
  constexpr std::size_t kWide = 100;
  std::vector<float> mine(kWide * 1000);
  std::vector<float> others(mine.size());
  std::set<std::vector<std::uint32_t>> seen;
  for (std::size_t i = 0; i < mine.size(); ++i) (i % 7 == 0 ? mine : others)[i] = 1.0F;
  for (std::uint64_t salt = 0; salt < 100; ++salt) {
    std::vector<std::vector<std::uint32_t>> runs;
    for (std::vector<float>* const tensor : {&mine, &others}) {
      Request request;
      auto* const bytes = reinterpret_cast<std::byte*>(tensor->data());
      request.regions = {{.source = bytes, .destination = bytes, .elements = tensor->size()}};
      const std::uint64_t chunks = number_chunks(request.regions, request.format, kWide);
      runs.push_back(take_sample(request, kWide, chunks, salt).runs);
      EXPECT_EQ(runs.back().size(), sampled_runs(request.format, kWide, chunks));
    }
    for (std::size_t i = 0; i < runs[0].size(); ++i) {
      EXPECT_EQ(runs[0][i] | runs[1][i], UINT32_MAX) << "only whole runs, since a chunk's rest would look half empty";
      EXPECT_EQ(runs[0][i] & runs[1][i], 0u);
    }
    seen.insert(runs[0]);
  }
  EXPECT_GT(seen.size(), 3u);
}

TEST(Survey, ASampledChunkIsPresentThoughItsRunIsEmpty) {
  constexpr std::size_t kWide = 100;
  std::vector<float> values(kWide * 40);
  for (std::size_t chunk = 0; chunk < 40; ++chunk) values[chunk * kWide + 99] = 1.0F;  // after the last whole run
  Request request;
  auto* const bytes = reinterpret_cast<std::byte*>(values.data());
  request.regions = {{.source = bytes, .destination = bytes, .elements = values.size()}};
  const std::uint64_t chunks = number_chunks(request.regions, request.format, kWide);
  const Sample sample = take_sample(request, kWide, chunks, 7);
  EXPECT_EQ(sample.runs, std::vector<std::uint32_t>(32));
  EXPECT_EQ(sample.density, kDensityFull);
  EXPECT_EQ(sample.chunks_present, UINT32_MAX);
}

TEST(Survey, SmallChunksAreNotCutIntoBlocks) {
  Tensors tensors({4 * 1000});
  EXPECT_TRUE(take_sample(tensors.request, kLanes, tensors.chunks, 7).runs.empty());
  EXPECT_EQ(sampled_runs(tensors.request.format, kLanes, tensors.chunks), 0u);
}

}  // namespace
}  // namespace wiresum::schedule
