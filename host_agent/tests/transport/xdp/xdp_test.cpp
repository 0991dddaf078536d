// AF_XDP's mode, the packets that it leaves to the kernel, its refusals, and its clean end.
#include <linux/capability.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "patience.hpp"
#include "transport/open.hpp"
#include "transport/plugin.hpp"
#include "transport/udp/address.hpp"
#include "transport/udp/socket.hpp"
#include "xdp_rig.hpp"

namespace wiresum::transport::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kQuiet{150};

class Xdp : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = no_namespaces(); !why.empty()) GTEST_SKIP() << "AF_XDP is not tested: " << why;
  }
};

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Opens a transport in `space`, and returns the error, or "" if there is none.
std::string refusal(const Namespace& space, const std::string& interface, std::uint32_t address,
                    const EndOptions& options = {}) {
  try {
    space.enter([&] { static_cast<void>(open_xdp(interface, address, options)); });
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// Sends packets of `bytes` bytes until the condition holds.
bool send_until(Transport& transport, wire::Endpoint to, const std::function<bool()>& done, std::uint32_t bytes = 100) {
  const auto deadline = Clock::now() + kPatience;
  while (Clock::now() < deadline) {
    const std::span<wire::Packet> buffers = transport.buffers(1);
    if (!buffers.empty()) {
      std::memset(buffers[0].data, 0x5A, bytes);
      buffers[0].bytes = bytes;
      transport.send(1, std::span(&to, 1), 0, false);
    }
    if (done()) return true;
    transport.wait(2'000'000);
  }
  return false;
}

/// The size of the socket's next datagram; none if no datagram arrives in time.
std::optional<std::size_t> next_datagram(const UdpSocket& socket, std::chrono::milliseconds patience = kPatience) {
  pollfd readable{.fd = socket.descriptor(), .events = POLLIN, .revents = 0};
  if (poll(&readable, 1, static_cast<int>(patience.count())) <= 0) return std::nullopt;
  std::array<std::byte, 16384> bytes{};
  const ssize_t count = recv(socket.descriptor(), bytes.data(), bytes.size(), 0);
  if (count < 0) return std::nullopt;
  return static_cast<std::size_t>(count);
}

bool send_datagram(const UdpSocket& socket, wire::Endpoint to, std::size_t bytes) {
  const std::vector<std::byte> payload(bytes, std::byte{0x5A});
  const sockaddr_in address = to_sockaddr(to);
  return sendto(socket.descriptor(), payload.data(), bytes, 0, reinterpret_cast<const sockaddr*>(&address),
                sizeof address) == static_cast<ssize_t>(bytes);
}

/// The errno of binding a socket there; 0 if that works.
int bind_error(wire::Endpoint at) {
  try {
    const UdpSocket socket(at);
  } catch (const std::system_error& error) {
    return error.code().value();
  }
  return 0;
}

bool has_program(const Namespace& space, const std::string& interface) {
  bool has = false;
  space.enter([&] { has = std::system(("ip link show " + interface + " | grep -q xdp").c_str()) == 0; });
  return has;
}

// ---- mode ----------------------------------------------------------------------------------------------------------

TEST_F(Xdp, RunsInTheDriverIfItSupportsXdp) {
  VethRig rig({}, &open_xdp, &open_xdp);
  EXPECT_STREQ(rig.open(Side::kLeft, {})->name(), "xdp (native, copy)");
  VethRig jumbo({.mtu = 9000}, &open_xdp, &open_xdp);
  EXPECT_STREQ(jumbo.open(Side::kLeft, {.datagram_bytes_max = 8972})->name(), "xdp (native, copy)");
}

TEST_F(Xdp, RunsInGenericModeOtherwise) {
  MacvlanRig rig({}, &open_xdp, &open_xdp);
  EXPECT_STREQ(rig.open(Side::kLeft, {})->name(), "xdp (generic, copy)");
}

TEST_F(Xdp, SmallDatagramsAtALargeMtu) {
  VethRig rig({.mtu = 9000}, &open_xdp, &open_xdp);
  const auto left = rig.open(Side::kLeft, {});
  const auto right = rig.open(Side::kRight, {});
  std::array<RxDatagram, 1> one{};
  EXPECT_TRUE(send_until(*left, rig.endpoint(Side::kRight), [&] { return right->receive(one) == 1; }, 1464));
}

// ---- several threads -----------------------------------------------------------------------------------------------

TEST_F(Xdp, ThreadsShareAnInterfaceAndServeTheirPortsFromEveryQueue) {
  constexpr unsigned kThreads = 2;
  constexpr std::size_t kPorts = 4;
  constexpr int kSenders = 8;
  const VethPair pair(1500, 4);
  std::vector<DataPath> paths;
  PathConfig place;
  place.address = VethPair::kRightAddress;
  pair.right.enter([&] {
    paths =
        open_for_threads({.kind = TransportKind::kXdp, .device = VethPair::kInterface, .offload = true}, place,
                         bind_consecutive({.address = VethPair::kRightAddress, .port = kFirstPort}, kPorts), kThreads);
  });
  // The kernel assigns senders to queues by their addresses and ports.
  std::vector<UdpSocket> senders;
  pair.left.enter([&] {
    for (int i = 0; i != kSenders; ++i) {
      senders.emplace_back(wire::Endpoint{.address = VethPair::kLeftAddress, .port = 0});
    }
  });
  std::atomic<bool> over{false};
  std::array<std::uint64_t, kThreads> passed{};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i != kThreads; ++i) {
    threads.emplace_back([&, i] {
      Transport& transport = *paths[i].transport;
      std::array<RxDatagram, 16> got{};
      while (!over.load()) {
        const std::size_t count = transport.receive(got);
        if (count == 0) transport.wait(10'000'000);
        for (const RxDatagram& one : std::span(got).first(count)) {
          const std::span<wire::Packet> buffers = transport.buffers(1);
          if (buffers.empty()) break;
          buffers[0].data[0] = static_cast<std::byte>(i);
          buffers[0].bytes = 1;
          transport.send(1, {&one.source, 1}, one.port, false);
        }
      }
      passed[i] = transport.stats().datagrams_passed;
    });
  }
  std::array<std::byte, 64> bytes{};
  for (const UdpSocket& sender : senders) {
    for (std::uint16_t port = 0; port != kPorts; ++port) {
      const wire::Endpoint to{.address = VethPair::kRightAddress,
                              .port = static_cast<std::uint16_t>(kFirstPort + port)};
      // The first packet may be lost while the kernel resolves the way back.
      bool answered = false;
      for (int attempt = 0; attempt != 20 && !answered; ++attempt) {
        EXPECT_TRUE(send_datagram(sender, to, 100));
        pollfd readable{.fd = sender.descriptor(), .events = POLLIN, .revents = 0};
        if (poll(&readable, 1, 250) <= 0) continue;
        sockaddr_in from{};
        socklen_t length = sizeof from;
        ASSERT_EQ(
            recvfrom(sender.descriptor(), bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&from), &length),
            1);
        EXPECT_EQ(from_sockaddr(from), to) << "answered from another port";
        EXPECT_EQ(bytes[0], static_cast<std::byte>(port % kThreads)) << "answered by another thread";
        answered = true;
      }
      EXPECT_TRUE(answered) << "port " << port;
    }
  }
  over = true;
  for (const DataPath& path : paths) path.transport->wake();
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(passed[0] + passed[1], 0u) << "each came in by its own thread's queue, so nothing was tested";
}

TEST_F(Xdp, MoreThreadsThanQueuesAreRefused) {
  const VethPair pair;
  pair.left.enter([] {
    PathConfig place;
    place.address = VethPair::kLeftAddress;
    try {
      static_cast<void>(open_for_threads({.kind = TransportKind::kXdp, .device = VethPair::kInterface, .offload = true},
                                         place, bind_consecutive({.address = VethPair::kLeftAddress, .port = 0}, 2),
                                         2));
      ADD_FAILURE() << "it was opened";
    } catch (const std::runtime_error& error) {
      EXPECT_TRUE(says(error.what(), "wire0 receives by 1 queue, too few for 2 threads")) << error.what();
    }
  });
}

// ---- refusals ------------------------------------------------------------------------------------------------------

TEST_F(Xdp, SaysWhyAnInterfaceCannotBeUsed) {
  const VethPair pair;
  const std::string loopback = refusal(pair.left, "lo", 0x7F000001);
  EXPECT_TRUE(says(loopback, "needs an Ethernet interface, and lo is none") && says(loopback, "use UDP")) << loopback;
  const std::string none = refusal(pair.left, "wire9", VethPair::kLeftAddress);
  EXPECT_TRUE(says(none, "wire9") && says(none, "No such device")) << none;
  const std::string other = refusal(pair.left, "wire0", 0x7F000001);
  EXPECT_TRUE(says(other, "wire0 does not have the address 127.0.0.1")) << other;
  const std::string mtu = refusal(pair.left, "wire0", VethPair::kLeftAddress, {.datagram_bytes_max = 1473});
  EXPECT_TRUE(says(mtu, "need an MTU of 1501, and that of wire0 is 1500")) << mtu;
  EXPECT_EQ(refusal(pair.left, "wire0", VethPair::kLeftAddress, {.datagram_bytes_max = 1472}), "");
  pair.left.command("ip link set wire0 down");
  const std::string down = refusal(pair.left, "wire0", VethPair::kLeftAddress);
  EXPECT_TRUE(says(down, "ip link set wire0 up")) << down;
}

TEST_F(Xdp, AnInterfaceAllowsOneTransportOnly) {
  VethRig rig({}, &open_xdp, &open_xdp);
  const auto first = rig.open(Side::kLeft, {});
  std::string second;
  rig.space(Side::kLeft).enter([&] {
    DeviceConfig config;
    config.device = "wire0";
    config.address = rig.address(Side::kLeft);
    config.ports = {7777};
    try {
      static_cast<void>(make_device_transports(PluginKind::kXdp, config, WIRESUM_XDP_PLUGIN));
    } catch (const std::exception& error) {
      second = error.what();
    }
  });
  EXPECT_TRUE(says(second, "wire0 has an XDP program already") &&
              says(second, "one process for each interface, or UDP"))
      << second;
  EXPECT_TRUE(has_program(rig.space(Side::kLeft), "wire0"));
}

// ---- packets for the kernel ----------------------------------------------------------------------------------------

TEST_F(Xdp, EverythingElseGoesToTheKernel) {
  VethRig rig({}, &open_udp, &open_xdp);
  const auto right = rig.open(Side::kRight, {});
  std::optional<UdpSocket> from;
  std::optional<UdpSocket> to;
  rig.space(Side::kLeft).enter([&] { from.emplace(wire::Endpoint{.address = rig.address(Side::kLeft), .port = 0}); });
  rig.space(Side::kRight).enter([&] { to.emplace(wire::Endpoint{.address = rig.address(Side::kRight), .port = 0}); });
  ASSERT_TRUE(send_datagram(*from, to->local(), 333));
  EXPECT_EQ(next_datagram(*to), 333);
  ASSERT_TRUE(send_datagram(*to, from->local(), 444));
  EXPECT_EQ(next_datagram(*from), 444);
  rig.space(Side::kLeft).command("ip neigh flush all");
  rig.space(Side::kRight).command("ip neigh flush all");
  ASSERT_TRUE(send_datagram(*from, to->local(), 555));
  EXPECT_EQ(next_datagram(*to), 555) << "ARP does not get through";
}

TEST_F(Xdp, FragmentsAndIpOptionsGoToTheSocketThatIsBoundToThePort) {  // R2.10
  VethPair pair;
  std::optional<UdpSocket> reserved;
  std::optional<UdpSocket> from;
  std::unique_ptr<Transport> transport;
  pair.right.enter([&] {
    reserved.emplace(wire::Endpoint{.address = VethPair::kRightAddress, .port = kFirstPort});
    DeviceConfig config;
    config.device = VethPair::kInterface;
    config.address = VethPair::kRightAddress;
    config.ports = {kFirstPort};
    transport = std::move(make_device_transports(PluginKind::kXdp, config, WIRESUM_XDP_PLUGIN).front());
  });
  pair.left.enter([&] { from.emplace(wire::Endpoint{.address = VethPair::kLeftAddress, .port = 0}); });
  std::array<RxDatagram, 4> out{};
  const wire::Endpoint to{.address = VethPair::kRightAddress, .port = kFirstPort};

  // A complete datagram goes to the transport.
  ASSERT_TRUE(send_datagram(*from, to, 100));
  std::size_t count = 0;
  for (const auto deadline = Clock::now() + kPatience; (count = transport->receive(out)) == 0;) {
    ASSERT_LT(Clock::now(), deadline);
    transport->wait(2'000'000);
  }
  ASSERT_EQ(count, 1);
  EXPECT_EQ(out[0].bytes.size(), 100);
  EXPECT_EQ(next_datagram(*reserved, std::chrono::milliseconds(0)), std::nullopt);

  const int fragment = IP_PMTUDISC_DONT;
  ASSERT_EQ(setsockopt(from->descriptor(), IPPROTO_IP, IP_MTU_DISCOVER, &fragment, sizeof fragment), 0);
  ASSERT_TRUE(send_datagram(*from, to, 4000));
  EXPECT_EQ(next_datagram(*reserved), 4000);
  const std::array<unsigned char, 4> no_operations{1, 1, 1, 1};
  ASSERT_EQ(setsockopt(from->descriptor(), IPPROTO_IP, IP_OPTIONS, no_operations.data(), no_operations.size()), 0);
  ASSERT_TRUE(send_datagram(*from, to, 200));
  EXPECT_EQ(next_datagram(*reserved), 200);
  EXPECT_EQ(transport->receive(out), 0);
}

TEST_F(Xdp, ItsPortsStayReservedAndAreNotReportedAsClosed) {
  const VethPair pair;
  std::optional<UdpSocket> from;
  std::vector<DataPath> paths;
  pair.left.enter([&] { from.emplace(wire::Endpoint{.address = VethPair::kLeftAddress, .port = 0}); });
  pair.right.enter([&] {
    PathConfig place;
    place.address = VethPair::kRightAddress;
    paths = open_for_threads({.kind = TransportKind::kXdp, .device = VethPair::kInterface}, place,
                             bind_consecutive({.address = VethPair::kRightAddress, .port = kFirstPort}, 2), 1);
    for (const std::uint16_t port : {kFirstPort, static_cast<std::uint16_t>(kFirstPort + 1)}) {
      for (const std::uint32_t address : {VethPair::kRightAddress, std::uint32_t{0}}) {
        EXPECT_EQ(bind_error({.address = address, .port = port}), EADDRINUSE) << port;
      }
    }
  });
  // A packet with IP options goes to the kernel, where a socket holds the port.
  const std::array<unsigned char, 4> no_operations{1, 1, 1, 1};
  ASSERT_EQ(setsockopt(from->descriptor(), IPPROTO_IP, IP_OPTIONS, no_operations.data(), no_operations.size()), 0);
  const auto answer_of = [&](std::uint16_t port, const std::function<bool()>& is_there) {
    const wire::Endpoint to{.address = VethPair::kRightAddress, .port = port};
    from->connect(to);
    EXPECT_TRUE(send_datagram(*from, to, 100));
    EXPECT_TRUE(is_there());
    int error = 0;
    socklen_t length = sizeof error;
    EXPECT_EQ(getsockopt(from->descriptor(), SOL_SOCKET, SO_ERROR, &error, &length), 0);
    return error;
  };
  for (std::size_t i = 0; i != 2; ++i) {
    const auto there = [&] { return next_datagram(paths.front().reserved[i]) == 100; };
    EXPECT_EQ(answer_of(static_cast<std::uint16_t>(kFirstPort + i), there), 0);
  }
  // The kernel reports a port without a socket as closed.
  pollfd refused{.fd = from->descriptor(), .events = 0, .revents = 0};
  EXPECT_EQ(answer_of(kFirstPort + 2, [&] { return poll(&refused, 1, 5000) == 1; }), ECONNREFUSED);
  paths.clear();
  pair.right.enter([&] { EXPECT_EQ(bind_error({.address = VethPair::kRightAddress, .port = kFirstPort}), 0); });
}

// ---- neighbours and routes -----------------------------------------------------------------------------------------

TEST_F(Xdp, FollowsTheKernelsNeighbourTable) {
  VethRig rig({}, &open_xdp, &open_udp);
  const auto left = rig.open(Side::kLeft, {});
  const auto right = rig.open(Side::kRight, {});
  std::array<RxDatagram, 64> out{};
  const auto heard = [&] { return right->receive(out) != 0; };
  ASSERT_TRUE(send_until(*left, rig.endpoint(Side::kRight), heard));
  // The other end's kernel drops frames to a MAC address that does not exist, once the transport sends there.
  rig.space(Side::kLeft).command("ip neigh replace 10.77.0.2 lladdr 02:00:00:00:00:77 dev wire0 nud permanent");
  auto heard_at = Clock::now();
  EXPECT_TRUE(send_until(*left, rig.endpoint(Side::kRight), [&] {
    if (heard()) heard_at = Clock::now();
    return Clock::now() > heard_at + kQuiet;
  }));
  rig.space(Side::kLeft).command("ip neigh del 10.77.0.2 dev wire0");
  EXPECT_TRUE(send_until(*left, rig.endpoint(Side::kRight), heard));
}

TEST_F(Xdp, SendsThroughAGateway) {
  VethRig rig({}, &open_xdp, &open_xdp);
  const auto left = rig.open(Side::kLeft, {});
  rig.space(Side::kLeft).command("ip route add 10.99.0.0/24 via 10.77.0.2");
  rig.space(Side::kRight).command("ip address add 10.99.0.1/32 dev lo");
  std::optional<UdpSocket> behind;
  rig.space(Side::kRight).enter([&] { behind.emplace(wire::Endpoint{.address = 0x0A630001, .port = 0}); });
  EXPECT_TRUE(
      send_until(*left, behind->local(), [&] { return next_datagram(*behind, std::chrono::milliseconds(0)) == 100; }));
}

TEST_F(Xdp, CountsAndReportsUndeliverablePackets) {
  VethRig rig({}, &open_xdp, &open_xdp);
  const auto left = rig.open(Side::kLeft, {});
  int error = 0;
  const auto reported = [&] { return (error = left->take_error()) != 0; };
  EXPECT_TRUE(send_until(*left, {.address = 0x0A4D0077, .port = 9}, reported));
  EXPECT_EQ(error, EHOSTUNREACH);
  EXPECT_GT(left->stats().send_failures, 0);
  EXPECT_EQ(left->stats().datagrams_sent, 0);
  EXPECT_TRUE(send_until(*left, {.address = rig.address(Side::kLeft), .port = 9}, reported));
  EXPECT_EQ(error, ENETUNREACH) << "to itself";
  EXPECT_EQ(left->buffers(256).size(), 256) << "lost packets' room is lost";
}

// ---- ending --------------------------------------------------------------------------------------------------------

TEST_F(Xdp, ResumesWhenTheInterfaceComesUpAgain) {
  VethRig rig({}, &open_xdp, &open_xdp);
  const auto left = rig.open(Side::kLeft, {});
  const auto right = rig.open(Side::kRight, {});
  std::array<RxDatagram, 64> out{};
  const auto heard = [&] { return right->receive(out) != 0; };
  ASSERT_TRUE(send_until(*left, rig.endpoint(Side::kRight), heard));
  rig.space(Side::kLeft).command("ip link set wire0 down");
  int sent = 0;
  EXPECT_TRUE(send_until(*left, rig.endpoint(Side::kRight), [&] { return ++sent == 300; }));
  EXPECT_NE(left->take_error(), 0);
  rig.space(Side::kLeft).command("ip link set wire0 up");
  while (right->receive(out) != 0) {
  }
  EXPECT_TRUE(send_until(*left, rig.endpoint(Side::kRight), heard));
  EXPECT_EQ(left->buffers(256).size(), 256);
}

TEST_F(Xdp, ARemovedInterfaceIsAnErrorAndNoEndlessLoop) {
  auto rig = std::make_unique<VethRig>(RigOptions{}, &open_xdp, &open_xdp);
  const auto left = rig->open(Side::kLeft, {});
  rig->space(Side::kLeft).command("ip link del wire0");
  int error = 0;
  EXPECT_TRUE(send_until(*left, rig->endpoint(Side::kRight), [&] { return (error = left->take_error()) != 0; }));
  EXPECT_TRUE(error == ENETDOWN || error == ENXIO || error == ENETUNREACH) << error;
  for (int i = 0; i < 5; ++i) {
    const auto begin = Clock::now();
    left->wait(20'000'000);
    EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(20));
  }
  std::array<RxDatagram, 4> out{};
  EXPECT_EQ(left->receive(out), 0);
  const wire::Endpoint to = rig->endpoint(Side::kRight);
  if (!left->buffers(4).empty()) left->send(1, std::span(&to, 1), 0, false);
}

/// A child process that acts in a namespace, reports whether that worked, and lives until it is killed.
class Child {
 public:
  explicit Child(const std::function<std::string()>& what) {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      std::string said;
      try {
        said = what();
      } catch (const std::exception& error) {
        said = error.what();
      }
      static_cast<void>(!write(ends[1], said.data(), said.size()));
      close(ends[1]);
      for (;;) pause();
    }
    close(ends[1]);
    std::array<char, 4096> text{};
    for (ssize_t count = 0; (count = read(ends[0], text.data(), text.size())) > 0;) {
      said_.append(text.data(), static_cast<std::size_t>(count));
    }
    close(ends[0]);
  }
  ~Child() { kill_it(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] const std::string& said() const { return said_; }

  void kill_it() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  std::string said_;
};

TEST_F(Xdp, AKilledProcessLeavesNothingBehind) {
  VethRig rig({}, &open_xdp, &open_xdp);
  Child child([&] {
    static const std::unique_ptr<Transport> kept = rig.open(Side::kLeft, {});
    return std::string(kept->name());
  });
  ASSERT_EQ(child.said(), "xdp (native, copy)");
  ASSERT_TRUE(has_program(rig.space(Side::kLeft), "wire0"));
  child.kill_it();
  const auto deadline = Clock::now() + kPatience;
  while (has_program(rig.space(Side::kLeft), "wire0") && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(has_program(rig.space(Side::kLeft), "wire0"));
  // The next process can open the interface at once.
  const auto left = rig.open(Side::kLeft, {});
  const auto right = rig.open(Side::kRight, {});
  std::array<RxDatagram, 1> one{};
  EXPECT_TRUE(send_until(*left, rig.endpoint(Side::kRight), [&] { return right->receive(one) == 1; }));
}

TEST_F(Xdp, AForkedChildThatDestroysItsCopyEndsAndDoesNotDisturbTheParent) {
  VethRig rig({}, &open_xdp, &open_xdp);
  auto left = rig.open(Side::kLeft, {});
  const auto right = rig.open(Side::kRight, {});
  std::array<RxDatagram, 64> out{};
  const auto heard = [&] { return right->receive(out) != 0; };
  ASSERT_TRUE(send_until(*left, rig.endpoint(Side::kRight), heard));
  const pid_t child = fork();
  if (child == 0) {
    alarm(static_cast<unsigned>(kPatience.count()));
    left.reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(has_program(rig.space(Side::kLeft), "wire0"));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(send_until(*left, rig.endpoint(Side::kRight), heard));
}

// ---- privileges ----------------------------------------------------------------------------------------------------

constexpr std::uint32_t kNobody = 65534;
constexpr std::size_t kMiB = 1 << 20;

/// Drops all privileges of this thread but these, as a user other than root.
void become_nobody_with(std::uint64_t capabilities, std::size_t locked_bytes_max) {
  const rlimit limit{.rlim_cur = locked_bytes_max, .rlim_max = locked_bytes_max};
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, 2> data{};
  for (std::size_t i = 0; i < data.size(); ++i) {
    const auto part = static_cast<std::uint32_t>(capabilities >> (32 * i));
    data[i] = {.effective = part, .permitted = part, .inheritable = 0};
  }
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0 ||
      syscall(SYS_setresuid, kNobody, kNobody, kNobody) != 0 || syscall(SYS_capset, &header, data.data()) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot become nobody");
  }
}

/// The error or the name of a transport that such a user opens.
std::string said_to(std::uint64_t capabilities, std::size_t locked_bytes_max = 8 * kMiB) {
  const VethPair pair;
  const Child child([&] {
    std::string said;
    pair.left.enter([&] {
      become_nobody_with(capabilities, locked_bytes_max);
      said = open_xdp(VethPair::kInterface, VethPair::kLeftAddress, {})->name();
    });
    return said;
  });
  return child.said();
}

constexpr std::uint64_t bit(unsigned capability) { return std::uint64_t{1} << capability; }
constexpr std::uint64_t kEnough = bit(CAP_NET_RAW) | bit(CAP_NET_ADMIN) | bit(CAP_BPF);

TEST_F(Xdp, WorksForAUserWithThreeCapabilities) { EXPECT_EQ(said_to(kEnough), "xdp (native, copy)"); }

TEST_F(Xdp, SaysWhichPrivilegesAreMissing) {
  for (const unsigned missing : {CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF}) {
    const std::string said = said_to(kEnough & ~bit(missing));
    EXPECT_TRUE(says(said, "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF"))
        << "without capability " << missing << ": " << said;
  }
  const std::string said = said_to(0);
  EXPECT_TRUE(says(said, "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF")) << said;
}

TEST_F(Xdp, SaysIfItMayNotLockItsMemory) {
  const std::string said = said_to(kEnough, kMiB);
  EXPECT_TRUE(says(said, "ulimit -l") && says(said, "CAP_IPC_LOCK")) << said;
  EXPECT_EQ(said_to(kEnough | bit(CAP_IPC_LOCK), kMiB), "xdp (native, copy)");
}

}  // namespace
}  // namespace wiresum::transport::testing
