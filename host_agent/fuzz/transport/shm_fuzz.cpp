// A rank and its leaf in the memory that they share, of which the input says what the other process writes there, and
// when. Neither end lends, offers or reads what lies outside of it, whatever stands in it.
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "../input.hpp"
#include "transport/shm/channel.hpp"

namespace {

using namespace wiresum::transport::shm;
using wiresum::fuzz::Input;
using wiresum::fuzz::require;

constexpr std::size_t kPacketBytes = 88;
constexpr std::size_t kResultsBytes = 1024;

/// Memory of exactly the wanted size, so that the sanitizer sees each access beyond.
struct Memory {
  explicit Memory(std::size_t size) : bytes(size), data(new (std::align_val_t{kLineBytes}) std::byte[size]()) {}
  ~Memory() { ::operator delete[](data, std::align_val_t{kLineBytes}); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::size_t bytes;
  std::byte* data;
};

void read(std::span<const Lent> lent) {
  volatile std::byte sink{};
  for (const Lent& each : lent) {
    for (const std::byte byte : each.bytes) sink = byte;
  }
  static_cast<void>(sink);
}

class World {
 public:
  void step(Input& input) {
    switch (input.byte() % 8) {
      case 0:
        return corrupt(input);
      case 1:
        return read(std::span(lent_).first(leaf_.receive(std::span(lent_).first(input.byte() % lent_.size()))));
      case 2:
        return read(std::span(lent_).first(rank_.receive(std::span(lent_).first(input.byte() % lent_.size()))));
      case 3:
        return send(input);
      case 4:
        static_cast<void>(leaf_.post(input.byte() % (kResultsBytes / 8) * 8, 8, false));
        return;
      case 5:
        return copy();
      case 6:
        return leaf_.flush();
      default:
        require(rank_.impossible() <= 255 * kSteps);
        static_cast<void>(rank_.has_answer() || rank_.has_room() || leaf_.has_packet());
        return;
    }
  }
  static constexpr int kSteps = 200;

 private:
  /// Writes as another process may: a field of either line, a length, or an answer.
  void corrupt(Input& input) {
    const std::array<std::uint32_t*, 6> fields{at_.up_written,   at_.rank_sleeps, at_.down_read,
                                               at_.down_written, at_.leaf_sleeps, at_.up_read};
    const std::uint8_t which = input.byte() % 8;
    if (which < fields.size()) {
      *fields[which] = input.byte() % 2 == 0 ? input.word() : *fields[which] + input.byte();
    } else if (which == 6) {
      at_.up_bytes[input.byte() % shape_.up] = input.word();
    } else {
      at_.answers[input.byte()] = std::uint64_t{input.word()} << 32 | input.word();
    }
  }

  void send(Input& input) {
    const std::size_t count = rank_.offer(std::span(offered_).first(input.byte() % (offered_.size() + 1)));
    for (wiresum::wire::Packet& packet : std::span(offered_).first(count)) {
      std::memset(packet.data, input.byte(), kPacketBytes);
      packet.bytes = kPacketBytes;
    }
    rank_.send(std::span(offered_).first(count));
  }

  void copy() {
    if (std::byte* const place = leaf_.copy(); place != nullptr) {
      std::memset(place, 1, kPacketBytes);
      leaf_.post_copy(kPacketBytes, true);
    }
  }

  const Shape shape_{kPacketBytes};
  const Memory channel_{shape_.channel_bytes()};
  const Memory results_{kResultsBytes};
  const Layout at_{channel_.data, shape_};
  // No event is there to be written to.
  RankEnd rank_{channel_.data, {results_.data, results_.bytes}, shape_, -1, -1};
  LeafEnd leaf_{channel_.data, shape_, -1, -1};
  std::array<Lent, 64> lent_{};
  std::array<wiresum::wire::Packet, 64> offered_{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input({data, size});
  World world;
  for (int step = 0; step < World::kSteps && !input.empty(); ++step) world.step(input);
  return 0;
}
