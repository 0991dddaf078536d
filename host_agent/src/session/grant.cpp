#include "session/grant.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "transport/open.hpp"
#include "wire/constants.hpp"

namespace wiresum::session {
namespace {

template <typename Number>
void read(const Line& line, const char* name, Number& value, std::uint64_t least, std::uint64_t most) {
  value = static_cast<Number>(line.number(name, least, most));
}

}  // namespace

engine::AggregatorConfig aggregator_of(const Line& line) {
  engine::AggregatorConfig config;
  read(line, "job", config.worker.job, 0, UINT16_MAX);
  read(line, "key", config.worker.key, 0, UINT32_MAX);
  read(line, "worker", config.worker.worker, 0, wire::kSwitchWorkersMax - 1);
  read(line, "host_number", config.host, 0, wire::kSwitchWorkersMax - 1);
  read(line, "workers", config.worker.workers, 1, wire::kJobWorkersMax);
  config.worker.check_word = line.number("check_word", 0, 1) == 1;
  read(line, "lanes", config.worker.lanes, config.worker.check_word ? 2 : 1, wire::kLanesMax);
  read(line, "slots", config.worker.slots, 1, wire::kLeaseSlotsMax);
  read(line, "threads", config.threads, 1, wire::kThreadsMax);
  config.own_address = transport::parse_ipv4(line.text("own_address"));
  config.switch_endpoint.address = transport::parse_ipv4(line.text("switch_address"));
  // If all ranks are on one host, no packet leaves the host, and there is no queue that a window would protect.
  const bool has_switch = place_of(line).ranks.size() != config.worker.workers;
  if (!has_switch) config.worker.window_min = config.worker.window_initial = config.worker.slots;
  read(line, "switch_port", config.switch_endpoint.port, has_switch ? 1 : 0, UINT16_MAX);
  config.results_group.address = transport::parse_ipv4(line.text("group_address"));
  read(line, "group_port", config.results_group.port, 0, UINT16_MAX);
  return config;
}

leaf::Place place_of(const Line& line) {
  leaf::Place place;
  const std::string& ranks = line.text("host_ranks");
  for (std::size_t at = 0; at < ranks.size();) {
    const std::size_t end = std::min(ranks.find(',', at), ranks.size());
    const Line one{.word = line.word, .fields = {{"host_ranks", ranks.substr(at, end - at)}}};
    place.ranks.push_back(static_cast<std::uint16_t>(one.number("host_ranks", 0, wire::kJobWorkersMax - 1)));
    at = end + 1;
  }
  if (!place.is_shared()) return {};
  if (place.ranks.size() > wire::kSwitchWorkersMax) throw LineError("too many ranks share a stream");
  read(line, "worker", place.index, 0, place.ranks.size() - 1);
  const std::string& digits = line.text("host_secret");
  if (digits.size() != 2 * leaf::kSecretBytes) throw LineError("host_secret has another length");
  for (std::size_t at = 0; at < digits.size(); at += 2) {
    std::uint8_t byte = 0;
    const auto [end, error] = std::from_chars(digits.data() + at, digits.data() + at + 2, byte, 16);
    if (error != std::errc{} || end != digits.data() + at + 2) throw LineError("host_secret is not hexadecimal");
    place.secret += static_cast<char>(byte);
  }
  return place;
}

void Grant::add_aggregator(const Line& line) {
  if (engine.aggregators.size() >= wire::kAggregatorsMax) throw LineError("there are too many aggregators");
  engine.aggregators.push_back(aggregator_of(line));
  places.push_back(place_of(line));
  switches.push_back(line.text("switch"));
}

void Grant::complete(const Line& line) {
  if (engine.aggregators.empty()) throw LineError("'joined' came before an aggregator");
  read(line, "rank", engine.rank, 0, wire::kJobWorkersMax - 1);
  read(line, "spin_ns", engine.spin_ns, 0, 1'000'000'000);
  engine.transport = transport::spec_of(line.text("transport"));
  read(line, "exact_elements_max", engine.exact_elements_max, 0, UINT64_MAX);
  for (engine::AggregatorConfig& aggregator : engine.aggregators) {
    aggregator.worker.exact_when_wide = line.number("exact_when_wide", 0, 1) == 1;
  }
  read(line, "bits", bits, 8, 32);
  sparse = line.number("sparse", 0, 1) == 1;
  greeting_timeout = std::chrono::milliseconds(line.number("greeting_ms", 1, 3'600'000));
}

unsigned Grant::threads() const {
  unsigned threads = 0;
  for (const engine::AggregatorConfig& aggregator : engine.aggregators) threads += aggregator.threads;
  return threads;
}

}  // namespace wiresum::session
