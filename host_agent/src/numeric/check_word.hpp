// The check word: the last word of a payload, linear modulo 2^32 in the words before it. Pure.
//
// A switch adds check words like any words. The sum of the workers' check words is the check word of the sum's words,
// if the switch has added the workers' words and no others, and nothing has changed them. docs/protocol.md, section 5,
// defines the check word; docs/protocol_reasons.md says what it shows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/codec.hpp"

namespace wiresum::numeric {

/// The place of a payload, which all workers know alike. The words of each payload have weights of their own.
struct CheckSubject {
  std::uint32_t tensor = 0;
  std::uint32_t chunk = 0;
  std::uint32_t round = 0;
  std::uint32_t slot = 0;  // counted within the lease
};

/// Writes the check word behind the payload's `words` words.
void write_check_word(const CheckSubject& subject, std::byte* payload, std::size_t words,
                      const Kernels& kernels = active_kernels()) noexcept;
/// True if the word behind the payload's `words` words is their check word.
[[nodiscard]] bool check_word_fits(const CheckSubject& subject, const std::byte* payload, std::size_t words,
                                   const Kernels& kernels = active_kernels()) noexcept;

}  // namespace wiresum::numeric
