// The check word: the last word of a payload, linear modulo 2^32 in the words before it. Pure.
//
// A switch adds it as it adds any word. The sum of the workers' check words is then that of the sum's words, if the
// switch has added those words and no others, and nothing has changed them. docs/protocol.md, section 5, has the
// definition, and docs/protocol_reasons.md what it shows and what not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/codec.hpp"

namespace wiresum::numeric {

/// What all workers know alike of a payload. Its words have other weights than those of any other payload.
struct CheckSubject {
  std::uint32_t tensor = 0;
  std::uint32_t chunk = 0;
  std::uint32_t round = 0;
  std::uint32_t slot = 0;  // of the lease
};

/// Writes it behind the payload's `words` words.
void write_check_word(const CheckSubject& subject, std::byte* payload, std::size_t words,
                      const Kernels& kernels = active_kernels()) noexcept;
/// Is what is behind the payload's `words` words their check word?
[[nodiscard]] bool check_word_fits(const CheckSubject& subject, const std::byte* payload, std::size_t words,
                                   const Kernels& kernels = active_kernels()) noexcept;

}  // namespace wiresum::numeric
