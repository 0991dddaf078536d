#include "schedule/opening.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "rig.hpp"

namespace wiresum::schedule {
namespace {

constexpr std::size_t kLanes = 4;
constexpr std::size_t kRoomy = 100'000;  // lanes of a prologue's packet that holds all

/// One worker's tensor, the exponents of whose chunks are known.
struct Part : Fp32Tensor {
  explicit Part(std::size_t chunks) : Fp32Tensor(kLanes * chunks), exponents(chunks) {}
  /// 2^power; of a subnormal number the exponent is 0.
  void put(std::size_t chunk, int power) {
    values[kLanes * chunk + chunk % kLanes] = std::ldexp(1.0F, power);
    exponents[chunk] = static_cast<std::uint8_t>(std::max(power + 127, 0));
  }
  std::vector<std::uint8_t> exponents;
};

/// What each worker learns: all of them write, and the network adds.
std::vector<std::uint8_t> agree(const Opening& opening, std::vector<Part>& parts,
                                const std::vector<std::uint32_t>& union_chunks) {
  std::vector<std::uint32_t> sum(opening.words());
  for (unsigned worker = 0; worker < parts.size(); ++worker) {
    Request request = parts[worker].request();
    const std::uint64_t chunks = number_chunks(request.regions, request.format, kLanes);
    std::vector<std::uint32_t> words(opening.words());
    opening.write(request, kLanes, {.begin = 0, .end = chunks}, scan_blocks(request, kLanes, chunks), worker, words);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += words[i];
  }
  return opening.read(sum, union_chunks);
}

TEST(Opening, TellsTheLargestExponentsOfTheFirstChunksOfTheUnion) {
  std::mt19937 random(11);
  for (int draw = 0; draw < 300; ++draw) {
    const auto workers = static_cast<unsigned>(1 + random() % 32);
    const std::size_t chunks = 1 + random() % 300;
    const auto slots = static_cast<std::uint32_t>(1 + random() % 40);
    const std::uint64_t present_in_256 = random() % 257;
    std::vector<Part> parts(workers, Part(chunks));
    std::set<std::uint32_t> present;
    std::vector<std::uint8_t> largest(chunks);
    for (Part& part : parts) {
      for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
        if (random() % 256 >= present_in_256) continue;
        part.put(chunk, static_cast<int>(random() % 260) - 135);
        present.insert(chunk);
        largest[chunk] = std::max(largest[chunk], part.exponents[chunk]);
      }
    }
    const std::vector<std::uint32_t> union_chunks(present.begin(), present.end());
    const Opening opening(slots, chunks, workers, 1, kRoomy);
    ASSERT_EQ(opening.size(), std::min<std::size_t>(slots, chunks));
    std::vector<std::uint8_t> expected;
    for (std::size_t i = 0; i < std::min<std::size_t>(opening.size(), union_chunks.size()); ++i) {
      expected.push_back(largest[union_chunks[i]]);
    }
    ASSERT_EQ(agree(opening, parts, union_chunks), expected)
        << workers << " workers, " << slots << " of " << chunks << " chunks, draw " << draw;
  }
}

TEST(Opening, WhatIsNotFiniteStaysSo) {
  std::vector<Part> parts(3, Part(50));
  parts[0].put(7, 3);
  parts[2].values[kLanes * 7] = std::numeric_limits<float>::quiet_NaN();
  parts[1].values[kLanes * 9] = -std::numeric_limits<float>::infinity();
  const std::vector<std::uint8_t> expected = {numeric::kExponentNotFinite, numeric::kExponentNotFinite};
  EXPECT_EQ(agree(Opening(32, 50, 3, 1, kRoomy), parts, {7, 9}), expected);
}

TEST(Opening, WithoutAScanEveryChunkCounts) {
  Fp32Tensor tensor(kLanes * 6, 2.0F);
  Request request = tensor.request();
  request.regions.push_back(request.regions[0]);  // 12 chunks in two regions
  number_chunks(request.regions, request.format, kLanes);
  const Opening opening(8, 12, 2, 1, kRoomy);
  std::vector<std::uint32_t> words(opening.words());
  opening.write(request, kLanes, {.begin = 0, .end = 12}, {}, 1, words);
  EXPECT_EQ(opening.read(words, std::vector<std::uint32_t>{0, 5, 6, 7, 8}),
            (std::vector<std::uint8_t>{128, 128, 128, 128, 0}));
}

TEST(Opening, ReadsWhateverTheNetworkBrings) {
  const Opening opening(32, 1000, 8, 1, kRoomy);
  const std::vector<std::uint32_t> words(opening.words(), UINT32_MAX);
  EXPECT_EQ(opening.read(words, std::vector<std::uint32_t>{0, 999}), (std::vector<std::uint8_t>{0, 0}));
}

TEST(Opening, FillsTheLastPacketOrHalfOfItsSlotsInOneMore) {
  constexpr std::size_t kPacket = 360;
  const auto size = [](unsigned workers, std::uint64_t counts) {
    return Opening(32, 5556, workers, counts, kPacket).size();
  };
  EXPECT_EQ(size(8, 2 * kPacket + 107), 32u) << "8 * 32 * 21 bits are 168 words";
  EXPECT_EQ(size(8, 3 * kPacket - 100), 19u) << "as many as there is room for";
  EXPECT_EQ(size(8, 3 * kPacket - 80), 32u) << "fewer than half: one more packet";
  EXPECT_EQ(size(8, 3 * kPacket), 32u);
  EXPECT_EQ(size(32, 3 * kPacket), 17u);
  EXPECT_EQ(Opening(32, 5556, 32, 3 * 64, 64).size(), 0u) << "one more packet would not bring half";
}

}  // namespace
}  // namespace wiresum::schedule
