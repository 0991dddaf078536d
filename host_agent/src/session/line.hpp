// What a session and its membership say to each other: a word and fields. Encoded, it is what goes over the socket to
// the sidecar; the form is described at the other end, in wiresum/agent/sidecar/lines.py. Pure.
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

/// What came is no line of ours.
class LineError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using Fields = std::map<std::string, std::string, std::less<>>;

struct Line {
  std::string word;
  Fields fields;

  /// Throws LineError if it is not there.
  [[nodiscard]] const std::string& text(std::string_view name) const;
  /// Throws LineError if it is no number from `least` to `most`.
  [[nodiscard]] std::uint64_t number(std::string_view name, std::uint64_t least, std::uint64_t most) const;
};

/// With its end. Throws LineError if it is too long to be sent.
[[nodiscard]] std::string encode(const Line& line);
/// `text` is without its end. Throws LineError.
[[nodiscard]] Line decode(std::string_view text);

}  // namespace wiresum::session
