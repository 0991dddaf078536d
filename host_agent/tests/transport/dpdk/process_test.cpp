// Tests that need separate processes, since EAL starts only once in each: two processes over net_memif, killed
// processes, unprivileged ones, and arguments that EAL refuses. The test's own process never starts EAL.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "dpdk_rig.hpp"
#include "patience.hpp"
#include "transport/open.hpp"
#include "transport/plugin.hpp"
#include "transport/udp/socket.hpp"

#ifdef __SANITIZE_ADDRESS__
/// A forked child keeps memory that another thread of the parent would have freed at its end, which is no leak.
extern "C" const char* __lsan_default_suppressions() { return "leak:__cxa_thread_atexit_impl"; }
#endif

namespace wiresum::transport::testing {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Conformance);  // dpdk_test has the rigs

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kServer = 0x0A4D0001;
constexpr std::uint32_t kClient = 0x0A4D0002;
constexpr std::size_t kBytes = 1464;
constexpr uid_t kNobody = 65534;

/// A child process that is killed at the end of the test.
class Process {
 public:
  explicit Process(const std::function<int()>& what) : id_(fork()) {
    if (id_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int status = 99;
    try {
      status = what();
    } catch (const std::exception& error) {
      std::cerr << "in a child: " << error.what() << '\n';
    }
    std::cerr.flush();
    _exit(status);
  }
  ~Process() {
    if (id_ > 0) static_cast<void>(kill_it());
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// The child's exit status; negative: the signal that killed it.
  int wait() {
    int status = 0;
    waitpid(std::exchange(id_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int kill_it() {
    kill(id_, SIGKILL);
    return wait();
  }

 private:
  pid_t id_;
};

std::unique_ptr<Transport> open(const std::string& device, std::uint32_t address, wire::Endpoint peer = {}) {
  DeviceConfig config;
  config.device = device;
  config.address = address;
  config.ports = {kFirstPort};
  if (peer.port != 0) config.peers = {peer};
  return std::move(make_device_transports(PluginKind::kDpdk, config, WIRESUM_DPDK_PLUGIN).front());
}

/// The name of an abstract socket that only this test uses, without a file.
std::string memif(const char* role) {
  return std::string("--no-huge --log-level=1 --vdev=net_memif0,socket=wiresum-test-") + std::to_string(getppid()) +
         ",role=" + role;
}

/// Sends every packet back, for ever.
int echo_by(Transport& transport) {
  std::array<RxDatagram, 64> got;
  for (;;) {
    const std::size_t count = transport.receive(got);
    if (count == 0) transport.wait(-1);
    for (const RxDatagram& one : std::span(got).first(count)) {
      const std::span<wire::Packet> buffers = transport.buffers(1);
      if (buffers.empty()) break;
      std::memcpy(buffers[0].data, one.bytes.data(), one.bytes.size());
      buffers[0].bytes = static_cast<std::uint32_t>(one.bytes.size());
      transport.send(1, {&one.source, 1}, one.port, false);
    }
  }
}

/// Sends everything back over a new transport, until the process is killed.
int echo(const std::string& device) { return echo_by(*open(device, kServer)); }

/// As many threads as UDP ports, each serving one port.
int echo_by_threads(const std::string& device, std::vector<UdpSocket> ports) {
  PathConfig place;
  place.address = kServer;
  const auto threads = static_cast<unsigned>(ports.size());
  std::vector<DataPath> paths = open_for_threads({.kind = TransportKind::kDpdk, .device = device, .offload = true},
                                                 place, std::move(ports), threads);
  if (std::string(paths.front().transport->name()) != "dpdk (net_memif, one queue)") return 3;
  std::vector<std::thread> others;
  for (std::size_t i = 1; i != paths.size(); ++i) {
    others.emplace_back([&transport = *paths[i].transport] { echo_by(transport); });
  }
  return echo_by(*paths.front().transport);
}

/// Sends continuously until `wanted` packets have come back later than `from_then_on` from now, and returns 0 if they
/// did. Closes `told` when the first packet arrives.
int ask_by(Transport& transport, wire::Endpoint server, std::size_t wanted, Clock::duration from_then_on = {},
           int told = -1) {
  std::array<RxDatagram, 64> got;
  const auto begin = Clock::now() + from_then_on;
  for (std::size_t answers = 0; answers < wanted;) {
    const auto now = Clock::now();
    if (now > begin + kPatience) return 1;
    const std::span<wire::Packet> buffers = transport.buffers(16);
    for (wire::Packet& packet : buffers) {
      std::memset(packet.data, 0x3C, kBytes);
      packet.bytes = kBytes;
    }
    transport.send(buffers.size(), {&server, 1}, 0, false);
    transport.wait(1'000'000);
    const std::size_t count = transport.receive(got);
    for (const RxDatagram& one : std::span(got).first(count)) {
      if (one.bytes.size() != kBytes || one.bytes[kBytes - 1] != std::byte{0x3C}) return 2;
    }
    if (now > begin) answers += count;
    if (count != 0 && told >= 0) close(std::exchange(told, -1));
  }
  return 0;
}

/// Asks over a new transport.
int ask(const std::string& device, std::size_t wanted, Clock::duration from_then_on = {}, int told = -1,
        std::uint16_t server_port = kFirstPort) {
  const wire::Endpoint server{.address = kServer, .port = server_port};
  const std::unique_ptr<Transport> transport = open(device, kClient, server);
  return ask_by(*transport, server, wanted, from_then_on, told);
}

/// Files and folders that EAL may leave behind when its process is killed.
std::vector<std::string> left_behind() {
  std::vector<std::string> found;
  for (const char* folder : {"/var/run/dpdk", "/tmp/dpdk", "/dev/hugepages"}) {
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
      // EAL makes an empty folder while it starts; another test that starts at this moment may have just made one.
      if (entry.path().filename().string().find("wiresum") == std::string::npos) continue;
      if (!std::filesystem::is_empty(entry.path(), none)) found.push_back(entry.path());
    }
  }
  return found;
}

long free_hugepages() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string word; meminfo >> word;) {
    long pages = 0;
    if (word == "HugePages_Free:" && meminfo >> pages) return pages;
  }
  return 0;
}

void become_nobody() {
  if (getuid() == 0 && (setresgid(kNobody, kNobody, kNobody) != 0 || setresuid(kNobody, kNobody, kNobody) != 0)) {
    throw std::runtime_error("cannot give up root");
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // changing the user clears this setting
}

/// The error of `what` in a new process.
std::string refusal(const std::function<void()>& what) {
  std::array<int, 2> channel{};
  EXPECT_EQ(pipe(channel.data()), 0);
  Process process([&] {
    try {
      what();
      return 0;
    } catch (const std::exception& error) {
      const std::string text = error.what();
      return write(channel[1], text.data(), text.size()) < 0 ? 2 : 1;
    }
  });
  close(channel[1]);
  std::string text;
  std::array<char, 512> part{};
  for (ssize_t count = 0; (count = read(channel[0], part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(count));
  }
  close(channel[0]);
  EXPECT_EQ(process.wait(), text.empty() ? 0 : 1);
  return text;
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(DpdkProcesses, ExchangePacketsOverSharedMemory) {
  const Process server([] { return echo(memif("server")); });
  Process client([] { return ask(memif("client"), 20'000); });
  EXPECT_EQ(client.wait(), 0);
}

TEST(DpdkProcesses, ThreadsShareADeviceOfOneQueueAndAnswerAtTheirUdpPorts) {
  constexpr std::uint16_t kThreads = 3;
  std::vector<UdpSocket> ports = bind_consecutive({.address = 0, .port = 0}, kThreads);
  const std::uint16_t first = ports.front().local().port;
  const Process server([&] { return echo_by_threads(memif("server"), std::move(ports)); });
  for (std::uint16_t i = 0; i != kThreads; ++i) {
    Process client([&] { return ask(memif("client"), 1'000, {}, -1, static_cast<std::uint16_t>(first + i)); });
    EXPECT_EQ(client.wait(), 0) << "thread " << i;
  }
}

TEST(DpdkProcesses, SeveralClientThreadsLoseNoAnswers) {
  constexpr unsigned kThreads = 2;
  std::vector<UdpSocket> ports = bind_consecutive({.address = 0, .port = 0}, kThreads);
  const std::uint16_t first = ports.front().local().port;
  const Process server([&] { return echo_by_threads(memif("server"), std::move(ports)); });
  Process client([&] {
    PathConfig place;
    place.address = kClient;
    std::vector<UdpSocket> sockets = bind_consecutive({.address = 0, .port = 0}, kThreads);
    for (unsigned i = 0; i != kThreads; ++i) {
      place.peers.push_back({.address = kServer, .port = static_cast<std::uint16_t>(first + i)});
    }
    std::vector<DataPath> paths =
        open_for_threads({.kind = TransportKind::kDpdk, .device = memif("client"), .offload = true}, place,
                         std::move(sockets), kThreads);
    std::array<int, kThreads> results{};
    std::atomic<unsigned> at_work{kThreads};
    std::vector<std::thread> threads;
    for (unsigned i = 0; i != kThreads; ++i) {
      threads.emplace_back([&, i] {
        Transport& transport = *paths[i].transport;
        results[i] = ask_by(transport, place.peers[i], 1'000);
        --at_work;
        // The queue belongs to one thread, but the others need it.
        for (std::array<RxDatagram, 64> got; at_work.load() != 0; transport.wait(1'000'000)) {
          static_cast<void>(transport.receive(got));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return *std::max_element(results.begin(), results.end());
  });
  EXPECT_EQ(client.wait(), 0);
}

TEST(DpdkProcesses, ManyThreadsMayUseATransportInTurn) {
  constexpr std::size_t kThreads = 64;
  const Process server([] { return echo(memif("server")); });
  Process client([] {
    const wire::Endpoint address{.address = kServer, .port = kFirstPort};
    const std::unique_ptr<Transport> transport = open(memif("client"), kClient, address);
    std::array<int, kThreads> results{};
    std::atomic<std::size_t> turn{0};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i != kThreads; ++i) {
      threads.emplace_back([&, i] {
        while (turn.load() != i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        results[i] = ask_by(*transport, address, 200);
        ++turn;
        while (turn.load() != kThreads) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // none ends before
      });
    }
    for (std::thread& thread : threads) thread.join();
    return *std::max_element(results.begin(), results.end());
  });
  EXPECT_EQ(client.wait(), 0);
}

TEST(DpdkProcesses, NeedNoRoot) {
  const Process server([] {
    become_nobody();
    return echo(memif("server"));
  });
  Process client([] {
    become_nobody();
    return ask(memif("client"), 1'000);
  });
  EXPECT_EQ(client.wait(), 0);
}

TEST(DpdkProcesses, ReserveTheirUdpPortsInTheKernel) {
  Process child([] {
    PathConfig place;
    place.address = kServer;
    // The kernel does not have this address, so the ports are reserved at all addresses that it has.
    std::vector<DataPath> paths = open_for_threads({.kind = TransportKind::kDpdk, .device = memif("server")}, place,
                                                   bind_consecutive({.address = 0, .port = 0}, 2), 1);
    const std::uint16_t last = paths.front().reserved.back().local().port;
    const auto refused = [&](std::uint32_t address) {
      try {
        const UdpSocket socket({.address = address, .port = last});
      } catch (const std::system_error& error) {
        return error.code().value() == EADDRINUSE;
      }
      return false;
    };
    if (!refused(0) || !refused(0x7F000001)) return 1;
    paths.clear();
    return refused(0) || refused(0x7F000001) ? 2 : 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(DpdkProcesses, NeedNoRootForHugepagesThatAreReserved) {
  if (free_hugepages() < 128) GTEST_SKIP() << "hugepages are not tested: fewer than 128 are free";
  const auto with_huge = [](const char* role) {
    become_nobody();
    std::string device = memif(role);
    return device.replace(0, std::string("--no-huge").size(), "-m 64");
  };
  Process server([&] { return echo(with_huge("server")); });
  Process client([&] { return ask(with_huge("client"), 1'000); });
  EXPECT_EQ(client.wait(), 0);
  server.kill_it();
  EXPECT_EQ(left_behind(), std::vector<std::string>());
}

TEST(DpdkProcesses, AKilledPeerMayReconnect) {
  constexpr int kKills = 3;
  Process server([] { return echo(memif("server")); });
  int killed = 0;
  for (; killed < kKills; ++killed) {
    std::array<int, 2> channel{};
    ASSERT_EQ(pipe(channel.data()), 0);
    Process peer([&] { return ask(memif("client"), SIZE_MAX, {}, channel[1]); });
    close(channel[1]);
    std::byte none{};
    EXPECT_EQ(read(channel[0], &none, 1), 0);  // until the peer exchanges packets
    close(channel[0]);
    usleep(20'000);
    if (peer.kill_it() != -SIGKILL) break;  // the peer gave up
  }
  Process client([] { return ask(memif("client"), 1'000); });
  const int answered = client.wait();
  const int server_ended = server.kill_it();
  // The driver closes the connection of a peer that dies while it connects, but keeps polling it.
  if (server_ended == -SIGABRT) GTEST_SKIP() << "a peer that comes again was not tested: EAL panicked at the server";
  EXPECT_EQ(server_ended, -SIGKILL);
  EXPECT_EQ(killed, kKills);
  EXPECT_EQ(answered, 0);
  EXPECT_EQ(left_behind(), std::vector<std::string>());
}

TEST(DpdkProcesses, ClientsReconnectToARestartedServer) {
  auto server = std::make_unique<Process>([] { return echo(memif("server")); });
  Process client([] { return ask(memif("client"), 1'000, std::chrono::seconds(3)); });
  for (int i = 0; i < 3; ++i) {
    usleep(500'000);
    server = nullptr;
    server = std::make_unique<Process>([] { return echo(memif("server")); });
  }
  EXPECT_EQ(client.wait(), 0);
}

TEST(DpdkProcesses, AClientMayStartBeforeItsServer) {
  Process client([] { return ask(memif("client"), 1'000); });
  usleep(700'000);
  const Process server([] { return echo(memif("server")); });
  EXPECT_EQ(client.wait(), 0);
}

TEST(DpdkProcesses, ATransportMayBeOpenedAgainAndAnotherBesideIt) {
  EXPECT_EQ(refusal([] {
              for (int i = 0; i < 3; ++i) {
                const auto first = open("--no-huge -m 256 --log-level=1 --vdev=net_ring0", kServer);
                const auto second = open("--no-huge -m 256 --log-level=1 --vdev=net_ring1", kServer);
                const auto third = open("--vdev=net_ring2", kServer);
                if (std::string(first->name()) != "dpdk (net_ring)") throw std::runtime_error(first->name());
              }
            }),
            "");
}

/// A server with a thread that sends everything back. It forks a child that destroys the inherited transport and exits
/// normally, reports the child's status through `told`, and goes on.
int echo_and_fork(const std::string& device, int told) {
  static std::unique_ptr<Transport> transport = open(device, kServer);
  std::thread server([] { echo_by(*transport); });
  // A lock of AddressSanitizer's allocator that some thread holds during the fork stays locked in the child, where
  // starting a thread allocates.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const pid_t child = fork();
  if (child == 0) {
    alarm(static_cast<unsigned>(kPatience.count()));
    int status = 3;
    try {
      static_cast<void>(open("--no-huge --vdev=net_ring7", kServer));
    } catch (const std::runtime_error& error) {
      status = std::string(error.what()).find("a forked child") != std::string::npos ? 0 : 4;
    }
    transport.reset();
    std::exit(status);
  }
  int status = -1;
  waitpid(child, &status, 0);
  if (write(told, &status, sizeof status) != sizeof status) return 5;
  server.join();  // never returns
  return 0;
}

TEST(DpdkProcesses, AForkedChildEndsAndItsParentGoesOn) {
  std::array<int, 2> channel{};
  ASSERT_EQ(pipe(channel.data()), 0);
  const Process server([&] { return echo_and_fork(memif("server"), channel[1]); });
  int status = -1;
  EXPECT_EQ(read(channel[0], &status, sizeof status), static_cast<ssize_t>(sizeof status));
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  for (const int end : channel) close(end);
  Process client([] { return ask(memif("client"), 1'000); });
  EXPECT_EQ(client.wait(), 0);
}

/// Ends the process, whose exit handler runs after DPDK's: it closes the transport, and cannot open another one.
int exit_with(const std::string& device) {
  static std::unique_ptr<Transport> transport;
  alarm(static_cast<unsigned>(kPatience.count()));
  const int failed = std::atexit([] {
    int status = 3;
    try {
      static_cast<void>(open("--vdev=net_ring7", kClient));
    } catch (const std::runtime_error& error) {
      status = std::string(error.what()).find("this process is ending") != std::string::npos ? 0 : 4;
    }
    transport.reset();
    _exit(status);
  });
  if (failed != 0) return 5;
  transport = open(device, kServer);
  std::exit(6);
}

TEST(DpdkProcesses, MayCloseATransportInAnExitHandler) {
  for (const std::string& device :
       {std::string("--no-huge -m 256 --log-level=1 --vdev=net_ring0"), memif("server"), memif("client")}) {
    Process process([&] { return exit_with(device); });
    EXPECT_EQ(process.wait(), 0) << device;
  }
}

/// Ends the process while another thread opens and closes transports; the exit handler waits for that thread.
int exit_while_opening(const std::string& device, int times_opened) {
  static std::atomic<int> opened{0};
  static std::atomic<bool> ends{false};
  static std::thread opener;
  alarm(static_cast<unsigned>(kPatience.count()));
  const int failed = std::atexit([] {
    ends = true;
    opener.join();
    _exit(0);
  });
  if (failed != 0) return 5;
  opener = std::thread([&device] {
    try {
      for (; !ends; ++opened) static_cast<void>(open(device, kServer));
    } catch (const std::runtime_error&) {  // this process is ending
    }
    if (opened == 0) _exit(4);
  });
  while (opened < times_opened) std::this_thread::yield();
  std::exit(6);
}

TEST(DpdkProcesses, EndWhileAnotherThreadOpensATransport) {
  for (int times_opened = 1; times_opened <= 6; ++times_opened) {
    Process process([&] { return exit_while_opening(memif("server"), times_opened); });
    EXPECT_EQ(process.wait(), 0) << times_opened;
  }
}

TEST(DpdkProcesses, GetErrorsThatSayWhatIsWrong) {
  const auto opens = [](const std::string& device) { return [device] { static_cast<void>(open(device, kServer)); }; };
  EXPECT_TRUE(says(refusal(opens("--no-huge --in-memory --vdev=net_ring0")), "exclude each other"));
  EXPECT_TRUE(says(refusal(opens("--no-huge --no-pci --log-level=1")), "found no port"));
  EXPECT_TRUE(says(refusal(opens("--no-huge --log-level=1 --vdev=net_nonsense0")), "cannot use the device"));
  EXPECT_TRUE(says(refusal(opens("--no-huge --log-level=1 -m 4 --vdev=net_ring0")), "-m MEGABYTES"));
  if (free_hugepages() == 0) {
    EXPECT_TRUE(says(refusal(opens("--log-level=1 --vdev=net_ring0")), "vm.nr_hugepages"));
  }
  EXPECT_TRUE(says(refusal([&] {
                     const auto first = open("--no-huge --log-level=1 --vdev=net_ring0", kServer);
                     static_cast<void>(open("--no-huge -m 99 --vdev=net_ring1", kServer));
                   }),
                   "only once"));
  EXPECT_TRUE(says(refusal([&] {
                     const auto first = open("--no-huge --log-level=1 --vdev=net_ring0", kServer);
                     static_cast<void>(open("--vdev=net_ring0", kServer));
                   }),
                   "in use by another transport"));
}

TEST(DpdkProcesses, DoNotChangeTheAffinityOfTheirThreads) {
  EXPECT_EQ(refusal([] {
              cpu_set_t before;
              cpu_set_t after;
              sched_getaffinity(0, sizeof before, &before);
              const auto transport = open("--no-huge --log-level=1 --vdev=net_ring0", kServer);
              sched_getaffinity(0, sizeof after, &after);
              if (CPU_EQUAL(&before, &after) == 0) throw std::runtime_error("pinned");
            }),
            "");
}

}  // namespace
}  // namespace wiresum::transport::testing
