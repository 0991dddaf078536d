// A message between a session and its membership: a word and fields. Encoded, it goes over the socket to the sidecar;
// wiresum/agent/sidecar/lines.py, at the other end, describes the form. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

#include "wire/constants.hpp"

namespace wiresum::session {

inline constexpr std::size_t kLineBytesMax = wire::kSidecarLineBytesMax;
inline constexpr std::size_t kFieldsMax = wire::kSidecarFieldsMax;

/// The text is no line of ours.
class LineError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using Fields = std::map<std::string, std::string, std::less<>>;

struct Line {
  std::string word;
  Fields fields;

  /// A field's text. Throws LineError without the field.
  [[nodiscard]] const std::string& text(std::string_view name) const;
  /// A field's number. Throws LineError if it is not a number from `least` to `most`.
  [[nodiscard]] std::uint64_t number(std::string_view name, std::uint64_t least, std::uint64_t most) const;
};

/// The line's text with its end. Throws LineError if the text is too long to be sent.
[[nodiscard]] std::string encode(const Line& line);
/// Decodes `text`, which has no line end. Throws LineError.
[[nodiscard]] Line decode(std::string_view text);

}  // namespace wiresum::session
