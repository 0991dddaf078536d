// What a rank and one thread of its host's leaf share: two rings, and two bells.
//
//   up     the rank's packets. The rank writes them in place, the leaf adds their words from there.
//   down   the leaf's answers. A RESULT for all is not copied: what travels is where it lies, in memory that the leaf
//          writes and ranks can only read (`results`). Other answers are copied, and lie in the channel.
//
// Each ring has one writer and one reader, each in a process of its own. A position counts what was written, or read,
// since the beginning; the ring's entry is the position modulo its length. Who waits says so, and whoever has something
// for it then rings its bell, an eventfd.
//
// What the other process writes here is as hostile as a packet. A position, a length or a place is read once, and held
// against what is possible, before it is used: the worst that a rank can do is to lose its own packets. Bytes of a
// packet may change while they are read; who reads decodes a header once, and believes no word.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/packet.hpp"

namespace wiresum::transport::shm {

inline constexpr std::size_t kLineBytes = 64;
/// The most copies of answers that can be on their way to one rank.
inline constexpr std::uint32_t kCopies = 64;

/// The sizes of a channel: both sides compute them from the same lanes.
struct Shape {
  explicit Shape(std::size_t packet_bytes_max) noexcept;

  /// Bytes between up packets, and between copies.
  std::size_t stride;
  /// Lengths of the rings, powers of two. `up` packets fit a near cache with the cells that they are added to; `down`
  /// has an entry for every answer that can be on its way while a rank stands still for a moment.
  std::uint32_t up;
  std::uint32_t down = 4096;

  [[nodiscard]] std::size_t channel_bytes() const noexcept;
};

/// The eventfd of a thread that may sleep, with a flag in shared memory that says how it sleeps, or kAwake.
class Bell {
 public:
  enum Sleep : std::uint32_t { kAwake, kForPackets, kForRoom };  // kForRoom: to send, or for packets

  Bell(std::uint32_t* flag, int event) noexcept : flag_(flag), event_(event) {}

  // The sleeper
  /// Makes others ring until awake(). The caller looks for events once more before it sleeps.
  void sleep(Sleep how) const noexcept;
  void awake() const noexcept;

  // The others
  /// Rings after something was published for the sleeper, if it sleeps for `least` or more.
  void ring(Sleep least) const noexcept;

 private:
  std::uint32_t* flag_;
  int event_;
};

/// A datagram in shared memory, in its reader's view.
struct Lent {
  std::span<const std::byte> bytes;
  bool marked = false;
  bool is_copy = false;  // otherwise the datagram lies in the leaf's memory
};

/// The addresses of a channel's parts.
struct Layout {
  Layout(std::byte* memory, const Shape& shape) noexcept;

  std::uint32_t* up_written;  // the rank's line
  std::uint32_t* rank_sleeps;
  std::uint32_t* down_read;
  std::uint32_t* down_written;  // the leaf's line
  std::uint32_t* leaf_sleeps;
  std::uint32_t* up_read;
  std::uint32_t* up_bytes;  // size of each packet
  std::uint64_t* answers;   // address and size of each answer
  std::byte* up_packets;
  std::byte* copies;
};

/// A reader's or writer's own position in a ring, with its reading of the other's position.
class Position {
 public:
  [[nodiscard]] std::uint32_t at() const noexcept { return own_; }
  /// The number of entries for a reader, by the writer's position; none if that is impossible.
  [[nodiscard]] std::uint32_t entries(std::uint32_t* written, std::uint32_t length) const noexcept;
  /// The number of free entries for a writer, by the reader's position; none if that is impossible.
  [[nodiscard]] std::uint32_t room(std::uint32_t* read, std::uint32_t length) const noexcept;
  void advance(std::uint32_t* shared, std::uint32_t steps) noexcept;

 private:
  std::uint32_t own_ = 0;
};

/// The rank's side. Not thread-safe.
class RankEnd {
 public:
  /// `memory` has shape.channel_bytes(); `leaf_event` is the leaf thread's event.
  RankEnd(std::byte* memory, std::span<const std::byte> results, const Shape& shape, int own_event,
          int leaf_event) noexcept;

  /// Places for the next packets, at most `wanted`.
  [[nodiscard]] std::size_t offer(std::span<wire::Packet> out) const noexcept;
  /// Sends the first `count` packets that were offered.
  void send(std::span<const wire::Packet> packets) noexcept;

  /// The next answers: valid until the next call.
  [[nodiscard]] std::size_t receive(std::span<Lent> out) noexcept;
  [[nodiscard]] bool has_answer() const noexcept;
  [[nodiscard]] bool has_room() const noexcept;

  [[nodiscard]] const Bell& bell() const noexcept { return own_bell_; }
  /// Number of answers with an impossible address.
  [[nodiscard]] std::uint64_t impossible() const noexcept { return impossible_; }

 private:
  const Shape shape_;
  const Layout at_;
  const std::span<const std::byte> results_;
  Bell own_bell_;
  Bell leaf_bell_;
  Position up_;
  Position down_;
  std::uint32_t lent_ = 0;
  std::uint64_t impossible_ = 0;
};

/// The leaf thread's side. Not thread-safe.
class LeafEnd {
 public:
  LeafEnd(std::byte* memory, const Shape& shape, int own_event, int rank_event) noexcept;

  /// The next packets: valid until the next call.
  [[nodiscard]] std::size_t receive(std::span<Lent> out) noexcept;
  [[nodiscard]] bool has_packet() const noexcept;

  /// Posts an answer that lies in the results. Returns false, and drops the answer, if the rank is too far behind.
  [[nodiscard]] bool post(std::size_t offset, std::size_t bytes, bool marked) noexcept;
  /// The place for an answer to this rank alone; post_copy() sends it. Null if the rank is too far behind.
  [[nodiscard]] std::byte* copy() noexcept;
  void post_copy(std::size_t bytes, bool marked) noexcept;
  /// Publishes posted answers, and wakes the rank if it waits for them.
  void flush() noexcept;

  [[nodiscard]] const Bell& bell() const noexcept { return own_bell_; }

 private:
  void push(std::uint64_t answer) noexcept;

  const Shape shape_;
  const Layout at_;
  Bell own_bell_;
  Bell rank_bell_;
  Position up_;
  Position down_;
  std::uint32_t lent_ = 0;
  std::uint32_t posted_ = 0;                      // answers posted and not published yet
  std::uint64_t copies_ = 0;                      // copies posted since the beginning
  std::array<std::uint32_t, kCopies> copy_at_{};  // the position of the answer that each copy was last for
};

}  // namespace wiresum::transport::shm
