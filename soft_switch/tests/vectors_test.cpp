// Plays the test vectors, which hold for every switch, to the data plane: the bytes of each answer, and the reason.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <iomanip>
#include <sstream>
#include <string>

#include "dataplane.hpp"
#include "switch_harness.hpp"
#include "vectors.hpp"

namespace wiresum::dataplane::vectors {
namespace {

constexpr SwitchSizes kSizes{.slots = 64, .lanes_max = 360, .jobs_max = 1024};

struct Loaded {
  std::vector<Scenario> scenarios;
  std::string error;
};

// A file that cannot be read must fail a test, and not the listing of the tests during the build.
const Loaded& loaded() {
  static const Loaded kLoaded = [] {
    Loaded result;
    try {
      result.scenarios = load_all(WIRESUM_VECTORS);
    } catch (const std::exception& error) {
      result.error = error.what();
    }
    return result;
  }();
  return kLoaded;
}

/// Packets that the switch has counted by reason, for all jobs and without a job.
std::array<std::uint64_t, kReasons> counted(const Dataplane& plane, const Scenario& scenario) {
  auto totals = plane.stray().packets;
  for (const std::uint16_t job : scenario.job_numbers()) {
    const auto& packets = plane.counters(job).packets;
    std::transform(totals.begin(), totals.end(), packets.begin(), totals.begin(), std::plus<>());
  }
  return totals;
}

/// Four bytes in a line with their offset, so that a difference is shown in few lines.
std::string dump(const Datagram& datagram) {
  std::ostringstream text;
  text << std::hex << std::setfill('0');
  for (std::size_t at = 0; at < datagram.size(); ++at) {
    if (at % 4 == 0) text << '\n' << std::dec << std::setw(4) << at << ": " << std::hex;
    text << std::setw(2) << std::to_integer<unsigned>(datagram[at]);
  }
  return text.str();
}

class VectorsTest : public testing::TestWithParam<Scenario> {
 protected:
  VectorsTest() : plane_(kSizes) { litter(plane_, kSizes); }

  void play(const JobEntry& job) { ASSERT_TRUE(plane_.admit(job)) << plane_.objection(job); }
  void play(const End& end) { ASSERT_TRUE(plane_.evict(end.job)); }
  void play(const Step& step) {
    if (step.hardware_only) return;
    SCOPED_TRACE(step.place);
    const Expectation& expected = step.expectation;
    auto counters = counted(plane_, GetParam());
    const Decision decision = plane_.handle(read(step.source, step.thread, step.datagram));
    EXPECT_EQ(decision.verdict, expected.verdict);
    EXPECT_EQ(decision.reason, expected.reason);
    ++counters[static_cast<std::size_t>(expected.reason)];
    EXPECT_EQ(counted(plane_, GetParam()), counters);
    if (decision.verdict == Verdict::kDrop || decision.verdict == Verdict::kHold) return;
    EXPECT_EQ(decision.job, step.sender.job);
    if (step.sender.worker != kParentMember) {
      EXPECT_EQ(decision.worker, step.sender.worker);
    }
    EXPECT_EQ(dump(written(decision)), dump(expected.datagram));
  }

  Dataplane plane_;
};

TEST_P(VectorsTest, AnswersAsTheProtocolSays) {
  for (const Event& event : GetParam().events) {
    std::visit([&](const auto& one) { play(one); }, event);
  }
  const std::vector<Step> steps = GetParam().steps();
  const auto skipped = std::count_if(steps.begin(), steps.end(), [](const Step& step) { return step.hardware_only; });
  RecordProperty("steps_for_hardware_only", static_cast<int>(skipped));
}

INSTANTIATE_TEST_SUITE_P(Scenarios, VectorsTest, testing::ValuesIn(loaded().scenarios),
                         [](const auto& scenario) { return scenario.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(VectorsTest);  // VectorFiles below reports it better

TEST(VectorFiles, AreFoundAndUnderstood) {
  ASSERT_EQ(loaded().error, "");
  EXPECT_FALSE(loaded().scenarios.empty()) << "no *.txt in " << WIRESUM_VECTORS;
}

TEST(VectorFiles, HaveStepsForThisSwitchInEveryScenario) {
  for (const Scenario& scenario : loaded().scenarios) {
    const std::vector<Step> steps = scenario.steps();
    const bool playable = std::any_of(steps.begin(), steps.end(), [](const Step& step) { return !step.hardware_only; });
    EXPECT_TRUE(playable) << scenario.name;
  }
}

}  // namespace
}  // namespace wiresum::dataplane::vectors
