// A test harness for a data plane: memory for its frames, and functions to build packets and parse results.
#pragma once

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "dataplane.hpp"
#include "wire/packet.hpp"

namespace wiresum::dataplane {

using Words = std::vector<std::uint32_t>;

inline void store_words(const Words& words, std::byte* at) {
  for (const std::uint32_t word : words) {
    for (int shift = 24; shift >= 0; shift -= 8) *at++ = static_cast<std::byte>(word >> shift);
  }
}

inline Words load_words(std::span<const std::byte> bytes) {
  Words words(bytes.size() / wire::kWordBytes);
  for (std::size_t i = 0; i < words.size() * wire::kWordBytes; ++i) {
    words[i / wire::kWordBytes] = words[i / wire::kWordBytes] << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  }
  return words;
}

inline std::vector<std::byte> datagram_of(const wire::Header& header, const Words& payload = {}) {
  std::vector<std::byte> datagram(wire::kHeaderBytes + payload.size() * wire::kWordBytes);
  wire::encode(header, std::span<std::byte, wire::kHeaderBytes>(datagram.data(), wire::kHeaderBytes));
  store_words(payload, datagram.data() + wire::kHeaderBytes);
  return datagram;
}

/// Worker w of any job has the address 10.0.0.(w + 1), port 9000.
inline wire::Endpoint endpoint_of(std::uint8_t worker) { return {.address = 0x0A000001u + worker, .port = 9000}; }

/// The endpoint from which its thread sends.
inline wire::Endpoint source_of(std::uint8_t worker, std::uint8_t thread) {
  wire::Endpoint source = endpoint_of(worker);
  source.port = static_cast<std::uint16_t>(source.port + thread);
  return source;
}

inline JobEntry job_entry(std::uint16_t job, std::uint8_t workers, std::uint16_t lanes, std::uint32_t slot_base,
                          std::uint32_t slots) {
  JobEntry entry{.job = job,
                 .key = 0xC0FFEE00u + job,
                 .workers = workers,
                 .threads = 1,
                 .lanes = lanes,
                 .slot_base = slot_base,
                 .slots = slots};
  for (std::uint8_t worker = 0; worker < workers && worker < wire::kSwitchWorkersMax; ++worker) {
    entry.endpoints[worker] = endpoint_of(worker);
  }
  return entry;
}

/// Fills all cells with garbage, as of an earlier job, so that a lane that was never written is noticed.
inline void litter(Dataplane& plane, const SwitchSizes& sizes) {
  constexpr std::uint32_t kGarbage = 0xA5A5A5A5;
  for (std::uint32_t slot = 0; slot < sizes.slots; ++slot) {
    JobEntry entry = job_entry(0, 2, sizes.lanes_max, slot, 1);
    entry.key = kGarbage;
    ASSERT_TRUE(plane.admit(entry));
    for (const std::uint32_t round : {0U, 1U}) {
      const wire::Header header{.job = 0, .key = kGarbage, .cell = wire::cell_of(0, round), .round = round};
      const auto datagram = datagram_of(header, Words(sizes.lanes_max, kGarbage));
      ASSERT_EQ(plane.handle(read(endpoint_of(0), 0, datagram)).verdict, Verdict::kHold);
    }
    ASSERT_TRUE(plane.evict(0));
  }
}

/// The bytes of the answer.
inline std::vector<std::byte> written(const Decision& decision) {
  std::vector<std::byte> bytes(wire::kHeaderBytes + decision.payload.size());
  wire::Packet packet{.data = bytes.data(), .bytes = 0};
  decision.write(packet);
  EXPECT_EQ(packet.bytes, bytes.size());
  return bytes;
}

class SwitchHarness {
 public:
  explicit SwitchHarness(const SwitchSizes& sizes) : plane(sizes) { litter(plane, sizes); }

  [[nodiscard]] Decision handle(wire::Endpoint source, std::uint8_t thread, std::span<const std::byte> datagram) {
    return plane.handle(read(source, thread, datagram));
  }

  [[nodiscard]] Decision send(const wire::Header& header, const Words& payload = {}, std::uint8_t thread = 0) {
    return handle(source_of(header.worker, thread), thread, datagram_of(header, payload));
  }

  [[nodiscard]] static wire::Header result_header(const Decision& decision) {
    wire::Header header{.kind = wire::Kind::kData};
    if (wire::decode(written(decision), header) != wire::ParseError::kNone) header.kind = wire::Kind::kData;
    return header;
  }

  [[nodiscard]] static Words result_words(const Decision& decision) {
    const std::vector<std::byte> bytes = written(decision);
    return load_words(std::span(bytes).subspan(wire::kHeaderBytes));
  }

  Dataplane plane;
};

}  // namespace wiresum::dataplane
