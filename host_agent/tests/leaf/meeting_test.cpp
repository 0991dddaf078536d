// Ranks of one host meet, each in a thread of its own; strangers call too, and some do not come.
#include "leaf/meeting.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "patience.hpp"
#include "process/descriptor.hpp"

namespace wiresum::leaf {
namespace {

constexpr std::uint16_t kMeetingLanes = 16;
constexpr std::uint32_t kMeetingSlots = 8;
constexpr std::size_t kPacketBytes = wire::kHeaderBytes + kMeetingLanes * wire::kWordBytes;

/// A name, or a token, of this process alone: tests run side by side.
std::string half_of(char secret) {
  std::string half = std::to_string(getpid());
  half.resize(kSecretBytes / 2, secret);
  return half;
}

Place place(std::size_t ranks, std::uint8_t index, char secret) {
  Place made;
  for (std::size_t rank = 0; rank < ranks; ++rank) made.ranks.push_back(static_cast<std::uint16_t>(4 + rank));
  made.index = index;
  made.secret = half_of(secret) + half_of(secret);
  return made;
}

std::vector<std::unique_ptr<Leaf>> leaves(std::uint8_t ranks, std::uint8_t threads) {
  std::vector<std::unique_ptr<Leaf>> made;
  for (std::uint8_t thread = 0; thread < threads; ++thread) {
    made.push_back(std::make_unique<Leaf>(Job{.number = 1,
                                              .key = 7,
                                              .ranks = ranks,
                                              .threads = threads,
                                              .thread = thread,
                                              .lanes = kMeetingLanes,
                                              .slots = kMeetingSlots},
                                          transport::DataPath{}));
  }
  return made;
}

const Patience kPatient{.most = kPatience};

Transports reach_as(const Place& place, unsigned threads, const Patience& patience = kPatient) {
  return reach(place, threads, kPacketBytes, Leaf::results_bytes(kMeetingLanes, kMeetingSlots), patience);
}

TEST(Meeting, EachRankIsGivenItsWayToEachThreadOfTheLeafWhoeverComesFirst) {
  for (const bool others_first : {false, true}) {
    constexpr std::uint8_t kRanks = 5;
    constexpr std::uint8_t kThreads = 4;
    std::vector<std::unique_ptr<Leaf>> shared = leaves(kRanks, kThreads);
    std::vector<Transports> reached(kRanks);
    std::vector<std::thread> ranks;
    const auto come = [&] {
      for (std::uint8_t rank = 1; rank < kRanks; ++rank) {
        ranks.emplace_back([&, rank] { reached[rank] = reach_as(place(kRanks, rank, 'a'), kThreads); });
      }
    };
    if (others_first) come();
    std::thread first([&] { share(place(kRanks, 0, 'a'), shared, kPatient); });
    if (!others_first) come();
    first.join();
    for (std::thread& rank : ranks) rank.join();
    // A contribution that each sends is counted as its own, at the thread that it was meant for.
    for (std::uint8_t rank = 1; rank < kRanks; ++rank) {
      ASSERT_EQ(reached[rank].size(), kThreads);
      for (std::uint8_t thread = 0; thread < kThreads; ++thread) {
        const std::span<wire::Packet> places = reached[rank][thread]->buffers(1);
        ASSERT_EQ(places.size(), 1u);
        const auto cell = static_cast<std::uint16_t>(2 * thread * kMeetingSlots / kThreads + 1);
        const wire::Header header{
            .kind = wire::Kind::kEmpty, .job = 1, .key = 7, .worker = rank, .cell = cell, .round = 1};
        wire::encode(header, std::span<std::byte, wire::kHeaderBytes>(places[0].data, wire::kHeaderBytes));
        places[0].bytes = wire::kHeaderBytes;
        reached[rank][thread]->send(1, {}, 0, false);
        std::array<transport::RxDatagram, 1> none{};
        EXPECT_EQ(shared[thread]->receive(none), 0u);
        EXPECT_EQ(shared[thread]->counters().contributions[rank], 1u);
      }
    }
  }
}

TEST(Meeting, ManyMeetingsOfOneMachineDoNotMeetEachOther) {
  std::vector<std::thread> all;
  for (char meeting = 'a'; meeting < 'k'; ++meeting) {
    all.emplace_back([meeting] {
      std::vector<std::unique_ptr<Leaf>> shared = leaves(2, 1);
      share(place(2, 0, meeting), shared, kPatient);
    });
    all.emplace_back([meeting] { EXPECT_EQ(reach_as(place(2, 1, meeting), 1).size(), 1u); });
  }
  for (std::thread& each : all) each.join();
}

TEST(Meeting, WhoDoesNotComeIsNamed) {
  const Patience short_one{.most = std::chrono::milliseconds(1)};
  std::vector<std::unique_ptr<Leaf>> shared = leaves(3, 1);
  try {
    share(place(3, 0, 'b'), shared, short_one);
    FAIL();
  } catch (const MeetingError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 5, 6 did not come"), std::string::npos) << error.what();
  }
  try {
    static_cast<void>(reach_as(place(3, 2, 'b'), 1, short_one));
    FAIL();
  } catch (const MeetingError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 4, which drives this host's stream, did not listen"),
              std::string::npos)
        << error.what();
  }
}

TEST(Meeting, ASessionThatEndsMeanwhileWaitsForNobody) {
  const Patience over{.most = std::chrono::hours(24), .is_over = [] { return true; }};
  std::vector<std::unique_ptr<Leaf>> shared = leaves(2, 1);
  EXPECT_THROW(share(place(2, 0, 'c'), shared, over), MeetingError);
  EXPECT_THROW(static_cast<void>(reach_as(place(2, 1, 'c'), 1, over)), MeetingError);
}

/// The name of a listening socket, which everyone on the machine can read.
std::string listening_name(char secret) {
  std::string wanted = "@wiresum-";
  for (const char byte : half_of(secret)) {
    wanted += "0123456789abcdef"[byte >> 4 & 15];
    wanted += "0123456789abcdef"[byte & 15];
  }
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    if (line.find(wanted) != std::string::npos) return wanted.substr(1);
  }
  return {};
}

TEST(Meeting, AStrangerWhoKnowsTheNameIsGivenNothingAndHoldsUpNobody) {
  std::vector<std::unique_ptr<Leaf>> shared = leaves(2, 1);
  std::thread first([&] { share(place(2, 0, 'd'), shared, kPatient); });
  std::string name;
  while (name.empty()) name = listening_name('d');
  const auto hello = [](char token, char index) {
    std::string made = half_of(token);
    made.push_back(index);
    return made;
  };
  for (const std::string& says : {std::string("hello"), hello('x', 1), hello('d', 0), hello('d', 7), std::string()}) {
    const process::Descriptor stranger(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    ASSERT_EQ(connect(stranger.get(), reinterpret_cast<const sockaddr*>(&address), bytes), 0);
    if (says.empty()) continue;  // hangs up
    ASSERT_EQ(send(stranger.get(), says.data(), says.size(), MSG_NOSIGNAL), static_cast<ssize_t>(says.size()));
    char answer = 0;
    EXPECT_LE(recv(stranger.get(), &answer, 1, 0), 0) << "hung up on";
  }
  EXPECT_EQ(reach_as(place(2, 1, 'd'), 1).size(), 1u);
  first.join();
}

TEST(Meeting, WhatAFirstRankSharesIsLookedAt) {
  std::vector<std::unique_ptr<Leaf>> shared = leaves(2, 1);
  std::thread first([&] { share(place(2, 0, 'e'), shared, kPatient); });
  // This rank believes that packets are longer: the memory would be too small.
  EXPECT_THROW(static_cast<void>(reach(place(2, 1, 'e'), 1, 8 * kPacketBytes,
                                       Leaf::results_bytes(8 * kMeetingLanes, kMeetingSlots), kPatient)),
               MeetingError);
  first.join();
  shared = leaves(2, 2);
  std::thread second([&] { share(place(2, 0, 'f'), shared, kPatient); });
  EXPECT_THROW(static_cast<void>(reach_as(place(2, 1, 'f'), 1)), MeetingError) << "another number of threads";
  second.join();
}

}  // namespace
}  // namespace wiresum::leaf
