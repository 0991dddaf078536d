// Who is behind which Ethernet address: a table of neighbours (RFC 826), for ports that the kernel does not see.
//
// Of each neighbour one of these is known:
//
//   asked       nothing; everybody has been asked, on all ports, and the first answer counts
//   confirmed   its Ethernet address and port: it answered, or a datagram came from there, less than a minute ago
//   doubted     the same, but that is long ago, or somebody else has claimed the address since: the one that is known
//               is asked, alone. Packets go on to it. When it does not answer it is gone: asked
//
// What is defended against forged ARP, and what is not. ARP has no signatures, so whoever shares the Ethernet segment
// and answers first, before the owner, is believed. But nobody can take an address over that its owner still uses:
// - only answers to our own questions are learned from, each within a second of its question; requests of others and
//   announcements teach nothing (a request for our address is answered to whom asks);
// - an entry never changes while its owner answers: a claim to the contrary only makes us ask the owner;
// - the table is small and fixed: a flood of claims cannot make it grow, and confirmed entries are not thrown out of it
//   for others; what we ask for is limited, so that datagrams from invented sources cannot make us flood the segment.
// Somebody who is able to silence the owner, or a switch that lets others send with the owner's Ethernet address, is
// not defended against: that takes port security in the network, as it does for every host that uses ARP.
//
// Pure: no packet, no clock, no allocation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/ethernet/frame.hpp"

namespace wiresum::transport::dpdk {

using TimeNs = std::int64_t;

/// Where to send.
struct NextHop {
  ethernet::MacAddress mac;
  std::uint8_t port = 0;  // index among the transport's ports

  friend bool operator==(const NextHop&, const NextHop&) = default;
};

class Neighbours {
 public:
  /// A question that should be asked now.
  struct Question {
    std::uint32_t address = 0;
    bool everybody = false;  // broadcast on all ports; else `to` alone is asked
    NextHop to;
  };

  /// Where packets to `address` go; null if that is not known. Takes an entry for it, if there is place.
  [[nodiscard]] const NextHop* find(std::uint32_t address, TimeNs now) noexcept;

  /// Has it been asked for several times, without an answer?
  [[nodiscard]] bool silent(std::uint32_t address) noexcept;

  /// A valid datagram came from `address`.
  void heard(std::uint32_t address, const NextHop& from, TimeNs now) noexcept;

  /// Somebody claims, in whatever ARP packet, to have `address`; `answer`: in a reply to us.
  void claimed(std::uint32_t address, const NextHop& by, bool answer, TimeNs now) noexcept;

  /// Is there something to ask? Call until it says no.
  [[nodiscard]] bool poll_question(TimeNs now, Question& question) noexcept;

  static constexpr TimeNs kConfirmedNs = 60'000'000'000;
  static constexpr TimeNs kAnswerNs = 1'000'000'000;
  static constexpr TimeNs kAskNsMin = 10'000'000;  // between questions for one address, doubled each time
  static constexpr TimeNs kAskNsMax = 1'000'000'000;
  static constexpr TimeNs kDoubtNs = 50'000'000;      // between questions to the one that is known
  static constexpr int kDoubtsMax = 3;                // unanswered, before it is taken to be gone
  static constexpr int kSilent = 4;                   // unanswered, before anybody is told
  static constexpr TimeNs kQuestionNs = 100'000;      // between any two questions
  static constexpr TimeNs kForgetNs = 5'000'000'000;  // who does not answer, and nobody wants to send to
  static constexpr std::size_t kSets = 64;
  static constexpr std::size_t kWays = 4;

 private:
  enum class State : std::uint8_t { kFree, kAsked, kConfirmed, kDoubted };

  struct Entry {
    State state = State::kFree;
    std::uint32_t address = 0;
    NextHop hop;
    TimeNs confirmed_ns = 0;
    TimeNs used_ns = 0;   // when somebody wanted to send there
    TimeNs asked_ns = 0;  // when the last question was put
    TimeNs next_ns = 0;   // when the next one may be
    int unanswered = 0;
  };

  [[nodiscard]] Entry* known(std::uint32_t address) noexcept;
  [[nodiscard]] Entry* take(std::uint32_t address, TimeNs now) noexcept;
  void ask(Entry& entry, TimeNs now) noexcept;
  void doubt(Entry& entry, TimeNs now) noexcept;
  void confirm(Entry& entry, TimeNs now) noexcept;

  std::array<Entry, kSets * kWays> entries_{};
  std::size_t open_ = 0;        // entries that are asked or doubted
  std::size_t next_entry_ = 0;  // to look at for a question
  TimeNs next_question_ns_ = 0;
};

}  // namespace wiresum::transport::dpdk
