#include "wire/packet.hpp"

#include <bit>

namespace wiresum::wire {
namespace {

// The table's numbers hold together.
static_assert(kKindAt == kVersionAt, "version in the upper half of the byte, kind in the lower one");
static_assert(kFlagsAt == kKindAt + sizeof(Header::kind));
static_assert(kJobAt == kFlagsAt + sizeof(Header::flags));
static_assert(kKeyAt == kJobAt + sizeof(Header::job));
static_assert(kWorkerAt == kKeyAt + sizeof(Header::key));
static_assert(kExponentAt == kWorkerAt + sizeof(Header::worker));
static_assert(kCellAt == kExponentAt + sizeof(Header::exponent));
static_assert(kRoundAt == kCellAt + sizeof(Header::cell));
static_assert(kTensorAt == kRoundAt + sizeof(Header::round));
static_assert(kChunkAt == kTensorAt + sizeof(Header::tensor));
static_assert(kHeaderBytes == kChunkAt + sizeof(Header::chunk));
static_assert(kUdpPayloadBytesMax == UINT16_MAX - kIpv4Bytes - kUdpBytes);
static_assert(kLanesMax == (kUdpPayloadBytesMax - kHeaderBytes) / kWordBytes);
static_assert(2 * kLeaseSlotsMax == std::size_t{1} << 8 * sizeof(Header::cell), "a cell's number fits its field");
static_assert(std::has_single_bit(kThreadsMax) && kSwitchPort % kThreadsMax == 0, "a mask finds a thread by its port");
static_assert(kControlPort + 1 == kSwitchPort);
static_assert(kSwitchWorkersMax == 8 * sizeof(kParentBit) && kBelowRootWorkersMax == kSwitchWorkersMax - 1);
static_assert(kParentBit == std::uint32_t{1} << kBelowRootWorkersMax);
static_assert(kEveryone >= kSwitchWorkersMax && kParent >= kSwitchWorkersMax && kEveryone != kParent);

// Shifts rather than a byte swap: right on either byte order, and compilers make one instruction of it.
constexpr unsigned kByteBits = 8;

void store8(std::span<std::byte, kHeaderBytes> out, std::size_t at, std::uint8_t value) noexcept {
  out[at] = static_cast<std::byte>(value);
}

void store16(std::span<std::byte, kHeaderBytes> out, std::size_t at, std::uint16_t value) noexcept {
  store8(out, at, static_cast<std::uint8_t>(value >> kByteBits));
  store8(out, at + 1, static_cast<std::uint8_t>(value & 0xFF));
}

void store32(std::span<std::byte, kHeaderBytes> out, std::size_t at, std::uint32_t value) noexcept {
  store16(out, at, static_cast<std::uint16_t>(value >> (2 * kByteBits)));
  store16(out, at + 2, static_cast<std::uint16_t>(value & 0xFFFF));
}

std::uint8_t load8(std::span<const std::byte> in, std::size_t at) noexcept {
  return std::to_integer<std::uint8_t>(in[at]);
}

std::uint16_t load16(std::span<const std::byte> in, std::size_t at) noexcept {
  return static_cast<std::uint16_t>(load8(in, at) << kByteBits | load8(in, at + 1));
}

std::uint32_t load32(std::span<const std::byte> in, std::size_t at) noexcept {
  return static_cast<std::uint32_t>(load16(in, at)) << (2 * kByteBits) | load16(in, at + 2);
}

bool carries_payload(Kind kind) noexcept { return kind == Kind::kData || kind == Kind::kResult; }

}  // namespace

void encode(const Header& header, std::span<std::byte, kHeaderBytes> out) noexcept {
  store8(out, kVersionAt, static_cast<std::uint8_t>(kWireVersion << 4 | static_cast<std::uint8_t>(header.kind)));
  store8(out, kFlagsAt, header.flags);
  store16(out, kJobAt, header.job);
  store32(out, kKeyAt, header.key);
  store8(out, kWorkerAt, header.worker);
  store8(out, kExponentAt, header.exponent);
  store16(out, kCellAt, header.cell);
  store32(out, kRoundAt, header.round);
  store32(out, kTensorAt, header.tensor);
  store32(out, kChunkAt, header.chunk);
}

ParseError decode(std::span<const std::byte> datagram, Header& header) noexcept {
  if (datagram.size() < kHeaderBytes) return ParseError::kTruncated;
  const std::uint8_t version_kind = load8(datagram, kVersionAt);
  if (version_kind >> 4 != kWireVersion) return ParseError::kUnknownVersion;
  const std::uint8_t kind_bits = version_kind & 0x0F;
  if (kind_bits > static_cast<std::uint8_t>(Kind::kMissing)) return ParseError::kUnknownKind;
  const Kind kind = static_cast<Kind>(kind_bits);
  const std::size_t payload_bytes = datagram.size() - kHeaderBytes;
  if (carries_payload(kind) ? payload_bytes % kWordBytes != 0 : payload_bytes != 0) return ParseError::kPayload;
  header = Header{.kind = kind,
                  .flags = load8(datagram, kFlagsAt),
                  .job = load16(datagram, kJobAt),
                  .key = load32(datagram, kKeyAt),
                  .worker = load8(datagram, kWorkerAt),
                  .exponent = load8(datagram, kExponentAt),
                  .cell = load16(datagram, kCellAt),
                  .round = load32(datagram, kRoundAt),
                  .tensor = load32(datagram, kTensorAt),
                  .chunk = load32(datagram, kChunkAt)};
  return ParseError::kNone;
}

}  // namespace wiresum::wire
