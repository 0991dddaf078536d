#include "transport/udp/udp.hpp"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "patience.hpp"
#include "process/descriptor.hpp"

namespace wiresum::transport {
namespace {

constexpr std::uint32_t kLoopback = 0x7F000001;
constexpr wire::Endpoint kAnyPort{.address = kLoopback, .port = 0};
const std::int64_t kPatienceNs = std::chrono::nanoseconds(kPatience).count();

struct Datagram {
  std::string text;
  wire::Endpoint source;
  std::uint8_t port;
};

std::vector<UdpSocket> one(UdpSocket socket) {
  std::vector<UdpSocket> sockets;
  sockets.push_back(std::move(socket));
  return sockets;
}

/// Sends a datagram for each of `texts`, in bursts as large as the room for them.
void send_all(Transport& transport, const std::vector<std::string>& texts, std::span<const wire::Endpoint> to,
              std::uint8_t port = 0) {
  for (std::size_t sent = 0; sent != texts.size();) {
    const std::span<wire::Packet> buffers = transport.buffers(texts.size() - sent);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const std::string& text = texts[sent + i];
      std::memcpy(buffers[i].data, text.data(), text.size());
      buffers[i].bytes = static_cast<std::uint32_t>(text.size());
    }
    transport.send(buffers.size(), to, port, false);
    sent += buffers.size();
  }
}

/// Receives until `count` datagrams are there or nothing arrives for some time, `burst` at a time.
std::vector<Datagram> take(Transport& transport, std::size_t count, std::size_t burst = 256) {
  std::vector<Datagram> taken;
  std::vector<RxDatagram> datagrams(burst);
  for (int idle = 0; taken.size() < count && idle < 2;) {
    const std::size_t received = transport.receive(datagrams);
    for (std::size_t i = 0; i < received; ++i) {
      const auto& bytes = datagrams[i].bytes;
      taken.push_back({.text = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
                       .source = datagrams[i].source,
                       .port = datagrams[i].port});
    }
    if (received == 0) {
      transport.wait(kPatienceNs);
      ++idle;
    } else {
      idle = 0;
    }
  }
  return taken;
}

std::string numbered(std::size_t number, std::size_t bytes) {
  std::string text = std::to_string(number);
  text.resize(bytes, static_cast<char>('a' + number % 26));
  return text;
}

class UdpOffload : public testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] static UdpConfig config() { return {.offload = GetParam()}; }
};

TEST_P(UdpOffload, DeliversABurstInOrderByteForByte) {
  UdpTransport receiver(config(), one(UdpSocket(kAnyPort)));
  UdpSocket probe(kAnyPort);
  const wire::Endpoint source = probe.local();
  UdpTransport sender(config(), one(std::move(probe)));
  UdpSocket target(kAnyPort);
  const wire::Endpoint to = target.local();
  UdpTransport sink(config(), one(std::move(target)));

  std::vector<std::string> expected;
  for (std::uint32_t i = 0; i < 100; ++i) {
    // Lengths change sometimes, and 100 is more than one GSO run holds.
    expected.push_back(numbered(i, i % 7 == 3 ? 24 : 1464));
  }
  send_all(sender, expected, {&to, 1});

  const std::vector<Datagram> taken = take(sink, expected.size());
  ASSERT_EQ(taken.size(), expected.size());
  for (std::size_t i = 0; i < taken.size(); ++i) {
    EXPECT_EQ(taken[i].text, expected[i]) << i;
    EXPECT_EQ(taken[i].source, source);
  }
  EXPECT_EQ(sender.stats().datagrams_sent, expected.size());
  EXPECT_EQ(sender.stats().send_failures, 0U);
}

TEST_P(UdpOffload, SplitsAReceivedRunIfTheCallersBurstIsSmall) {
  UdpSocket target(kAnyPort);
  const wire::Endpoint to = target.local();
  UdpTransport sink(config(), one(std::move(target)));
  UdpTransport sender(config(), one(UdpSocket(kAnyPort)));
  std::vector<std::string> texts;
  for (std::uint32_t i = 0; i < 40; ++i) texts.push_back(numbered(i, 1000));
  send_all(sender, texts, {&to, 1});
  const std::vector<Datagram> taken = take(sink, texts.size(), 3);
  ASSERT_EQ(taken.size(), texts.size());
  for (std::size_t i = 0; i < taken.size(); ++i) {
    EXPECT_EQ(taken[i].text, numbered(i, 1000));
  }
}

TEST_P(UdpOffload, SendsAPacketToManyEndpoints) {
  constexpr std::size_t kReceivers = 32;
  std::vector<std::unique_ptr<UdpTransport>> receivers;
  std::vector<wire::Endpoint> to;
  for (std::size_t i = 0; i < kReceivers; ++i) {
    UdpSocket socket(kAnyPort);
    to.push_back(socket.local());
    receivers.push_back(std::make_unique<UdpTransport>(config(), one(std::move(socket))));
  }
  UdpTransport sender(config(), one(UdpSocket(kAnyPort)));
  std::vector<std::string> texts;
  for (std::uint32_t i = 0; i < 128; ++i) texts.push_back(numbered(i, 200));
  send_all(sender, texts, to);
  for (auto& receiver : receivers) {
    const std::vector<Datagram> taken = take(*receiver, texts.size());
    ASSERT_EQ(taken.size(), texts.size());
    for (std::size_t i = 0; i < taken.size(); ++i) {
      EXPECT_EQ(taken[i].text, numbered(i, 200));
    }
  }
  EXPECT_EQ(sender.stats().datagrams_sent, texts.size() * kReceivers);
}

TEST_P(UdpOffload, TellsWhichPortADatagramCameInOnAndAnswersFromIt) {  // R2.2
  std::vector<UdpSocket> sockets = bind_consecutive(kAnyPort, 4);
  const wire::Endpoint base = sockets.front().local();
  UdpTransport server(config(), std::move(sockets));
  UdpTransport client(config(), one(UdpSocket(kAnyPort)));
  for (std::uint8_t port = 0; port < 4; ++port) {
    const wire::Endpoint to{.address = base.address, .port = static_cast<std::uint16_t>(base.port + port)};
    send_all(client, {numbered(port, 50)}, {&to, 1});
  }
  const std::vector<Datagram> taken = take(server, 4);
  ASSERT_EQ(taken.size(), 4U);
  for (const Datagram& datagram : taken) {
    EXPECT_EQ(datagram.text, numbered(datagram.port, 50));
    send_all(server, {numbered(1, 30)}, {&datagram.source, 1}, datagram.port);
    const std::vector<Datagram> answer = take(client, 1);
    ASSERT_EQ(answer.size(), 1U);
    EXPECT_EQ(answer.front().source.port, base.port + datagram.port);
  }
}

TEST_P(UdpOffload, OneDatagramReachesEveryMemberThatAcceptsItsSender) {  // R3.29
  // A group in 239.192.0.0/16 that depends on the process, since other processes run this test at the same time.
  const wire::Endpoint group{.address = 0xEFC00000U | (static_cast<std::uint32_t>(getpid()) & 0xFFFFU), .port = 47'111};
  std::vector<UdpSocket> senders = bind_consecutive(kAnyPort, 2);
  const wire::Endpoint heard = senders.front().local();
  for (UdpSocket& sender : senders) sender.send_groups_by(heard.address);
  UdpTransport sender(config(), std::move(senders));
  const auto member = [&] {
    std::vector<UdpSocket> sockets = one(UdpSocket(kAnyPort));
    sockets.front().connect(heard);
    sockets.push_back(UdpSocket::in_group(group, heard.address));
    sockets.back().connect(heard);
    return sockets;
  };
  UdpTransport first(config(), member());
  UdpTransport second(config(), member());
  std::vector<std::string> texts;
  for (std::uint32_t i = 0; i < 20; ++i) texts.push_back(numbered(i, 100));
  send_all(sender, {texts[7]}, {&group, 1}, 1);  // from a port that the members do not accept
  send_all(sender, texts, {&group, 1});
  for (UdpTransport* transport : {&first, &second}) {
    const std::vector<Datagram> taken = take(*transport, texts.size());
    ASSERT_EQ(taken.size(), texts.size());
    for (std::size_t i = 0; i < taken.size(); ++i) {
      EXPECT_EQ(taken[i].text, numbered(i, 100));
      EXPECT_EQ(taken[i].source.port, heard.port);
      EXPECT_EQ(taken[i].port, 1);
    }
  }
}

TEST_P(UdpOffload, ABusyPortDoesNotStarveTheOthers) {
  std::vector<UdpSocket> sockets = bind_consecutive(kAnyPort, 2);
  const wire::Endpoint base = sockets.front().local();
  UdpTransport server(config(), std::move(sockets));
  UdpTransport client(config(), one(UdpSocket(kAnyPort)));
  const auto send = [&](unsigned port) {
    const wire::Endpoint to{.address = base.address, .port = static_cast<std::uint16_t>(base.port + port)};
    send_all(client, {numbered(port, 50)}, {&to, 1});
  };
  send(0);
  ASSERT_EQ(take(server, 1).size(), 1U);
  send(1);
  bool other = false;
  for (int turn = 0; turn < 20 && !other; ++turn) {
    send(0);  // the busy port always has more datagrams
    for (const Datagram& datagram : take(server, 1, 1)) other |= datagram.port == 1;
  }
  EXPECT_TRUE(other);
}

INSTANTIATE_TEST_SUITE_P(Udp, UdpOffload, testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "WithOffload" : "WithoutOffload"; });

TEST(Udp, WhatItSendsMayBeMarked) {  // R3.22, R4.12
  UdpSocket plain({.address = kLoopback, .port = 0});
  const int on = 1;
  ASSERT_EQ(setsockopt(plain.descriptor(), IPPROTO_IP, IP_RECVTOS, &on, sizeof on), 0);
  UdpTransport transport({}, one(UdpSocket({.address = kLoopback, .port = 0})));
  const wire::Endpoint to = plain.local();
  send_all(transport, {"capable"}, std::span(&to, 1));
  std::array<char, 16> text{};
  alignas(cmsghdr) std::array<char, 64> control{};
  iovec vector{.iov_base = text.data(), .iov_len = text.size()};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ASSERT_EQ(recvmsg(plain.descriptor(), &message, 0), 7);
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  ASSERT_NE(header, nullptr);
  EXPECT_EQ(header->cmsg_type, IP_TOS);
  EXPECT_EQ(*CMSG_DATA(header), wire::kEcnCapable);
}

TEST(Udp, OfWhatComesOnlyCongestionExperiencedIsAMark) {
  UdpSocket receiver(kAnyPort);
  const wire::Endpoint to = receiver.local();
  UdpTransport server({}, one(std::move(receiver)));
  const UdpSocket plain(kAnyPort);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(to.port);
  address.sin_addr.s_addr = htonl(to.address);
  for (int type_of_service = 0; type_of_service < 256; ++type_of_service) {
    ASSERT_EQ(setsockopt(plain.descriptor(), IPPROTO_IP, IP_TOS, &type_of_service, sizeof type_of_service), 0);
    ASSERT_EQ(sendto(plain.descriptor(), "text", 4, 0, reinterpret_cast<const sockaddr*>(&address), sizeof address), 4);
    std::array<RxDatagram, 4> datagrams{};
    std::size_t count = 0;
    for (int idle = 0; count == 0 && idle < 2; ++idle) {
      server.wait(kPatienceNs);
      count = server.receive(datagrams);
    }
    ASSERT_EQ(count, 1U);
    EXPECT_EQ(datagrams[0].marked, type_of_service % 4 == 3) << type_of_service;  // RFC 3168: the lower bits are 11
  }
}

TEST(Udp, ReportsAPeerWithoutAListener) {
  wire::Endpoint gone;
  {
    const UdpSocket closed(kAnyPort);
    gone = closed.local();
  }
  UdpSocket socket(kAnyPort);
  socket.connect(gone);
  UdpTransport transport({}, one(std::move(socket)));
  int error = 0;
  for (int i = 0; i < 100 && error == 0; ++i) {
    send_all(transport, {numbered(0, 24)}, {&gone, 1});
    std::vector<RxDatagram> none(1);
    static_cast<void>(transport.receive(none));
    error = transport.take_error();
  }
  EXPECT_EQ(error, ECONNREFUSED);
}

TEST(Udp, CountsDatagramsThatTheSystemRefusesAsLost) {
  UdpSocket target(kAnyPort);
  const wire::Endpoint to = target.local();
  // More than an IPv4 datagram can hold.
  UdpTransport sender({.datagram_bytes_max = 70'000}, one(UdpSocket(kAnyPort)));
  send_all(sender, {numbered(0, 70'000)}, {&to, 1});
  EXPECT_EQ(sender.stats().send_failures, 1U);
  EXPECT_EQ(sender.stats().datagrams_sent, 0U);
  EXPECT_EQ(sender.take_error(), EMSGSIZE);
}

TEST(Udp, WakeEndsAWaitWithoutATimeout) {
  UdpTransport transport({}, one(UdpSocket(kAnyPort)));
  std::thread waker([&] { transport.wake(); });
  transport.wait(-1);  // returns, or the test times out
  waker.join();
  std::vector<RxDatagram> none(1);
  EXPECT_EQ(transport.receive(none), 0U);
}

/// Makes the newer system calls for waiting fail in this process with this error.
bool forbid_new_waits(int error) {
  std::array<sock_filter, 4> program{{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait2, 0, 1),
                                      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
                                      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0 &&
         syscall(SYS_epoll_pwait2, -1, nullptr, 1, nullptr, nullptr, 0) < 0 && errno == error;
}

/// Runs in a child: returns 0 if waits on `ports` sockets take their full time, and end early for a wake-up or a
/// datagram.
int wait_where_that_fails(int error, std::size_t ports) {
  constexpr std::int64_t kStepNs = 20'000'000;
  constexpr int kSteps = 10;
  std::vector<UdpSocket> sockets;
  for (std::size_t i = 0; i < ports; ++i) sockets.emplace_back(kAnyPort);
  const wire::Endpoint last = sockets.back().local();
  UdpTransport transport({}, std::move(sockets));
  UdpTransport sender({}, one(UdpSocket(kAnyPort)));
  if (!forbid_new_waits(error)) return 2;
  int waits = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kSteps * kStepNs);
  for (; std::chrono::steady_clock::now() < end; ++waits) transport.wait(kStepNs);
  if (waits > kSteps) return 3;  // the waits do not sleep
  transport.wake();
  transport.wait(-1);
  send_all(sender, {"datagram"}, {&last, 1});
  transport.wait(-1);
  return take(transport, 1).size() == 1 ? 0 : 4;
}

TEST(Udp, SleepsIfTheKernelOrASyscallFilterRefusesNewerWaits) {
  for (const int error : {ENOSYS, EPERM}) {
    for (const std::size_t ports : {1U, 3U}) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(static_cast<unsigned>(kPatience.count()));
        _exit(wait_where_that_fails(error, ports));
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0) << "errno " << error << ", ports " << ports << ", exit " << WEXITSTATUS(status);
    }
  }
}

TEST(Udp, FullPacketsAreAdjacentInMemory) {
  UdpTransport transport({.datagram_bytes_max = 1464}, one(UdpSocket(kAnyPort)));
  const std::span<const wire::Packet> buffers = transport.buffers(1000);
  ASSERT_EQ(buffers.size(), 64U);
  for (std::size_t i = 1; i < buffers.size(); ++i) EXPECT_EQ(buffers[i].data, buffers[i - 1].data + 1464);
  EXPECT_EQ(transport.buffers(3).size(), 3U);
}

TEST(Udp, ATrainHasAsManyPacketsAsFitOneMessage) {
  const UdpTransport with(UdpConfig{.offload = true}, one(UdpSocket(kAnyPort)));
  EXPECT_EQ(with.train_packets(1464), 44U);  // 64 kB
  EXPECT_EQ(with.train_packets(8952), 7U);
  EXPECT_EQ(with.train_packets(24), 64U);
  EXPECT_EQ(with.train_packets(65504), 1U);
  const UdpTransport without(UdpConfig{.offload = false}, one(UdpSocket(kAnyPort)));
  EXPECT_EQ(without.train_packets(1464), 1U);
}

TEST(Udp, ABurstIsSplitIntoWholeTrains) {
  EXPECT_EQ(whole_trains(64, 44), 44U);
  EXPECT_EQ(whole_trains(64, 7), 63U);
  EXPECT_EQ(whole_trains(64, 1), 64U);
  EXPECT_EQ(whole_trains(64, 64), 64U);
  EXPECT_EQ(whole_trains(16, 44), 16U);
}

TEST(UdpSocket, BindsABlockOfConsecutivePorts) {
  const std::vector<UdpSocket> sockets = bind_consecutive(kAnyPort, 16);
  ASSERT_EQ(sockets.size(), 16U);
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    EXPECT_EQ(sockets[i].local().port, sockets[0].local().port + i);
  }
}

TEST(UdpSocket, BindsTheFirstBlockThatIsFreeWithinARange) {
  std::vector<UdpSocket> taken = bind_consecutive(kAnyPort, 8);
  const std::uint16_t first = taken.front().local().port;
  const PortRange range{.first = first, .last = static_cast<std::uint16_t>(first + 7)};
  taken.erase(taken.begin() + 5, taken.end());
  taken.erase(taken.begin() + 1);  // leaves a free place for a single port only
  const std::vector<UdpSocket> found = bind_within(kLoopback, range, 3);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found.front().local().port, first + 5);
  EXPECT_EQ(found.back().local().port, first + 7);
  try {
    static_cast<void>(bind_within(kLoopback, range, 2));
    FAIL() << "bound a port that is taken, or none of the range";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code().value(), EADDRINUSE);
    EXPECT_NE(std::string(error.what()).find("WIRESUM_PORTS"), std::string::npos) << error.what();
  }
  EXPECT_THROW(static_cast<void>(bind_within(kLoopback, {.first = 65535, .last = 65535}, 2)), std::system_error);
  EXPECT_THROW(static_cast<void>(bind_within(0x08080808, range, 1)), std::system_error) << "no address of this host";
  EXPECT_NE(bind_within(kLoopback, {}, 1).front().local().port, 0);
}

TEST(UdpSocket, NamesTheAddressItCannotBind) {
  const UdpSocket taken(kAnyPort);
  try {
    static_cast<void>(bind_consecutive(taken.local(), 2));
    FAIL() << "bound a port twice";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code().value(), EADDRINUSE);
    EXPECT_NE(std::string(error.what()).find(to_string(taken.local())), std::string::npos) << error.what();
  }
}

TEST(UdpTransport, HearsAnotherPeerAndItsGroupFromNowOn) {
  const wire::Endpoint group{.address = 0xEFC10000U | (static_cast<std::uint32_t>(getpid()) & 0xFFFFU), .port = 47'113};
  std::vector<UdpSocket> mine = one(UdpSocket(kAnyPort));
  const wire::Endpoint here = mine.front().local();
  UdpSocket before_socket(kAnyPort);
  UdpSocket after_socket(kAnyPort);
  for (UdpSocket* const socket : {&before_socket, &after_socket}) socket->send_groups_by(kLoopback);
  const std::array<wire::Endpoint, 2> peers{before_socket.local(), after_socket.local()};
  mine.front().connect(peers[0]);
  UdpTransport transport({}, std::move(mine));
  UdpTransport before({}, one(std::move(before_socket)));
  UdpTransport after({}, one(std::move(after_socket)));
  const auto in_group_of = [&](wire::Endpoint peer) {
    UdpSocket socket = UdpSocket::in_group(group, kLoopback);
    socket.connect(peer);
    return socket;
  };
  // A datagram that should not be heard comes in between, or is found next time.
  const auto heard = [&](std::size_t count) {
    for (UdpTransport* const peer : {&before, &after}) {
      const std::string name = peer == &before ? "before" : "after";
      send_all(*peer, {name}, {&here, 1});
      send_all(*peer, {name + " to all"}, {&group, 1});
    }
    std::multiset<std::string> texts;
    for (const Datagram& datagram : take(transport, count)) texts.insert(datagram.text);
    return texts;
  };
  EXPECT_EQ(heard(1), (std::multiset<std::string>{"before"}));
  UdpSocket of_group = in_group_of(peers[1]);
  const process::Descriptor of_forked_child(dup(of_group.descriptor()));
  ASSERT_TRUE(transport.hear({&peers[1], 1}, &of_group));
  EXPECT_EQ(heard(2), (std::multiset<std::string>{"after", "after to all"}));
  send_all(transport, {"answer"}, {&peers[1], 1});
  EXPECT_EQ(take(after, 1).size(), 1U);
  of_group = in_group_of(peers[0]);
  ASSERT_TRUE(transport.hear({&peers[0], 1}, &of_group));
  EXPECT_EQ(heard(2), (std::multiset<std::string>{"before", "before to all"}));
  std::atomic<bool> woken = false;
  std::thread waker([&] {
    woken = true;
    transport.wake();
  });
  transport.wait(-1);
  EXPECT_TRUE(woken) << "what is unread in the forked child's socket wakes nobody here";
  waker.join();
  ASSERT_TRUE(transport.hear({&peers[1], 1}, nullptr));
  EXPECT_EQ(heard(1), (std::multiset<std::string>{"after"}));
  EXPECT_FALSE(transport.hear(peers, nullptr)) << "it has one socket of its own";
  EXPECT_FALSE(before.hear({&here, 1}, nullptr)) << "it has no peer";
}

TEST(UdpSocket, NamesTheGroupItCannotJoin) {
  constexpr wire::Endpoint kNoGroup{.address = 0x7F000001, .port = 47'112};
  try {
    static_cast<void>(UdpSocket::in_group(kNoGroup, 0x7F000001));
    FAIL() << "127.0.0.1 is no multicast group";
  } catch (const std::system_error& error) {
    EXPECT_NE(std::string(error.what()).find("127.0.0.1:47112"), std::string::npos) << error.what();
  }
}

TEST(UdpSocket, RefusesABlockBeyondTheLastPort) {
  EXPECT_THROW(static_cast<void>(bind_consecutive({.address = kLoopback, .port = 65530}, 16)), std::system_error);
}

TEST(UdpSocket, ParsesDottedIpv4Only) {
  EXPECT_EQ(parse_ipv4("10.1.2.3"), 0x0A010203U);
  for (const char* text : {"", "10.1.2", "localhost", "::1", "1.2.3.4.5", "256.0.0.1"}) {
    EXPECT_THROW(static_cast<void>(parse_ipv4(text)), std::invalid_argument) << text;
  }
}

TEST(UdpSocket, KnowsTheSourceAddressTowardsLoopback) {
  EXPECT_EQ(source_address_towards({.address = kLoopback, .port = 1}), kLoopback);
}

}  // namespace
}  // namespace wiresum::transport
