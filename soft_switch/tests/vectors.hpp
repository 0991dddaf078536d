// Reads the test vectors: packets in, and the required answers. Their README describes the format.
//
// It is independent of the reader in Python, whose mistakes could hide mistakes of the switch. It refuses what it does
// not understand; the Python reader also checks that a file is consistent.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "dataplane.hpp"

namespace wiresum::dataplane::vectors {

using Datagram = std::vector<std::byte>;

/// The parent switch, in place of a worker's number.
inline constexpr std::uint8_t kParentMember = wire::kParent;

/// A worker of a job, or its parent; both readers write it JOB.WORKER, or JOB.parent.
struct Member {
  std::uint16_t job = 0;
  std::uint8_t worker = 0;

  friend bool operator==(const Member&, const Member&) = default;
};

struct Expectation {
  bool passes = false;  // the frame is not to the switch, which counts and sends nothing
  Verdict verdict = Verdict::kDrop;
  Reason reason = Reason::kMalformed;
  Datagram datagram;  // the bytes that are sent, unless kHold or kDrop
};

/// What is odd about the frame around a datagram.
struct FrameChanges {
  std::string mac;  // to whom it is, instead of the switch
  std::optional<std::uint16_t> ip_length;
  std::optional<std::uint16_t> udp_length;
  bool without_udp_checksum = false;
  std::optional<std::uint32_t> flip;  // a bit, from the start of the IPv4 header
  std::size_t trailer = 0;            // bytes behind the datagram
  std::size_t cut = 0;                // bytes that the frame lacks at its end

  friend bool operator==(const FrameChanges&, const FrameChanges&) = default;
};

struct Step {
  std::string place;  // file, line and the line itself, for messages
  Member sender;
  wire::Endpoint source;
  bool hardware_only = false;  // differs only in its ingress port, and this switch has a single one
  std::uint8_t thread = 0;
  Datagram datagram;
  FrameChanges changes;
  Expectation expectation;

  /// A host refuses the frame, before anybody sees the datagram.
  [[nodiscard]] bool refused_by_hosts() const {
    return changes != FrameChanges{} && (expectation.passes || expectation.verdict == Verdict::kDrop);
  }
};

/// The job of this number is removed.
struct End {
  std::uint16_t job = 0;
};

/// A job is admitted, a packet arrives, or a job is removed.
using Event = std::variant<JobEntry, Step, End>;

struct Scenario {
  std::string name;
  std::vector<Event> events;

  /// The numbers of the jobs; each worker has its own address.
  [[nodiscard]] std::set<std::uint16_t> job_numbers() const;
  [[nodiscard]] std::vector<Step> steps() const;

  friend void PrintTo(const Scenario& scenario, std::ostream* stream) { *stream << scenario.name; }  // for GoogleTest
};

/// All scenarios of all *.txt files, by file name. Throws std::runtime_error that names file and line.
[[nodiscard]] std::vector<Scenario> load_all(const std::filesystem::path& folder);

}  // namespace wiresum::dataplane::vectors
