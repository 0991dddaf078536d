#include "transport/ethernet/arp.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace wiresum::transport::ethernet {
namespace {

constexpr MacAddress kOurs{{0x02, 0x00, 0x00, 0x00, 0x00, 0x0A}};
constexpr MacAddress kTheirs{{0x02, 0x00, 0x00, 0x00, 0x00, 0x0B}};
constexpr ArpPacket kRequest{.operation = ArpOperation::kRequest,
                             .sender_mac = kTheirs,
                             .sender_address = 0x0A000002,
                             .target_mac = {},
                             .target_address = 0x0A000001};

std::array<std::byte, kFrameBytesMin> written(const ArpPacket& packet) {
  std::array<std::byte, kFrameBytesMin> frame{};
  frame.fill(std::byte{0xEE});
  write_arp(packet, frame);
  return frame;
}

TEST(Arp, ARequestHasTheBytesOfTheRfc) {
  constexpr std::array<std::uint8_t, kFrameBytesMin> kBytes{
      0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x02, 0, 0, 0, 0, 0x0B, 0x08, 0x06,  // Ethernet, broadcast
      0,    1,    0x08, 0,    6,    4,    0,    1,                             // IPv4 over Ethernet, a request
      0x02, 0,    0,    0,    0,    0x0B, 10,   0, 0, 2,                       // from
      0,    0,    0,    0,    0,    0,    10,   0, 0, 1};                      // for
  const auto frame = written(kRequest);
  for (std::size_t i = 0; i < kBytes.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(frame[i]), kBytes[i]) << "byte " << i;
  }
}

TEST(Arp, TheReplyGoesToTheSenderOfTheRequest) {
  const ArpPacket reply = reply_to(kRequest, kOurs);
  EXPECT_EQ(reply, (ArpPacket{.operation = ArpOperation::kReply,
                              .sender_mac = kOurs,
                              .sender_address = 0x0A000001,
                              .target_mac = kTheirs,
                              .target_address = 0x0A000002}));
  const auto frame = written(reply);
  EXPECT_EQ(std::to_integer<int>(frame[0]), 0x02);
  EXPECT_EQ(std::to_integer<int>(frame[5]), 0x0B);
  EXPECT_EQ(std::to_integer<int>(frame[11]), 0x0A);
}

TEST(Arp, AWrittenPacketIsReadBack) {
  for (const ArpPacket& packet : {kRequest, reply_to(kRequest, kOurs)}) {
    ArpPacket read;
    ASSERT_TRUE(parse_arp(written(packet), read));
    EXPECT_EQ(read, packet);
  }
}

TEST(Arp, EveryShorterFrameIsRefused) {
  const auto frame = written(kRequest);
  for (std::size_t length = 0; length != 42; ++length) {
    ArpPacket read;
    EXPECT_FALSE(
        parse_arp(std::vector<std::byte>(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(length)), read));
    EXPECT_EQ(read, ArpPacket{});
  }
}

TEST(Arp, OtherProtocolsOperationsAndGroupsAreRefused) {
  struct Change {
    std::size_t at;
    std::uint8_t value;
  };
  for (const Change change : {Change{13, 0x00}, Change{15, 6}, Change{17, 1}, Change{18, 8}, Change{19, 16},
                              Change{21, 0}, Change{21, 3}, Change{20, 1}, Change{22, 0x03}}) {
    auto frame = written(kRequest);
    frame[change.at] = std::byte{change.value};
    ArpPacket read;
    EXPECT_FALSE(parse_arp(frame, read)) << "byte " << change.at;
  }
}

}  // namespace
}  // namespace wiresum::transport::ethernet
