// A table of neighbours and their Ethernet addresses (ARP, RFC 826), for ports that the kernel does not see.
//
// The states of a neighbour:
//
//   asked       nothing is known; a request was broadcast on all ports, and the first answer counts
//   confirmed   its Ethernet address and port: it answered, or a datagram came from there, less than a minute ago
//   doubted     the same, but longer ago, or somebody else has claimed the address since: the known owner alone is
//               asked, and packets still go to it. If it does not answer, the state is "asked" again
//
// Forged ARP. ARP has no signatures, so whoever is on the Ethernet segment and answers before the owner is believed.
// But nobody can take over an address that its owner still uses:
// - we learn only from answers to our own requests, each within a second of its request; others' requests and
//   announcements change nothing (a request for our address is answered to its sender);
// - an entry never changes while its owner answers: a contrary claim only makes us ask the owner;
// - the table is small and fixed: a flood of claims cannot make it grow, and confirmed entries are not evicted for
//   others; our requests are limited, so that datagrams from invented sources cannot make us flood the segment.
// There is no defence against somebody who can silence the owner, or a switch that lets others send with the owner's
// Ethernet address: that takes port security in the network, as it does for every host that uses ARP.
//
// Pure: no packet, no clock, no allocation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/ethernet/frame.hpp"

namespace wiresum::transport::dpdk {

using TimeNs = std::int64_t;

/// The Ethernet address and port of a neighbour.
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

  /// The next hop of packets to `address`; null if unknown. Takes an entry for the address, if there is room.
  [[nodiscard]] const NextHop* find(std::uint32_t address, TimeNs now) noexcept;

  /// True if the address was asked for several times, without an answer.
  [[nodiscard]] bool silent(std::uint32_t address) noexcept;

  /// Notes a valid datagram from `address`.
  void heard(std::uint32_t address, const NextHop& from, TimeNs now) noexcept;

  /// Notes an ARP packet whose sender claims to have `address`; `answer`: the packet is a reply to us.
  void claimed(std::uint32_t address, const NextHop& by, bool answer, TimeNs now) noexcept;

  /// Returns true, and a question, if there is something to ask. Call until it returns false.
  [[nodiscard]] bool poll_question(TimeNs now, Question& question) noexcept;

  static constexpr TimeNs kConfirmedNs = 60'000'000'000;
  static constexpr TimeNs kAnswerNs = 1'000'000'000;
  static constexpr TimeNs kAskNsMin = 10'000'000;  // between questions for one address, doubled each time
  static constexpr TimeNs kAskNsMax = 1'000'000'000;
  static constexpr TimeNs kDoubtNs = 50'000'000;      // between questions to a known neighbour
  static constexpr int kDoubtsMax = 3;                // unanswered questions before the neighbour is taken to be gone
  static constexpr int kSilent = 4;                   // unanswered questions before it is reported
  static constexpr TimeNs kQuestionNs = 100'000;      // between any two questions
  static constexpr TimeNs kForgetNs = 5'000'000'000;  // lifetime of an unused neighbour that does not answer
  static constexpr std::size_t kSets = 64;
  static constexpr std::size_t kWays = 4;

 private:
  enum class State : std::uint8_t { kFree, kAsked, kConfirmed, kDoubted };

  struct Neighbour {
    State state = State::kFree;
    std::uint32_t address = 0;
    NextHop hop;
    TimeNs confirmed_ns = 0;
    TimeNs used_ns = 0;   // time of the last wish to send there
    TimeNs asked_ns = 0;  // time of the last question
    TimeNs next_ns = 0;   // earliest time of the next question
    int unanswered = 0;
  };

  [[nodiscard]] Neighbour* known(std::uint32_t address) noexcept;
  [[nodiscard]] Neighbour* take(std::uint32_t address, TimeNs now) noexcept;
  void ask(Neighbour& entry, TimeNs now) noexcept;
  void doubt(Neighbour& entry, TimeNs now) noexcept;
  void confirm(Neighbour& entry, TimeNs now) noexcept;

  std::array<Neighbour, kSets * kWays> entries_{};
  std::size_t open_ = 0;        // entries that are asked or doubted
  std::size_t next_entry_ = 0;  // the next entry to look at for a question
  TimeNs next_question_ns_ = 0;
};

}  // namespace wiresum::transport::dpdk
