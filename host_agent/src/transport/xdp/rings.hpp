// The memory that packets lie in (UMEM), and the AF_XDP sockets with their rings. Setup; the datapath is in xdp.cpp.
//
//        chunk     chunk     chunk     chunk
//     +---------+---------+---------+---------+---
//     |    places to send from      |  to receive into, of queue 0       | of queue 1 ...
//     +---------+---------+---------+---------+---
//     one place: 1 chunk, or as many as a jumbo frame takes
//
// Each chunk is owned by us or by the kernel:
//
//     sending     free -> transmit ring -> (the device reads) -> completion ring -> free
//     receiving   fill ring -> (the device writes) -> receive ring -> lent to the caller -> fill ring
//
// There is one socket for each receive queue, since the device decides which queue a packet comes in by. The sockets
// of one thread use the same memory, and packets leave by the first of them.
#pragma once

#include <xdp/xsk.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/xdp/device.hpp"

namespace wiresum::transport::xdp {

/// One queue's socket. The rings are libxdp's views of memory that is shared with the kernel.
struct Queue {
  struct Delete {
    void operator()(xsk_socket* handle) const noexcept { xsk_socket__delete(handle); }
  };

  xsk_ring_prod fill{};
  xsk_ring_cons received{};
  xsk_ring_prod transmit{};  // used in the first queue alone, with its completions
  xsk_ring_cons completed{};
  std::unique_ptr<xsk_socket, Delete> socket;
  int descriptor = -1;
  std::uint32_t number = 0;  // the device's number of the queue
};

struct Layout {
  std::size_t chunk_bytes = 0;
  std::size_t place_chunks = 0;  // chunks for one packet to send
  std::size_t places = 0;
  std::size_t chunks_received = 0;  // receive chunks of each queue

  [[nodiscard]] std::size_t place_bytes() const noexcept { return place_chunks * chunk_bytes; }
  [[nodiscard]] bool several_chunks() const noexcept { return place_chunks != 1; }
};

/// Offset of a packet's payload in its place: room for the headers, and a cache line's start.
inline constexpr std::size_t kPayloadAt = 64;

/// The layout for payloads of up to this many bytes.
[[nodiscard]] Layout layout_for(std::size_t datagram_bytes_max) noexcept;

class Rings {
 public:
  /// Takes the memory and opens a socket at each of these queues of `device`, at least one. `native`: the XDP program
  /// is in the driver. Throws std::system_error that says what is missing: privileges, locked memory, a kernel that
  /// knows jumbo frames, a queue that nobody else has.
  Rings(const InterfaceInfo& device, std::span<const std::uint32_t> queues, const Layout& layout, bool native);

  [[nodiscard]] std::vector<Queue>& queues() noexcept { return queues_; }
  [[nodiscard]] std::byte* memory() const noexcept { return memory_.get(); }
  /// True if the driver reads and writes this memory itself.
  [[nodiscard]] bool zero_copy() const noexcept { return zero_copy_; }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const noexcept;
  };
  struct Delete {
    void operator()(xsk_umem* umem) const noexcept { static_cast<void>(xsk_umem__delete(umem)); }
  };

  void open_queue(const InterfaceInfo& device, Queue& queue, const xsk_socket_config& config);

  std::unique_ptr<std::byte, Unmap> memory_{nullptr, Unmap{0}};
  std::unique_ptr<xsk_umem, Delete> umem_;
  std::vector<Queue> queues_;
  bool zero_copy_ = false;
};

}  // namespace wiresum::transport::xdp
