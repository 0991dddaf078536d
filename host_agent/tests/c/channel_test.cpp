#include "c/channel.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>

#include "patience.hpp"

namespace wiresum::c {
namespace {

const session::Line kLong{.word = "state", .fields = {{"text", std::string(session::kLineBytesMax / 2, 'a')}}};
const session::Line kShort{.word = "leave", .fields = {}};

Channel::Deadline soon() { return std::chrono::steady_clock::now() + kPatience; }

/// Two ends, the first of which is a session's.
struct Ends {
  Ends() : Ends(SocketPair(std::chrono::milliseconds(1))) {}
  explicit Ends(SocketPair pair) : ours(std::move(pair.ours)), theirs(std::move(pair.theirs)) {}
  Channel ours;
  Channel theirs;
};

TEST(Channel, LinesArriveInTheirOrder) {
  Ends ends;
  EXPECT_TRUE(ends.ours.send(kShort));
  EXPECT_TRUE(ends.ours.send({.word = "abort", .fields = {{"reason", "a\nb"}}}));
  EXPECT_EQ(ends.theirs.receive(soon()).value().word, "leave");
  EXPECT_EQ(ends.theirs.receive(soon()).value().fields.at("reason"), "a\nb");
  ends.ours.hang_up();
  EXPECT_FALSE(ends.theirs.receive(soon()));
  EXPECT_FALSE(ends.ours.send(kShort));
}

TEST(Channel, NothingFollowsALineOfWhichOnlyAPartWasTaken) {
  Ends ends;
  EXPECT_FALSE(ends.ours.send(kLong)) << "nobody reads it";
  EXPECT_FALSE(ends.ours.send(kShort));
  EXPECT_FALSE(ends.theirs.receive(soon()));
}

TEST(Channel, ALineOfWhichNothingWasTakenIsLeftOut) {
  Ends ends;
  std::size_t taken = 0;
  while (ends.ours.send(kShort)) ++taken;
  for (std::size_t i = 0; i < taken; ++i) EXPECT_EQ(ends.theirs.receive(soon()).value().word, "leave");
  EXPECT_TRUE(ends.ours.send({.word = "abort", .fields = {}}));
  EXPECT_EQ(ends.theirs.receive(soon()).value().word, "abort");
}

}  // namespace
}  // namespace wiresum::c
