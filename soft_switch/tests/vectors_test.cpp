// Plays the test vectors, which hold for every switch, to the data plane, behind the parser of frames of AF_XDP and
// DPDK: admission, the bytes of each answer, and the reason.
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
#include "transport/ethernet/frame.hpp"
#include "vectors.hpp"
#include "wire/bytes.hpp"

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

namespace ethernet = transport::ethernet;

constexpr ethernet::MacAddress kSwitchMac{{0x02, 0, 0, 0, 0xFF, 0xFE}};
constexpr ethernet::MacAddress kWorkerMac{{0x02, 0, 0, 0, 0xFF, 0xFD}};
constexpr ethernet::MacAddress kAnotherMac{{0x02, 0, 0, 0, 0xFF, 0xFC}};
constexpr std::uint32_t kSwitchAddress = 0x0A000000;

wire::Endpoint port_of(const Step& step) {
  return {.address = kSwitchAddress, .port = static_cast<std::uint16_t>(wire::kSwitchPort + step.thread)};
}

/// The frame with a step's datagram. Checksums fit changed lengths; then a bit is flipped.
Datagram frame_of(const Step& step) {
  using namespace wire::bytes;
  const FrameChanges& changes = step.changes;
  const ethernet::MacAddress to = changes.mac.empty()          ? kSwitchMac
                                  : changes.mac == "broadcast" ? ethernet::kBroadcast
                                                               : kAnotherMac;
  const ethernet::Headers headers(
      {.source_mac = kWorkerMac, .destination_mac = to, .source = step.source, .destination = port_of(step)});
  const ethernet::PartialSum payload = ethernet::sum(step.datagram);
  Datagram frame(ethernet::kHeadersBytes);
  headers.write(std::span(frame).first<ethernet::kHeadersBytes>(), step.datagram.size(), ethernet::UdpChecksum::kWhole,
                payload);
  std::byte* const out = frame.data();
  if (changes.ip_length) {
    store16(out, 16, *changes.ip_length);
    store16(out, 24, 0);
    store16(out, 24, ethernet::checksum(ethernet::sum({out + ethernet::kEthernetBytes, ethernet::kIpv4Bytes})));
  }
  if (changes.udp_length) {
    store16(out, 38, *changes.udp_length);
    store16(out, 40, 0);
    const ethernet::PartialSum pseudo =
        ethernet::sum({out + 26, 8}) + ethernet::sum(std::uint16_t{17}) + ethernet::sum(*changes.udp_length);
    store16(out, 40, ethernet::checksum(pseudo + ethernet::sum({out + 34, ethernet::kUdpBytes}) + payload));
  }
  if (changes.without_udp_checksum) store16(out, 40, 0);
  frame.insert(frame.end(), step.datagram.begin(), step.datagram.end());
  if (changes.flip) frame.at(ethernet::kEthernetBytes + *changes.flip / 8) ^= std::byte{0x80} >> *changes.flip % 8;
  frame.resize(frame.size() - changes.cut);
  frame.resize(frame.size() + changes.trailer, std::byte{0xEE});
  return frame;
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
    const Datagram frame = frame_of(step);
    ethernet::UdpFrame taken;
    const bool is_taken =
        ethernet::parse(frame, ethernet::ChecksumPolicy::kWhole, taken) == ethernet::FrameError::kNone &&
        taken.destination_mac == kSwitchMac && taken.destination == port_of(step);
    ASSERT_EQ(is_taken, !step.refused_by_hosts());
    if (!is_taken) return;
    auto counters = counted(plane_, GetParam());
    const Decision decision =
        plane_.handle(read(taken.source, step.thread, Datagram(taken.payload.begin(), taken.payload.end())));
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
