// The switch with its threads and sockets, over loopback. No test asserts a time: the length of a wait only limits how
// long a failing test takes.
#include "server.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "udp_job.hpp"
#include "udp_worker.hpp"

namespace wiresum::soft_switch {
namespace {

using dataplane::JobEntry;
using dataplane::Reason;
using dataplane::Words;
using wire::Header;
using wire::Kind;

ServerConfig small_config(unsigned threads = 2) {
  ServerConfig config;
  config.local = {UdpWorker::kLoopback, 0};
  config.threads = threads;
  config.sizes = {.slots = 1024, .lanes_max = 64, .jobs_max = 16};
  return config;
}

std::uint64_t packets(const dataplane::JobCounters& counters, Reason reason) {
  return counters.packets[static_cast<std::size_t>(reason)];
}

TEST(SwitchServer, SumsOnEveryPortAndAnswersFromTheSamePort) {  // R2.2, R2.3
  for (const unsigned threads : {1u, 2u, 3u, 16u}) {
    SwitchServer server(small_config(threads));
    const Job job(1, 3, 16, 0, 64);
    server.admit(job.entry);
    for (std::uint32_t round = 1; round <= 5; ++round) job.expect_round(server, round);
    EXPECT_EQ(server.counters(1).results, 5u * 64u);
    EXPECT_EQ(packets(server.counters(1), Reason::kAdmitted), 3u * 5u * 64u);
    EXPECT_EQ(server.counters(1).tensor_last[2], 5u);
    EXPECT_EQ(server.stats().datagrams_sent, 3u * 5u * 64u);
    EXPECT_EQ(server.stats().threads, threads);
  }
}

TEST(SwitchServer, SpreadsJobsOfOneThreadOverItsThreadsByTheirPorts) {
  constexpr unsigned kThreads = 4;
  constexpr std::uint32_t kSlots = 8;
  constexpr std::uint32_t kRounds = 3;
  SwitchServer server(small_config(kThreads));
  std::vector<Job> jobs;
  for (std::uint16_t number = 0; number < kThreads; ++number) {
    jobs.emplace_back(number, 2, std::uint8_t{1}, number * kSlots, kSlots);
    jobs.back().entry.port_offset = static_cast<std::uint8_t>(number);
    server.admit(jobs.back().entry);
  }
  for (std::uint32_t round = 1; round <= kRounds; ++round) {
    for (const Job& job : jobs) job.expect_round(server, round);
  }
  EXPECT_EQ(server.stats().received_by_thread, std::vector<std::uint64_t>(kThreads, 2 * kSlots * kRounds));
}

TEST(SwitchServer, WorksWithoutOffloadAndWithBusyPolling) {
  ServerConfig config = small_config();
  config.transport.offload = false;
  config.spin_us = 1000;
  SwitchServer server(config);
  const Job job(1, 2, 2, 0, 64);
  server.admit(job.entry);
  for (std::uint32_t round = 1; round <= 5; ++round) job.expect_round(server, round);
}

TEST(SwitchServer, DuplicatesOfACompleteCellAreAnsweredToTheirSenderAlone) {  // R3.17
  SwitchServer server(small_config());
  const Job job(1, 2, 1, 0, 8);
  server.admit(job.entry);
  job.expect_round(server, 1);
  constexpr int kDuplicates = 50;
  for (int i = 0; i < kDuplicates; ++i) job.send(server, job.header(Kind::kData, 1, 1), Words(kLanes, 2));
  for (int i = 0; i < kDuplicates; ++i) {
    const std::optional<Received> result = job.members[1].receive(kPatienceMs);
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->words, Words(kLanes, 3));
    EXPECT_EQ(result->header.worker, 1);
  }
  // Worker 0 next receives its own round, and no answer to worker 1's duplicates.
  job.expect_round(server, 2);
  EXPECT_EQ(packets(server.counters(1), Reason::kResent), static_cast<std::uint64_t>(kDuplicates));
}

TEST(SwitchServer, ACompletedCellIsSentOnceToAGroupAndADuplicateIsAnsweredAlone) {  // R3.28, R3.29
  constexpr int kSilenceMs = 100;
  SwitchServer server(small_config());
  Job job(1, 3, 2, 0, 8);
  // 239.192.1.6, and a port that no other switch of this machine has: its group would be heard here too.
  job.entry.results_group = {.address = 0xEFC00106, .port = server.local().port};
  std::vector<transport::UdpSocket> hearers;
  for (std::uint16_t thread = 0; thread < 2; ++thread) {
    const auto port = static_cast<std::uint16_t>(job.entry.results_group.port + thread);
    hearers.push_back(transport::UdpSocket::in_group({job.entry.results_group.address, port}, UdpWorker::kLoopback));
  }
  server.admit(job.entry);
  const std::uint32_t slot = 5;  // thread 1's
  for (std::size_t worker = 0; worker < 3; ++worker) {
    job.send(server, job.header(Kind::kData, worker, 1, slot), Words(kLanes, 2));
  }
  const std::optional<Received> result = UdpWorker::receive_from(hearers[1], kPatienceMs);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->words, Words(kLanes, 6));
  EXPECT_EQ(result->source.port, server.local().port + 1);
  job.send(server, job.header(Kind::kData, 2, 1, slot), Words(kLanes, 2));
  const std::optional<Received> again = job.members[2].receive(kPatienceMs, 1);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->words, Words(kLanes, 6));
  EXPECT_FALSE(job.members[0].receive(kSilenceMs, 1).has_value());
  EXPECT_FALSE(UdpWorker::receive_from(hearers[0], 0).has_value());
  EXPECT_FALSE(UdpWorker::receive_from(hearers[1], 0).has_value());
  EXPECT_EQ(server.stats().datagrams_sent, 2U);
}

// Each thread has seen one of two collectives.
TEST(SwitchServer, TheLatestCollectiveIsTheLatestOfAllThreads) {  // R2.21
  constexpr std::uint32_t kEarlier = 0x7FFF0007;
  constexpr std::uint32_t kLater = 0x00010008;  // the smaller number if the signature counted
  for (const bool first_sees_later : {false, true}) {
    SwitchServer server(small_config(2));
    const Job job(1, 2, 2, 0, 2);
    server.admit(job.entry);
    for (std::size_t worker = 0; worker < 2; ++worker) {
      for (const std::uint32_t slot : {0u, 1u}) {
        Header packet = job.header(Kind::kData, worker, 1, slot);
        packet.tensor = (slot == 0) == first_sees_later ? kLater : kEarlier;
        job.send(server, packet, Words(kLanes, 1));
      }
    }
    for (const std::size_t thread : {0U, 1U}) {
      ASSERT_TRUE(job.members[0].receive(kPatienceMs, thread).has_value());
    }
    EXPECT_EQ(server.counters(1).tensor_last[0], kLater) << first_sees_later;
    EXPECT_EQ(server.counters(1).tensor_last[1], kLater) << first_sees_later;
  }
}

// The question about the newer round comes in the same burst, and is answered in the frame that is queued for sending.
TEST(SwitchServer, AQueuedResultIsSentBeforeItsFrameIsReused) {
  SwitchServer server(small_config(1));
  const Job job(1, 1, 1, 0, 1);
  server.admit(job.entry);
  constexpr std::uint32_t kRounds = 400;
  for (std::uint32_t round = 1; round <= kRounds; ++round) {
    job.send(server, job.header(Kind::kData, 0, round), Words(kLanes, round));
    job.send(server, job.header(Kind::kQuestion, 0, round + 2));  // its answer is written to the frame of the RESULT
  }
  for (std::uint32_t round = 1; round <= kRounds; ++round) {
    const std::optional<Received> result = job.members[0].receive(kPatienceMs);
    ASSERT_TRUE(result.has_value()) << "round " << round;
    ASSERT_EQ(result->header.kind, Kind::kResult);
    ASSERT_EQ(result->header.round, round);
    ASSERT_EQ(result->words, Words(kLanes, round));
    const std::optional<Received> missing = job.members[0].receive(kPatienceMs);
    ASSERT_TRUE(missing.has_value()) << "round " << round;
    ASSERT_EQ(missing->header.kind, Kind::kMissing);
    ASSERT_EQ(missing->header.round, round + 2);
    ASSERT_TRUE(missing->words.empty());
  }
}

TEST(SwitchServer, MetaAndEmptyRoundsComplete) {
  SwitchServer server(small_config());
  const Job job(1, 2, 1, 0, 8);
  server.admit(job.entry);
  Header meta = job.header(Kind::kMeta, 0, 1);
  meta.exponent = 120;
  job.send(server, meta);
  meta.worker = 1;
  meta.exponent = 129;
  job.send(server, meta);
  for (const UdpWorker& member : job.members) {
    const std::optional<Received> result = member.receive(kPatienceMs);
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->header.exponent, 129);
    EXPECT_TRUE(result->words.empty());
  }
  job.send(server, job.header(Kind::kEmpty, 1, 2));
  job.send(server, job.header(Kind::kEmpty, 0, 2));
  for (const UdpWorker& member : job.members) {
    const std::optional<Received> result = member.receive(kPatienceMs);
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->words, Words(kLanes, 0));
  }
}

TEST(SwitchServer, AnEvictedJobGetsNoMoreAnswers) {
  SwitchServer server(small_config());
  const Job job(1, 1, 4, 0, 16);
  server.admit(job.entry);
  job.expect_round(server, 1);
  EXPECT_TRUE(server.evict(1));
  EXPECT_FALSE(server.evict(1));
  for (std::uint32_t slot = 0; slot < 16; ++slot) {
    job.send(server, job.header(Kind::kData, 0, 2, slot), Words(kLanes, 1));
  }
  EXPECT_FALSE(job.members[0].receive(200).has_value());
  EXPECT_EQ(packets(server.stats().stray, Reason::kUnknown), 16u);
  EXPECT_EQ(server.counters(1).results, 16u) << "the counters of the last job of that number are kept";
  server.admit(job.entry);
  job.expect_round(server, 1);
}

TEST(SwitchServer, RefusesAnEntryAndSaysWhy) {
  SwitchServer server(small_config());
  const Job job(1, 2, 1, 0, 8);
  server.admit(job.entry);
  const Job overlapping(2, 2, 1, 4, 8);
  try {
    server.admit(overlapping.entry);
    FAIL() << "an overlapping lease was admitted";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("overlaps"), std::string::npos) << error.what();
  }
  job.expect_round(server, 1);
}

TEST(SwitchServer, RefusesAJobWithMoreThreadsThanPorts) {
  ServerConfig config = small_config();
  config.ports = 2;
  SwitchServer server(config);
  const Job job(1, 1, 4, 0, 8);
  EXPECT_THROW(server.admit(job.entry), std::invalid_argument);
}

TEST(SwitchServer, RefusesAJobAtPortsBeyondItsLast) {  // R2.3
  ServerConfig config = small_config();
  config.ports = 4;
  SwitchServer server(config);
  Job job(1, 1, 2, 0, 8);
  job.entry.port_offset = 3;
  EXPECT_THROW(server.admit(job.entry), std::invalid_argument);
  job.entry.port_offset = 2;
  server.admit(job.entry);
  job.expect_round(server, 1);
}

TEST(SwitchServer, APortInUseIsAnErrorThatNamesTheAddress) {
  SwitchServer server(small_config());
  ServerConfig config = small_config();
  config.local = server.local();
  try {
    SwitchServer second(config);
    FAIL() << "two switches on one port";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::address_in_use);
    EXPECT_NE(std::string(error.what()).find("127.0.0.1:" + std::to_string(config.local.port)), std::string::npos);
  }
}

TEST(SwitchServer, InvalidSizesThrow) {
  ServerConfig config = small_config();
  config.ports = 0;
  EXPECT_THROW(SwitchServer server(config), std::invalid_argument);
  config.ports = 17;
  EXPECT_THROW(SwitchServer server(config), std::invalid_argument);
  config = small_config();
  config.sizes.lanes_max = 0;
  EXPECT_THROW(SwitchServer server(config), std::invalid_argument);
}

TEST(SwitchServer, AStoppedServerKeepsItsCountersAndRefusesChanges) {
  SwitchServer server(small_config());
  const Job job(1, 1, 2, 0, 8);
  server.admit(job.entry);
  job.expect_round(server, 1);
  server.stop();
  server.stop();
  EXPECT_EQ(server.counters(1).results, 8u);
  EXPECT_EQ(server.stats().datagrams_received, 8u);
  EXPECT_GT(server.stats().cpu_seconds, 0.0);
  EXPECT_THROW(server.admit(Job(2, 1, 1, 8, 8).entry), std::runtime_error);
  EXPECT_THROW(server.evict(1), std::runtime_error);
}

TEST(SwitchServer, RandomDatagramsDoNotDisturbAJob) {
  SwitchServer server(small_config());
  const Job job(1, 2, 2, 0, 32);
  server.admit(job.entry);
  // The stranger sends a bounded number in each round, so that no socket's buffer overflows.
  constexpr std::uint32_t kRounds = 50;
  constexpr std::uint32_t kHostileEachRound = 400;
  std::atomic<std::uint32_t> rounds_begun{0};
  std::thread hostile([&] {
    const UdpWorker stranger;
    std::mt19937 random(11);
    for (std::uint32_t sent = 0; sent < kRounds * kHostileEachRound; ++sent) {
      while (sent >= rounds_begun.load() * kHostileEachRound) std::this_thread::yield();
      std::vector<std::byte> datagram(random() % 200);
      for (std::byte& byte : datagram) byte = static_cast<std::byte>(random());
      // Half of them are like packets of the job, but have another key.
      if (random() % 2 == 0 && datagram.size() >= wire::kHeaderBytes) {
        const Header header = job.header(static_cast<Kind>(random() % 4), random() % 2, random() % 64, random() % 32);
        wire::encode(header, std::span<std::byte, wire::kHeaderBytes>(datagram.data(), wire::kHeaderBytes));
        datagram[4] = static_cast<std::byte>(random() & 0x7F);
      }
      wire::Endpoint to = server.local();
      to.port = static_cast<std::uint16_t>(to.port + random() % 16);
      stranger.send(to, datagram);
    }
  });
  for (std::uint32_t round = 1; round <= kRounds; ++round) {
    rounds_begun.store(round);
    job.expect_round(server, round);
    if (HasFatalFailure()) break;
  }
  rounds_begun.store(kRounds);
  hostile.join();
  EXPECT_EQ(server.counters(1).results, kRounds * 32u);
  EXPECT_GT(server.stats().stray.packets[static_cast<std::size_t>(Reason::kMalformed)], 0u);
}

TEST(SwitchServer, JobsAreAddedAndRemovedWhileAnotherRuns) {
  SwitchServer server(small_config(2));
  const Job steady(1, 2, 4, 0, 32);
  server.admit(steady.entry);
  std::atomic<bool> enough{false};
  std::thread controller([&] {
    Job guest(2, 1, 2, 512, 16);
    for (; !enough.load(); ++guest.entry.key) {  // a new key makes a new job
      server.admit(guest.entry);
      guest.expect_round(server, 1);
      ASSERT_TRUE(server.evict(2));
    }
  });
  std::thread observer([&] {
    while (!enough.load()) {
      static_cast<void>(server.stats());
      static_cast<void>(server.counters(1));
    }
  });
  for (std::uint32_t round = 1; round <= 100; ++round) steady.expect_round(server, round);
  enough.store(true);
  controller.join();
  observer.join();
  EXPECT_EQ(server.counters(1).results, 100u * 32u);
}

dataplane::Admission admission_of(const Job& job, std::uint32_t contributors) {
  dataplane::Admission admission;
  for (std::size_t thread = 0; thread < job.entry.threads; ++thread) admission.contributors[thread] = contributors;
  for (std::size_t worker = 0; worker < job.entry.workers; ++worker) {
    admission.sources[worker] = job.entry.endpoints[worker];
  }
  admission.receivers = contributors;
  return admission;
}

// While entries arrive one by one, a job may have fewer threads at first than in the end.
TEST(SwitchServer, CellsAreMovedWithTheirSlotsToAnotherThread) {
  SwitchServer server(small_config(2));
  const Job one_thread(1, 2, 1, 32, 8);
  server.configure(one_thread.entry, admission_of(one_thread, 0b11));
  one_thread.expect_round(server, 1);
  one_thread.expect_round(server, 2);
  EXPECT_TRUE(server.evict(1));
  const Job four_threads(1, 2, 4, 32, 8);
  server.configure(four_threads.entry, admission_of(four_threads, 0b11));
  for (std::uint32_t slot = 0; slot < 8; ++slot) {  // earlier sums are still there, and are not added to
    for (const std::uint32_t round : {1u, 2u}) {
      four_threads.send(server, four_threads.header(Kind::kData, 0, round, slot), Words(kLanes, 100));
      const std::optional<Received> result = four_threads.members[0].receive(kPatienceMs, slot / 2);
      ASSERT_TRUE(result.has_value()) << "slot " << slot << " round " << round;
      EXPECT_EQ(result->words, Words(kLanes, 3));
    }
  }
  four_threads.expect_round(server, 3);
  EXPECT_EQ(server.counters(1).results, 8u);
}

TEST(SwitchServer, CellsOfAnAdmittedJobAreTakenFromTheThreadsThatUsedThem) {
  SwitchServer server(small_config(2));
  const Job admitted(1, 2, 2, 0, 4);
  server.admit(admitted.entry);
  admitted.expect_round(server, 1);
  EXPECT_TRUE(server.evict(1));
  const Job configured(1, 2, 1, 0, 4);
  server.configure(configured.entry, admission_of(configured, 0b11));
  for (std::uint32_t slot = 0; slot < 4; ++slot) {
    configured.send(server, configured.header(Kind::kData, 0, 1, slot), Words(kLanes, 100));
    const std::optional<Received> result = configured.members[0].receive(kPatienceMs);
    ASSERT_TRUE(result.has_value()) << "slot " << slot;
    EXPECT_EQ(result->words, Words(kLanes, 3));
  }
}

TEST(SwitchServer, ARefusedJobLeavesTheOthersAlone) {
  SwitchServer server(small_config());
  const Job job(1, 2, 2, 0, 64);
  server.configure(job.entry, admission_of(job, 0b11));
  const Job overlapping(2, 2, 2, 32, 64);
  EXPECT_THROW(server.configure(overlapping.entry, admission_of(overlapping, 0b11)), std::invalid_argument);
  job.expect_round(server, 1);
  EXPECT_FALSE(server.evict(2));
}

TEST(SwitchServer, AJobIsLeftAloneByOneThatIsRefusedItsNumber) {
  SwitchServer server(small_config());
  const Job job(1, 2, 2, 0, 64);
  server.admit(job.entry);
  EXPECT_THROW(server.admit(Job(1, 2, 2, 64, 64).entry), std::invalid_argument);
  job.expect_round(server, 1);
  EXPECT_TRUE(server.evict(1));
}

TEST(SwitchServer, ResetEndsAllJobs) {
  SwitchServer server(small_config());
  const Job job(1, 2, 2, 0, 8);
  server.configure(job.entry, admission_of(job, 0b11));
  job.expect_round(server, 5);
  server.reset();
  EXPECT_FALSE(server.evict(1));
  server.configure(job.entry, admission_of(job, 0b11));
  job.expect_round(server, 1);
}

}  // namespace
}  // namespace wiresum::soft_switch
