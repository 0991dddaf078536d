// Reads the test vectors: packets in, and the required answers. bmv2_tests/vectors/README.md describes the format.
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
  Verdict verdict = Verdict::kDrop;
  Reason reason = Reason::kMalformed;
  Datagram datagram;  // the bytes that are sent, unless kHold or kDrop
};

struct Step {
  std::string place;  // file, line and the line itself, for messages
  Member sender;
  wire::Endpoint source;
  bool hardware_only = false;  // differs only in its ingress port, and this switch has a single one
  std::uint8_t thread = 0;
  Datagram datagram;
  Expectation expectation;
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
