// The list of all traffic counters. Sums over threads, the module that Python sees, and the messages to the sidecar are
// made from it; Python's TrafficStats has the same names.
#pragma once

#include <array>
#include <cstdint>

#include "worker/worker.hpp"

namespace wiresum::engine {

/// Counters of one shard, or summed over several.
struct TrafficStats : worker::WorkerStats {
  std::uint64_t by_group = 0;  // datagrams that came by the RESULTs' multicast group
  std::uint64_t send_calls = 0;
  std::uint64_t receive_calls = 0;
  std::uint64_t send_failures = 0;
  std::uint64_t transport_error = 0;  // the newest errno that the system reported for a datagram, 0 without one
};

struct Counter {
  /// How the values of several threads are combined.
  enum class Sum : std::uint8_t { kAdd, kFirst, kNewestRound, kLatestTensor };
  const char* name;
  std::uint64_t TrafficStats::* value;
  Sum sum = Sum::kAdd;
};

inline constexpr std::array<Counter, 24> kCounters{{
    {"packets_sent", &TrafficStats::packets_sent},
    {"bytes_sent", &TrafficStats::bytes_sent},
    {"bytes_received", &TrafficStats::bytes_received},
    {"results", &TrafficStats::results},
    {"results_marked", &TrafficStats::results_marked},
    {"by_group", &TrafficStats::by_group},
    {"retransmissions", &TrafficStats::retransmissions},
    {"questions", &TrafficStats::questions},
    {"duplicates", &TrafficStats::duplicates},
    {"rejected", &TrafficStats::rejected},
    {"rtt_ns", &TrafficStats::rtt_smoothed_ns, Counter::Sum::kFirst},
    {"rtt_least_ns", &TrafficStats::rtt_least_ns, Counter::Sum::kFirst},
    {"rto_ns", &TrafficStats::rto_ns, Counter::Sum::kFirst},
    {"window", &TrafficStats::window, Counter::Sum::kFirst},
    {"round_newest", &TrafficStats::round_newest, Counter::Sum::kNewestRound},
    {"tensor_newest", &TrafficStats::tensor_newest, Counter::Sum::kLatestTensor},
    {"chunks_exact", &TrafficStats::chunks_exact},
    {"chunks_wide", &TrafficStats::chunks_wide},
    {"sums_wrong", &TrafficStats::sums_wrong},
    {"slot_wrong", &TrafficStats::slot_wrong, Counter::Sum::kFirst},
    {"send_calls", &TrafficStats::send_calls},
    {"receive_calls", &TrafficStats::receive_calls},
    {"send_failures", &TrafficStats::send_failures},
    {"transport_error", &TrafficStats::transport_error, Counter::Sum::kFirst},
}};
static_assert(sizeof(TrafficStats) == kCounters.size() * sizeof(std::uint64_t), "the list has all counters");

void add(TrafficStats& sum, const TrafficStats& more) noexcept;

}  // namespace wiresum::engine
