#include "transport/dpdk/arguments.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace wiresum::transport::dpdk {
namespace {

using Words = std::vector<std::string>;

bool has(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

Words started_with(const char* text) { return with_defaults(parse_arguments(text), 10u << 20, 3, 77); }

TEST(Arguments, AreSplitAsByAShell) {
  EXPECT_EQ(parse_arguments("  -m\t256 '--log-level=a b' \"-d\" c\\ d ''").eal,
            (Words{"-m", "256", "--log-level=a b", "-d", "c d", ""}));
  EXPECT_TRUE(parse_arguments("").eal.empty());
  EXPECT_THROW(static_cast<void>(parse_arguments("'-m 256")), std::invalid_argument);
}

TEST(Arguments, DevicesAreSeparatedFromEalArguments) {
  const Arguments given = parse_arguments(
      "--vdev=net_memif0,id=1 -m 9 --vdev net_ring0 -a 0000:01:00.0 -a0000:02:00.0 "
      "--allow=0000:03:00.0");
  EXPECT_EQ(given.devices, (Words{"net_memif0,id=1", "net_ring0", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"}));
  EXPECT_EQ(given.eal, (Words{"-m", "9"}));
  EXPECT_THROW(static_cast<void>(parse_arguments("--vdev")), std::invalid_argument);
}

TEST(Arguments, NoHugeAndInMemoryExcludeEachOther) {
  EXPECT_THROW(static_cast<void>(parse_arguments("--no-huge --in-memory")), std::invalid_argument);
}

TEST(Arguments, NoFilesAreLeftBehindByDefault) {
  EXPECT_TRUE(has(started_with(""), "--in-memory"));
  EXPECT_TRUE(has(started_with("--no-huge"), "--no-shconf"));
  EXPECT_FALSE(has(started_with("--no-huge"), "--in-memory"));
  EXPECT_FALSE(has(started_with("--huge-dir=/mnt"), "--in-memory"));
  EXPECT_TRUE(has(started_with("--huge-dir=/mnt"), "--file-prefix=wiresum-77"));
  for (const char* text : {"", "--no-huge"}) {
    EXPECT_TRUE(has(started_with(text), "--no-telemetry"));
    EXPECT_TRUE(has(started_with(text), "--file-prefix=wiresum"));
  }
}

TEST(Arguments, DefaultsDoNotRepeatGivenArguments) {
  const Words words = started_with("--no-huge -m 100 --no-telemetry --file-prefix mine -l1 --log-level 8 --no-shconf");
  EXPECT_EQ(words, (Words{"--no-huge", "-m", "100", "--no-telemetry", "--file-prefix", "mine", "-l1", "--log-level",
                          "8", "--no-shconf"}));
}

TEST(Arguments, DefaultsAreOneCoreAndTheMemoryThatIsNeeded) {
  const Words words = started_with("--no-huge");
  EXPECT_TRUE(has(words, "--lcores=0@3"));
  const auto memory = std::find(words.begin(), words.end(), "-m");
  ASSERT_NE(memory, words.end());
  EXPECT_GE(std::stoi(*(memory + 1)), 10);
  EXPECT_FALSE(has(started_with(""), "-m"));
}

TEST(Arguments, OnlyNamedDevicesAreUsed) {
  EXPECT_FALSE(has(started_with(""), "--no-pci"));
  EXPECT_TRUE(has(started_with("--vdev=net_memif0"), "--no-pci"));
  const Words both = started_with("--vdev=net_memif0 -a 0000:01:00.0,x=1");
  EXPECT_FALSE(has(both, "--no-pci"));
  EXPECT_TRUE(has(both, "0000:01:00.0,x=1"));
  EXPECT_FALSE(has(both, "net_memif0"));
}

TEST(Arguments, DeviceArgumentsAreRead) {
  EXPECT_EQ(device_name("net_memif0,role=client"), "net_memif0");
  EXPECT_EQ(device_name("pci:0000:01:00.0"), "0000:01:00.0");
  EXPECT_EQ(device_number("net_x0,framesz=4096,b=1", "framesz", 7), 4096);
  EXPECT_EQ(device_number("net_x0,framesz=4096,b=1", "b", 7), 1);
  EXPECT_EQ(device_number("net_x0,framesize=4096", "framesz", 7), 7);
  EXPECT_EQ(device_number("framesz=3", "framesz", 7), 7);
}

}  // namespace
}  // namespace wiresum::transport::dpdk
