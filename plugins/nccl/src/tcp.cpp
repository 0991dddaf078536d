#include "tcp.hpp"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "result.hpp"

namespace wiresum::nccl {
namespace {

constexpr Magic kHelloMagic{'w', 's', 'u', 'm', 't', 'c', 'p', '1'};
constexpr Magic kMessageMagic{'w', 's', 'u', 'm', 'm', 's', 'g', '1'};
constexpr int kBacklog = 1024;
/// Strangers who say nothing are forgotten for newer guests: the peer says the secret with its first packet.
constexpr std::size_t kGuestsMax = 64;
/// For how long a connection is tried to be made.
constexpr unsigned kDialMs = 60'000;
/// A peer whose host is gone is given up after a minute and a half.
constexpr int kKeepIdleSeconds = 30;
constexpr int kKeepPeriodSeconds = 10;
constexpr int kKeepProbes = 6;

/// The sockets of this process, for its forked children.
struct OpenSockets {
  std::mutex mutex;
  std::set<int> numbers;
};

OpenSockets& open_sockets() {
  // Never destroyed: NCCL may close connections after static objects are gone.
  static OpenSockets* const all = [] {
    auto* const made = new OpenSockets;
    pthread_atfork([] { open_sockets().mutex.lock(); }, [] { open_sockets().mutex.unlock(); },
                   [] {
                     for (const int number : open_sockets().numbers) close(number);
                     open_sockets().mutex.unlock();
                   });
    return made;
  }();
  return *all;
}

[[noreturn]] void fail_of_system(const std::string& what) {
  throw Refused(ncclSystemError, what + ": " + std::strerror(errno));
}

std::string to_string(const sockaddr_in& address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
  return std::string(text.data()) + ":" + std::to_string(ntohs(address.sin_port));
}

void set_option(int descriptor, int level, int name, int value) noexcept {
  static_cast<void>(setsockopt(descriptor, level, name, &value, sizeof value));
}

void prepare(int descriptor) noexcept {
  set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, kKeepPeriodSeconds);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
}

int made_socket() {
  const int number = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (number < 0) fail_of_system("cannot open a TCP socket");
  return number;
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

/// Takes as long wherever they differ.
bool are_equal(const Secret& a, const Secret& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

Socket::Socket(int number) : number_(number) {
  if (number < 0) return;
  OpenSockets& all = open_sockets();
  const std::lock_guard lock(all.mutex);
  all.numbers.insert(number);
}

Socket::~Socket() {
  if (number_ < 0 || !home_.is_here()) return;
  OpenSockets& all = open_sockets();
  const std::lock_guard lock(all.mutex);
  all.numbers.erase(number_);
  close(number_);
}

Socket::Socket(Socket&& other) noexcept : number_(std::exchange(other.number_, -1)), home_(other.home_) {}

int Socket::get() const {
  if (!home_.is_here()) {
    throw Refused(ncclInvalidUsage, "the connection belongs to the process that this one was forked from");
  }
  return number_;
}

Secret random_secret() {
  Secret made{};
  if (getrandom(made.data(), made.size(), 0) != static_cast<ssize_t>(made.size())) {
    fail_of_system("cannot draw random bytes");
  }
  return made;
}

// ---- requests ----

Request* Connection::post(void* memory, std::size_t bytes, int tag) {
  if (requests_.size() >= NCCL_NET_MAX_REQUESTS) return nullptr;
  requests_.push_back({.connection = this, .memory = static_cast<std::byte*>(memory), .bytes = bytes, .tag = tag});
  Request* const posted = &requests_.back();
  advance();
  return posted;
}

bool Connection::test(Request* request, std::size_t& bytes) {
  if (!request->is_complete) advance();
  if (!request->is_complete) return false;
  bytes = request->bytes;
  requests_.remove_if([request](const Request& one) { return &one == request; });
  return true;
}

void Connection::fail(ncclResult_t result, const std::string& cause) const {
  throw Refused(result, "the connection with " + peer_ + " has failed: " + cause);
}

std::size_t Connection::moved(ssize_t result) const {
  if (result > 0) return static_cast<std::size_t>(result);
  if (result == 0) fail(ncclRemoteError, "the peer has closed it");
  if (!would_block()) fail(ncclRemoteError, std::strerror(errno));
  return 0;
}

void Sender::advance() {
  for (Request& request : requests_) {
    if (request.is_complete) continue;
    Header header{.magic = kMessageMagic, .bytes = request.bytes, .tag = request.tag, .zero = 0};
    while (sent_ < sizeof header + request.bytes) {
      const std::size_t of_header = std::min(sent_, sizeof header);
      const std::size_t of_bytes = sent_ - of_header;
      std::array<iovec, 2> parts{{{reinterpret_cast<std::byte*>(&header) + of_header, sizeof header - of_header},
                                  {request.memory + of_bytes, request.bytes - of_bytes}}};
      msghdr message{};
      message.msg_iov = parts.data();
      message.msg_iovlen = parts.size();
      const std::size_t sent = moved(sendmsg(socket_.get(), &message, MSG_NOSIGNAL));
      if (sent == 0) return;
      sent_ += sent;
    }
    sent_ = 0;
    request.is_complete = true;
  }
}

void Receiver::advance() {
  while (current_ != nullptr || std::ranges::any_of(requests_, [](const Request& one) { return !one.is_complete; })) {
    if (current_ == nullptr) {
      if (!has_received_header()) return;
      current_ = receive_for_header();
      if (current_ == nullptr) return;
    }
    while (come_ < current_->bytes) {
      const std::size_t come = moved(recv(socket_.get(), current_->memory + come_, current_->bytes - come_, 0));
      if (come == 0) return;
      come_ += come;
    }
    current_->is_complete = true;
    current_ = nullptr;
    come_ = header_come_ = 0;
  }
}

bool Receiver::has_received_header() {
  while (header_come_ < header_.size()) {
    const std::size_t come = moved(recv(socket_.get(), &header_[header_come_], header_.size() - header_come_, 0));
    if (come == 0) return false;
    header_come_ += come;
  }
  return true;
}

Request* Receiver::receive_for_header() {
  Header header{};
  std::memcpy(&header, header_.data(), sizeof header);
  if (header.magic != kMessageMagic || header.zero != 0) fail(ncclRemoteError, "it sent what is no message");
  const auto found = std::ranges::find_if(
      requests_, [&header](const Request& one) { return !one.is_complete && one.tag == header.tag; });
  if (found == requests_.end()) return nullptr;
  if (header.bytes > found->bytes) {
    fail(ncclInvalidUsage, "it sent " + std::to_string(header.bytes) + " bytes where " + std::to_string(found->bytes) +
                               " fit: do the sizes of a collective, NCCL_ALGO or NCCL_PROTO differ between ranks?");
  }
  found->bytes = header.bytes;
  return &*found;
}

// ---- how a connection is made ----

Dial::Dial(const Handle& handle) : hello_(handle.hello), peer_(to_string(handle.address)), socket_(made_socket()) {
  if (hello_.magic != kHelloMagic) {
    throw Refused(ncclInvalidUsage,
                  "the peer's handle is none of Wiresum's: is NCCL_NET_PLUGIN the same at all ranks?");
  }
  prepare(socket_.get());
  set_option(socket_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, kDialMs);
  const auto* const address = reinterpret_cast<const sockaddr*>(&handle.address);
  if (connect(socket_.get(), address, sizeof handle.address) != 0 && errno != EINPROGRESS) {
    fail_of_system("cannot connect to " + peer_);
  }
}

std::unique_ptr<Sender> Dial::finish() {
  pollfd writable{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
  if (poll(&writable, 1, 0) <= 0) return nullptr;
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) {
    throw Refused(ncclRemoteError, "cannot connect to " + peer_ + ": " + std::strerror(error == 0 ? errno : error));
  }
  while (said_ < sizeof hello_) {
    const auto* const rest = reinterpret_cast<const std::byte*>(&hello_) + said_;
    const ssize_t said = send(socket_.get(), rest, sizeof hello_ - said_, MSG_NOSIGNAL);
    if (said < 0 && would_block()) return nullptr;
    if (said < 0) throw Refused(ncclRemoteError, "cannot connect to " + peer_ + ": " + std::strerror(errno));
    said_ += static_cast<std::size_t>(said);
  }
  // It would also end connections whose receiver takes its time.
  set_option(socket_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
  return std::make_unique<Sender>(std::move(socket_), std::move(peer_));
}

Listener::Listener(const sockaddr_in& address) : socket_(made_socket()) {
  handle_.hello = {.magic = kHelloMagic, .secret = random_secret()};
  handle_.address = address;
  handle_.address.sin_port = 0;
  auto* const bound = reinterpret_cast<sockaddr*>(&handle_.address);
  socklen_t length = sizeof handle_.address;
  if (bind(socket_.get(), bound, length) != 0 || listen(socket_.get(), kBacklog) != 0 ||
      getsockname(socket_.get(), bound, &length) != 0) {
    fail_of_system("cannot listen at " + to_string(address));
  }
}

std::unique_ptr<Receiver> Listener::accept() {
  // Those who come now are heard at once: they are not forgotten before that, however many there are.
  std::list<Guest> come = std::exchange(guests_, {});
  for (std::size_t i = 0; i < kGuestsMax && let_in(come); ++i) {
  }
  std::unique_ptr<Receiver> made;
  for (Guest& guest : come) {
    const Answer answer = made == nullptr ? hear(guest) : Answer::kSilent;
    if (answer == Answer::kSilent) {
      guests_.push_back(std::move(guest));
    } else if (answer == Answer::kKnown) {
      made = std::make_unique<Receiver>(std::move(guest.socket), std::move(guest.peer));
    } else {
      inform(guest.peer + " connected, and did not say the secret: it is not heard");
    }
  }
  while (guests_.size() > kGuestsMax) guests_.pop_front();
  return made;
}

bool Listener::let_in(std::list<Guest>& come) const {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  const int number =
      accept4(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
  // A guest who is gone already is no failure of the listener.
  if (number < 0 && errno == ECONNABORTED) return true;
  if (number < 0 && would_block()) return false;
  if (number < 0) fail_of_system("cannot accept a connection at " + to_string(handle_.address));
  prepare(number);
  come.push_back({.socket = Socket(number), .peer = to_string(address)});
  return true;
}

Listener::Answer Listener::hear(Guest& guest) const {
  while (guest.come < guest.said.size()) {
    const ssize_t come = recv(guest.socket.get(), &guest.said[guest.come], guest.said.size() - guest.come, 0);
    if (come < 0 && would_block()) return Answer::kSilent;
    if (come <= 0) return Answer::kUnknown;
    guest.come += static_cast<std::size_t>(come);
  }
  Hello hello{};
  std::memcpy(&hello, guest.said.data(), sizeof hello);
  const bool is_known = hello.magic == kHelloMagic && are_equal(hello.secret, handle_.hello.secret);
  return is_known ? Answer::kKnown : Answer::kUnknown;
}

}  // namespace wiresum::nccl
