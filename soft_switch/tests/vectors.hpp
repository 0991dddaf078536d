// Reads the test vectors: packets in, and what a switch must answer. bmv2_tests/vectors/README.md describes the format.
//
// A reader of its own, so that a mistake of the Python one does not hide a mistake of the switch. It refuses what it
// does not understand; the Python reader also checks that a file makes sense.
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

/// In place of a worker's number: the switch above.
inline constexpr std::uint8_t kParentMember = wire::kParent;

/// A worker of a job, or the switch above; both readers write it JOB.WORKER, or JOB.parent.
struct Member {
  std::uint16_t job = 0;
  std::uint8_t worker = 0;

  friend bool operator==(const Member&, const Member&) = default;
};

struct Expectation {
  Verdict verdict = Verdict::kDrop;
  Reason reason = Reason::kMalformed;
  Datagram datagram;  // what is sent, unless kHold or kDrop
};

struct Step {
  std::string place;  // file, line and the line itself, for messages
  Member sender;
  wire::Endpoint source;
  bool hardware_only = false;  // differs only in its ingress port, of which this switch has one
  std::uint8_t thread = 0;
  Datagram datagram;
  Expectation expectation;
};

/// The admission of the job of this number is removed.
struct End {
  std::uint16_t job = 0;
};

/// A job is admitted, a packet comes in, a job ends.
using Event = std::variant<JobEntry, Step, End>;

struct Scenario {
  std::string name;
  std::vector<Event> events;

  /// Of the jobs, in which each worker has an address of its own.
  [[nodiscard]] std::set<std::uint16_t> job_numbers() const;
  [[nodiscard]] std::vector<Step> steps() const;

  friend void PrintTo(const Scenario& scenario, std::ostream* stream) { *stream << scenario.name; }  // for GoogleTest
};

/// All scenarios of all *.txt files, by file name. Throws std::runtime_error that names file and line.
[[nodiscard]] std::vector<Scenario> load_all(const std::filesystem::path& folder);

}  // namespace wiresum::dataplane::vectors
