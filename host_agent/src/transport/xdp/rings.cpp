#include "transport/xdp/rings.hpp"

#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <bit>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <thread>

#include "transport/ethernet/frame.hpp"
#include "transport/xdp/privileges.hpp"

namespace wiresum::transport::xdp {
namespace {

/// The bytes that the kernel keeps free at the start of a chunk that it receives into.
constexpr std::size_t kHeadroomBytes = 256;
constexpr std::size_t kChunkBytesMin = 2048;
constexpr std::size_t kChunkBytesMax = 4096;  // a page: larger ones need huge pages
/// The places of two bursts to 16 workers.
constexpr std::size_t kPlaces = 1024;
/// The chunks to receive into, as many as in NICs' receive rings.
constexpr std::size_t kChunksReceived = 2048;
/// In copy mode the kernel counts packets in flight against the socket's send buffer.
constexpr int kSendBufferBytes = 16 << 20;
constexpr int kBusyAttemptsMax = 100;
constexpr std::chrono::milliseconds kBusyPause{10};
/// A flag since Linux 6.6, which older headers do not have.
constexpr std::uint16_t kUseSeveralBuffers = 1u << 4;

std::uint32_t ring_size(std::size_t entries) noexcept { return static_cast<std::uint32_t>(std::bit_ceil(entries)); }

/// Raises the limit against which the memory counts without CAP_IPC_LOCK.
void raise_locked_memory_limit() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    static_cast<void>(setrlimit(RLIMIT_MEMLOCK, &limit));
  }
}

void enlarge_send_buffer(int descriptor) noexcept {
  const int bytes = kSendBufferBytes;
  if (setsockopt(descriptor, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0) {
    static_cast<void>(setsockopt(descriptor, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes));
  }
}

bool grants_zero_copy(int descriptor) noexcept {
  xdp_options options{};
  socklen_t length = sizeof options;
  return getsockopt(descriptor, SOL_XDP, XDP_OPTIONS, &options, &length) == 0 &&
         (options.flags & XDP_OPTIONS_ZEROCOPY) != 0;
}

}  // namespace

Layout layout_for(std::size_t datagram_bytes_max) noexcept {
  const std::size_t received = kHeadroomBytes + ethernet::kHeadersBytes + datagram_bytes_max;
  const std::size_t sent = kPayloadAt + datagram_bytes_max;
  Layout layout{
      .chunk_bytes = kChunkBytesMin, .place_chunks = 1, .places = kPlaces, .chunks_received = kChunksReceived};
  if (received > kChunkBytesMin) {
    layout.chunk_bytes = kChunkBytesMax;
  }
  if (received > kChunkBytesMax) {
    layout.place_chunks = (sent + kChunkBytesMax - 1) / kChunkBytesMax;
    layout.places = kPlaces / 2;
    layout.chunks_received = 2 * kChunksReceived;
  }
  return layout;
}

void Rings::Unmap::operator()(std::byte* memory) const noexcept { munmap(memory, bytes); }

Rings::Rings(const InterfaceInfo& device, std::span<const std::uint32_t> queues, const Layout& layout, bool native)
    : queues_(queues.size()) {
  const std::size_t chunks = layout.places * layout.place_chunks + queues.size() * layout.chunks_received;
  const std::size_t bytes = chunks * layout.chunk_bytes;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    fail(errno, "cannot take " + std::to_string(bytes >> 20) + " MiB for packets");
  }
  memory_ = std::unique_ptr<std::byte, Unmap>(static_cast<std::byte*>(memory), Unmap{bytes});
  raise_locked_memory_limit();

  const std::uint32_t sent = ring_size(layout.places * layout.place_chunks);
  const std::uint32_t received = ring_size(layout.chunks_received);
  // The kernel shows a frame before it reports that it has taken the chunk from the fill ring. For a moment the ring
  // counts such chunks twice, so it has twice as many places.
  const xsk_umem_config umem_config{.fill_size = 2 * received,
                                    .comp_size = sent,
                                    .frame_size = static_cast<std::uint32_t>(layout.chunk_bytes),
                                    .frame_headroom = 0,
                                    .flags = 0};
  xsk_umem* umem = nullptr;
  if (const int error =
          -xsk_umem__create(&umem, memory, bytes, &queues_.front().fill, &queues_.front().completed, &umem_config);
      error == ENOBUFS || error == ENOMEM) {
    fail(error, "the system does not let AF_XDP lock " + std::to_string(bytes >> 20) +
                    " MiB of memory: raise the limit (ulimit -l, or LimitMEMLOCK= of systemd), or give CAP_IPC_LOCK");
  } else if (error == EPERM || error == EACCES) {
    fail(EPERM, "cannot open an AF_XDP socket");
  } else if (error != 0) {
    fail(error, "cannot open an AF_XDP socket (a kernel without CONFIG_XDP_SOCKETS has none)");
  }
  umem_.reset(umem);

  xsk_socket_config config{};
  config.rx_size = received;
  config.tx_size = sent;
  config.libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD;
  config.xdp_flags = native ? XDP_FLAGS_DRV_MODE : XDP_FLAGS_SKB_MODE;
  // The kernel takes zero copy by itself where the driver has it.
  config.bind_flags = XDP_USE_NEED_WAKEUP;
  if (!native) config.bind_flags |= XDP_COPY;
  if (layout.several_chunks()) config.bind_flags |= kUseSeveralBuffers;
  for (std::size_t index = 0; index != queues.size(); ++index) {
    Queue& queue = queues_[index];
    queue.number = queues[index];
    open_queue(device, queue, config);
    std::uint32_t at = 0;
    const auto count = static_cast<std::uint32_t>(layout.chunks_received);
    const std::uint32_t reserved = xsk_ring_prod__reserve(&queue.fill, count, &at);
    assert(reserved == count);  // an empty ring of at least this size
    static_cast<void>(reserved);
    const std::size_t first = layout.places * layout.place_chunks + index * layout.chunks_received;
    for (std::uint32_t i = 0; i != count; ++i) {
      *xsk_ring_prod__fill_addr(&queue.fill, at + i) = (first + i) * layout.chunk_bytes;
    }
    xsk_ring_prod__submit(&queue.fill, count);
  }
  enlarge_send_buffer(queues_.front().descriptor);
  zero_copy_ = grants_zero_copy(queues_.front().descriptor);
}

void Rings::open_queue(const InterfaceInfo& device, Queue& queue, const xsk_socket_config& config) {
  xsk_socket* socket = nullptr;
  int error = EBUSY;
  // The kernel takes a while to free the queue of a socket that was closed, or whose process has ended.
  for (int attempt = 0; attempt != kBusyAttemptsMax && error == EBUSY; ++attempt) {
    if (attempt != 0) {
      std::this_thread::sleep_for(kBusyPause);
    }
    error = -xsk_socket__create_shared(&socket, device.name.c_str(), queue.number, umem_.get(), &queue.received,
                                       &queue == &queues_.front() ? &queue.transmit : nullptr, &queue.fill,
                                       &queue.completed, &config);
  }
  const std::string where = device.name + ", queue " + std::to_string(queue.number);
  if (error == EBUSY) {
    fail(error, "somebody else has an AF_XDP socket at " + where +
                    ": one process has the whole interface. Use UDP, or another interface");
  }
  if (error == EINVAL && (config.bind_flags & kUseSeveralBuffers) != 0) {
    fail(error, "jumbo frames over AF_XDP need Linux 6.6 or newer (" + where + "); else set a smaller MTU, or use UDP");
  }
  if (error != 0) {
    fail(error, "cannot open an AF_XDP socket at " + where);
  }
  queue.socket.reset(socket);
  queue.descriptor = xsk_socket__fd(socket);
}

}  // namespace wiresum::transport::xdp
