#include "vectors.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>

namespace wiresum::dataplane::vectors {
namespace {

constexpr std::uint32_t kAddressOfNobody = 0x0A0000FE;
constexpr std::uint32_t kTensor = 0x01020304;
constexpr std::uint32_t kChunk = 0x05060708;
constexpr auto kKindData = static_cast<std::uint32_t>(wire::Kind::kData);
constexpr auto kKindResult = static_cast<std::uint32_t>(wire::Kind::kResult);
constexpr auto kKindMissing = static_cast<std::uint32_t>(wire::Kind::kMissing);
constexpr wire::Endpoint kParent{.address = 0x0A0000F0, .port = 7000};

using Tokens = std::vector<std::string>;

std::uint32_t number(std::string_view text, std::uint64_t largest) {
  const bool hexadecimal = text.starts_with("0x");
  const std::string_view digits = hexadecimal ? text.substr(2) : text;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, hexadecimal ? 16 : 10);
  if (error != std::errc{} || end != digits.data() + digits.size() || value > largest) {
    throw std::runtime_error("'" + std::string(text) + "' is no number up to " + std::to_string(largest));
  }
  return static_cast<std::uint32_t>(value);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

/// The NAME=VALUE tokens of a line. Each must be used, so that a misspelt one is an error.
class Fields {
 public:
  Fields(Tokens::const_iterator begin, Tokens::const_iterator end) {
    for (; begin != end; ++begin) {
      const std::size_t equals = begin->find('=');
      if (equals == std::string::npos || !values_.emplace(begin->substr(0, equals), begin->substr(equals + 1)).second) {
        throw std::runtime_error("'" + *begin + "' is no NAME=VALUE, or given twice");
      }
    }
  }

  std::optional<std::string> text(const std::string& name) {
    const auto node = values_.extract(name);
    return node.empty() ? std::nullopt : std::optional(node.mapped());
  }
  std::uint32_t number(const std::string& name, unsigned bits, std::uint32_t otherwise) {
    const std::optional<std::string> given = text(name);
    return given ? vectors::number(*given, (std::uint64_t{1} << bits) - 1) : otherwise;
  }
  std::uint32_t number(const std::string& name, unsigned bits) {
    if (!values_.contains(name)) throw std::runtime_error(name + "= is missing");
    return number(name, bits, 0);
  }
  void end() const {
    if (!values_.empty()) throw std::runtime_error("nothing here is called " + values_.begin()->first);
  }

 private:
  std::map<std::string, std::string> values_;
};

/// A header with any values, including ones that no switch accepts.
struct RawHeader {
  std::uint32_t version = 1;
  std::uint32_t kind = kKindData;
  std::uint32_t flags = 0;
  std::uint32_t job = 0;
  std::uint32_t key = 0;
  std::uint32_t worker = 0;
  std::uint32_t exponent = 0;
  std::uint32_t cell = 0;
  std::uint32_t round = 0;
  std::uint32_t tensor = 0;
  std::uint32_t chunk = 0;
};

void append(Datagram& out, std::uint32_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out.push_back(static_cast<std::byte>(value >> shift));
}

Datagram datagram_of(const RawHeader& header, const std::vector<std::uint32_t>& words) {
  Datagram out;
  append(out, header.version << 4 | header.kind, 1);
  append(out, header.flags, 1);
  append(out, header.job, 2);
  append(out, header.key, 4);
  append(out, header.worker, 1);
  append(out, header.exponent, 1);
  append(out, header.cell, 2);
  for (const std::uint32_t value : {header.round, header.tensor, header.chunk}) append(out, value, 4);
  for (const std::uint32_t word : words) append(out, word, 4);
  return out;
}

std::vector<std::uint32_t> words_of(const std::string& text, std::size_t lanes) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string form = text.substr(0, colon);
  std::vector<std::uint32_t> given;
  for (const std::string& part : split(text.substr(std::min(colon + 1, text.size())), form == "list" ? ',' : ':')) {
    given.push_back(number(part, UINT32_MAX));
  }
  std::vector<std::uint32_t> words(lanes, 0);
  if (form == "list" && !given.empty() && given.size() <= lanes) {
    std::copy(given.begin(), given.end(), words.begin());
  } else if (form == "fill" && given.size() == 1) {
    std::fill(words.begin(), words.end(), given[0]);
  } else if (form == "ramp" && given.size() == 2) {
    for (std::size_t lane = 0; lane < lanes; ++lane)
      words[lane] = given[0] + given[1] * static_cast<std::uint32_t>(lane);
  } else if (form == "alternate" && given.size() == 2) {
    for (std::size_t lane = 0; lane < lanes; ++lane) words[lane] = given[lane % 2];
  } else {
    throw std::runtime_error("'" + text + "' does not say " + std::to_string(lanes) + " words");
  }
  return words;
}

Datagram bytes_of(const std::string& hex) {
  Datagram bytes;
  for (std::size_t at = 0; at < hex.size(); at += 2) {
    append(bytes, number("0x" + hex.substr(at, 2), UINT8_MAX), 1);
  }
  return bytes;
}

std::uint32_t kind_of(const std::string& text) {
  static const std::map<std::string, std::uint32_t> kKinds{{"DATA", kKindData},     {"EMPTY", 1},
                                                           {"RESULT", kKindResult}, {"META", 3},
                                                           {"QUESTION", 4},         {"MISSING", kKindMissing}};
  const auto found = kKinds.find(text);
  return found != kKinds.end() ? found->second : number(text, 15);
}

Reason drop_reason_of(const std::string& text) {
  static const std::map<std::string, Reason> kReasons{{"duplicate", Reason::kDuplicate},
                                                      {"stale", Reason::kStale},
                                                      {"out_of_lease", Reason::kOutOfLease},
                                                      {"unknown", Reason::kUnknown},
                                                      {"malformed", Reason::kMalformed}};
  const auto found = kReasons.find(text);
  if (found == kReasons.end()) throw std::runtime_error("'" + text + "' is no reason for a drop");
  return found->second;
}

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  void take(std::size_t line_number, const std::string& line) {
    const std::string text = line.substr(0, line.find('#'));
    std::istringstream stream(text);
    const Tokens tokens{std::istream_iterator<std::string>(stream), {}};
    if (tokens.empty()) return;
    const std::string place = file_ + ":" + std::to_string(line_number) + ": ";
    try {
      take(tokens, place + text);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(place + error.what());
    }
  }

  std::vector<Scenario> scenarios;

 private:
  void take(const Tokens& tokens, const std::string& place) {
    if (tokens[0] == "scenario" && tokens.size() == 2) {
      scenarios.push_back({.name = tokens[1], .events = {}});
      members_.clear();
      jobs_.clear();
    } else if (scenarios.empty()) {
      throw std::runtime_error("a file begins with 'scenario NAME'");
    } else if (tokens[0] == "job" && tokens.size() > 1) {
      const JobEntry entry = job(tokens);
      jobs_[entry.job] = entry;
      scenarios.back().events.emplace_back(entry);
    } else if (tokens[0] == "end" && tokens.size() == 2) {
      scenarios.back().events.emplace_back(End{static_cast<std::uint16_t>(number(tokens[1], UINT16_MAX))});
    } else if (tokens[0] != "needs") {  // this switch has all optional features
      Step packet = step(tokens);
      packet.place = place;
      scenarios.back().events.emplace_back(std::move(packet));
    }
  }

  JobEntry job(const Tokens& tokens) {
    Fields fields(tokens.begin() + 2, tokens.end());
    JobEntry entry{.job = static_cast<std::uint16_t>(number(tokens[1], UINT16_MAX)),
                   .key = fields.number("key", 32),
                   .workers = static_cast<std::uint8_t>(fields.number("workers", 8)),
                   .threads = static_cast<std::uint8_t>(fields.number("threads", 8)),
                   .lanes = static_cast<std::uint16_t>(fields.number("lanes", 16)),
                   .slot_base = fields.number("slot_base", 16),
                   .slots = fields.number("slots", 16)};
    if (const std::optional<std::string> parent = fields.text("parent")) {
      entry.uplink = {.parent = kParent, .worker = static_cast<std::uint8_t>(number(*parent, UINT8_MAX))};
    }
    fields.end();
    for (std::size_t worker = 0; worker < std::min<std::size_t>(entry.workers, wire::kSwitchWorkersMax); ++worker) {
      // A job that reuses a number has its workers in the same places.
      const auto next = static_cast<std::uint32_t>(members_.size());
      const std::uint32_t place = members_.emplace(std::pair(entry.job, worker), next).first->second;
      entry.endpoints[worker] = {.address = 0x0A000001u + place, .port = 9000};
    }
    return entry;
  }

  Step step(const Tokens& tokens) {
    const auto arrow = std::find(tokens.begin(), tokens.end(), "->");
    if (arrow - tokens.begin() < 2 || tokens.end() - arrow < 2) {
      throw std::runtime_error("expected 'SENDER KIND FIELDS -> VERDICT'");
    }
    Step step{.place = {}, .sender = member(tokens[0]), .source = {}, .datagram = {}, .changes = {}, .expectation = {}};
    const JobEntry& entry = job_of(step.sender);
    Fields fields(tokens.begin() + 2, arrow);
    RawHeader header;
    if (tokens[1] == "RAW") {
      step.datagram = bytes_of(fields.text("hex").value_or(""));
    } else {
      header = header_of(kind_of(tokens[1]), step.sender, entry, fields);
      const std::optional<std::string> words = fields.text("words");
      step.datagram = datagram_of(header, words ? words_of(*words, entry.lanes) : std::vector<std::uint32_t>{});
      step.datagram.resize(fields.number("bytes", 16, static_cast<std::uint32_t>(step.datagram.size())));
      step.thread = static_cast<std::uint8_t>(
          std::min(header.cell / 2 / (entry.slots / entry.threads), std::uint32_t{entry.threads} - 1));
    }
    step.thread = static_cast<std::uint8_t>(fields.number("thread", 4, step.thread));
    const std::uint32_t source_thread = fields.number("source_thread", 4, step.thread);
    const std::string source = fields.text("source").value_or(tokens[0]);
    step.source = endpoint_of(source == "stranger" ? step.sender : member(source));
    step.source.port = static_cast<std::uint16_t>(step.source.port + source_thread);
    if (source == "stranger") step.source.address = kAddressOfNobody;
    step.hardware_only = fields.text("port").has_value();
    step.changes = changes_of(fields);
    fields.end();
    step.expectation = expectation(Tokens(arrow + 1, tokens.end()), header, entry);
    return step;
  }

  static FrameChanges changes_of(Fields& fields) {
    FrameChanges changes;
    changes.mac = fields.text("mac").value_or("");
    const auto optional = [&fields](const char* name, std::uint64_t largest) {
      const std::optional<std::string> given = fields.text(name);
      return given ? std::optional(number(*given, largest)) : std::nullopt;
    };
    changes.ip_length = optional("ip_length", UINT16_MAX);
    changes.udp_length = optional("udp_length", UINT16_MAX);
    if (const std::optional<std::string> checksum = fields.text("udp_checksum")) {
      if (*checksum != "none") throw std::runtime_error("udp_checksum= is 'none', or right");
      changes.without_udp_checksum = true;
    }
    changes.flip = optional("flip", 8191);
    changes.trailer = fields.number("trailer", 11, 0);
    changes.cut = fields.number("cut", 11, 0);
    return changes;
  }

  static RawHeader header_of(std::uint32_t kind, Member sender, const JobEntry& entry, Fields& fields) {
    RawHeader header{.kind = kind};
    header.version = fields.number("version", 4, 1);
    header.flags = fields.number("flags", 8, 0);
    header.job = fields.number("job", 16, entry.job);
    header.key = fields.number("key", 32, entry.key);
    header.worker = fields.number("worker", 8, sender.worker == kParentMember ? entry.uplink.worker : sender.worker);
    header.exponent = fields.number("exponent", 8, 0);
    header.round = fields.number("round", 32);
    const std::uint32_t slot = fields.number("slot", 15, 0);
    header.cell = fields.number("cell", 16, 2 * slot + header.round % 2);
    header.tensor = fields.number("tensor", 32, kTensor);
    header.chunk = fields.number("chunk", 32, kChunk);
    return header;
  }

  static Expectation expectation(const Tokens& tokens, const RawHeader& header, const JobEntry& entry) {
    if (tokens[0] == "drop" && tokens.size() == 2) {
      return {.verdict = Verdict::kDrop, .reason = drop_reason_of(tokens[1]), .datagram = {}};
    }
    if (tokens[0] == "pass" && tokens.size() == 1) return {.passes = true, .datagram = {}};
    if (tokens[0] == "hold" && tokens.size() == 1) {
      return {.verdict = Verdict::kHold, .reason = Reason::kAdmitted, .datagram = {}};
    }
    if (tokens[0] == "missing" && tokens.size() == 1) {
      RawHeader missing = header;
      missing.kind = kKindMissing;
      missing.flags = missing.exponent = 0;
      return {.verdict = Verdict::kResend, .reason = Reason::kResent, .datagram = datagram_of(missing, {})};
    }
    if ((tokens[0] == "up" || tokens[0] == "again") && tokens.size() > 1) return raised(tokens, header, entry);
    const bool multicast = tokens[0] == "multicast";
    if (!multicast && tokens[0] != "resend") throw std::runtime_error("'" + tokens[0] + "' is no verdict");
    const bool bare = tokens.size() > 1 && tokens.back() == "bare";
    Fields fields(tokens.begin() + 1, tokens.end() - (bare ? 1 : 0));
    // The echo rule: fields that the line omits are as in the packet that triggered the RESULT.
    RawHeader result = header;
    result.version = 1;
    result.kind = kKindResult;
    result.flags = fields.number("flags", 8, 0);
    result.exponent = fields.number("exponent", 8, 0);
    result.job = fields.number("job", 16, header.job);
    result.key = fields.number("key", 32, header.key);
    result.worker = fields.number("worker", 8, header.worker);
    result.cell = fields.number("cell", 16, header.cell);
    result.round = fields.number("round", 32, header.round);
    result.tensor = fields.number("tensor", 32, header.tensor);
    result.chunk = fields.number("chunk", 32, header.chunk);
    const std::optional<std::string> words = fields.text("words");
    if (bare == words.has_value()) throw std::runtime_error("a RESULT has either words= or ends in 'bare'");
    fields.end();
    return {.verdict = multicast ? Verdict::kMulticast : Verdict::kResend,
            .reason = multicast ? Reason::kAdmitted : Reason::kResent,
            .datagram = datagram_of(result, words ? words_of(*words, entry.lanes) : std::vector<std::uint32_t>{})};
  }

  static Expectation raised(const Tokens& tokens, const RawHeader& header, const JobEntry& entry) {
    Fields fields(tokens.begin() + 2, tokens.end());
    RawHeader up = header;
    up.version = 1;
    up.kind = kind_of(tokens[1]);
    up.worker = entry.uplink.worker;
    up.flags = fields.number("flags", 8, 0);
    up.exponent = fields.number("exponent", 8, 0);
    const std::optional<std::string> words = fields.text("words");
    fields.end();
    return {.verdict = Verdict::kRaise,
            .reason = tokens[0] == "up" ? Reason::kAdmitted : Reason::kResent,
            .datagram = datagram_of(up, words ? words_of(*words, entry.lanes) : std::vector<std::uint32_t>{})};
  }

  Member member(const std::string& text) const {
    const std::vector<std::string> parts = split(text, '.');
    if (parts.size() != 2) throw std::runtime_error("'" + text + "' is no JOB.WORKER");
    const bool is_parent = parts[1] == "parent";
    const Member member{
        .job = static_cast<std::uint16_t>(number(parts[0], UINT16_MAX)),
        .worker = is_parent ? kParentMember : static_cast<std::uint8_t>(number(parts[1], kParentMember - 1u))};
    if (is_parent && job_of(member).uplink.exists()) return member;
    if (member.worker >= job_of(member).workers) throw std::runtime_error("job has no worker '" + text + "'");
    return member;
  }

  const JobEntry& job_of(Member member) const {
    const auto found = jobs_.find(member.job);
    if (found == jobs_.end()) throw std::runtime_error("job " + std::to_string(member.job) + " was not declared");
    return found->second;
  }

  wire::Endpoint endpoint_of(Member member) const {
    return member.worker == kParentMember ? kParent : job_of(member).endpoints[member.worker];
  }

  std::string file_;
  // The current scenario's newest job of each number, and a number for each JOB.WORKER.
  std::map<std::uint16_t, JobEntry> jobs_;
  std::map<std::pair<std::uint16_t, std::size_t>, std::uint32_t> members_;
};

}  // namespace

std::set<std::uint16_t> Scenario::job_numbers() const {
  std::set<std::uint16_t> numbers;
  for (const Event& event : events) {
    if (const auto* job = std::get_if<JobEntry>(&event)) numbers.insert(job->job);
  }
  return numbers;
}

std::vector<Step> Scenario::steps() const {
  std::vector<Step> packets;
  for (const Event& event : events) {
    if (const auto* step = std::get_if<Step>(&event)) packets.push_back(*step);
  }
  return packets;
}

std::vector<Scenario> load_all(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".txt") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Scenario> all;
  for (const std::filesystem::path& path : paths) {
    std::ifstream stream(path);
    if (!stream) throw std::runtime_error(path.string() + " cannot be read");
    Reader reader(path.filename().string());
    std::size_t line_number = 0;
    for (std::string line; std::getline(stream, line);) reader.take(++line_number, line);
    all.insert(all.end(), reader.scenarios.begin(), reader.scenarios.end());
  }
  std::set<std::string> names;
  for (const Scenario& scenario : all) {
    if (!names.insert(scenario.name).second) throw std::runtime_error("there are two scenarios " + scenario.name);
  }
  return all;
}

}  // namespace wiresum::dataplane::vectors
