#include "transport/shm/channel.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>

namespace wiresum::transport::shm {
namespace {

constexpr std::size_t kUpBytes = std::size_t{256} << 10;
constexpr std::uint32_t kUpMin = 32;
constexpr std::uint32_t kUpMax = 256;

using Shared = std::atomic_ref<std::uint32_t>;
static_assert(Shared::is_always_lock_free && std::atomic_ref<std::uint64_t>::is_always_lock_free);

constexpr std::size_t round_up(std::size_t value) noexcept {
  return (value + kLineBytes - 1) / kLineBytes * kLineBytes;
}

/// An answer's place in an entry: bits 0 to 31 are the offset in words of eight bytes, 32 to 61 the bytes.
constexpr std::uint64_t kMarked = std::uint64_t{1} << 62;
constexpr std::uint64_t kIsCopy = std::uint64_t{1} << 63;
constexpr std::size_t kUnit = 8;

constexpr std::uint64_t answer_at(std::size_t offset, std::size_t bytes, std::uint64_t flags) noexcept {
  return offset / kUnit | static_cast<std::uint64_t>(bytes) << 32 | flags;
}
constexpr std::size_t offset_of(std::uint64_t answer) noexcept { return (answer & UINT32_MAX) * kUnit; }
constexpr std::size_t bytes_of(std::uint64_t answer) noexcept { return answer >> 32 & 0x3FFF'FFFF; }

}  // namespace

// ---- Layout ----

Shape::Shape(std::size_t packet_bytes_max) noexcept
    : stride(round_up(packet_bytes_max)),
      up(std::bit_floor(std::clamp(static_cast<std::uint32_t>(kUpBytes / stride), kUpMin, kUpMax))) {}

std::size_t Shape::channel_bytes() const noexcept {
  return 6 * kLineBytes + round_up(up * sizeof(std::uint32_t)) + down * sizeof(std::uint64_t) + (up + kCopies) * stride;
}

Layout::Layout(std::byte* memory, const Shape& shape) noexcept {
  const auto take = [&memory](std::size_t bytes) {
    std::byte* const here = memory;
    memory += round_up(bytes);
    return here;
  };
  // Each counter has its own cache line: one process's writes do not disturb the other's reads.
  for (std::uint32_t** line : {&up_written, &rank_sleeps, &down_read, &down_written, &leaf_sleeps, &up_read}) {
    *line = reinterpret_cast<std::uint32_t*>(take(kLineBytes));
  }
  up_bytes = reinterpret_cast<std::uint32_t*>(take(shape.up * sizeof(std::uint32_t)));
  answers = reinterpret_cast<std::uint64_t*>(take(shape.down * sizeof(std::uint64_t)));
  up_packets = take(shape.up * shape.stride);
  copies = take(kCopies * shape.stride);
}

// ---- Positions and bells ----
//
// A writer publishes its position and then looks for the reader's sleep; a reader announces its sleep and then looks at
// the position. All four steps are sequentially consistent, so one of the two sees the other.

std::uint32_t Position::entries(std::uint32_t* written, std::uint32_t length) const noexcept {
  const std::uint32_t ahead = Shared(*written).load() - own_;
  return ahead <= length ? ahead : 0;
}

std::uint32_t Position::room(std::uint32_t* read, std::uint32_t length) const noexcept {
  const std::uint32_t used = own_ - Shared(*read).load();
  return used <= length ? length - used : 0;
}

void Position::advance(std::uint32_t* shared, std::uint32_t steps) noexcept {
  if (steps == 0) return;
  own_ += steps;
  Shared(*shared).store(own_);
}

void Bell::sleep(Sleep how) const noexcept { Shared(*flag_).store(how); }

void Bell::awake() const noexcept { Shared(*flag_).store(kAwake, std::memory_order_relaxed); }

void Bell::ring(Sleep least) const noexcept {
  const std::uint32_t how = Shared(*flag_).load();
  if (how == kAwake || (least == kForRoom && how != kForRoom)) return;
  if (Shared(*flag_).exchange(kAwake) == kAwake) return;
  const std::uint64_t one = 1;
  static_cast<void>(!write(event_, &one, sizeof one));
}

// ---- The rank's side ----

RankEnd::RankEnd(std::byte* memory, std::span<const std::byte> results, const Shape& shape, int own_event,
                 int leaf_event) noexcept
    : shape_(shape),
      at_(memory, shape),
      results_(results),
      own_bell_(at_.rank_sleeps, own_event),
      leaf_bell_(at_.leaf_sleeps, leaf_event) {}

std::size_t RankEnd::offer(std::span<wire::Packet> out) const noexcept {
  const std::size_t count = std::min<std::size_t>(out.size(), up_.room(at_.up_read, shape_.up));
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = {.data = at_.up_packets + ((up_.at() + i) & (shape_.up - 1)) * shape_.stride, .bytes = 0};
  }
  return count;
}

void RankEnd::send(std::span<const wire::Packet> packets) noexcept {
  for (std::size_t i = 0; i < packets.size(); ++i) {
    Shared(at_.up_bytes[(up_.at() + i) & (shape_.up - 1)]).store(packets[i].bytes, std::memory_order_relaxed);
  }
  up_.advance(at_.up_written, static_cast<std::uint32_t>(packets.size()));
  leaf_bell_.ring(Bell::kForPackets);
}

std::size_t RankEnd::receive(std::span<Lent> out) noexcept {
  down_.advance(at_.down_read, lent_);
  lent_ = static_cast<std::uint32_t>(std::min<std::size_t>(out.size(), down_.entries(at_.down_written, shape_.down)));
  const std::span<const std::byte> copies(at_.copies, kCopies * shape_.stride);
  std::size_t count = 0;
  for (std::uint32_t i = 0; i < lent_; ++i) {
    const std::uint64_t answer =
        std::atomic_ref(at_.answers[(down_.at() + i) & (shape_.down - 1)]).load(std::memory_order_relaxed);
    const bool is_copy = (answer & kIsCopy) != 0;
    const std::span<const std::byte> where = is_copy ? copies : results_;
    const std::size_t offset = offset_of(answer);
    const std::size_t bytes = bytes_of(answer);
    if (offset > where.size() || bytes > where.size() - offset) {
      ++impossible_;
      continue;
    }
    out[count++] = {.bytes = where.subspan(offset, bytes), .marked = (answer & kMarked) != 0, .is_copy = is_copy};
  }
  return count;
}

bool RankEnd::has_answer() const noexcept {
  // Lent entries have been read.
  const std::uint32_t entries = down_.entries(at_.down_written, shape_.down);
  return entries > lent_;
}

bool RankEnd::has_room() const noexcept { return up_.room(at_.up_read, shape_.up) != 0; }

// ---- The leaf's side ----

LeafEnd::LeafEnd(std::byte* memory, const Shape& shape, int own_event, int rank_event) noexcept
    : shape_(shape),
      at_(memory, shape),
      own_bell_(at_.leaf_sleeps, own_event),
      rank_bell_(at_.rank_sleeps, rank_event) {}

std::size_t LeafEnd::receive(std::span<Lent> out) noexcept {
  if (lent_ != 0) {
    up_.advance(at_.up_read, lent_);
    rank_bell_.ring(Bell::kForRoom);
  }
  lent_ = static_cast<std::uint32_t>(std::min<std::size_t>(out.size(), up_.entries(at_.up_written, shape_.up)));
  for (std::uint32_t i = 0; i < lent_; ++i) {
    const std::uint32_t entry = (up_.at() + i) & (shape_.up - 1);
    const std::uint32_t bytes = Shared(at_.up_bytes[entry]).load(std::memory_order_relaxed);
    out[i] = {.bytes = {at_.up_packets + entry * shape_.stride, std::min<std::size_t>(bytes, shape_.stride)}};
  }
  return lent_;
}

bool LeafEnd::has_packet() const noexcept { return up_.entries(at_.up_written, shape_.up) > lent_; }

bool LeafEnd::post(std::size_t offset, std::size_t bytes, bool marked) noexcept {
  if (down_.room(at_.down_read, shape_.down) <= posted_) return false;
  push(answer_at(offset, bytes, marked ? kMarked : 0));
  return true;
}

std::byte* LeafEnd::copy() noexcept {
  const std::uint32_t room = down_.room(at_.down_read, shape_.down);
  if (room <= posted_) return nullptr;
  const std::uint32_t unread = shape_.down - room + posted_;
  const std::uint32_t age = down_.at() + posted_ - copy_at_[copies_ % kCopies];
  // The rank may still be reading the last answer of this copy.
  if (copies_ >= kCopies && age <= unread) return nullptr;
  return at_.copies + copies_ % kCopies * shape_.stride;
}

void LeafEnd::post_copy(std::size_t bytes, bool marked) noexcept {
  const auto copy = static_cast<std::uint32_t>(copies_++ % kCopies);
  copy_at_[copy] = down_.at() + posted_;
  push(answer_at(copy * shape_.stride, bytes, kIsCopy | (marked ? kMarked : 0)));
}

void LeafEnd::push(std::uint64_t answer) noexcept {
  const std::uint32_t entry = (down_.at() + posted_++) & (shape_.down - 1);
  std::atomic_ref(at_.answers[entry]).store(answer, std::memory_order_relaxed);
}

void LeafEnd::flush() noexcept {
  if (posted_ == 0) return;
  down_.advance(at_.down_written, posted_);
  posted_ = 0;
  rank_bell_.ring(Bell::kForPackets);
}

}  // namespace wiresum::transport::shm
