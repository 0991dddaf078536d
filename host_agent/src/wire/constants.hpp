// Written by p4src/generate_constants.py. Do not edit: change p4src/constants.toml, then `make constants`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wiresum::wire {

/// Of the header, in its first four bits.
inline constexpr std::uint8_t kWireVersion = 1;
/// Of the lines between a program in C and its sidecar.
inline constexpr std::uint8_t kSidecarVersion = 12;

/// TCP: the join service.
inline constexpr std::uint16_t kControlPort = 43487;
/// UDP, 0xA9E0: a switch's thread 0; thread t listens at this port + t.
inline constexpr std::uint16_t kSwitchPort = 43488;
/// TCP: a switch's P4Runtime server; the number that IANA has assigned to P4Runtime.
inline constexpr std::uint16_t kP4runtimePort = 9559;

/// Bytes of a word, of which a payload consists.
inline constexpr std::size_t kWordBytes = 4;
/// Bytes of an IPv4 header without options.
inline constexpr std::size_t kIpv4Bytes = 20;
/// Bytes of a UDP header.
inline constexpr std::size_t kUdpBytes = 8;
/// Bytes of the largest UDP datagram over IPv4.
inline constexpr std::size_t kUdpPayloadBytesMax = 65507;
/// Words of a payload, after the header, in the largest UDP datagram over IPv4.
inline constexpr std::size_t kLanesMax = 16370;
/// Words: what workers and software switches offer is a multiple, so that vectors divide it evenly.
inline constexpr std::size_t kLanesUnit = 8;

enum class Kind : std::uint8_t {
  /// A contribution with payload.
  kData = 0,
  /// A contribution whose words are all zero; no payload.
  kEmpty = 1,
  /// From the switch: the sum.
  kResult = 2,
  /// A contribution of header fields alone (exponents, barrier); no payload.
  kMeta = 3,
  /// Has my contribution to this cell come? Changes nothing; no payload.
  kQuestion = 4,
  /// From the switch: it has not; no payload.
  kMissing = 5,
};

/// Sent again: for statistics only.
inline constexpr std::uint8_t kFlagRetransmission = 1;
/// RESULT, or sent to a parent: the contributions name different tensors.
inline constexpr std::uint8_t kFlagDiverged = 2;

enum class Reason : std::uint8_t {
  /// Counted into its cell, or the parent's RESULT for it.
  kAdmitted = 0,
  /// Answered to its sender alone, or passed on to the parent; or the parent's MISSING.
  kResent = 1,
  /// A duplicate in an incomplete cell, a question about a contribution that is in, or a second RESULT.
  kDuplicate = 2,
  /// Neither the cell's round nor the one that follows it; of the parent's, not the cell's.
  kStale = 3,
  /// Cell outside the lease, or another's of the job's threads.
  kOutOfLease = 4,
  /// No such job, key, worker, thread, source address or port.
  kUnknown = 5,
  /// Does not parse, wrong length, or a kind that its sender may not send.
  kMalformed = 6,
  /// At a hardware switch, sent to it and nothing to do with Wiresum.
  kOther = 7,
};

/// Threads of a worker, and UDP ports of a switch, one for each.
inline constexpr std::size_t kThreadsMax = 16;
/// Workers of a job at one switch, and switches right below it, together: the bits of a bitmap.
inline constexpr std::size_t kSwitchWorkersMax = 32;
/// Likewise of a switch with a parent, which has a bit of the bitmap.
inline constexpr std::size_t kBelowRootWorkersMax = 31;
/// Workers of a job, at all its switches together.
inline constexpr std::size_t kJobWorkersMax = 4096;
/// Switches that a job may use side by side, each with a join service of its own; more would have threads wait.
inline constexpr std::size_t kAggregatorsMax = 8;
/// Job numbers of a software switch, from 0 on, and so multicast groups that it may send to.
inline constexpr std::size_t kJobNumbers = 1024;
/// Slots of a lease: a packet names its cell with 16 bits, and a slot has two cells.
inline constexpr std::size_t kLeaseSlotsMax = 32768;
/// Asked of the kernel for each UDP socket, to receive and to send.
inline constexpr std::size_t kSocketBufferBytes = 8388608;
/// Slots of a switch, for all its jobs.
inline constexpr std::size_t kSwitchSlotsMax = 1048576;

/// All workers of the job at once, at a multicast address; a software switch can.
inline constexpr std::uint8_t kEveryone = 0xFE;
/// The switch above.
inline constexpr std::uint8_t kParent = 0xFF;

/// The switch above, in bitmaps of workers.
inline constexpr std::uint32_t kParentBit = 0x80000000;

/// Bytes of a line between a program in C and its sidecar: the positions of all slots fit.
inline constexpr std::size_t kSidecarLineBytesMax = 524288;
/// Fields of a line.
inline constexpr std::size_t kSidecarFieldsMax = 256;

/// Of the header, in bytes; where a field begins is counted from the start of the UDP payload.
inline constexpr std::size_t kHeaderBytes = 24;
/// WIRE_VERSION, unless somebody speaks another.
inline constexpr std::size_t kVersionAt = 0;
/// What the packet is.
inline constexpr std::size_t kKindAt = 0;
/// One bit each.
inline constexpr std::size_t kFlagsAt = 1;
/// Job number.
inline constexpr std::size_t kJobAt = 2;
/// Of the job's, from the service at join; never 0.
inline constexpr std::size_t kKeyAt = 4;
/// Index at the switch.
inline constexpr std::size_t kWorkerAt = 8;
/// Of the chunk's elements; 0 where unused.
inline constexpr std::size_t kExponentAt = 9;
/// Local to the lease: 2 * slot + (round & 1).
inline constexpr std::size_t kCellAt = 10;
/// How often the slot has been used in this lease, from 1 on.
inline constexpr std::size_t kRoundAt = 12;
/// The collective: signature of the call (upper 16 bits), sequence number (lower 16).
inline constexpr std::size_t kTensorAt = 16;
/// Number of the chunk within the collective.
inline constexpr std::size_t kChunkAt = 20;

}  // namespace wiresum::wire
