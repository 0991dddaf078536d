#include "wire/packet.hpp"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "wire/bytes.hpp"

namespace wiresum::wire {
namespace {

using namespace bytes;

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

bool carries_payload(Kind kind) noexcept { return kind == Kind::kData || kind == Kind::kResult; }

}  // namespace

void encode(const Header& header, std::span<std::byte, kHeaderBytes> out) noexcept {  // R2.14
  std::byte* const to = out.data();
  store8(to, kVersionAt, static_cast<std::uint8_t>(kWireVersion << 4 | static_cast<std::uint8_t>(header.kind)));
  store8(to, kFlagsAt, header.flags);
  store16(to, kJobAt, header.job);
  store32(to, kKeyAt, header.key);
  store8(to, kWorkerAt, header.worker);
  store8(to, kExponentAt, header.exponent);
  store16(to, kCellAt, header.cell);
  store32(to, kRoundAt, header.round);
  store32(to, kTensorAt, header.tensor);
  store32(to, kChunkAt, header.chunk);
}

ParseError decode(std::span<const std::byte> datagram, Header& header) noexcept {
  if (datagram.size() < kHeaderBytes) return ParseError::kTruncated;
  // Shared memory may change meanwhile: the checked copy is used.
  std::array<std::byte, kHeaderBytes> copy;
  std::memcpy(copy.data(), datagram.data(), kHeaderBytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const std::byte* const from = copy.data();
  const std::uint8_t version_kind = load8(from, kVersionAt);
  if (version_kind >> 4 != kWireVersion) return ParseError::kUnknownVersion;  // R2.15
  const std::uint8_t kind_bits = version_kind & 0x0F;
  if (kind_bits > static_cast<std::uint8_t>(Kind::kMissing)) return ParseError::kUnknownKind;  // R2.15
  const Kind kind = static_cast<Kind>(kind_bits);
  const std::size_t payload_bytes = datagram.size() - kHeaderBytes;
  // R2.15
  if (carries_payload(kind) ? payload_bytes % kWordBytes != 0 : payload_bytes != 0) return ParseError::kPayload;
  header = Header{.kind = kind,
                  .flags = load8(from, kFlagsAt),
                  .job = load16(from, kJobAt),
                  .key = load32(from, kKeyAt),
                  .worker = load8(from, kWorkerAt),
                  .exponent = load8(from, kExponentAt),
                  .cell = load16(from, kCellAt),
                  .round = load32(from, kRoundAt),
                  .tensor = load32(from, kTensorAt),
                  .chunk = load32(from, kChunkAt)};
  return ParseError::kNone;
}

}  // namespace wiresum::wire
