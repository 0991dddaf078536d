// NCCL's point-to-point table, both ends in one process, and peers that are none of NCCL's.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "../src/device.hpp"
#include "../src/tcp.hpp"
#include "logger.hpp"

extern "C" {
extern const ncclNet_v11_t ncclNetPlugin_v11;
extern const ncclCollNet_v11_t ncclCollNetPlugin_v11;
}

namespace {

using nccl::last_warning;
using wiresum::nccl::Handle;

constexpr const ncclNet_v11_t& net = ncclNetPlugin_v11;
using Memory = std::vector<std::uint8_t>;
using HandleBytes = std::array<std::uint8_t, NCCL_NET_HANDLE_MAXSIZE>;

/// Calls until something is there: ctest ends what takes too long.
template <class Call>
void* until_made(Call&& call) {
  void* made = nullptr;
  while (call(&made) == ncclSuccess && made == nullptr) std::this_thread::yield();
  return made;
}

class NetTest : public testing::Test {
 protected:
  NetTest() {
    setenv("WIRESUM_ADDRESS", "127.0.0.1", 1);
    void* context = nullptr;
    ncclNetCommConfig_v11_t config{.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};
    EXPECT_EQ(net.init(&context, 1, &config, nccl::log, nullptr), ncclSuccess);
    EXPECT_EQ(net.listen(nullptr, 0, handle_.data(), &listener_), ncclSuccess);
    last_warning.clear();
  }
  ~NetTest() override {
    EXPECT_EQ(send_ == nullptr ? ncclSuccess : net.closeSend(send_), ncclSuccess);
    EXPECT_EQ(recv_ == nullptr ? ncclSuccess : net.closeRecv(recv_), ncclSuccess);
    EXPECT_EQ(listener_ == nullptr ? ncclSuccess : net.closeListen(listener_), ncclSuccess);
  }

  void connect() {
    send_ = until_made([this](void** made) { return net.connect(nullptr, 0, handle_.data(), made, nullptr); });
    recv_ = until_made([this](void** made) { return net.accept(listener_, made, nullptr); });
    ASSERT_NE(send_, nullptr) << last_warning;
    ASSERT_NE(recv_, nullptr) << last_warning;
  }

  void* send(Memory& memory, int tag) {
    void* request = nullptr;
    EXPECT_EQ(net.isend(send_, memory.data(), memory.size(), tag, nullptr, nullptr, &request), ncclSuccess);
    return request;
  }

  void* receive(Memory& memory, int tag) {
    void* request = nullptr;
    void* data = memory.data();
    std::size_t bytes = memory.size();
    EXPECT_EQ(net.irecv(recv_, 1, &data, &bytes, &tag, nullptr, nullptr, &request), ncclSuccess);
    return request;
  }

  static int await(void* request) {
    int done = 0;
    int bytes = -1;
    while (done == 0) {
      if (net.test(request, &done, &bytes) != ncclSuccess) return -1;
      std::this_thread::yield();
    }
    return bytes;
  }

  /// How a receive ends that fails, perhaps at once.
  ncclResult_t failure_of_receive() {
    Memory memory(8);
    void* request = nullptr;
    void* data = memory.data();
    std::size_t bytes = memory.size();
    int tag = 0;
    ncclResult_t result = net.irecv(recv_, 1, &data, &bytes, &tag, nullptr, nullptr, &request);
    for (int done = 0; result == ncclSuccess && done == 0;) result = net.test(request, &done, nullptr);
    return result;
  }

  /// A connection to the listener of somebody who is no NCCL.
  [[nodiscard]] int stranger() const {
    Handle handle{};
    std::memcpy(&handle, handle_.data(), sizeof handle);
    const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(made, reinterpret_cast<const sockaddr*>(&handle.address), sizeof handle.address), 0);
    return made;
  }

  HandleBytes handle_{};
  void* listener_ = nullptr;
  void* send_ = nullptr;
  void* recv_ = nullptr;
};

Memory pattern(std::size_t bytes, unsigned seed) {
  Memory made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::uint8_t>(i * 31 + i / 256 + seed);
  return made;
}

TEST_F(NetTest, SeveralMessagesOfAnySizeAreInFlight) {
  connect();
  std::vector<Memory> sent;
  std::vector<Memory> received;
  std::vector<void*> sends;
  std::vector<void*> receives;
  for (const std::size_t bytes : {0u, 1u, 24u, 64u << 10, 1u << 22, 3u, 0u, 1u << 20}) {
    sent.push_back(pattern(bytes, static_cast<unsigned>(bytes)));
    received.emplace_back(bytes + 5);
  }
  for (Memory& memory : sent) sends.push_back(send(memory, 7));
  for (Memory& memory : received) receives.push_back(receive(memory, 7));
  for (std::size_t i = 0; i < sent.size(); ++i) {
    int bytes = 0;
    int done = 0;
    while (done == 0) {
      ASSERT_EQ(net.test(receives[i], &done, &bytes), ncclSuccess) << last_warning;
      for (void*& one : sends) {
        int is_sent = 0;
        if (one == nullptr) continue;
        ASSERT_EQ(net.test(one, &is_sent, nullptr), ncclSuccess) << last_warning;
        if (is_sent != 0) one = nullptr;
      }
    }
    EXPECT_EQ(static_cast<std::size_t>(bytes), sent[i].size());
    received[i].resize(sent[i].size());
    EXPECT_EQ(received[i], sent[i]);
  }
}

TEST_F(NetTest, MessagesGoToReceivesWithTheirTag) {
  connect();
  Memory first = pattern(100, 1);
  Memory second = pattern(200, 2);
  Memory for_second(200);
  Memory for_first(200);
  void* const takes_second = receive(for_second, 2);
  void* const takes_first = receive(for_first, 1);
  EXPECT_EQ(await(send(first, 1)), 100);
  EXPECT_EQ(await(takes_first), 100);
  EXPECT_EQ(await(send(second, 2)), 200);
  EXPECT_EQ(await(takes_second), 200);
  EXPECT_EQ(for_second, second);
  for_first.resize(100);
  EXPECT_EQ(for_first, first);
}

TEST_F(NetTest, AMessageWaitsForAReceiveWithItsTag) {
  connect();
  Memory sent = pattern(100, 1);
  EXPECT_EQ(await(send(sent, 5)), 100);
  Memory other(100);
  void* const of_another_tag = receive(other, 6);
  int done = 0;
  EXPECT_EQ(net.test(of_another_tag, &done, nullptr), ncclSuccess);
  EXPECT_EQ(done, 0);
  Memory received(100);
  EXPECT_EQ(await(receive(received, 5)), 100);
  EXPECT_EQ(received, sent);
}

TEST_F(NetTest, ThereAreAsManyRequestsAsNcclHas) {
  connect();
  Memory memory(1);
  std::vector<void*> receives;
  for (int i = 0; i < NCCL_NET_MAX_REQUESTS; ++i) receives.push_back(receive(memory, 0));
  EXPECT_EQ(receive(memory, 0), nullptr);
  Memory sent(1);
  EXPECT_EQ(await(send(sent, 0)), 1);
  EXPECT_EQ(await(receives.front()), 1);
  EXPECT_NE(receive(memory, 0), nullptr);
}

TEST_F(NetTest, AMessageThatDoesNotFitIsRefusedAndStaysSo) {
  connect();
  Memory sent(101);
  Memory received(100, 9);
  void* const request = receive(received, 0);
  EXPECT_EQ(await(send(sent, 0)), 101);
  for (int i = 0; i < 2; ++i) {
    int done = 0;
    last_warning.clear();
    ncclResult_t result = ncclSuccess;
    while (result == ncclSuccess) result = net.test(request, &done, nullptr);
    EXPECT_EQ(result, ncclInvalidUsage);
    EXPECT_EQ(last_warning.substr(0, 30), "the connection with 127.0.0.1:") << last_warning;
    EXPECT_NE(last_warning.find("it sent 101 bytes where 100 fit"), std::string::npos) << last_warning;
  }
  EXPECT_EQ(received, Memory(100, 9));
}

TEST_F(NetTest, AReceiverThatClosedIsNamed) {
  connect();
  Memory memory(1 << 24);
  void* const request = send(memory, 0);
  EXPECT_EQ(net.closeRecv(std::exchange(recv_, nullptr)), ncclSuccess);
  EXPECT_EQ(await(request), -1);
  EXPECT_EQ(last_warning.substr(0, 30), "the connection with 127.0.0.1:") << last_warning;
}

TEST_F(NetTest, ASenderThatClosedIsNamedAfterWhatItHasSent) {
  connect();
  Memory sent = pattern(100'000, 3);
  EXPECT_EQ(await(send(sent, 0)), 100'000);
  EXPECT_EQ(net.closeSend(std::exchange(send_, nullptr)), ncclSuccess);
  Memory received(100'000);
  EXPECT_EQ(await(receive(received, 0)), 100'000);
  EXPECT_EQ(received, sent);
  last_warning.clear();
  EXPECT_EQ(failure_of_receive(), ncclRemoteError);
  EXPECT_NE(last_warning.find("the peer has closed it"), std::string::npos) << last_warning;
}

TEST_F(NetTest, StrangersAreNotHeardAndKeepNobodyOut) {
  std::vector<int> strangers;
  constexpr std::string_view kGarbage = "GET / HTTP/1.1\r\nHost: a-host-with-a-long-name\r\n\r\n";
  Handle handle{};
  std::memcpy(&handle, handle_.data(), sizeof handle);
  auto almost = handle.hello;
  almost.secret.back() ^= 1;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(stranger());
    const int peer = strangers.back();
    if (i % 4 == 0) (void)!::send(peer, kGarbage.data(), kGarbage.size(), 0);
    if (i % 4 == 1) (void)!::send(peer, &almost, sizeof almost, 0);
    if (i % 4 == 2) (void)!::send(peer, &handle.hello, 3, 0);
    if (i % 4 == 2 && i % 8 == 2) close(std::exchange(strangers.back(), -1));
  }
  connect();
  Memory sent = pattern(1000, 1);
  Memory received(1000);
  void* const request = receive(received, 0);
  EXPECT_EQ(await(send(sent, 0)), 1000);
  EXPECT_EQ(await(request), 1000);
  EXPECT_EQ(received, sent);
  for (const int one : strangers) close(one);
}

TEST_F(NetTest, TheOldestOfManySilentStrangersIsForgottenAndNotWhoIsSayingTheSecret) {
  Handle handle{};
  std::memcpy(&handle, handle_.data(), sizeof handle);
  const auto* const hello = reinterpret_cast<const std::uint8_t*>(&handle.hello);
  std::vector<int> silent(70);
  for (int& one : silent) one = stranger();
  void* made = nullptr;
  EXPECT_EQ(net.accept(listener_, &made, nullptr), ncclSuccess);
  const int slow = stranger();
  EXPECT_EQ(::send(slow, hello, 10, 0), 10);
  EXPECT_EQ(net.accept(listener_, &made, nullptr), ncclSuccess);
  EXPECT_EQ(made, nullptr);
  char byte = 0;
  EXPECT_EQ(::recv(silent.front(), &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_EQ(::recv(silent.back(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(::send(slow, hello + 10, sizeof handle.hello - 10, 0), ssize_t{sizeof handle.hello - 10});
  EXPECT_EQ(net.accept(listener_, &recv_, nullptr), ncclSuccess);
  EXPECT_NE(recv_, nullptr);
  for (const int one : silent) close(one);
  close(slow);
}

TEST_F(NetTest, WhoKnowsTheSecretStillMustSendMessages) {
  Handle handle{};
  std::memcpy(&handle, handle_.data(), sizeof handle);
  const int peer = stranger();
  EXPECT_EQ(::send(peer, &handle.hello, sizeof handle.hello, 0), ssize_t{sizeof handle.hello});
  recv_ = until_made([this](void** made) { return net.accept(listener_, made, nullptr); });
  Memory received(100, 9);
  void* const request = receive(received, 0);
  const Memory garbage(64, 0xFF);
  EXPECT_EQ(::send(peer, garbage.data(), garbage.size(), 0), ssize_t{64});
  EXPECT_EQ(await(request), -1);
  EXPECT_NE(last_warning.find("it sent what is no message"), std::string::npos) << last_warning;
  EXPECT_EQ(received, Memory(100, 9));
  close(peer);
}

TEST_F(NetTest, ConnectingFailsWhereNobodyListensAndThenTriesAnew) {
  EXPECT_EQ(net.closeListen(std::exchange(listener_, nullptr)), ncclSuccess);
  void* made = nullptr;
  ncclResult_t result = ncclSuccess;
  while (result == ncclSuccess) result = net.connect(nullptr, 0, handle_.data(), &made, nullptr);
  EXPECT_EQ(result, ncclRemoteError);
  EXPECT_NE(last_warning.find("cannot connect to 127.0.0.1:"), std::string::npos) << last_warning;
  EXPECT_EQ(made, nullptr);
  // In the same memory, another handle.
  EXPECT_EQ(net.listen(nullptr, 0, handle_.data(), &listener_), ncclSuccess);
  connect();
}

TEST_F(NetTest, AHandleThatTookTheMemoryOfAnotherIsANewOne) {
  // Nobody gets in where the first has not been let in, and there is room for no other.
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const int full = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(full, reinterpret_cast<const sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(full, 0), 0);
  ASSERT_EQ(getsockname(full, reinterpret_cast<sockaddr*>(&address), &length), 0);
  std::array<int, 3> waiting{};
  for (int& one : waiting) {
    one = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    (void)!::connect(one, reinterpret_cast<const sockaddr*>(&address), length);
  }
  HandleBytes memory = handle_;
  Handle handle{};
  std::memcpy(&handle, memory.data(), sizeof handle);
  handle.address = address;
  handle.hello.secret[0] ^= 1;
  std::memcpy(memory.data(), &handle, sizeof handle);
  void* made = nullptr;
  ASSERT_EQ(net.connect(nullptr, 0, memory.data(), &made, nullptr), ncclSuccess);
  ASSERT_EQ(made, nullptr);
  memory = handle_;
  send_ = until_made([&](void** it) { return net.connect(nullptr, 0, memory.data(), it, nullptr); });
  recv_ = until_made([this](void** it) { return net.accept(listener_, it, nullptr); });
  EXPECT_NE(recv_, nullptr);
  for (const int one : waiting) close(one);
  close(full);
}

TEST_F(NetTest, AHandleOfAnotherPlugInIsRefused) {
  HandleBytes other{};
  void* made = nullptr;
  EXPECT_EQ(net.connect(nullptr, 0, other.data(), &made, nullptr), ncclInvalidUsage);
  EXPECT_NE(last_warning.find("is NCCL_NET_PLUGIN the same at all ranks?"), std::string::npos) << last_warning;
}

TEST_F(NetTest, AForkedChildDoesNotKeepAConnectionAlive) {
  connect();
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    Memory memory(1);
    void* request = nullptr;
    const ncclResult_t result = net.isend(send_, memory.data(), 1, 0, nullptr, nullptr, &request);
    net.closeSend(send_);
    close(ends[1]);
    char end = 0;
    (void)!read(ends[0], &end, 1);  // until the parent has seen it
    _exit(result == ncclInvalidUsage ? 0 : 1);
  }
  close(ends[0]);
  EXPECT_EQ(net.closeSend(std::exchange(send_, nullptr)), ncclSuccess);
  EXPECT_EQ(failure_of_receive(), ncclRemoteError);
  close(ends[1]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

/// Both ends, each in a thread of its own as in NCCL's proxies, with random sizes and tags.
TEST_F(NetTest, RandomMessagesArrive) {
  const char* const wish = std::getenv("WIRESUM_NCCL_SEEDS");
  const unsigned seeds = wish == nullptr ? 20 : static_cast<unsigned>(std::atoi(wish));
  connect();
  for (unsigned seed = 0; seed < seeds; ++seed) {
    std::mt19937 draw(seed);
    std::vector<std::pair<std::size_t, int>> messages(40);
    for (auto& [bytes, tag] : messages) {
      bytes = draw() % 5 == 0 ? draw() % 1'000'000 : draw() % 2000;
      tag = static_cast<int>(draw() % 3);
    }
    std::thread sender([&] {
      std::deque<std::pair<void*, Memory>> flying;
      for (std::size_t i = 0; i < messages.size() || !flying.empty();) {
        if (i < messages.size() && flying.size() < 8) {
          flying.emplace_back(nullptr, pattern(messages[i].first, static_cast<unsigned>(i)));
          flying.back().first = send(flying.back().second, messages[i].second);
          ++i;
        } else {
          EXPECT_GE(await(flying.front().first), 0) << last_warning;
          flying.pop_front();
        }
      }
    });
    std::deque<std::pair<void*, Memory>> flying;
    std::size_t posted = 0;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      while (posted < messages.size() && flying.size() < 8) {
        flying.emplace_back(nullptr, Memory(messages[posted].first));
        flying.back().first = receive(flying.back().second, messages[posted].second);
        ++posted;
      }
      EXPECT_EQ(await(flying.front().first), static_cast<int>(messages[i].first)) << last_warning;
      EXPECT_EQ(flying.front().second, pattern(messages[i].first, static_cast<unsigned>(i))) << "seed " << seed;
      flying.pop_front();
    }
    sender.join();
  }
}

TEST_F(NetTest, WhatIsNotThereIsRefused) {
  void* made = nullptr;
  int number = 0;
  ncclNetProperties_v11_t properties{};
  EXPECT_EQ(net.getProperties(1, &properties), ncclInvalidArgument);
  EXPECT_EQ(net.listen(nullptr, 1, handle_.data(), &made), ncclInvalidArgument);
  EXPECT_EQ(net.connect(nullptr, 1, handle_.data(), &made, nullptr), ncclInvalidArgument);
  EXPECT_EQ(net.test(nullptr, &number, nullptr), ncclInvalidArgument);
  EXPECT_EQ(net.irecv(nullptr, 2, nullptr, nullptr, nullptr, nullptr, nullptr, &made), ncclInvalidArgument);
  EXPECT_EQ(net.regMr(nullptr, nullptr, 0, NCCL_PTR_CUDA, &made), ncclInvalidArgument);
  EXPECT_EQ(net.regMr(nullptr, nullptr, 0, NCCL_PTR_HOST, &made), ncclSuccess);
  EXPECT_EQ(net.iflush(nullptr, 0, nullptr, nullptr, nullptr, &made), ncclSuccess);
  EXPECT_EQ(made, nullptr);
}

/// All nodes have all handles, and must refuse the same ones: that no node is tried is what this shows.
TEST_F(NetTest, HandlesOfGroupsAreCheckedBeforeAnythingIsJoined) {
  std::array<HandleBytes, 3> handles{};
  std::array<void*, 3> pointers{};
  void* listener = nullptr;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    pointers[i] = handles[i].data();
    ASSERT_EQ(ncclCollNetPlugin_v11.listen(nullptr, 0, handles[i].data(), &listener), ncclSuccess);
  }
  EXPECT_NE(handles[0], handles[1]);
  const auto refuses = [&](const char* text) {
    void* group = nullptr;
    const ncclResult_t result = ncclCollNetPlugin_v11.connect(pointers.data(), 3, 1, listener, &group);
    EXPECT_NE(result, ncclSuccess);
    EXPECT_EQ(group, nullptr);
    EXPECT_NE(last_warning.find(text), std::string::npos) << last_warning;
  };
  handles[2][0] ^= 1;
  refuses("node 2 has another plug-in");
  handles[2][0] ^= 1;
  handles[0].fill(0xFF);
  refuses("node 0 has another plug-in");
  handles[0] = handles[1];
  handles[0][119] = 'x';  // the name does not end
  refuses("node 0 has another plug-in");
  listener = nullptr;
  refuses("the listener is NULL");
}

TEST(DeviceTest, NamesOfInterfacesAreChosenAsNcclChoosesThem) {
  using wiresum::nccl::is_allowed;
  EXPECT_TRUE(is_allowed("eth0", "eth"));
  EXPECT_TRUE(is_allowed("ib1", "eth,ib"));
  EXPECT_FALSE(is_allowed("docker0", "eth,ib"));
  EXPECT_FALSE(is_allowed("eth01", "=eth0"));
  EXPECT_TRUE(is_allowed("eth0", "=ib0,eth0"));
  EXPECT_FALSE(is_allowed("docker0", "^docker,lo"));
  EXPECT_TRUE(is_allowed("eth0", "^docker,lo"));
  EXPECT_TRUE(is_allowed("eth01", "^=eth0"));
  EXPECT_FALSE(is_allowed("eth0", "^=eth0"));
  EXPECT_FALSE(is_allowed("eth0", ","));
}

}  // namespace
