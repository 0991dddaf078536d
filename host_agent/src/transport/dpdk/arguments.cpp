#include "transport/dpdk/arguments.hpp"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <utility>

namespace wiresum::transport::dpdk {
namespace {

constexpr std::size_t kMegabyte = 1u << 20;
/// An upper bound on the --no-huge memory that EAL and drivers take for themselves.
constexpr std::size_t kOwnMegabytes = 64;

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool blank = c == ' ' || c == '\t' || c == '\n';
    if (quote == 0 && blank) {
      if (in_word) words.push_back(std::exchange(word, {}));
      in_word = false;
      continue;
    }
    in_word = true;
    if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    } else if (c == '\\' && quote != '\'' && i + 1 < text.size()) {
      word += text[++i];
    } else {
      word += c;
    }
  }
  if (quote != 0) throw std::invalid_argument("EAL arguments: a quotation does not end: " + std::string(text));
  if (in_word) words.push_back(word);
  return words;
}

bool is(std::string_view word, std::string_view option) {
  if (!word.starts_with(option)) return false;
  const bool is_short = option.size() == 2;
  return word.size() == option.size() || is_short || word[option.size()] == '=';
}

bool is_virtual(std::string_view device) {
  return device.starts_with("vdev:") || device.starts_with("net_") || device.starts_with("eth_");
}

}  // namespace

bool Arguments::has(const std::vector<std::string_view>& options) const {
  return std::any_of(eal.begin(), eal.end(), [&](const std::string& word) {
    return std::any_of(options.begin(), options.end(), [&](std::string_view option) { return is(word, option); });
  });
}

Arguments parse_arguments(std::string_view text) {
  Arguments parsed;
  const std::vector<std::string> words = split(text);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    std::size_t option_length = 0;
    for (const std::string_view option : {"--vdev", "--allow", "-a"}) {
      if (is(word, option)) option_length = option.size();
    }
    if (option_length == 0) {
      parsed.eal.push_back(word);
      continue;
    }
    std::string device = word.substr(option_length);
    if (device.starts_with('=')) device.erase(0, 1);
    if (device.empty() && i + 1 < words.size()) device = words[++i];
    if (device.empty()) throw std::invalid_argument("EAL arguments: " + word + " names no device");
    parsed.devices.push_back(device);
  }
  parsed.huge = !parsed.has({"--no-huge"});
  if (!parsed.huge && parsed.has({"--in-memory"})) {
    throw std::invalid_argument(
        "EAL arguments: --no-huge and --in-memory exclude each other in DPDK (--no-huge implies --legacy-mem); "
        "--no-huge alone leaves no files behind here");
  }
  return parsed;
}

std::vector<std::string> with_defaults(const Arguments& given, std::size_t memory_bytes, int core, int process) {
  std::vector<std::string> words = given.eal;
  // EAL shall make no files, sockets or locks in a runtime directory: a killed process leaves nothing then, and needs
  // no write access. --in-memory requires hugepages; without them, its relevant parts are set one by one.
  bool shares = false;
  if (given.huge) {
    shares = given.has({"--no-shconf", "--legacy-mem", "--huge-dir"});
    if (!shares && !given.has({"--in-memory"})) words.emplace_back("--in-memory");
  } else if (!given.has({"--no-shconf"})) {
    words.emplace_back("--no-shconf");
  }
  if (!given.huge && !given.has({"-m"})) {
    words.emplace_back("-m");
    words.push_back(std::to_string(memory_bytes / kMegabyte + 1 + kOwnMegabytes));
  }
  if (!given.has({"--no-telemetry", "--telemetry"})) words.emplace_back("--no-telemetry");
  if (!given.has({"--file-prefix"})) {
    // EAL makes a folder of this name, perhaps an empty one: all our processes share it, and eal.cpp removes it.
    words.push_back(shares ? "--file-prefix=wiresum-" + std::to_string(process) : "--file-prefix=wiresum");
  }
  if (!given.has({"-l", "-c", "--lcores"})) words.push_back("--lcores=0@" + std::to_string(core));
  if (!given.has({"--log-level"})) words.emplace_back("--log-level=warning");
  // EAL must take only the named devices, not every network card that DPDK could drive. Virtual ones are made later,
  // for each transport.
  bool physical = given.devices.empty();
  for (const std::string& device : given.devices) {
    if (is_virtual(device)) continue;
    physical = true;
    words.emplace_back("-a");
    words.push_back(device);
  }
  if (!physical && !given.has({"--no-pci"})) words.emplace_back("--no-pci");
  return words;
}

std::string device_name(std::string_view device) {
  std::string_view name = device.substr(0, device.find(','));
  for (const std::string_view bus : {"pci:", "vdev:"}) {
    if (name.starts_with(bus)) name.remove_prefix(bus.size());
  }
  return std::string(name);
}

std::size_t device_number(std::string_view device, std::string_view key, std::size_t otherwise) {
  for (std::size_t comma = device.find(','); comma != std::string_view::npos; comma = device.find(',', comma + 1)) {
    std::string_view pair = device.substr(comma + 1);
    pair = pair.substr(0, pair.find(','));
    if (!pair.starts_with(key) || pair.size() <= key.size() || pair[key.size()] != '=') continue;
    pair.remove_prefix(key.size() + 1);
    std::size_t value = 0;
    if (std::from_chars(pair.data(), pair.data() + pair.size(), value).ec == std::errc{}) return value;
  }
  return otherwise;
}

}  // namespace wiresum::transport::dpdk
