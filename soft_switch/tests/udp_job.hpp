// A job whose workers are plain sockets.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "patience.hpp"
#include "server.hpp"
#include "udp_worker.hpp"

namespace wiresum::soft_switch {

inline const int kPatienceMs = static_cast<int>(std::chrono::milliseconds(kPatience).count());
inline constexpr std::uint16_t kLanes = 16;

class Job {
 public:
  Job(std::uint16_t number, std::size_t workers, std::uint8_t threads, std::uint32_t slot_base, std::uint32_t slots)
      : threads_(threads), workers_(workers) {
    entry.job = number;
    entry.key = 0xABCD0000u + number;
    entry.workers = static_cast<std::uint8_t>(workers);
    entry.threads = threads;
    entry.lanes = kLanes;
    entry.slot_base = slot_base;
    entry.slots = slots;
    for (std::size_t i = 0; i < workers; ++i) {
      members.emplace_back(threads);
      entry.endpoints[i] = members[i].endpoint();
    }
  }

  [[nodiscard]] wire::Header header(wire::Kind kind, std::size_t worker, std::uint32_t round,
                                    std::uint32_t slot = 0) const {
    return {.kind = kind,
            .job = entry.job,
            .key = entry.key,
            .worker = static_cast<std::uint8_t>(worker),
            .cell = wire::cell_of(slot, round),
            .round = round,
            .tensor = round,
            .chunk = slot};
  }

  [[nodiscard]] std::size_t thread_of(std::uint32_t slot) const { return slot / (entry.slots / threads_); }

  void send(const SwitchServer& server, const wire::Header& header, const dataplane::Words& words = {}) const {
    const std::size_t thread = thread_of(header.cell / 2u);
    wire::Endpoint to = server.local();
    to.port = static_cast<std::uint16_t>(to.port + entry.port_offset + thread);
    members[header.worker].send(to, dataplane::datagram_of(header, words), thread);
  }

  /// One round in every slot: all workers contribute (worker + 1) in each lane and must get the sum.
  void expect_round(const SwitchServer& server, std::uint32_t round) const {
    const std::uint32_t sum = static_cast<std::uint32_t>(workers_ * (workers_ + 1) / 2);
    for (std::size_t worker = 0; worker < workers_; ++worker) {
      for (std::uint32_t slot = 0; slot < entry.slots; ++slot) {
        send(server, header(wire::Kind::kData, worker, round, slot),
             dataplane::Words(kLanes, static_cast<std::uint32_t>(worker + 1)));
      }
    }
    for (std::size_t worker = 0; worker < workers_; ++worker) {
      for (std::uint32_t slot = 0; slot < entry.slots; ++slot) {
        const std::size_t thread = thread_of(slot);
        const std::optional<Received> result = members[worker].receive(kPatienceMs, thread);
        ASSERT_TRUE(result.has_value()) << "worker " << worker << " round " << round << " slot " << slot;
        ASSERT_EQ(result->header.kind, wire::Kind::kResult);
        ASSERT_EQ(result->header.round, round);
        ASSERT_EQ(result->words, dataplane::Words(kLanes, sum));
        ASSERT_EQ(result->source.port, server.local().port + entry.port_offset + thread);
      }
    }
  }

  dataplane::JobEntry entry;
  std::vector<UdpWorker> members;

 private:
  std::uint8_t threads_;
  std::size_t workers_;
};

}  // namespace wiresum::soft_switch
