// The check word is what docs/protocol.md defines, with every instruction set; it is linear, and it shows the faults
// that docs/protocol_reasons.md says it shows.
#include "numeric/check_word.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "numeric/kernels.hpp"
#include "numeric_testing.hpp"
#include "wire/bytes.hpp"

namespace wiresum::numeric::testing {
namespace {

using Words = std::vector<std::uint32_t>;  // a payload's: elements, then the check word

constexpr CheckSubject kSubject{.tensor = 0xABCD0007, .chunk = 12, .round = 5, .slot = 3};

std::uint64_t reference_mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

/// Written from docs/protocol.md.
std::uint32_t reference(const CheckSubject& subject, const Words& words) {
  const std::uint64_t first = (std::uint64_t{subject.tensor} << 32) + subject.chunk;
  const std::uint64_t second = (std::uint64_t{subject.round} << 32) + subject.slot;
  const std::uint64_t seed = reference_mix(reference_mix(first) ^ second);
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    sum += (static_cast<std::uint32_t>(reference_mix(seed % 1024 + i + 1)) | 1U) * words[i];
  }
  return sum * (static_cast<std::uint32_t>(seed >> 32) | 1U);
}

std::vector<std::byte> payload_of(const Words& words) {
  std::vector<std::byte> payload(4 * words.size());
  for (std::size_t i = 0; i < words.size(); ++i) wire::bytes::store32(payload.data(), 4 * i, words[i]);
  return payload;
}

/// Returns the words with their check word in place of the last one.
Words checked(Words words, const CheckSubject& subject = kSubject, const Kernels& kernels = active_kernels()) {
  std::vector<std::byte> payload = payload_of(words);
  write_check_word(subject, payload.data(), words.size() - 1, kernels);
  words.back() = wire::bytes::load32(payload.data(), payload.size() - 4);
  return words;
}

bool fits(const Words& words, const CheckSubject& subject = kSubject, const Kernels& kernels = active_kernels()) {
  return check_word_fits(subject, payload_of(words).data(), words.size() - 1, kernels);
}

Words random_words(std::mt19937& random, std::size_t count) {
  Words words(count);
  for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
  return words;
}

Words sum_of(const Words& a, const Words& b) {
  Words sum = a;
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

TEST(CheckWord, EqualsTheDefinitionWithEveryInstructionSet) {  // R5.22
  std::mt19937 random(1);
  for (const std::size_t count : {1, 2, 5, 8, 9, 17, 32, 33, 64, 360, 1001}) {
    Words words = random_words(random, count + 1);
    const CheckSubject subject{.tensor = static_cast<std::uint32_t>(random()),
                               .chunk = static_cast<std::uint32_t>(random()),
                               .round = static_cast<std::uint32_t>(random()),
                               .slot = static_cast<std::uint32_t>(random())};
    for (const Kernels* kernels : all_tables()) {
      words = checked(words, subject, *kernels);
      ASSERT_EQ(words.back(), reference(subject, words)) << count << " words, " << kernels->name;
      ASSERT_TRUE(fits(words, subject, *kernels));
    }
  }
}

TEST(CheckWord, IsTheSameForEver) {  // workers of two versions may be in one job
  EXPECT_EQ(checked({1, 2, 3, 0}).back(), 35909530U);
}

TEST(CheckWord, OfASumIsTheSumOfCheckWordsAndThatOfZerosIsZero) {  // R5.21
  std::mt19937 random(2);
  Words sum(360);
  EXPECT_EQ(checked(sum), sum) << "what is sent EMPTY counts as zeros";
  for (int worker = 0; worker < 40; ++worker) {
    sum = sum_of(sum, checked(random_words(random, sum.size())));
    ASSERT_TRUE(fits(sum));
  }
}

TEST(CheckWord, ShowsEveryWrongBit) {
  std::mt19937 random(3);
  for (const std::size_t count : {2, 9, 64, 360}) {
    Words words = checked(random_words(random, count));
    for (std::size_t bit = 0; bit < 32 * count; ++bit) {
      words[bit / 32] ^= 1U << bit % 32;
      ASSERT_FALSE(fits(words)) << "bit " << bit % 32 << " of word " << bit / 32 << " of " << count;
      words[bit / 32] ^= 1U << bit % 32;
    }
  }
}

TEST(CheckWord, ShowsEveryWrongWordWhateverIsWrongInIt) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 20'000; ++trial) {
    Words words = checked(random_words(random, 64));
    const std::size_t at = random() % words.size();
    const auto error = static_cast<std::uint32_t>(random() << random() % 32);
    if (error == 0) continue;
    words[at] += error;  // lost, written twice, of another packet, or by an adder that is wrong there
    ASSERT_FALSE(fits(words)) << "word " << at << " is wrong by " << error;
  }
}

TEST(CheckWord, DependsOnEachPartOfItsSubject) {
  std::mt19937 random(5);
  const Words words = checked(random_words(random, 64));
  CheckSubject others[] = {kSubject, kSubject, kSubject, kSubject};
  ++others[0].tensor;
  ++others[1].chunk;
  others[2].round += 2;
  ++others[3].slot;
  for (const CheckSubject& other : others) EXPECT_FALSE(fits(words, other));
}

/// The number of `trials` packets that pass though `spoil` has made several words wrong.
template <class Spoil>
int passing(int trials, const Spoil& spoil) {
  std::mt19937 random(6);
  int count = 0;
  for (int trial = 0; trial < trials; ++trial) {
    CheckSubject subject = kSubject;
    subject.chunk = static_cast<std::uint32_t>(trial);
    Words words = checked(random_words(random, 64), subject);
    const std::size_t first = random() % 63;
    const std::size_t second = first + 1 + random() % (63 - first);
    spoil(words, first, second);
    count += fits(words, subject) ? 1 : 0;
  }
  return count;
}

TEST(CheckWord, ShowsWordsThatHaveChangedPlaces) {
  EXPECT_EQ(passing(100'000, [](Words& words, std::size_t a, std::size_t b) { std::swap(words[a], words[b]); }), 0);
}

TEST(CheckWord, ShowsTheSameBitInTwoWordsWithTheChanceThatThePageSays) {
  constexpr int kTrials = 20'000;
  const auto flip = [](unsigned bit) {
    return [bit](Words& words, std::size_t a, std::size_t b) {
      words[a] ^= 1U << bit;
      words[b] ^= 1U << bit;
    };
  };
  EXPECT_EQ(passing(kTrials, flip(31)), kTrials) << "nothing that is linear and shows single bits can show these";
  EXPECT_NEAR(passing(kTrials, flip(30)), kTrials / 2, kTrials / 40);
  EXPECT_NEAR(passing(kTrials, flip(27)), kTrials / 16, kTrials / 100);
  EXPECT_LT(passing(kTrials, flip(16)), 10);
  EXPECT_EQ(passing(kTrials, flip(5)), 0);
}

}  // namespace
}  // namespace wiresum::numeric::testing
