// The opening of a stream: exponents of its first chunks, which the workers agree on in the prologue already.
//
// A chunk in block floating point can be quantised when the largest exponent of all workers is known. Each packet says
// what the next one of its slot has, but the first packet of a slot has none before it: for these there is a round trip
// without payload (worker.hpp). A stream comes after a prologue, which can tell them, although nobody knows the union
// yet: what is among the first K chunks of the union is among the first K that a worker has, at each worker that has
// it. So every worker adds the numbers and the exponents of its own first K chunks to the prologue, in fields of its
// own, in which the others add nothing; who knows the union finds there all that anybody has of its first K chunks.
//
// Fields are as wide as the number of the last chunk and an exponent, and straddle words: of 8 workers, 32 of 5556
// chunks take 168 words. They go where the prologue's last packet has room. Where that is too little for half of the
// stream's slots, they take another packet, which is still less than the headers that would ask for them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/survey.hpp"

namespace wiresum::schedule {

class Opening {
 public:
  Opening() = default;
  /// For a stream through `slots` slots of at most `chunks` chunks, in the last packet of `lanes` words of a prologue
  /// that has `counts` words without it.
  Opening(std::uint32_t slots, std::uint64_t chunks, unsigned workers, std::uint64_t counts,
          std::size_t lanes) noexcept;

  /// How many chunks' exponents each worker tells, and the words that they take.
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint64_t words() const noexcept;

  /// Writes this worker's, of its first chunks in `run`. `scans` as in Survey: empty if every chunk holds something.
  /// The words are zero before.
  void write(const Request& request, std::size_t lanes, ChunkRun run, std::span<const numeric::BlockScan> scans,
             unsigned worker, std::span<std::uint32_t> words) const;

  /// After the sum, of the union's first chunks, in its order: `size` of them, or all.
  [[nodiscard]] std::vector<std::uint8_t> read(std::span<const std::uint32_t> words,
                                               std::span<const std::uint32_t> union_chunks) const;

 private:
  std::uint64_t size_ = 0;
  unsigned workers_ = 0;
  unsigned field_bits_ = 0;
};

}  // namespace wiresum::schedule
