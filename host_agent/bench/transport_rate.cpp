// Packets for each second through a transport, between two processes pinned to a core each, and the time of a round
// trip.
//
//   transport_rate udp
//   transport_rate xdp DEVICE DEVICE
//   transport_rate dpdk "--no-huge --vdev=net_memif0,role=server,id=7" "--no-huge --vdev=net_memif0,role=client,id=7"
//
// The first process answers; the second sends full packets as fast as they are taken, at most kWindow ahead of what has
// been answered, then one at a time.
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "transport/open.hpp"

namespace {

using namespace wiresum;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kPacketBytes = 1464;
constexpr std::size_t kBurst = 32;
constexpr std::size_t kWindow = 512;
constexpr int kPatienceMs = 20;  // after which what is under way is taken to be lost
constexpr auto kDuration = std::chrono::seconds(3);
constexpr std::size_t kRoundTrips = 20'000;
constexpr std::uint16_t kPort = 43'000;

struct End {
  transport::DataPath path;
  wire::Endpoint peer;
};

End open_end(transport::Kind kind, const std::string& device, bool answers) {
  const bool loopback = kind == transport::Kind::kUdp;
  const std::uint32_t network = transport::parse_ipv4(loopback ? "127.0.0.0" : "10.77.0.0");
  const wire::Endpoint own{.address = network + (answers ? 1 : 2), .port = kPort};
  const wire::Endpoint peer{.address = network + (answers ? 2 : 1), .port = kPort};
  std::vector<transport::UdpSocket> sockets;
  sockets.emplace_back(loopback ? own : wire::Endpoint{.address = 0x7F00'0000 + (own.address & 0xFF), .port = kPort});
  if (loopback) sockets.front().connect(peer);
  return {.path = transport::open({.kind = kind, .device = device}, {.address = own.address, .peer = peer},
                                  std::move(sockets)),
          .peer = peer};
}

void pin(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  static_cast<void>(sched_setaffinity(0, sizeof cores, &cores));
}

std::size_t send(transport::Transport& by, const wire::Endpoint& to, std::size_t wanted) {
  const std::span<wire::Packet> room = by.room(wanted);
  for (wire::Packet& packet : room) {
    std::memset(packet.data, 0x5A, kPacketBytes);  // as a worker writes each anew
    packet.bytes = kPacketBytes;
  }
  by.send(room.size(), {&to, 1}, 0);
  return room.size();
}

[[noreturn]] void answer(End end) {
  std::array<transport::RxDatagram, 256> got;
  for (;;) {
    const std::size_t count = end.path.transport->receive(got);
    for (std::size_t left = count; left != 0;) left -= send(*end.path.transport, end.peer, std::min(left, kBurst));
    if (count == 0) end.path.transport->wait(-1);
  }
}

void report_rate(End& end) {
  transport::Transport& by = *end.path.transport;
  std::array<transport::RxDatagram, 256> got;
  std::size_t answered = 0;
  std::size_t under_way = 0;
  std::size_t lost = 0;
  const auto start = Clock::now();
  for (auto heard = start; Clock::now() - start < kDuration;) {
    while (under_way < kWindow) {
      const std::size_t sent = send(by, end.peer, kBurst);
      if (sent == 0) break;
      under_way += sent;
    }
    const std::size_t count = by.receive(got);
    answered += count;
    under_way -= std::min(under_way, count);
    if (count != 0) heard = Clock::now();
    if (Clock::now() - heard > std::chrono::milliseconds(kPatienceMs)) {
      lost += under_way;
      under_way = 0;
      heard = Clock::now();
    }
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  std::printf("%s: %.0f packets/s there and back (%zu lost)\n", by.name(), static_cast<double>(answered) / seconds,
              lost);
}

void report_round_trip(End& end) {
  transport::Transport& by = *end.path.transport;
  std::array<transport::RxDatagram, 256> got;
  while (by.receive(got) != 0) {
  }
  std::vector<double> times_us;
  for (std::size_t i = 0; i != kRoundTrips; ++i) {
    const auto start = Clock::now();
    send(by, end.peer, 1);
    std::size_t count = 0;
    while (count == 0 && Clock::now() - start < std::chrono::milliseconds(kPatienceMs)) {
      count = by.receive(got);
      if (count == 0) by.wait(100'000);
    }
    times_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::sort(times_us.begin(), times_us.end());
  std::printf("%s: round trip of one packet: median %.1f us, 99%% %.1f us\n", by.name(), times_us[kRoundTrips / 2],
              times_us[kRoundTrips * 99 / 100]);
}

int run(int count, char** words) {
  const std::string kind_name = count > 1 ? words[1] : "";
  const transport::Kind kind = kind_name == "udp"   ? transport::Kind::kUdp
                               : kind_name == "xdp" ? transport::Kind::kXdp
                                                    : transport::Kind::kDpdk;
  if ((kind == transport::Kind::kUdp) != (count == 2) && count != 4) {
    std::fprintf(stderr, "usage: transport_rate udp | xdp|dpdk DEVICE DEVICE\n");
    return 2;
  }
  const pid_t other = fork();
  if (other == 0) {
    static_cast<void>(prctl(PR_SET_PDEATHSIG, SIGKILL));
    pin(1);
    answer(open_end(kind, count == 4 ? words[2] : "", true));
  }
  pin(0);
  {
    End end = open_end(kind, count == 4 ? words[3] : "", false);
    // Until both are there and know of each other.
    std::array<transport::RxDatagram, 256> got;
    for (int i = 0; i != 5000 && end.path.transport->receive(got) == 0; ++i) {
      send(*end.path.transport, end.peer, 1);
      end.path.transport->wait(1'000'000);
    }
    report_rate(end);
    report_round_trip(end);
  }
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
  return 0;
}

}  // namespace

int main(int count, char** words) {
  try {
    return run(count, words);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "transport_rate: %s\n", error.what());
    return 1;
  }
}
