// What a worker knows of its own tensor: for each chunk, whether anything in it is not zero. Pure.
//
// A tensor may have been scanned as a whole, in part, or not at all. "Unknown" is a state of its own: code that took
// it for "absent" would send zeros in place of numbers, which no other worker could notice.
#pragma once

#include <cassert>
#include <cstdint>
#include <vector>

namespace wiresum::worker {

enum class Presence : std::uint8_t {
  kUnknown,  // not scanned
  kPresent,  // an element is not zero
  kAbsent,   // all are zero, of either sign: the chunk adds nothing
};

class ChunkPresence {
 public:
  /// The state of a tensor with any number of chunks that has not been scanned.
  ChunkPresence() = default;
  /// The state of `chunks` chunks before a scan; set() may be called for them.
  explicit ChunkPresence(std::uint64_t chunks) : known_(chunks, Presence::kUnknown) {}

  void set(std::uint64_t chunk, bool present) noexcept {
    assert(chunk < known_.size());
    known_[chunk] = present ? Presence::kPresent : Presence::kAbsent;
  }

  [[nodiscard]] Presence of(std::uint64_t chunk) const noexcept {
    assert(known_.empty() || chunk < known_.size());
    return known_.empty() ? Presence::kUnknown : known_[chunk];
  }

  /// True unless the chunk is known to be absent.
  [[nodiscard]] bool may_hold(std::uint64_t chunk) const noexcept { return of(chunk) != Presence::kAbsent; }

  /// True if any chunk has been scanned.
  [[nodiscard]] bool scanned() const noexcept { return !known_.empty(); }

 private:
  std::vector<Presence> known_;
};

/// The presence for collectives whose tensor has not been scanned. It is never destroyed: collectives may be in flight
/// when static objects are. (A program without memory for it does not start.)
// NOLINTNEXTLINE(bugprone-throwing-static-initialization)
inline const ChunkPresence& kNothingKnown = *new ChunkPresence;

}  // namespace wiresum::worker
