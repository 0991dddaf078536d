// Answers of a data plane that wait to leave in one call: all of one job, from one port, for the same receivers.
//
// A batch never waits for more: whoever fills it flushes it at the end of a burst at the latest. Each answer is copied
// into a buffer of the transport as it is made, since the next datagram may change its cell.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "dataplane.hpp"
#include "transport/transport.hpp"

namespace wiresum::soft_switch {

class AnswerBatch {
 public:
  struct Route {
    std::uint16_t job = 0;
    std::uint8_t port = 0;      // the transport's number of the port
    std::uint8_t receiver = 0;  // a worker's index, wire::kEveryone or wire::kParent
    bool marked = false;

    friend bool operator==(const Route&, const Route&) = default;
  };
  using Receivers = std::array<wire::Endpoint, wire::kSwitchWorkersMax>;
  /// Fills in the endpoints of `count` answers by this route, and returns how many they are.
  using Resolve = std::function<std::size_t(const Route&, std::size_t count, Receivers&)>;

  AnswerBatch(transport::Transport& transport, Resolve resolve);

  /// Adds an answer, which is marked as the packet that it answers, since a hardware switch turns the one into the
  /// other. Answers are lost if the device stays behind for too long, as in a network.
  void add(const dataplane::Decision& decision, std::uint8_t port, bool marked) noexcept;
  void flush() noexcept;
  /// Number of answers without a buffer of the transport.
  [[nodiscard]] std::uint64_t lost() const noexcept { return lost_; }

 private:
  [[nodiscard]] std::span<wire::Packet> find_buffers(std::size_t wanted) noexcept;

  transport::Transport& transport_;
  const Resolve resolve_;
  Route route_;
  std::size_t count_ = 0;
  std::span<wire::Packet> buffers_;  // buffers of the transport, of which the first `count_` are written
  std::uint64_t lost_ = 0;
};

}  // namespace wiresum::soft_switch
