// Nothing is allocated after construction: this program counts every operator new.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <new>

#include "rig.hpp"

namespace {
std::size_t allocations = 0;
}

// The function is not inlined: the compiler would see new paired with free, and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace wiresum::worker {
namespace {

TEST(WorkerAllocation, TheDatapathAllocatesNothing) {
  const WorkerConfig config = small_config();
  constexpr std::size_t kStride = 40;
  std::array<std::array<std::byte, kStride>, 8> buffers{};
  std::vector<float> values(1000, 1.5F);
  auto* bytes = reinterpret_cast<std::byte*>(values.data());
  const Region region{.source = bytes, .destination = bytes, .elements = values.size()};
  Collective work;
  work.regions = {&region, 1};
  work.chunk_end = 250;
  Worker worker(config);

  const std::size_t before = allocations;
  TimeNs now = 0;
  std::uint32_t completed = 0;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(worker.submit(work));
  std::array<wire::Packet, buffers.size()> burst{};
  for (std::size_t i = 0; i < burst.size(); ++i) burst[i].data = buffers[i].data();
  std::array<std::byte, kStride> datagram{};
  for (std::uint64_t step = 0; completed < 20 && step < 100'000; ++step) {
    const std::size_t count = worker.poll_transmit(now, burst);
    now = count == 0 ? worker.next_timeout() : now + 1;
    for (std::size_t i = 0; i < count; ++i) {
      if ((step + i) % 7 == 0) continue;  // lost
      // The packet itself as a RESULT, as if the peer had sent zeros. A question is answered with MISSING.
      std::copy_n(burst[i].data, burst[i].bytes, datagram.data());
      datagram[0] = std::byte{datagram[0] == std::byte{0x14} ? std::uint8_t{0x15} : std::uint8_t{0x12}};
      worker.handle_datagram(now, std::span<const std::byte>(datagram.data(), burst[i].bytes));
    }
    while (worker.poll_completion().has_value()) ++completed;
  }
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(completed, 20u);
  EXPECT_GT(worker.stats().retransmissions, 0u);
}

}  // namespace
}  // namespace wiresum::worker
