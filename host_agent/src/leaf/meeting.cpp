#include "leaf/meeting.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "process/descriptor.hpp"

namespace wiresum::leaf {
namespace {

namespace shm = transport::shm;
using Clock = std::chrono::steady_clock;
using process::Descriptor;

/// The token is one half of the secret, and the name the other.
constexpr std::size_t kTokenBytes = kSecretBytes / 2;
/// A rank's greeting: the token, and the rank's index.
constexpr std::size_t kHelloBytes = kTokenBytes + 1;
/// A link's descriptors: channel, results, the rank's event, the leaf's.
constexpr std::size_t kDescriptorsOfLink = 4;
constexpr std::size_t kDescriptorsMax = kDescriptorsOfLink * wire::kThreadsMax;
/// The time between two looks at whether to give up, and between two calls before the first rank listens.
constexpr std::chrono::milliseconds kPause{20};
/// The longest time that a silent stranger's call holds up the others.
constexpr std::chrono::milliseconds kHelloMost{1'000};

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

class Deadline {
 public:
  explicit Deadline(const Patience& patience) : patience_(patience), end_(Clock::now() + patience.most) {}
  [[nodiscard]] bool is_over() const { return Clock::now() >= end_ || patience_.is_over(); }

 private:
  const Patience& patience_;
  const Clock::time_point end_;
};

struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;
};

/// An address in the abstract namespace, within this network namespace; it ends with the socket.
Address address_of(const Place& place) {
  assert(place.secret.size() == kSecretBytes);
  Address made;
  made.name.sun_family = AF_UNIX;
  std::string name = "wiresum-";
  for (const char byte : place.secret.substr(kTokenBytes)) {
    for (const unsigned shift : {4U, 0U}) name += "0123456789abcdef"[static_cast<unsigned char>(byte) >> shift & 15U];
  }
  std::memcpy(made.name.sun_path + 1, name.data(), name.size());
  made.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return made;
}

Descriptor new_socket() {
  Descriptor made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!made.valid()) fail("cannot make a local socket");
  return made;
}

/// True if there is something to read, or a caller, within `most`.
bool is_ready(const Descriptor& at, std::chrono::milliseconds most) {
  pollfd wanted{.fd = at.get(), .events = POLLIN, .revents = 0};
  return poll(&wanted, 1, static_cast<int>(most.count())) > 0;
}

std::string names_of(const Place& place, const std::vector<bool>& which) {
  std::string names;
  for (std::size_t i = 0; i < place.ranks.size(); ++i) {
    if (which[i]) names += (names.empty() ? "" : ", ") + std::to_string(place.ranks[i]);
  }
  return names;
}

/// The caller's index, if the caller has the token.
std::optional<std::size_t> read_hello(const Descriptor& caller, const Place& place) {
  std::array<char, kHelloBytes> hello{};
  if (!is_ready(caller, kHelloMost) || recv(caller.get(), hello.data(), hello.size(), 0) != kHelloBytes) return {};
  const auto index = static_cast<unsigned char>(hello.back());
  if (place.secret.compare(0, kTokenBytes, hello.data(), kTokenBytes) != 0) return {};
  if (index == 0 || index >= place.ranks.size()) return {};
  return index;
}

union Control {
  cmsghdr header;
  std::array<char, CMSG_SPACE(sizeof(int) * kDescriptorsMax)> bytes;
};

void send_links(const Descriptor& caller, const std::vector<shm::Link>& links) {
  std::vector<int> descriptors;
  for (const shm::Link& link : links) {
    for (const int each : {link.channel.descriptor(), link.results.descriptor(), link.event.get(), link.leaf.get()}) {
      descriptors.push_back(each);
    }
  }
  auto count = static_cast<unsigned char>(links.size());
  iovec text{.iov_base = &count, .iov_len = 1};
  Control control{};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
  std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  if (sendmsg(caller.get(), &message, MSG_NOSIGNAL) != 1) fail("cannot share memory with another rank of this host");
}

std::vector<Descriptor> receive_descriptors(const Descriptor& from) {
  unsigned char count = 0;
  iovec text{.iov_base = &count, .iov_len = 1};
  Control control{};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  std::vector<Descriptor> received;
  if (recvmsg(from.get(), &message, MSG_CMSG_CLOEXEC) != 1) return received;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= header->cmsg_len; at += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + (at - CMSG_LEN(0)), sizeof descriptor);
      received.emplace_back(descriptor);
    }
  }
  return received;
}

}  // namespace

void share(const Place& place, std::vector<std::unique_ptr<Leaf>>& leaves, const Patience& patience) {
  const Deadline deadline(patience);
  const Descriptor listening = new_socket();
  const Address at = address_of(place);
  if (bind(listening.get(), reinterpret_cast<const sockaddr*>(&at.name), at.bytes) != 0 ||
      listen(listening.get(), static_cast<int>(wire::kSwitchWorkersMax)) != 0) {
    fail("cannot listen for the other ranks of this host");
  }
  std::vector<bool> missing(place.ranks.size(), true);
  missing[0] = false;
  for (std::size_t left = place.ranks.size() - 1; left > 0;) {
    if (deadline.is_over()) {
      throw MeetingError("rank " + names_of(place, missing) +
                         " did not come to share this host's stream: look whether it runs, and at its error");
    }
    if (!is_ready(listening, kPause)) continue;
    const Descriptor caller(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!caller.valid()) continue;
    const std::optional<std::size_t> index = read_hello(caller, place);
    if (!index.has_value() || !missing[*index]) continue;
    std::vector<shm::Link> links;
    for (const auto& leaf : leaves) links.push_back(leaf->link(static_cast<std::uint8_t>(*index)));
    send_links(caller, links);
    missing[*index] = false;
    --left;
  }
}

Transports reach(const Place& place, unsigned threads, std::size_t packet_bytes_max, std::size_t results_bytes,
                 const Patience& patience) {
  assert(place.index != 0);
  const Deadline deadline(patience);
  const Address at = address_of(place);
  const std::string first = "rank " + std::to_string(place.ranks[0]);
  const auto give_up = [&](const std::string& what) {
    return MeetingError(first + ", which drives this host's stream, " + what +
                        ": look whether it runs, and at its error");
  };
  const Descriptor calling = new_socket();
  while (connect(calling.get(), reinterpret_cast<const sockaddr*>(&at.name), at.bytes) != 0) {
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) fail("cannot reach the first rank of this host");
    if (deadline.is_over()) throw give_up("did not listen for the others");
    std::this_thread::sleep_for(kPause);
  }
  std::string hello = place.secret.substr(0, kTokenBytes) + static_cast<char>(place.index);
  if (send(calling.get(), hello.data(), hello.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(hello.size())) {
    throw give_up("hung up");
  }
  while (!is_ready(calling, kPause)) {
    if (deadline.is_over()) throw give_up("did not answer");
  }
  std::vector<Descriptor> descriptors = receive_descriptors(calling);
  if (descriptors.size() != kDescriptorsOfLink * threads) throw give_up("hung up");
  const shm::Shape shape(packet_bytes_max);
  Transports transports;
  try {
    for (std::size_t i = 0; i < descriptors.size(); i += kDescriptorsOfLink) {
      shm::Link link{.channel = shm::Memory(std::move(descriptors[i]), shape.channel_bytes(), false),
                     .results = shm::Memory(std::move(descriptors[i + 1]), results_bytes, true),
                     .event = std::move(descriptors[i + 2]),
                     .leaf = std::move(descriptors[i + 3])};
      transports.push_back(std::make_unique<shm::ShmTransport>(std::move(link), packet_bytes_max));
    }
  } catch (const std::invalid_argument& error) {
    throw MeetingError(first + " shares something else with the ranks of its host: " + error.what());
  }
  return transports;
}

}  // namespace wiresum::leaf
