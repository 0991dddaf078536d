// With arbitrary bytes decode() reads nothing beyond them, changes nothing if it refuses them, and accepts only bytes
// of encode().
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "wire/packet.hpp"

namespace {

using namespace wiresum::wire;

void require(bool holds) {
  if (!holds) std::abort();
}

bool carries_payload(Kind kind) { return kind == Kind::kData || kind == Kind::kResult; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> datagram = std::as_bytes(std::span(data, size));
  const Header untouched{.flags = 0x5A, .job = 0x5A5A, .round = 0x5A5A5A5A};
  Header header = untouched;
  switch (decode(datagram, header)) {
    case ParseError::kNone: {
      std::array<std::byte, kHeaderBytes> again{};
      encode(header, again);
      require(std::equal(again.begin(), again.end(), datagram.begin()));
      require(carries_payload(header.kind) ? (size - kHeaderBytes) % kWordBytes == 0 : size == kHeaderBytes);
      return 0;
    }
    case ParseError::kTruncated:
      require(size < kHeaderBytes);
      break;
    case ParseError::kUnknownVersion:
      require(data[0] >> 4 != kWireVersion);
      break;
    case ParseError::kUnknownKind:
      require((data[0] & 0x0F) > static_cast<unsigned>(Kind::kMissing));
      break;
    case ParseError::kPayload:
      require(size > kHeaderBytes);
      break;
  }
  require(header == untouched);
  return 0;
}
