// Messages from one process to another over TCP, for what NCCL sends from point to point.
//
// A receiver listens, and gives NCCL a handle with its address and a secret, which NCCL brings to the sender. The
// sender connects, and says the secret first: whoever does not know it is not heard. From then on the connection
// carries messages in one direction, each a header and its bytes. A message goes to the first posted receive with its
// tag.
//
// Nothing here waits, and there is no thread: a connection moves on when NCCL posts a request, or tests one. One thread
// at a time uses a listener or a connection.
#pragma once

#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "nccl_v11.h"
#include "process/home.hpp"

namespace wiresum::nccl {

/// Owns a descriptor. A forked child closes its copy at the fork: else the peers of a process that has died would not
/// see it while a child of it lives.
class Socket {
 public:
  explicit Socket(int number = -1);
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&&) = delete;

  /// Throws Refused in a forked child.
  [[nodiscard]] int get() const;

 private:
  int number_;
  process::Home home_;
};

constexpr std::size_t kSecretBytes = 16;
using Magic = std::array<char, 8>;
using Secret = std::array<std::uint8_t, kSecretBytes>;

/// Unguessable.
[[nodiscard]] Secret random_secret();

/// What a connection begins with.
struct Hello {
  Magic magic;
  Secret secret;
};

/// What NCCL brings from a receiver to its sender.
struct Handle {
  Hello hello;
  sockaddr_in address;
};
static_assert(sizeof(Handle) <= NCCL_NET_HANDLE_MAXSIZE);

class Connection;

struct Request {
  Connection* connection;
  std::byte* memory;
  std::size_t bytes;  // of a receive: at first the most that fits, and in the end what has come
  int tag;
  bool is_complete = false;
};

struct Header {
  Magic magic;
  std::uint64_t bytes;
  std::int32_t tag;
  std::uint32_t zero;
};

/// Either direction. Requests that were complete before a failure stay so.
class Connection {
 public:
  Connection(Socket socket, std::string peer) : socket_(std::move(socket)), peer_(std::move(peer)) {}
  virtual ~Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// nullptr: there are as many as there may be.
  Request* post(void* memory, std::size_t bytes, int tag);
  /// Is it complete? Then it is gone, and `bytes` says how many there were.
  bool test(Request* request, std::size_t& bytes);

 protected:
  virtual void advance() = 0;
  [[noreturn]] void fail(ncclResult_t result, const std::string& cause) const;
  /// The bytes that a call of the system moved; 0: none now. Throws Refused if it failed.
  [[nodiscard]] std::size_t moved(ssize_t result) const;

  Socket socket_;
  std::string peer_;
  std::list<Request> requests_;  // in the order in which they were posted
};

class Sender final : public Connection {
 public:
  using Connection::Connection;

 private:
  void advance() override;
  std::size_t sent_ = 0;  // of the first message that is not complete: header and bytes
};

class Receiver final : public Connection {
 public:
  using Connection::Connection;

 private:
  void advance() override;
  bool has_received_header();
  Request* receive_for_header();

  std::array<std::byte, sizeof(Header)> header_{};
  std::size_t header_come_ = 0;
  Request* current_ = nullptr;  // what the message that is coming goes to
  std::size_t come_ = 0;        // of its bytes
};

/// A connection that is being made.
class Dial {
 public:
  /// Throws Refused if the handle is none of Wiresum's.
  explicit Dial(const Handle& handle);
  [[nodiscard]] const Secret& secret() const noexcept { return hello_.secret; }
  /// nullptr: not yet. Throws Refused if nobody listens there.
  std::unique_ptr<Sender> finish();

 private:
  Hello hello_;
  std::string peer_;
  Socket socket_;
  std::size_t said_ = 0;
};

class Listener {
 public:
  explicit Listener(const sockaddr_in& address);
  [[nodiscard]] const Handle& handle() const noexcept { return handle_; }
  /// nullptr: nobody who knows the secret has come yet.
  std::unique_ptr<Receiver> accept();

 private:
  /// Somebody who has not said the secret yet.
  struct Guest {
    Socket socket;
    std::string peer;
    std::array<std::byte, sizeof(Hello)> said{};
    std::size_t come = 0;
  };
  enum class Answer { kSilent, kKnown, kUnknown };

  /// False: nobody is at the door.
  bool let_in(std::list<Guest>& come) const;
  Answer hear(Guest& guest) const;

  Socket socket_;
  Handle handle_{};
  std::list<Guest> guests_;
};

}  // namespace wiresum::nccl
